"""What happened, for logging, metrics and applications; nothing here can change what happened.

A receiver that raises is logged and changes no outcome. In a worker process the receivers of job_succeeded,
job_failed, job_dead, job_cancelled and job_rescued run in a thread of their own (`worker.callbacks`), in order.
Except for `worker_stopping`, the sender is the task's name, and `job_id` and `database`, the job's alias, are given.

| signal | when | process |
|---|---|---|
| job_enqueued | after the insert, inside the caller's still open transaction | the caller's |
| job_started | before the task's function is called | the worker's child, in the job's thread |
| job_succeeded | after the finish was written (an atomic task's: committed) | the worker's child |
| job_failed | a failed attempt was written, another will follow | the worker's child |
| job_dead | the job ended dead | the worker's child, or for a crash a process that the supervisor forks |
| job_cancelled | the job ended cancelled | where that was written: by an act, in its transaction, or a worker |
| job_rescued | a lost worker's execution was closed (failed, dead or cancelled follows) | the rescuing worker |
| worker_stopping | a process that runs jobs is about to end | that process |
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from asgiref.sync import async_to_sync
from django.dispatch import Signal

_senders: dict[str, str] = {}
"""Task names that receivers are connected for: of each the one object that stands for all equal ones."""


class TaskSignal(Signal):
    """A signal whose sender is a task's name: Django compares senders by identity, and a row's name is a new string."""

    def connect(self, receiver: Any, sender: Any = None, *args: Any, **kwargs: Any) -> None:
        """Connect a receiver, to the jobs of one task if `sender` is its name."""
        known = _senders.setdefault(sender, sender) if isinstance(sender, str) else sender
        super().connect(receiver, known, *args, **kwargs)

    def disconnect(self, receiver: Any = None, sender: Any = None, dispatch_uid: str | None = None) -> bool:
        """Disconnect what was connected with these arguments; say whether it was."""
        return super().disconnect(receiver, _senders.get(sender, sender), dispatch_uid)

    def has_listeners(self, sender: Any = None) -> bool:
        """Say whether anybody is connected for the jobs of this task, or for all."""
        return super().has_listeners(_senders.get(sender, sender))

    def send_robust(self, sender: Any, **named: Any) -> list[tuple[Any, Any]]:
        """Call the receivers for this sender and those for all; what one raises is logged and returned."""
        return super().send_robust(_senders.get(sender, sender), **named)

    def calls_for(self, sender: Any, **named: Any) -> list[tuple[Any, Callable[[], Any]]]:
        """Return each receiver for this sender and for all, with a function that calls it; none is called yet.

        `send_robust()` stops at a receiver that raises `SystemExit`, so the worker calls them one by one.
        """
        known = _senders.get(sender, sender)
        receivers, coroutines = self._live_receivers(known)  # Django's own, undocumented
        blocking = [(one, async_to_sync(one)) for one in coroutines]
        about = {"signal": self, "sender": known, **named}
        return [
            (receiver, partial(call, **about)) for receiver, call in [*((one, one) for one in receivers), *blocking]
        ]


job_enqueued = TaskSignal()
"""Arguments: job_id, database, queue_name."""
job_started = TaskSignal()
"""Arguments: job_id, database, execution_id, queue_name, attempt."""
job_succeeded = TaskSignal()
"""Arguments: job_id, database, execution_id, queue_name, attempt, duration_seconds."""
job_failed = TaskSignal()
"""Arguments: job_id, database, execution_id, queue_name, attempt, exception, error, retry_seconds, and duration_seconds
if it ran to its end. For a lost worker, exception and retry_seconds are None."""
job_dead = TaskSignal()
"""Arguments: as job_failed, but for retry_seconds."""
job_cancelled = TaskSignal()
"""Arguments: job_id, database, error (the reason, or empty); of an attempt that ran also those of job_dead, but for
exception."""
job_rescued = TaskSignal()
"""Arguments: job_id, database, execution_id, attempt."""
worker_stopping = Signal()
"""Sent once in a process that runs jobs, before its `atexit` functions and after its last job, so that receivers can
flush what they buffer. Receivers and functions together have 3 seconds. The sender is None.

Arguments: kind ("worker": a worker process; "isolated": a process for isolated jobs), database."""
