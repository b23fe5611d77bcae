"""Tasks of which there is to be one job for each key."""

from __future__ import annotations

from django_pgqueue import TaskContext, task
from tests.tools.faults.app.tasks import body, effect, linger


def by_key(key: str, **kwargs: object) -> str:
    """Return the argument that says which of them it is."""
    return key


@task(takes_context=True, backoff=0.5, max_attempts=4, unique_key=by_key)
def keyed(
    context: TaskContext, key: str, tag: str = "", seconds: float = 0.0, before: int = 1, until: str | None = None
) -> None:
    """Have an effect, and the key until the end; fail before the given attempt."""
    with body(context, "keyed"):
        effect(context, "plain")
        linger(context, seconds, until)
        if context.attempt < before:
            raise RuntimeError(f"attempt {context.attempt}")


@task(takes_context=True, backoff=0, unique_key=by_key, unique_while="ready", on_conflict="replace")
def debounced(context: TaskContext, key: str, tag: str = "", seconds: float = 0.0, until: str | None = None) -> None:
    """Have an effect, and the key until the first start; another call takes the place of one that waits."""
    with body(context, "debounced"):
        effect(context, "plain")
        linger(context, seconds, until)


@task(takes_context=True, backoff=0.5, max_attempts=4, unique_key=by_key, unique_while=2.0)
def periodic(context: TaskContext, key: str, tag: str = "", seconds: float = 0.0, before: int = 1) -> None:
    """Have an effect, once in two seconds; fail before the given attempt."""
    with body(context, "periodic"):
        effect(context, "plain")
        linger(context, seconds)
        if context.attempt < before:
            raise RuntimeError(f"attempt {context.attempt}")
