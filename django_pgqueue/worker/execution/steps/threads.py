"""Refuse a step where it cannot be stored: in another thread, in a transaction, and inside another step.

A step uses Django's connection of its thread, and the order of the steps: two threads would take each other's places,
and a thread of the application would keep a connection that nobody closes. `AttemptSteps` calls this module.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from asgiref.sync import SyncToAsync
from django.db.backends.base.base import BaseDatabaseWrapper

from django_pgqueue.declared.steps import StepError, Suspended

_inside: Final[ContextVar[tuple[object, str] | None]] = ContextVar("pgqueue_inside_step", default=None)
"""The runner and the name of the step whose function runs in this thread or coroutine."""


def refuse_in_transaction(connection: BaseDatabaseWrapper, outer_blocks: int, name: str) -> None:
    """Raise `StepError` inside more atomic blocks than the caller of the job had open."""
    is_in_own_block = len(connection.atomic_blocks) > outer_blocks
    if is_in_own_block or not (connection.in_atomic_block or connection.get_autocommit()):
        raise StepError(
            f"the step {name!r} is called inside a transaction, whose rollback would undo it: call it outside of "
            "transaction.atomic(), or pass Step(…, atomic=True) and open the transaction in its function"
        )


class StepThread:
    """The thread that may call the steps of one attempt."""

    def __init__(self, *, is_async: bool) -> None:
        """Take the present thread, or for a coroutine later that of the asynchronous ORM."""
        self._is_async = is_async
        self._ident = None if is_async else threading.get_ident()

    def check(self, name: str) -> None:
        """Raise `StepError` in another thread."""
        ident = threading.get_ident()
        if self._ident is None and _is_in_sync_to_async():
            self._ident = ident
        if ident != self._ident:
            form = "await the asynchronous form in the coroutine" if self._is_async else "call it in that thread"
            raise StepError(
                f"the step {name!r} is called in a thread that the task has started, and steps belong to the thread of "
                f"the job: {form}, and use other threads only inside the functions of steps"
            )


def _is_in_sync_to_async() -> bool:
    """Return whether `sync_to_async()` has called this code in the thread of the asynchronous ORM.

    The asynchronous forms of the steps do that, and applications may. With `thread_sensitive=False`, another thread is
    called. asgiref leaves no mark in a thread that says which of both it was, so this looks for its frame.
    """
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code is SyncToAsync.thread_handler.__code__:
            return bool(frame.f_locals["self"]._thread_sensitive)
    return False


@contextmanager
def inside(runner: object, name: str) -> Iterator[None]:
    """Mark that the function of a step runs.

    The outer step would be stored without the inner ones, so a later attempt would not call them. In a coroutine, an
    inner sleep would wait for the outer step to be stored, which waits for the sleep.
    """
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


class AsyncCalls:
    """The calls of one attempt that are under way: `asyncio.gather()` can make several.

    `AttemptSteps` passes its calls from coroutines through `beside()`, and the attempt awaits the task in `around()`.
    They protect one rule: an attempt does not end while the function of a step runs, unless the worker stops it.
    Otherwise the next attempt would call this function again beside the first one. All code here runs in the event loop
    of the attempt.
    """

    def __init__(self) -> None:
        self.is_over = False
        """Whether the function of the task has ended."""
        self._running = 0
        self._idle = asyncio.Event()

    async def beside(self, call: Awaitable[Any]) -> Any:
        """Await a call. Before a suspension ends the attempt, let the steps beside it finish and be stored.

        A task group would cancel them otherwise.
        """
        self._running += 1
        self._idle.clear()
        try:
            try:
                return await call
            finally:
                self._running -= 1
                if not self._running:
                    self._idle.set()
        except Suspended:
            await self._wait()
            raise

    async def around(self, function: Awaitable[Any]) -> Any:
        """Await the function of the task, and then the steps that it has left running, for example by a failure."""
        try:
            value = await function
        except asyncio.CancelledError:  # the worker stops the attempt
            self.is_over = True
            raise
        except BaseException:
            await self._end()
            raise
        await self._end()
        return value

    async def _end(self) -> None:
        self.is_over = True
        await self._wait()

    async def _wait(self) -> None:
        while self._running:
            await self._idle.wait()
