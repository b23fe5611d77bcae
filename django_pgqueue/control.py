"""Pause, resume, drain and clear a whole queue, or all jobs of a task.

Applications, the admin and `manage.py pgqueue` call these functions. While a queue or a task is paused, `enqueue()`
still adds jobs; they wait, and none is lost. Running jobs continue. Workers stop claiming within a second
(`OBEY_SECONDS`).
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from django.conf import settings
from django.db import connections, router

from . import job_operations, lifecycle, queues, registry
from .db.fields import aware
from .db.notifications import PAUSES_CHANGED, wake_workers_after_commit
from .db.transactions import is_in_transaction
from .exceptions import Duration, seconds
from .states import Pausable
from .task import Task
from .validation import NAME

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.models import QuerySet

    from .models import Execution, JobQuerySet

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
    until: Duration | datetime | None = None,
    reason: str = "",
    by: str = "",
    database: str | None = None,
) -> None:
    """Pause a queue or a task: workers claim none of its jobs until the pause ends.

    The pause is written in the transaction that is open on the database, and workers apply it after the commit. If the
    queue or task is paused already, the new end, `reason` and `by` replace the earlier ones.

    Args:
        queue_name: The queue to pause. Pass either this or `task`.
        task: The task to pause: a task of this package, a task of Django's tasks framework, or a task's name.
        until: End of the pause: seconds or a timedelta from now, or an aware datetime. By default the pause lasts until
            `resume()`.
        reason: Text for people to read. 1,000 characters are stored.
        by: The person or program that pauses, for people to read. 150 characters are stored.
        database: Alias of the database of the jobs. By default the database routers choose it.

    Raises:
        TypeError: Neither or both of `queue_name` and `task` are given, or `until` has the wrong type.
        ValueError: The name is invalid, `PGQUEUE["QUEUES"]` does not list the queue, or `until` is negative, in the
            past, or without a time zone.

    Warns:
        UnknownQueueWarning: Nothing uses the queue, and a queue with a similar name is used.

    Example:
        >>> control.pause("mail", until=timedelta(hours=1), reason="SMTP server is down")
    """
    kind, name = _target(queue_name, task)
    bounds, database_alias = _until(until), alias(database)
    if kind is Pausable.QUEUE:
        queues.check(name, database_alias)
    _pause(kind, name, database_alias, bounds, by=by, reason=reason)


def pause_named(kind: Pausable, name: str, database: str, *, until: datetime | None, reason: str, by: str) -> None:
    """Pause a queue or a task. The admin uses this, because it checks the name and reports problems by itself."""
    name = _task_name(name) if kind is Pausable.TASK else name
    _pause(kind, name, database, _until(until), by=by, reason=reason)


def _pause(kind: Pausable, name: str, database: str, bounds: dict[str, Any], *, by: str, reason: str) -> None:
    connection = connections[database]
    for former_name in _names(kind, name)[1:]:  # a pause from before the task was renamed would outlast the new one
        lifecycle.resume(connection, kind, former_name)
    lifecycle.pause(connection, kind, name, **bounds, paused_by=_text(by, 150), reason=_text(reason, 1000))
    wake_workers_after_commit(connection, PAUSES_CHANGED)


def resume(queue_name: str | None = None, *, task: Any = None, database: str | None = None) -> bool:
    """End the pause of a queue or a task.

    The change is part of the transaction that is open on the database, as with `pause()`. If the task was renamed,
    pauses under its former names (`aliases`) end too.

    Args:
        queue_name: The queue to resume. Pass either this or `task`.
        task: The task to resume: a task of this package, a task of Django's tasks framework, or a task's name.
        database: Alias of the database of the jobs. By default the database routers choose it.

    Returns:
        True if there was a pause that had not ended by itself.

    Raises:
        TypeError: Neither or both of `queue_name` and `task` are given.
        ValueError: The name is invalid, or the queue was not paused and `PGQUEUE["QUEUES"]` does not list it.

    Warns:
        UnknownQueueWarning: Nothing uses the queue, and a queue with a similar name is used.
    """
    kind, name = _target(queue_name, task)
    resumed = resume_named(kind, name, alias(database))
    if not resumed and kind is Pausable.QUEUE:
        queues.check(name, alias(database))
    return resumed


def resume_named(kind: Pausable, name: str, database: str) -> bool:
    """End a pause by the name in its row, without checking the name.

    The admin uses it, because a row written by hand may have a name that `pause()` would refuse.
    """
    resumed = [lifecycle.resume(connections[database], kind, any_name) for any_name in _names(kind, name)]
    wake_workers_after_commit(connections[database], PAUSES_CHANGED)
    return any(resumed)


def drain(
    queue_name: str | None = None,
    *,
    task: Any = None,
    timeout: Duration | None = None,
    reason: str = "drained",
    by: str = "",
    database: str | None = None,
) -> int:
    """Pause a queue or a task, and wait until none of its jobs is running.

    It waits at least a second (`OBEY_SECONDS`) unless `timeout` is shorter, because workers apply a pause within that
    time. The queue or task stays paused afterwards. Call it outside a transaction.

    Args:
        queue_name: The queue to drain. Pass either this or `task`.
        task: The task to drain: a task of this package, a task of Django's tasks framework, or a task's name.
        timeout: How long to wait at most, in seconds or as a timedelta. By default there is no limit.
        reason: Text for people to read. 1,000 characters are stored.
        by: The person or program that drains, for people to read. 150 characters are stored.
        database: Alias of the database of the jobs. By default the database routers choose it.

    Returns:
        The number of jobs that are still running: 0 unless `timeout` passed first.

    Raises:
        RuntimeError: A transaction is open. Workers would not see the pause before its commit.
        TypeError: Neither or both of `queue_name` and `task` are given, or `timeout` has the wrong type.
        ValueError: The name is invalid, `PGQUEUE["QUEUES"]` does not list the queue, or `timeout` is negative or not
            finite.

    Warns:
        UnknownQueueWarning: Nothing uses the queue, and a queue with a similar name is used.
    """
    kind, name = _target(queue_name, task)
    timeout_seconds = float("inf") if timeout is None else seconds(timeout)
    database_alias = alias(database)
    if is_in_transaction(connections[database_alias]):
        raise RuntimeError(
            "drain() cannot run inside a transaction: workers do not see the pause before its transaction is committed"
        )
    if kind is Pausable.QUEUE:
        queues.check(name, database_alias)
    _pause(kind, name, database_alias, _until(None), by=by, reason=reason)
    return _wait_until_none(running_behind(kind, name, database_alias), timeout_seconds)


def _wait_until_none(still_running: QuerySet[Execution], timeout_seconds: float) -> int:
    """Wait until workers have applied a pause and no execution is left; return how many are when the time is over."""
    began = time.monotonic()
    while (count := still_running.count()) or time.monotonic() < began + OBEY_SECONDS:
        if time.monotonic() >= began + timeout_seconds:
            break
        time.sleep(POLL_SECONDS)
    return count


def clear(queue_name: str | None = None, *, task: Any = None, database: str | None = None) -> int:
    """Cancel the waiting jobs of a queue or a task, including jobs that are due later.

    Running jobs continue. The jobs are cancelled in batches. Each batch is a transaction of its own unless a
    transaction is open. The duration depends on the number of ready jobs, and not on that of finished ones.

    Args:
        queue_name: The queue to clear. Pass either this or `task`.
        task: The task to clear: a task of this package, a task of Django's tasks framework, or a task's name.
        database: Alias of the database of the jobs. By default the database routers choose it.

    Returns:
        The number of cancelled jobs.

    Raises:
        TypeError: Neither or both of `queue_name` and `task` are given.
        ValueError: The name is invalid, or no job was waiting and `PGQUEUE["QUEUES"]` does not list the queue.

    Warns:
        UnknownQueueWarning: Nothing uses the queue, and a queue with a similar name is used.
    """
    kind, name = _target(queue_name, task)
    cancelled = _clear(kind, name, connections[alias(database)])
    if not cancelled and queue_name is not None:
        queues.check(queue_name, alias(database))
    return cancelled


def _clear(kind: Pausable, name: str, connection: BaseDatabaseWrapper) -> int:
    cancelled = 0
    for any_name in _names(kind, name):
        chosen = {"queue_name" if kind is Pausable.QUEUE else "task_name": any_name}
        for batch in lifecycle.bulk_acts.waiting_jobs(connection, **chosen, limit=CLEAR_BATCH):
            cancelled += len(job_operations.cancel(connection, batch, running=False))
    return cancelled


def waiting(queue_name: str | None = None, *, task: Any = None, database: str | None = None) -> JobQuerySet:
    """Return the jobs that `clear()` would cancel. The arguments and errors are those of `clear()`."""
    return waiting_behind(*_target(queue_name, task), alias(database))


def waiting_behind(kind: Pausable, name: str, database: str) -> JobQuerySet:
    """Return the waiting jobs of the queue or task in a pause's row, without checking the name."""
    from .models import Job  # task modules are imported before models can be

    jobs = Job.objects.using(database).ready()  # with the condition of the index that finds them
    return (
        jobs.filter(queue_name=name) if kind is Pausable.QUEUE else jobs.filter(task_name__in=registry.names_of(name))
    )


def running(queue_name: str | None = None, *, task: Any = None, database: str | None = None) -> QuerySet[Execution]:
    """Return the open executions that `drain()` waits for. The arguments and errors are those of `clear()`."""
    return running_behind(*_target(queue_name, task), alias(database))


def running_behind(kind: Pausable, name: str, database: str) -> QuerySet[Execution]:
    """Return the open executions of the queue or task in a pause's row, without checking the name."""
    from .models import Execution  # as above

    open_executions = Execution.objects.using(database).filter(finished_at__isnull=True)
    if kind is Pausable.QUEUE:
        return open_executions.filter(job__queue_name=name)
    return open_executions.filter(job__task_name__in=registry.names_of(name))


def _target(queue_name: str | None, task: Any) -> tuple[Pausable, str]:
    """Return whether to act on a queue or a task, and its valid name."""
    if (queue_name is None) == (task is None):
        raise TypeError("pass either a queue name or a task, and only one of them")
    kind = Pausable.QUEUE if task is None else Pausable.TASK
    name = queue_name if task is None else _task_name(task)
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(f"invalid {kind} name {name!r}: use 1 to 100 of the characters A-Z a-z 0-9 _ . : -")
    return kind, name


def _names(kind: Pausable, name: str) -> tuple[str, ...]:
    """Return the names that a pause may be stored under: the current one first, then a task's former names."""
    return registry.names_of(name) if kind is Pausable.TASK else (name,)


def _task_name(task: Any) -> Any:
    """Return a task's current name. A given name may be an alias, or the name of a task that this process lacks."""
    name = task.name if isinstance(task, Task) else getattr(task, "module_path", task)
    return registry.names_of(name)[0] if isinstance(name, str) else name


def _until(until: Duration | datetime | None) -> dict[str, Any]:
    """Return the arguments of `lifecycle.pause()` that set the end of a pause."""
    if isinstance(until, datetime):
        if until.tzinfo is None and settings.USE_TZ:
            raise ValueError(f"invalid until {until}: pass an aware datetime (with a time zone)")
        if (until := aware(until)) <= datetime.now(UTC):
            raise ValueError(f"invalid until {until}: it is in the past, pass a time in the future")
        return {"until": until}
    return {"until": None} if until is None else {"for_seconds": seconds(until)}


def _text(text: str, length: int) -> str:
    """Return a text cut to `length` characters, without NUL, which PostgreSQL cannot store."""
    return str(text).replace("\0", "")[:length]


def alias(database: str | None) -> str:
    """Return the alias of the database of the jobs: the given one, or the one that the routers choose."""
    from .models import Job  # as above

    return database or router.db_for_write(Job)
