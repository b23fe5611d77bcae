"""Tasks that tell what they do: when they begin and end, and by a row what effect they had."""

from __future__ import annotations

import asyncio
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connection

from django_pgqueue import TaskContext, task
from tests.tools.faults import journal
from tests.tools.faults.failpoints import hit


@contextmanager
def body(context: TaskContext, kind: str, **details: Any) -> Iterator[None]:
    """Write down the begin and the end of a body, with the points that lie in it."""
    about = {"job": context.job_id, "execution": context.execution_id, "kind": kind}
    journal.write("start", attempt=context.attempt, **details, **about)
    hit("body.begin")
    try:
        yield
    except BaseException as error:
        journal.write("end", ok=False, error=type(error).__name__, **about)
        raise
    hit("body.done")
    journal.write("end", ok=True, **about)


def effect(context: TaskContext, kind: str) -> None:
    """Leave a row, in whatever transaction is open: what the application would call its effect."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO public.fault_effect (job_id, execution_id, kind) VALUES (%s, %s, %s)",
            [context.job_id, context.execution_id, kind],
        )


def linger(context: TaskContext | None, seconds: float, until: str | None = None) -> None:
    """Take a while, or as long as a file is missing."""
    deadline = time.monotonic() + (60 if until else seconds)
    while time.monotonic() < deadline and not (until and Path(until).exists()):
        pause(min(0.01, max(0.0, deadline - time.monotonic())))


def pause(seconds: float) -> None:
    """Sleep; not by `time.sleep()`, whose absolute deadline libfaketime shifts too when a wall clock jumps."""
    select.select([], [], [], seconds)


@task(takes_context=True, backoff=0)
def plain(context: TaskContext, tag: str = "", seconds: float = 0.0, until: str | None = None) -> int:
    """Have an effect, in a transaction of its own."""
    with body(context, "plain"):
        effect(context, "plain")
        hit("body.mid")
        linger(context, seconds, until)
    return context.attempt


@task(takes_context=True, backoff=0, atomic=True)
def atomic(context: TaskContext, tag: str = "", seconds: float = 0.0, until: str | None = None) -> int:
    """Have an effect in the job's own transaction."""
    with body(context, "atomic"):
        effect(context, "atomic")
        hit("body.mid")
        linger(context, seconds, until)
    return context.attempt


@task(takes_context=True, backoff=0, isolation="process")
def alone(context: TaskContext, tag: str = "", seconds: float = 0.0) -> int:
    """Have an effect from a process of its own."""
    with body(context, "alone"):
        effect(context, "plain")
        hit("body.mid")
        linger(context, seconds)
    return context.attempt


@task(takes_context=True, backoff=0, atomic=True, isolation="process")
def atomic_alone(context: TaskContext, tag: str = "", seconds: float = 0.0) -> int:
    """Have an effect in the job's own transaction, from a process of its own."""
    with body(context, "atomic_alone"):
        effect(context, "atomic")
        hit("body.mid")
        linger(context, seconds)
    return context.attempt


@task(takes_context=True, backoff=0)
async def coroutine(context: TaskContext, tag: str = "", seconds: float = 0.0) -> int:
    """Have an effect from the event loop."""
    with body(context, "coroutine"):
        await sync_to_async(effect)(context, "plain")
        hit("body.mid")
        await asyncio.sleep(seconds)
    return context.attempt


@task(takes_context=True, backoff=0, max_attempts=3)
def failing(context: TaskContext, tag: str = "", before: int = 99, *, seconds: float = 0.0) -> int:
    """Fail before the given attempt."""
    with body(context, "failing"):
        linger(context, seconds)
        if context.attempt < before:
            raise RuntimeError(f"attempt {context.attempt}")
    return context.attempt


@task(takes_context=True, backoff=0, max_attempts=2, atomic=True)
def atomic_failing(context: TaskContext, tag: str = "") -> None:
    """Have an effect, then fail: nothing of it may remain."""
    with body(context, "atomic_failing"):
        effect(context, "atomic")
        raise RuntimeError("after the effect")


@task(takes_context=True, max_attempts=1)
def once(context: TaskContext, tag: str = "", seconds: float = 0.0) -> None:
    """Have one attempt only."""
    with body(context, "once"):
        effect(context, "plain")
        linger(context, seconds)


@task(takes_context=True, backoff=0, retention=0)
def forgotten(context: TaskContext, tag: str = "") -> None:
    """Leave no job behind."""
    with body(context, "forgotten"):
        effect(context, "plain")


@task(takes_context=True, backoff=0, isolation="process")
def with_program(context: TaskContext, tag: str = "", path: str = "", seconds: float = 0.0) -> int:
    """Wait for a program that runs so long, the first time, and note its process id; then have an effect."""
    with body(context, "with_program"):
        program = subprocess.Popen(["sleep", "0" if Path(path).exists() else str(seconds)])
        Path(path).write_text(str(program.pid))
        program.wait()
        effect(context, "plain")
    return context.attempt


@task(takes_context=True, backoff=0)
def in_c(context: TaskContext, tag: str = "", until: str = "") -> int:
    """Stay in one call into C until a file exists."""
    with body(context, "in_c"):
        subprocess.run(["sh", "-c", f"while [ ! -e '{until}' ]; do sleep 0.05; done"], check=True)
        effect(context, "plain")
    return context.attempt
