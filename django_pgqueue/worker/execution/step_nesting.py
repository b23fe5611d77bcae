"""Refuse a step inside the function of another step.

The outer step would be stored without the inner ones, so a later attempt would not call them. In a coroutine, an inner
sleep would wait for the outer step to be stored, which waits for the sleep. `AttemptSteps` calls this module.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from django_pgqueue.steps import StepError

_inside: Final[ContextVar[tuple[object, str] | None]] = ContextVar("pgqueue_inside_step", default=None)
"""The runner and the name of the step whose function runs in this thread or coroutine."""


@contextmanager
def inside(runner: object, name: str) -> Iterator[None]:
    """Mark that the function of a step runs."""
    token = _inside.set((runner, name))
    try:
        yield
    finally:
        _inside.reset(token)


def refuse_nested(runner: object, name: str) -> None:
    """Raise `StepError` inside the function of a step of the same attempt.

    The function can run another job in the foreground, for example by `enqueue()` with `IMMEDIATE`. That job has a
    runner of its own.
    """
    outer = _inside.get()
    if outer is not None and outer[0] is runner:
        raise StepError(
            f"{name!r} is called inside the function of the step {outer[1]!r}, which is stored as a whole: call both "
            "in the function of the task, one after another"
        )
