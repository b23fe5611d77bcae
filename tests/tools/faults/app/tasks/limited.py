"""Tasks with limits: how many of a key run at a time or start in a period, and in which order."""

from __future__ import annotations

import random
from pathlib import Path

from django_pgqueue import TaskContext, Throttled, task
from tests.tools.faults import journal, limits
from tests.tools.faults.app.tasks import body, effect, linger


def work(context: TaskContext, seconds: float, until: str | None, before: int) -> None:
    """Have an effect and take a while; fail before the given attempt."""
    with body(context, "limited"):
        effect(context, "plain")
        linger(context, seconds, until)
        if context.attempt < before:
            raise RuntimeError(f"attempt {context.attempt}")


@task(takes_context=True, backoff=0.1, max_attempts=4, limit=limits.SLOTS)
def slotted(
    context: TaskContext,
    key: str,
    tag: str = "",
    weight: int = 1,
    seconds: float = 0.0,
    until: str | None = None,
    before: int = 1,
) -> None:
    """Take slots of its key."""
    work(context, seconds, until, before)


@task(takes_context=True, backoff=0.1, max_attempts=4, limit=limits.TOKENS)
def rated(
    context: TaskContext,
    key: str,
    tag: str = "",
    weight: int = 1,
    seconds: float = 0.0,
    until: str | None = None,
    before: int = 1,
) -> None:
    """Spend tokens of its key."""
    work(context, seconds, until, before)


@task(takes_context=True, backoff=0.1, max_attempts=4, limit=limits.ORDER)
def in_order(
    context: TaskContext, key: str, tag: str = "", seconds: float = 0.0, until: str | None = None, before: int = 1
) -> None:
    """Run after all earlier jobs of its key."""
    work(context, seconds, until, before)


@task(takes_context=True, backoff=0.1, max_attempts=4, limit=limits.BLOCKED)
def blocking(
    context: TaskContext, key: str, tag: str = "", seconds: float = 0.0, unless: str | None = None, before: int = 1
) -> None:
    """Run after all earlier jobs of its key, and not while one of them is dead; fail unless a file exists."""
    work(context, seconds, None, 99 if unless and not Path(unless).exists() else before)


@task(takes_context=True, backoff=0.1, max_attempts=4, limit=limits.HELD)
def throttled(
    context: TaskContext, key: str, tag: str = "", odds: float = 0.0, until: str | None = None, after: float = 1.0
) -> None:
    """Hold its key now and then, or as long as a file is missing."""
    with body(context, "limited"):
        effect(context, "plain")
        if (until and not Path(until).exists()) or random.SystemRandom().random() < odds:
            raise Throttled(after)


@task(takes_context=True, backoff=0.1, max_attempts=6, limit=limits.SERVICE)
def sheltered(context: TaskContext, key: str, tag: str = "", seconds: float = 0.0, until: str | None = None) -> None:
    """Call a service, and fail while it is down: while a file exists."""
    with body(context, "limited"):
        effect(context, "plain")
        linger(context, seconds, until)
        if (where := journal.directory()) is not None and (where / f"down {key}").exists():
            raise ConnectionError("the service is down")
