"""Pause, resume, drain and clear a whole queue, all jobs of a task, or those of a limit or limit key.

Applications, the admin and `manage.py pgqueue` call these functions. While one of these is paused, `enqueue()` still
adds jobs; they wait, and none is lost. Running jobs continue. Workers stop claiming within a second (`OBEY_SECONDS`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from django.db import connections, transaction

from django_pgqueue.db.notifications import PAUSES_CHANGED, wake_workers_after_commit
from django_pgqueue.db.transactions import is_in_transaction
from django_pgqueue.durations import Duration, seconds
from django_pgqueue.ends import job_operations
from django_pgqueue.lifecycle import audit, bulk_acts, pauses
from django_pgqueue.states import ActOutcome, Pausable, State, TransitionName
from django_pgqueue.tasks import registry

from .targets import alias_of, bounds_of, check_use, in_limit, names_of, stored_text, target_of, task_name

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_pgqueue.models import JobQuerySet

POLL_SECONDS: Final = 0.1
"""How often `drain()` counts the running jobs."""
OBEY_SECONDS: Final = 1.0
"""Maximum age of a worker's information about pauses when it claims."""
CLEAR_BATCH: Final = 1000
"""Jobs that one statement of `clear()` cancels."""


def pause(
    queue_name: str | None = None,
    *,
    task: Any = None,
    limit_key: str | None = None,
    until: Duration | datetime | None = None,
    reason: str = "",
    by: str = "",
    database: str | None = None,
) -> None:
    """Pause a queue, a task or a limit: workers claim none of its jobs until the pause ends.

    The pause and its entry in the audit are written in the transaction that is open on the database, and workers apply
    it after the commit. The end, `reason` and `by` replace those of an earlier pause.

    Args:
        queue_name: The queue to pause. Pass either this, `task` or `limit_key`.
        task: The task to pause: a task of this package, a task of Django's tasks framework, or a task's name.
        limit_key: The limit to pause, by its name: all its keys; or one limit key, such as "stripe:customer:7".
        until: End of the pause: seconds or a timedelta from now, or an aware datetime. By default the pause lasts until
            `resume()`.
        reason: Text for people to read. 1,000 characters are stored.
        by: The person or program that pauses, for people to read. 150 characters are stored.
        database: Alias of the database of the jobs. By default the database routers choose it.

    Raises:
        TypeError: Not exactly one of `queue_name`, `task` and `limit_key` is given, or `until` has the wrong type.
        ValueError: The name is invalid, `PGQUEUE["QUEUES"]` does not list the queue, or `until` is negative, in the
            past, or without a time zone.

    Warns:
        UnknownQueueWarning: Nothing uses the queue, and a queue with a similar name is used.
        UnknownLimitWarning: No task has the limit, and one has a limit with a similar name.
        UnknownTaskWarning: This process has no task with the name, and one with a similar name.

    Example:
        >>> control.pause("mail", until=timedelta(hours=1), reason="SMTP server is down")
    """
    kind, name = target_of(queue_name, task, limit_key)
    bounds, database_alias = bounds_of(until), alias_of(database)
    check_use(kind, name, database_alias)
    _pause(kind, name, database_alias, bounds, by=by, reason=reason)


def pause_named(
    kind: Pausable,
    name: str,
    database: str,
    *,
    until: datetime | None,
    reason: str,
    by: str,
    only_new: bool = False,
) -> bool:
    """Pause by the name in a pause's row. The admin uses this: it checks the name and reports problems by itself.

    With `only_new`, a pause in force stays as it is. Return whether this call has paused.
    """
    name = task_name(name) if kind is Pausable.TASK else name
    return _pause(kind, name, database, bounds_of(until), by=by, reason=reason, only_new=only_new)


def _pause(
    kind: Pausable, name: str, database: str, bounds: dict[str, Any], *, by: str, reason: str, only_new: bool = False
) -> bool:
    connection = connections[database]
    by, reason = stored_text(by, 150), stored_text(reason, 1000)
    with transaction.atomic(using=database):
        for former_name in names_of(kind, name)[1:]:  # a pause from before a task was renamed would outlast the new one
            pauses.resume(connection, kind, former_name, resumed_by=by, reason=reason)
        is_paused = pauses.pause(connection, kind, name, **bounds, paused_by=by, reason=reason, only_new=only_new)
        wake_workers_after_commit(connection, PAUSES_CHANGED)
    return is_paused


def resume(
    queue_name: str | None = None,
    *,
    task: Any = None,
    limit_key: str | None = None,
    reason: str = "",
    by: str = "",
    database: str | None = None,
) -> bool:
    """End the pause of a queue, a task or a limit.

    The change and its entry in the audit are part of the transaction that is open on the database, as with `pause()`.
    If the task was renamed, pauses under its former names (`aliases`) end too.

    Args:
        queue_name: The queue to resume. Pass either this, `task` or `limit_key`.
        task: The task to resume: a task of this package, a task of Django's tasks framework, or a task's name.
        limit_key: The limit to resume, by its name, or one limit key.
        reason: Text for the audit. 1,000 characters are stored.
        by: The person or program that resumes it. The audit stores 150 characters.
        database: Alias of the database of the jobs. By default the database routers choose it.

    Returns:
        True if there was a pause that had not ended by itself.

    Raises:
        TypeError: Not exactly one of `queue_name`, `task` and `limit_key` is given.
        ValueError: The name is invalid, or the queue was not paused and `PGQUEUE["QUEUES"]` does not list it.

    Warns:
        UnknownQueueWarning: Nothing uses the queue, and a queue with a similar name is used.
        UnknownLimitWarning: No task has the limit, and one has a limit with a similar name.
        UnknownTaskWarning: This process has no task with the name, and one with a similar name.
    """
    kind, name = target_of(queue_name, task, limit_key)
    resumed = resume_named(kind, name, alias_of(database), by=by, reason=reason)
    if not resumed:
        check_use(kind, name, alias_of(database))
    return resumed


def resume_named(kind: Pausable, name: str, database: str, *, by: str, reason: str = "") -> bool:
    """End a pause by the name in its row, without checking the name.

    The admin uses it, because a row written by hand may have a name that `pause()` would refuse.
    """
    connection = connections[database]
    note = {"resumed_by": stored_text(by, 150), "reason": stored_text(reason, 1000)}
    with transaction.atomic(using=database):
        resumed = [pauses.resume(connection, kind, any_name, **note) for any_name in names_of(kind, name)]
        wake_workers_after_commit(connection, PAUSES_CHANGED)
    return any(resumed)


def drain(
    queue_name: str | None = None,
    *,
    task: Any = None,
    limit_key: str | None = None,
    timeout: Duration | None = None,
    reason: str = "drained",
    by: str = "",
    database: str | None = None,
) -> int:
    """Pause a queue, a task or a limit, and wait until none of its jobs is running.

    It waits at least a second (`OBEY_SECONDS`) unless `timeout` is shorter, because workers apply a pause within that
    time. It stays paused afterwards. Call it outside a transaction.

    Args:
        queue_name: The queue to drain. Pass either this, `task` or `limit_key`.
        task: The task to drain: a task of this package, a task of Django's tasks framework, or a task's name.
        limit_key: The limit to drain, by its name, or one limit key.
        timeout: How long to wait at most, in seconds or as a timedelta. By default there is no limit.
        reason: Text for people to read. 1,000 characters are stored.
        by: The person or program that drains, for people to read. 150 characters are stored.
        database: Alias of the database of the jobs. By default the database routers choose it.

    Returns:
        The number of jobs that are still running: 0 unless `timeout` passed first.

    Raises:
        RuntimeError: A transaction is open. Workers would not see the pause before its commit.
        TypeError: Not exactly one of `queue_name`, `task` and `limit_key` is given, or `timeout` has the wrong type.
        ValueError: The name is invalid, `PGQUEUE["QUEUES"]` does not list the queue, or `timeout` is negative or not
            finite.

    Warns:
        UnknownQueueWarning: Nothing uses the queue, and a queue with a similar name is used.
        UnknownLimitWarning: No task has the limit, and one has a limit with a similar name.
        UnknownTaskWarning: This process has no task with the name, and one with a similar name.
    """
    kind, name = target_of(queue_name, task, limit_key)
    timeout_seconds = float("inf") if timeout is None else seconds(timeout)
    database_alias = alias_of(database)
    if is_in_transaction(connections[database_alias]):
        raise RuntimeError(
            "drain() cannot run inside a transaction: workers do not see the pause before its transaction is committed"
        )
    check_use(kind, name, database_alias)
    _pause(kind, name, database_alias, bounds_of(None), by=by, reason=reason)
    return _wait_until_none(running_behind(kind, name, database_alias), timeout_seconds)


def _wait_until_none(still_running: JobQuerySet, timeout_seconds: float) -> int:
    """Wait until workers have applied a pause and no job is left; return how many are when the time is over."""
    began = time.monotonic()
    while (count := still_running.count()) or time.monotonic() < began + OBEY_SECONDS:
        if time.monotonic() >= began + timeout_seconds:
            break
        time.sleep(POLL_SECONDS)
    return count


def clear(
    queue_name: str | None = None,
    *,
    task: Any = None,
    limit_key: str | None = None,
    reason: str = "",
    by: str = "",
    database: str | None = None,
    on_batch: Callable[[int], None] = lambda count: None,
) -> int:
    """Cancel the waiting jobs of a queue, a task or a limit, including jobs that are due later.

    Running jobs continue. The jobs are cancelled in batches. Each batch is a transaction of its own unless a
    transaction is open, and adds its jobs to one entry of the audit. If an operator stops that act, the other jobs
    stay. The duration depends on the number of ready jobs, and not on that of finished ones.

    Args:
        queue_name: The queue to clear. Pass either this, `task` or `limit_key`.
        task: The task to clear: a task of this package, a task of Django's tasks framework, or a task's name.
        limit_key: The limit to clear, by its name, or one limit key.
        reason: Text for the audit. 1,000 characters are stored.
        by: The person or program that cancels the jobs. The audit stores 150 characters.
        database: Alias of the database of the jobs. By default the database routers choose it.
        on_batch: Called after each batch with the number of jobs cancelled so far.

    Returns:
        The number of cancelled jobs.

    Raises:
        TypeError: Not exactly one of `queue_name`, `task` and `limit_key` is given.
        ValueError: The name is invalid, or no job was waiting and `PGQUEUE["QUEUES"]` does not list the queue.

    Warns:
        UnknownQueueWarning: Nothing uses the queue, and a queue with a similar name is used.
        UnknownLimitWarning: No task has the limit, and one has a limit with a similar name.
        UnknownTaskWarning: This process has no task with the name, and one with a similar name.
    """
    kind, name = target_of(queue_name, task, limit_key)
    note = {"done_by": stored_text(by, 150), "reason": stored_text(reason, 1000)}
    cancelled = _clear(kind, name, connections[alias_of(database)], note, on_batch)
    if not cancelled:
        check_use(kind, name, alias_of(database))
    return cancelled


def _clear(
    kind: Pausable,
    name: str,
    connection: BaseDatabaseWrapper,
    note: dict[str, Any],
    on_batch: Callable[[int], None],
) -> int:
    from django_pgqueue.models.operations_link import JobsToChange  # task modules are imported before models can be

    cancelled, column = 0, pauses.COLUMNS[kind]
    entry = _Clearing(connection, {"word": State.READY.value, column: name}, note)
    for any_name in names_of(kind, name):
        for batch in bulk_acts.waiting_jobs(connection, **{column: any_name}, limit=CLEAR_BATCH):
            jobs = JobsToChange(connection, batch, record=partial(entry.record, batch))
            cancelled += len(job_operations.cancel(jobs, running=False))
            on_batch(cancelled)
            if entry.is_stop_asked:
                entry.end(ActOutcome.STOPPED)
                return cancelled
    entry.end(ActOutcome.DONE)
    return cancelled


class _Clearing:
    """Write the entry of the audit for one `clear()`, when the first job is cancelled."""

    def __init__(self, connection: BaseDatabaseWrapper, chosen: dict[str, str], note: dict[str, Any]) -> None:
        self.is_stop_asked = False
        self._connection = connection
        self._begin = partial(audit.begin_audit, connection, TransitionName.CANCEL.value, chosen, **note)
        self._id: int | None = None

    def record(self, batch: Collection[int], changed: Collection[int]) -> None:
        """Add the jobs that a batch has cancelled, in its transaction, without those that depend on them."""
        if job_ids := sorted(set(batch).intersection(changed)):
            self._id = self._id or self._begin()
            self.is_stop_asked = audit.record_audit(self._connection, self._id, job_ids)

    def end(self, outcome: ActOutcome) -> None:
        if self._id is not None:
            audit.end_audit(self._connection, self._id, outcome)


def waiting(
    queue_name: str | None = None,
    *,
    task: Any = None,
    limit_key: str | None = None,
    database: str | None = None,
) -> JobQuerySet:
    """Return the jobs that `clear()` would cancel. The arguments and errors are those of `clear()`."""
    return waiting_behind(*target_of(queue_name, task, limit_key), alias_of(database))


def waiting_behind(kind: Pausable, name: str, database: str) -> JobQuerySet:
    """Return the waiting jobs of the queue, task or limit in a pause's row, without checking the name."""
    from django_pgqueue.models import Job  # task modules are imported before models can be

    if kind is Pausable.LIMIT:
        return Job.objects.using(database).filter(in_limit(name), state=State.READY.value, limit_key__isnull=False)
    # With the condition of the index that finds them.
    return _behind(kind, name, Job.objects.using(database).ready())


def running(
    queue_name: str | None = None,
    *,
    task: Any = None,
    limit_key: str | None = None,
    database: str | None = None,
) -> JobQuerySet:
    """Return the running jobs that `drain()` waits for. The arguments and errors are those of `clear()`."""
    return running_behind(*target_of(queue_name, task, limit_key), alias_of(database))


def running_behind(kind: Pausable, name: str, database: str) -> JobQuerySet:
    """Return the running jobs of the queue, task or limit in a pause's row, without checking the name."""
    from django_pgqueue.models import Job  # as above

    if kind is Pausable.LIMIT:
        return Job.objects.using(database).filter(in_limit(name), state=State.RUNNING.value)
    return _behind(kind, name, Job.objects.using(database).running())


def _behind(kind: Pausable, name: str, jobs: JobQuerySet) -> JobQuerySet:
    """Return those of these jobs that belong to a queue or to a task."""
    of_kind: dict[str, Any] = (
        {"queue_name": name} if kind is Pausable.QUEUE else {"task_name__in": registry.names_of(name)}
    )
    return jobs.filter(**of_kind)
