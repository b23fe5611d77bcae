"""React to transitions of jobs: notify those who wait for a job, wake workers, and inform observers.

The code that has run a transition of `lifecycle` passes its results to `Reactions.after()`: the worker process, the
supervisor, the operator's methods and the admin. `enqueue()` calls `after_enqueue()`. No other code notifies, wakes, or
sends the signals of a finished attempt. Each kind of process has its own `Reactions`, because an application waits for
its commit, and a worker must not run signal receivers in a thread of the engine. To observe all transitions (metrics,
tracing), write an `Observer`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import psycopg
from django.db import connections

from . import signals
from .db.engine_connection import EngineConnection
from .db.notifications import CANCEL_REQUESTED, wake_workers, wake_workers_after_commit
from .db.statements import Connection
from .db.transactions import raise_if_aborted
from .ground.endings import ENDINGS, Ending
from .lifecycle.types import Claimed, OpenExecution, SetAside, TransitionResult, TransitionStatus
from .settings.conf import get_settings
from .states import FINISHED, State
from .waiting import completion_listener

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from .signals import TaskSignal

logger = logging.getLogger("django_pgqueue.worker")


class TimedAttempt(Protocol):
    """An attempt that has ended in this process. Times are those of the monotonic clock, in seconds."""

    @property
    def claimed(self) -> Claimed: ...
    @property
    def started_at(self) -> float: ...
    @property
    def finished_at(self) -> float: ...


class JobTransition(NamedTuple):
    """A transition and its result for one job. `ending` is None if the transition did not end an attempt."""

    job_id: int
    task_name: str | None
    result: TransitionResult
    ending: Ending | None = None
    error: str = ""
    exception: BaseException | None = None
    delay_seconds: float | None = None
    """Seconds until the job is due, if the transition changed that."""
    is_due: bool = False
    """Whether the job is due at once if it is ready now."""
    is_rescued: bool = False
    exception_class: str = ""
    """Path of the class of the exception, also if the exception itself is in another process."""
    traceback: str = ""
    """Text of the traceback, or of the stack at which a job was stopped."""
    attempt: TimedAttempt | None = None
    """The attempt that ended, if this process ran it."""
    details: Mapping[str, Any] = {}
    """Further arguments of the signals: `execution_id`, `queue_name`, `attempt`, `duration_seconds`."""
    limit_key: str | None = None
    """The limit key of a crashed execution. `attempt` has that of an attempt that this process ran."""


def ended(
    execution: Claimed | OpenExecution | SetAside,
    result: TransitionResult,
    ending: Ending,
    *,
    is_due: bool,
    error: str = "",
    **more: Any,
) -> JobTransition:
    """Return the transition that ended an execution. `more` are further fields of `JobTransition`."""
    details = {
        "execution_id": execution.execution_id,
        "queue_name": execution.queue_name,
        "attempt": execution.attempt,
    }
    return JobTransition(
        execution.job_id, execution.task_name, result, ending, error, is_due=is_due, details=details, **more
    )


class Observer(Protocol):
    """Receives every transition that was made, and successes if it wants them."""

    def wants_successes(self) -> bool:
        """Return whether to pass successes too. Without an observer that wants them, a success costs nothing here."""

    def observe(self, transition: JobTransition, database: str) -> None:
        """Take note of a transition. `database` is the alias of the job's database. Raise nothing and do not block."""


class AttemptsCounter(Protocol):
    """Counts attempts: those that succeeded by the batch, and all other transitions one by one."""

    def count_successes(self, attempts: Sequence[TimedAttempt]) -> None:
        """Count attempts that succeeded. Raise nothing and do not block."""

    def observe(self, transition: JobTransition, database: str) -> None:
        """Count a transition, if it is not such a success. Raise nothing and do not block."""


class WaiterNotifier(Protocol):
    """The applications that wait for jobs."""

    def exist(self) -> bool:
        """Return whether any application waits, as far as this process knows."""

    def notify(self, connection: Any, job_ids: Sequence[int]) -> None:
        """Notify those that wait for one of these jobs. An id too many is harmless. Raise nothing."""


React = Callable[[Any, Sequence[JobTransition]], None]
Follow = Callable[[Connection, Sequence[JobTransition], React], None]


class Reactions:
    """The reactions of one process to its transitions.

    Args:
        observers: Receive each transition, in this order, and before the counters.
        waiters: The applications that wait for jobs.
        wake: Notifies idle workers that jobs are due.
        on_ready: Called if a job became ready, due now or later. The fetcher of this process may sleep too long.
        follow: Does what follows the ends of jobs, and passes further transitions to `react()`. None: a sweep does it.
        counters: Count attempts.
    """

    def __init__(
        self,
        observers: Sequence[Observer],
        waiters: WaiterNotifier,
        wake: Callable[[Any], None] = wake_workers,
        on_ready: Callable[[], None] = lambda: None,
        follow: Follow | None = None,
        counters: Sequence[AttemptsCounter] = (),
    ) -> None:
        self.observers = observers
        self._waiters = waiters
        self._wake = wake
        self._on_ready = on_ready
        self.counters = counters
        self._follow = follow

    def concern_successes(self) -> bool:
        """Return whether anything would happen after a success. If not, successes need not be passed to `after()`."""
        return self._waiters.exist() or any(observer.wants_successes() for observer in self.observers)

    def after(self, connection: Connection, transitions: Sequence[JobTransition]) -> None:
        """React to transitions that were made on `connection`, with an engine connection after their commit."""
        self.react(connection, transitions)
        if self._follow is not None:
            self._follow(connection, transitions, self.react)

    def react(self, connection: Connection, transitions: Sequence[JobTransition]) -> None:
        """React to transitions, but do nothing that follows the ends of jobs."""
        over = [transition.job_id for transition in transitions if may_be_over(transition.result)]
        if over and self._waiters.exist():
            self._waiters.notify(connection, over)
        ready = [transition for transition in transitions if transition.result.state is State.READY]
        if any(transition.is_due for transition in ready):
            self._wake(connection)
        if ready:
            self._on_ready()
        for transition in transitions:
            if transition.result.status is TransitionStatus.DONE:
                for observer in self.observers:
                    observer.observe(transition, connection.alias)
                for counter in self.counters:
                    counter.observe(transition, connection.alias)


def may_be_over(result: TransitionResult) -> bool:
    """Return whether a transition may have ended its job.

    A false positive is harmless, because a notified waiter reads the job's row.
    """
    return result.state in FINISHED or result.status in (TransitionStatus.ALREADY_DONE, TransitionStatus.LOST)


ARGUMENTS: Final[dict[TaskSignal, tuple[str, ...]]] = {
    signals.job_succeeded: (),
    signals.job_cancelled: ("error",),
    signals.job_failed: ("exception", "exception_class", "error", "traceback", "retry_seconds"),
    signals.job_dead: ("exception", "exception_class", "error", "traceback"),
    signals.job_released: ("error", "delay_seconds"),
    signals.job_snoozed: ("error", "delay_seconds"),
    signals.job_suspended: ("error", "delay_seconds"),
    signals.job_rescued: (),
}
"""The arguments of a signal that are fields of a transition."""
FIELDS: Final = {"retry_seconds": "delay_seconds"}
"""The fields that have another name than their argument."""


def signals_of(transition: JobTransition) -> Iterator[TaskSignal]:
    """Yield the signals that report a transition, in the order in which they are sent."""
    if transition.is_rescued:
        yield signals.job_rescued
    state = transition.result.state
    if transition.ending is not None:
        signal = ENDINGS[transition.ending].signals.get(state) if state is not None else None
        if signal is not None:
            yield signal
    elif state is State.CANCELLED:  # by an operator, or because it expired
        yield signals.job_cancelled


def arguments_of(transition: JobTransition, signal: TaskSignal, database: str) -> dict[str, Any]:
    """Return the arguments of a signal."""
    arguments = {"job_id": transition.job_id, "database": database, **transition.details}
    return arguments | {name: getattr(transition, FIELDS.get(name, name)) for name in ARGUMENTS[signal]}


class SendSignals:
    """The observer of an application's process: it sends each signal at once, inside the caller's transaction."""

    def wants_successes(self) -> bool:
        """Return True if `job_succeeded` has receivers."""
        return bool(signals.job_succeeded.receivers)

    def observe(self, transition: JobTransition, database: str) -> None:
        """Send the signals of a transition. Django logs the exceptions of receivers; see `raise_if_aborted()`."""
        for signal in signals_of(transition):
            if signal.has_listeners(transition.task_name):
                arguments = arguments_of(transition, signal, database)
                responses = signal.send_robust(sender=transition.task_name, **arguments)
                raise_if_aborted(connections[database], responses)


class AnyWaiters:
    """Notifies every application that may wait. For processes that do not receive the announcements of waits."""

    def exist(self) -> bool:
        """Return True unless `NOTIFY` is off, because this process cannot know."""
        return get_settings().NOTIFY

    def notify(self, connection: Any, job_ids: Sequence[int]) -> None:
        """Send the ids on an engine connection. On a Django connection do nothing."""
        if not isinstance(connection, EngineConnection):
            return
        try:
            completion_listener.notify(connection, completion_listener.OVER, job_ids)
        except (psycopg.Error, OSError):
            logger.debug("could not notify the applications that wait for finished jobs", exc_info=True)


class AnyWaitersAfterCommit(AnyWaiters):
    """The same for an application's own process, when the transaction on its Django connection has committed."""

    def notify(self, connection: Any, job_ids: Sequence[int]) -> None:
        """Send the ids after the commit."""
        for payload in completion_listener.payloads(job_ids):
            wake_workers_after_commit(connection, payload, channel=completion_listener.OVER)


_APPLICATION: Final = Reactions([SendSignals()], AnyWaitersAfterCommit(), wake=wake_workers_after_commit)


def after_operator(
    connection: BaseDatabaseWrapper, changed: Mapping[int, State], task_names: Mapping[int, str], *, makes_due: bool
) -> None:
    """React to an operator's transition, in the caller's transaction: workers are notified after the commit."""
    if State.RUNNING in changed.values():
        wake_workers_after_commit(connection, CANCEL_REQUESTED)
    _APPLICATION.after(connection, operated(changed, task_names, makes_due=makes_due))


def operated(changed: Mapping[int, State], task_names: Mapping[int, str], *, makes_due: bool) -> list[JobTransition]:
    """Return the transitions of jobs that an operator has changed."""
    return [
        JobTransition(job_id, task_names[job_id], TransitionResult(TransitionStatus.DONE, state), is_due=makes_due)
        for job_id, state in changed.items()
    ]


def after_application(connection: Connection, transitions: Sequence[JobTransition]) -> None:
    """React to transitions in an application's process, in the caller's transaction."""
    _APPLICATION.after(connection, transitions)


def after_enqueue(connection: BaseDatabaseWrapper, task_name: str, queue_name: str, job_ids: Iterable[int]) -> None:
    """Wake the workers after the commit, and send `job_enqueued` for each job now, inside the caller's transaction."""
    wake_workers_after_commit(connection)
    if signals.job_enqueued.receivers:
        arguments = {"database": connection.alias, "queue_name": queue_name}
        for job_id in job_ids:
            responses = signals.job_enqueued.send_robust(sender=task_name, job_id=job_id, **arguments)
            raise_if_aborted(connection, responses)
