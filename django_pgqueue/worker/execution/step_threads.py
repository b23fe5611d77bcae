"""Refuse a step where the job's connection cannot store it: in another thread, and inside a transaction.

A step uses Django's connection of its thread, and the order of the steps: two threads would take each other's places,
and a thread of the application would keep a connection that nobody closes. `AttemptSteps` calls this module.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

from asgiref.sync import SyncToAsync

from django_pgqueue.steps import StepError

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper


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
