"""Django signals that report what happened to jobs and to workers, for logging, metrics and application code.

`enqueue()`, the operators' functions and the worker send the signals after the fact. The sender logs an exception of a
receiver and continues. In the caller's transaction, a receiver whose query fails aborts that transaction, and the
caller gets an error.

Each signal describes itself: when it is sent, where its receivers run, and its arguments.
`python -m tests.tools.signals_page --write` writes the table in docs/reference/signals.md from these descriptions. The
sender of a `TaskSignal` is the task's name, and its arguments include `job_id` and `database` (the alias of the job's
database). The sender of a `WorkerSignal` is None.

In a worker process, one separate thread calls the receivers of the engine's signals in the order of the events, so that
no receiver blocks a thread of the engine. `job_started` and `worker_process_stopping` are exceptions, and so is what a
task does itself: `enqueue()` and `cancel()`. See `worker.completion.receiver_thread`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from asgiref.sync import async_to_sync
from django.dispatch import Signal

_senders: dict[str, str] = {}
"""Task names with a receiver, each mapped to the string object that stands for all equal strings (see `TaskSignal`)."""


class WorkerSignal(Signal):
    """A signal with a description. Its receivers can be called one by one.

    Args:
        moment: When it is sent, in Markdown.
        where: The process, and the thread if it matters, in which the receivers run.
        arguments: The names of the arguments that every call has.
        sometimes: Further arguments, each with the condition under which a call has it.
    """

    def __init__(
        self,
        moment: str = "",
        *,
        where: str = "",
        arguments: Sequence[str] = (),
        sometimes: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        self.moment = moment
        self.where = where
        self.arguments = tuple(arguments)
        self.sometimes = sometimes

    def calls_for(self, sender: Any, **named: Any) -> list[tuple[Any, Callable[[], Any]]]:
        """Return each receiver for this sender and for all senders, with a function that calls it. Call none of them.

        The worker calls the receivers one by one, because `send_robust()` stops at a receiver that raises `SystemExit`.
        """
        receivers, async_receivers = self._live_receivers(sender)  # private and undocumented in Django
        calls = [(receiver, receiver) for receiver in receivers]
        calls += [(receiver, async_to_sync(receiver)) for receiver in async_receivers]
        arguments = {"signal": self, "sender": sender, **named}
        return [(receiver, partial(call, **arguments)) for receiver, call in calls]


class TaskSignal(WorkerSignal):
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
        """Return each receiver for this task and for all tasks, with a function that calls it. Call none of them."""
        return super().calls_for(_senders.get(sender, sender), **named)


_JOB: Final = ("job_id", "database")
_ATTEMPT: Final = (*_JOB, "execution_id", "queue_name", "attempt")
_FAILURE: Final = ("exception", "exception_class", "error", "traceback")
_WORKER: Final = ("pid", "database", "queue_names", "processes", "concurrency")
_PROCESS: Final = ("kind", "database")
_DURATION: Final = MappingProxyType(
    {"duration_seconds": "unless the worker process was lost, or the job's row could not be claimed"}
)
_CALLBACKS: Final = "the worker process, in its callback thread"
_AFTER_CRASH: Final = f"{_CALLBACKS}; after a crash, the process `pgqueue-requeue`"
_AFTER_LOSS: Final = f"{_AFTER_CRASH}, or the rescuing worker process"
_HELPER: Final = "the process `pgqueue-signals`, which the supervisor forks for it"

job_enqueued = TaskSignal(
    "The job was inserted. If you have opened a transaction, it is still open.",
    where="the process that called `enqueue()`, in the caller's thread; for a [job of a "
    "schedule](#jobs-of-schedules), the process that fired it",
    arguments=(*_JOB, "queue_name"),
)
"""A job was inserted."""
job_started = TaskSignal(
    "The worker is about to call the function.",
    where="the process that runs the job, in the job's thread; for a coroutine task, in the thread of the asynchronous "
    "ORM",
    arguments=_ATTEMPT,
)
"""An attempt is about to call the task's function."""
job_succeeded = TaskSignal(
    "The job succeeded. Sent after the completion was written.",
    where=_CALLBACKS,
    arguments=(*_ATTEMPT, "duration_seconds"),
)
"""A job succeeded."""
job_failed = TaskSignal(
    "The attempt failed, and the job will be retried. Sent after the failure was written.",
    where=_AFTER_LOSS,
    arguments=(*_ATTEMPT, *_FAILURE, "retry_seconds"),
    sometimes=_DURATION,
)
"""An attempt failed, and another one follows. After a lost worker, `exception` and `retry_seconds` are None.
After an isolated job, `exception` is None; `exception_class` and `traceback` are the strings that its execution has."""
job_dead = TaskSignal(
    "The job became dead.",
    where=_AFTER_LOSS,
    arguments=(*_ATTEMPT, *_FAILURE),
    sometimes=_DURATION,
)
"""A job became dead. Its arguments are as those of `job_failed`."""
job_cancelled = TaskSignal(
    "The job was cancelled: see [below](#when-a-job-is-cancelled).",
    where="after `cancel()` of a waiting job, the process that called it, in the caller's thread; otherwise the worker "
    "process, in its callback thread",
    arguments=(*_JOB, "error"),
    sometimes=dict.fromkeys(_ATTEMPT[2:], "if an attempt ended")
    | {"duration_seconds": "if the task ended its attempt"},
)
"""A job was cancelled. `error` is the reason, or an empty string."""
job_released = TaskSignal(
    "The worker made the job ready again, and the attempt does not count: see [below](#when-a-job-is-released).",
    where=_AFTER_CRASH,
    arguments=(*_ATTEMPT, "error", "delay_seconds"),
    sometimes={"duration_seconds": "if the attempt had ended before the release"},
)
"""A worker released a job. `error` is the reason, or an empty string. `delay_seconds` is None if the job is due as
before."""
job_snoozed = TaskSignal(
    "The task raised `Snooze` or `Throttled`, and the job is ready again for a later time.",
    where=_CALLBACKS,
    arguments=(*_ATTEMPT, "error", "delay_seconds", "duration_seconds"),
)
"""A task raised `Snooze` or `Throttled`. `error` is its reason, or an empty string."""
job_suspended = TaskSignal(
    "A durable step sleeps, waits for an event or is to be tried again. The job is ready again for a later time.",
    where=_CALLBACKS,
    arguments=(*_ATTEMPT, "error", "delay_seconds", "duration_seconds"),
)
"""A durable step has suspended a job. `error` says which step and why. `delay_seconds` is None if the job waits for an
event without a timeout."""
job_rescued = TaskSignal(
    "A worker closed an execution whose lease had ended. After it, `job_failed`, `job_dead` or `job_cancelled` is "
    "sent.",
    where="the rescuing worker process, in its callback thread",
    arguments=_ATTEMPT,
)
"""A lost worker's execution was closed."""
worker_started = WorkerSignal(
    "The worker starts, and its database is ready. Sent once per worker; with several databases, once for each.",
    where=_HELPER,
    arguments=_WORKER,
)
"""A worker starts. `pid` is the process id of its supervisor."""
worker_stopping = WorkerSignal(
    "The worker begins to stop: it has received a signal, or with `--until-empty` its last process has ended. Sent "
    "once per worker; with several databases, once for each.",
    where=_HELPER,
    arguments=_WORKER,
)
"""A worker begins to stop."""
worker_process_started = WorkerSignal(
    "A process that runs jobs starts. Sent before its first job, which waits for the receivers.",
    where="the worker process, in its callback thread; in an isolated process, in a thread of its own",
    arguments=_PROCESS,
)
"""A process that runs jobs starts. `kind` is "worker" for a worker process and "isolated" for an isolated process."""
worker_process_stopping = WorkerSignal(
    "A process that runs jobs ends. Sent after its last job, before its `atexit` functions.",
    where="that process, in a thread of its own",
    arguments=_PROCESS,
)
"""A process that runs jobs ends. `kind` is as for `worker_process_started`."""
