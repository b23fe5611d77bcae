"""Django signals that report what happened to jobs, for logging, metrics and application code.

`enqueue()`, the operators' functions and the worker send the signals after the fact. No receiver can change what
happened: the sender logs an exception of a receiver and continues.

The sender of every signal except `worker_stopping` is the task's name. Its arguments include `job_id` and `database`
(the alias of the job's database).

| signal | sent | process |
|---|---|---|
| job_enqueued | after the INSERT, inside the caller's open transaction | the caller |
| job_started | before the worker calls the task's function | the worker process, in the job's thread |
| job_succeeded | after the completion was written (of an atomic task: committed) | the worker process |
| job_failed | after a failed attempt was written, if another attempt follows | the worker process |
| job_dead | after the job became dead | the worker process; after a crash, a process that the supervisor forks |
| job_cancelled | after the job was cancelled | the writer: `cancel()` (inside its transaction) or a worker |
| job_rescued | after the execution of a lost worker was closed | the rescuing worker |
| worker_stopping | before a process that runs jobs ends | that process |

After job_rescued follows job_failed, job_dead or job_cancelled, depending on the job's new state.

In a worker process, one separate thread calls the receivers of job_succeeded, job_failed, job_dead, job_cancelled and
job_rescued in the order of the events, so that no receiver blocks a thread of the engine. See
`worker.completion.callbacks`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from asgiref.sync import async_to_sync
from django.dispatch import Signal

_senders: dict[str, str] = {}
"""Task names with a receiver, each mapped to the string object that stands for all equal strings (see `TaskSignal`)."""


class TaskSignal(Signal):
    """A signal whose sender is a task's name.

    Django compares senders by identity, but each name that is read from a row is a new string object. This class
    replaces equal names with the object that was used in `connect()`.
    """

    def connect(self, receiver: Any, sender: Any = None, *args: Any, **kwargs: Any) -> None:
        """Connect a receiver.

        Args:
            receiver: Function that accepts the signal's arguments and `**kwargs`, because arguments may be added.
            sender: Name of a task, to receive only signals about its jobs. None receives those of all tasks.
            *args: As for Django's `Signal.connect()`.
            **kwargs: As for Django's `Signal.connect()`.

        Example::

            @receiver(job_dead, sender="shop.tasks.charge")
            def alert(sender, job_id, error, **kwargs):
                mail_admins(f"job {job_id} is dead", error)
        """
        sender_key = _senders.setdefault(sender, sender) if isinstance(sender, str) else sender
        super().connect(receiver, sender_key, *args, **kwargs)

    def disconnect(self, receiver: Any = None, sender: Any = None, dispatch_uid: str | None = None) -> bool:
        """Disconnect the receiver that was connected with these arguments; return whether there was one."""
        return super().disconnect(receiver, _senders.get(sender, sender), dispatch_uid)

    def has_listeners(self, sender: Any = None) -> bool:
        """Return whether a receiver is connected for this task or for all tasks."""
        return super().has_listeners(_senders.get(sender, sender))

    def send_robust(self, sender: Any, **named: Any) -> list[tuple[Any, Any]]:
        """Call the receivers for this task and those for all tasks.

        Returns:
            Pairs of receiver and return value, or exception if the receiver raised one. Django logs the exceptions.
        """
        return super().send_robust(_senders.get(sender, sender), **named)

    def calls_for(self, sender: Any, **named: Any) -> list[tuple[Any, Callable[[], Any]]]:
        """Return each receiver for this task and for all tasks, with a function that calls it. Call none of them.

        The worker calls the receivers one by one, because `send_robust()` stops at a receiver that raises `SystemExit`.
        """
        sender_key = _senders.get(sender, sender)
        receivers, async_receivers = self._live_receivers(sender_key)  # private and undocumented in Django
        calls = [(receiver, receiver) for receiver in receivers]
        calls += [(receiver, async_to_sync(receiver)) for receiver in async_receivers]
        arguments = {"signal": self, "sender": sender_key, **named}
        return [(receiver, partial(call, **arguments)) for receiver, call in calls]


job_enqueued = TaskSignal()
"""Arguments: job_id, database, queue_name."""
job_started = TaskSignal()
"""Arguments: job_id, database, execution_id, queue_name, attempt."""
job_succeeded = TaskSignal()
"""Arguments: job_id, database, execution_id, queue_name, attempt, duration_seconds."""
job_failed = TaskSignal()
"""Arguments: job_id, database, execution_id, queue_name, attempt, exception, error, retry_seconds; also
duration_seconds if the attempt ran to its end. After a lost worker, exception and retry_seconds are None."""
job_dead = TaskSignal()
"""Arguments: as for job_failed, without retry_seconds."""
job_cancelled = TaskSignal()
"""Arguments: job_id, database, error (the reason, or ""); after an attempt also those of job_dead except exception."""
job_rescued = TaskSignal()
"""Arguments: job_id, database, execution_id, attempt."""
worker_stopping = Signal()
"""Sent once in each process that runs jobs, after its last job and before its `atexit` functions, so that receivers can
flush buffers. The receivers and the `atexit` functions together have 3 seconds. The sender is None.

Arguments: kind ("worker" for a worker process, "isolated" for an isolated process), database."""
