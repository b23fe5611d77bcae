"""What an operator does to a whole queue, or to all jobs of a task: pause, resume, drain, clear.

A paused queue still takes jobs, and loses none: they wait. Running jobs go on. Workers obey within a second.
"""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from django.db import connections, router
from django.utils import timezone

from . import lifecycle, registry
from .db import LOOK_AGAIN, is_in_transaction, wake_workers_after_commit
from .exceptions import Duration, seconds
from .states import Pausable, State
from .task import Task
from .validation import NAME

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from .models import Execution, JobQuerySet

LOOK_SECONDS: Final = 0.1
OBEY_SECONDS: Final = 1.0
"""How old what a worker knows of pauses may be when it claims."""


def pause(
    queue_name: str | None = None,
    *,
    task: Any = None,
    until: Duration | datetime | None = None,
    reason: str = "",
    by: str = "",
    database: str | None = None,
) -> None:
    """Let workers claim no job of this queue, or of this task, until it is resumed; or until then, if that is first.

    * `task`: one of ours, one of Django's framework, or a name. `until`: seconds or a timedelta, or an aware datetime.
    * `reason` and `by` are for people to read, 1,000 and 150 characters of them.

    In the transaction that is open on the database, and obeyed after its commit. What is paused already is paused as
    told now. Raises `ValueError` or `TypeError` for what cannot be meant.
    """
    kind, name = _what(queue_name, task)
    where = alias(database)
    for former_name in _names(kind, name)[1:]:  # what was told before the task was renamed counts no more
        lifecycle.resume(connections[where], kind, former_name)
    lifecycle.pause(
        connections[where], kind, name, **_until(until), paused_by=_text(by, 150), reason=_text(reason, 1000)
    )
    wake_workers_after_commit(connections[where], LOOK_AGAIN)


def resume(queue_name: str | None = None, *, task: Any = None, database: str | None = None) -> bool:
    """End a pause; say whether there was one. In the transaction that is open, as `pause()`.

    A task's may stand under any of its names: it was renamed since.
    """
    return resume_named(*_what(queue_name, task), alias(database))


def resume_named(kind: Pausable, name: str, database: str) -> bool:
    """Do the same for the name in a row, whatever it is: a pause that no code would make can be ended too."""
    resumed = [lifecycle.resume(connections[database], kind, any_name) for any_name in _names(kind, name)]
    wake_workers_after_commit(connections[database], LOOK_AGAIN)
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
    """Pause, and wait until nothing of it runs any more; return how many still do when the time is over.

    Without `timeout` it waits as long as it takes, a second at least, for workers obey within one. It stays paused.
    Raises `RuntimeError` inside a transaction, where no worker would see the pause.
    """
    still = running(queue_name, task=task, database=database)
    where = alias(database)
    if is_in_transaction(connections[where]):
        raise RuntimeError("drain() waits for workers, and they do not see a pause before its transaction is committed")
    pause(queue_name, task=task, reason=reason, by=by, database=where)
    deadline = float("inf") if timeout is None else time.monotonic() + seconds(timeout)
    obeyed_at = time.monotonic() + OBEY_SECONDS
    while (count := still.count()) or time.monotonic() < obeyed_at:  # until then by what was seen before the pause
        if time.monotonic() >= deadline:
            break
        time.sleep(LOOK_SECONDS)
    return count


def clear(queue_name: str | None = None, *, task: Any = None, database: str | None = None) -> int:
    """Cancel the jobs that wait in this queue, or of this task, those due later too; return how many.

    Running jobs go on. In batches, each a transaction of its own unless one is open; see `JobQuerySet.cancel()`.
    """
    return waiting(queue_name, task=task, database=database).cancel(running=False)


def waiting(queue_name: str | None = None, *, task: Any = None, database: str | None = None) -> JobQuerySet:
    """Return the queryset of jobs that `clear()` would cancel."""
    return waiting_behind(*_what(queue_name, task), alias(database))


def waiting_behind(kind: Pausable, name: str, database: str) -> JobQuerySet:
    """Return the queryset of jobs that wait behind a pause of this name, whatever the name is."""
    from .models import Job  # tasks load before the apps are ready

    jobs = Job.objects.using(database).filter(state=State.READY.value)
    return (
        jobs.filter(queue_name=name) if kind is Pausable.QUEUE else jobs.filter(task_name__in=registry.names_of(name))
    )


def running(queue_name: str | None = None, *, task: Any = None, database: str | None = None) -> QuerySet[Execution]:
    """Return the queryset of executions that `drain()` waits for the end of."""
    return running_behind(*_what(queue_name, task), alias(database))


def running_behind(kind: Pausable, name: str, database: str) -> QuerySet[Execution]:
    """Return the queryset of executions that began before a pause of this name, whatever the name is."""
    from .models import Execution  # as above

    is_open = Execution.objects.using(database).filter(finished_at__isnull=True)
    if kind is Pausable.QUEUE:
        return is_open.filter(job__queue_name=name)
    return is_open.filter(job__task_name__in=registry.names_of(name))


def _what(queue_name: str | None, task: Any) -> tuple[Pausable, str]:
    if (queue_name is None) == (task is None):
        raise TypeError("give the name of a queue, or task=…: one of the two")
    kind = Pausable.QUEUE if task is None else Pausable.TASK
    name = queue_name if task is None else _task_name(task)
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(f"{name!r} can be no {kind}: 1 to 100 of the characters A-Z a-z 0-9 _ . : -")
    return kind, name


def _names(kind: Pausable, name: str) -> tuple[str, ...]:
    return registry.names_of(name) if kind is Pausable.TASK else (name,)


def _task_name(task: Any) -> Any:
    """Return a task's own name; a name that is given may be one of its aliases, or of a task not known here."""
    name = task.name if isinstance(task, Task) else getattr(task, "module_path", task)
    return registry.names_of(name)[0] if isinstance(name, str) else name


def _until(until: Duration | datetime | None) -> dict[str, Any]:
    if isinstance(until, datetime) and until.tzinfo is None:
        raise ValueError("until must be an aware datetime: give it a time zone")
    if isinstance(until, datetime) and until <= timezone.now():
        raise ValueError(f"until {until} is past already: such a pause would hold nothing back")
    if until is None or isinstance(until, datetime):
        return {"until": until}
    return {"for_seconds": seconds(until)}


def _text(text: str, length: int) -> str:
    return str(text).replace("\0", "")[:length]


def alias(database: str | None) -> str:
    """Return the alias of the database that jobs are in, by default what the routers say."""
    from .models import Job  # as above

    return database or router.db_for_write(Job)
