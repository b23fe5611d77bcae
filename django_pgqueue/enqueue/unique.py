"""Enqueue jobs with a unique key: at most one job per task and key while the key is in use.

`Task.insert()` calls `insert()`. For `enqueue_many()` see `many_unique`. The database guarantees uniqueness: by a
unique index for keys that last as long as the job waits or runs, by a row of its own for keys with a uniqueness window
(`unique_while` as a duration).

Concurrency: after an insert that found an existing job, the code reads that job. It can end between the two statements;
then no job has the key, and the insert is repeated.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from django_pgqueue import codecs, lifecycle
from django_pgqueue.exceptions import DuplicateJob, QueueError, seconds
from django_pgqueue.lazy_strings import lazy_problems
from django_pgqueue.limits import CallLimit
from django_pgqueue.validation import wrong_key

from . import call_limits, plain
from .search_keys import SearchKeys

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_pgqueue.definition import TaskDefinition
    from django_pgqueue.models import Job

TRIES: Final = 20
"""Number of attempts to insert a job or to read the existing one, which can end between the two statements."""

Row = dict[str, Any]
"""The name, the headers and the options of a job, as the insert statements take them."""
Added = tuple[int, str, str | None]
"""Id, task name and key of a job that was added or replaced."""
TaskAndKey = tuple[str, str | None]
"""Name of a task, and a key of it."""


class KeyedCall(NamedTuple):
    """A call of a task with `unique_key`; its key is None if the call is not unique. `arguments` is JSON text."""

    task: TaskDefinition
    row: Row
    key: str | None
    arguments: str
    search_keys: SearchKeys
    limit: CallLimit | None


def key_of(task: TaskDefinition, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Return the unique key of a call, or None if the call is not unique.

    The task's function gets the arguments as the task would get them, with primary keys instead of rows.

    Raises `TypeError` or `ValueError` if the task's function returns an invalid key. Errors of that function pass
    through.
    """
    if task.unique_key is None or isinstance(task.unique_key, str):
        return task.unique_key
    args, kwargs = task.decoded_call(*task.encoded_call(args, kwargs))
    key = task.unique_key(*args, **kwargs)
    for problem in lazy_problems("the value of unique_key", key):
        raise TypeError(f"{task.name}: {problem}")
    if key is not None and not isinstance(key, str):
        raise TypeError(f"{task.name}: unique_key must return a string or None, not {type(key).__name__}")
    for problem in wrong_key(key):
        raise ValueError(f"{task.name}: {problem}")
    return key


def insert(task: TaskDefinition, connection: BaseDatabaseWrapper, key: str, arguments: str, row: dict[str, Any]) -> Job:
    """Insert a job with a unique key, or return the existing job that has the key.

    With `on_conflict="raise"`, raises `DuplicateJob` if there is an existing job. Raises `QueueError` if no try could
    insert a job or find the existing one. Waits if another transaction has just taken the key and is not committed yet.
    """
    is_for_period = period_seconds(task) is not None
    add = _add_one_for_period if is_for_period else _add_one
    for _ in range(TRIES):
        enqueued = add(task, connection, key, arguments, row)
        if enqueued is not None:
            job = plain.as_job(connection.alias, enqueued, arguments, row)
            if not is_for_period:
                job.unique_key, job.unique_ready_only = key, task.unique_while == "ready" or None
            return job
        holder_id = holders(task, connection, [key]).get(key)
        if holder_id is None:
            continue
        existing_job = _existing(task, connection.alias, holder_id)
        if existing_job is None and is_for_period:
            existing_job = _removed(task, connection.alias, holder_id, arguments)
        if existing_job is not None:
            return existing_job
    raise duplicate(task, None) if task.on_conflict == "raise" else neither_added_nor_found(task)


def can_share_statement(task: TaskDefinition) -> bool:
    """Return whether one statement can add jobs of this task and other such jobs, with any tasks and options."""
    return task.on_conflict != "replace" and period_seconds(task) is None


def period_seconds(task: TaskDefinition) -> float | None:
    """Return the uniqueness window in seconds, or None if the key lasts as long as its job waits or runs."""
    return None if isinstance(task.unique_while, str) else seconds(task.unique_while)


def holders(task: TaskDefinition, connection: BaseDatabaseWrapper, keys: Collection[str]) -> dict[str, int]:
    """Return, by key, the ids of the existing jobs that have these keys."""
    find = lifecycle.holders if period_seconds(task) is None else lifecycle.open_windows
    return find(connection, task.name, keys) if keys else {}


def _add_one(
    task: TaskDefinition, connection: BaseDatabaseWrapper, key: str, arguments: str, row: dict[str, Any]
) -> lifecycle.Enqueued | None:
    """Insert or replace a job whose key lasts as long as the job; return None if another job keeps the key."""
    replace = partial(lifecycle.replace, has_steps=task.takes_context)
    add = replace if task.on_conflict == "replace" else lifecycle.enqueue_unique
    return add(connection, arguments=arguments, unique_key=key, ready_only=task.unique_while == "ready", **row)


def _add_one_for_period(
    task: TaskDefinition, connection: BaseDatabaseWrapper, key: str, arguments: str, row: dict[str, Any]
) -> lifecycle.Enqueued | None:
    """Insert or replace a job whose key has a uniqueness window; return None if another job keeps the key."""
    limit, row = call_limits.split(row)
    given: dict[str, Any] = {"calls": calls_as_json([(key, arguments)]), "limits": [limit]}
    added = lifecycle.enqueue_for_period(connection, **given, period_seconds=period_seconds(task) or 0.0, **row)
    if not added and task.on_conflict == "replace":
        given["has_steps"] = task.takes_context
        added = [job for job, _ in lifecycle.replace_for_period(connection, **given, **row)]
    return added[0] if added else None


def calls_as_json(calls: Iterable[tuple[str | None, str]]) -> str:
    """Return keys and arguments as the statements for calls with equal options take them."""
    return "[" + ",".join(f'{{"key":{json.dumps(key)},"call":{arguments}}}' for key, arguments in calls) + "]"


def _existing(task: TaskDefinition, alias: str, job_id: int) -> Job | None:
    """Return the existing job, or None if its row is gone; raise `DuplicateJob` with `on_conflict="raise"`."""
    from django_pgqueue.models import Job  # task modules are imported before models can be

    if task.on_conflict == "raise":
        raise duplicate(task, job_id)
    job = Job.objects.using(alias).filter(pk=job_id).first()
    if job is not None:
        job.is_duplicate, job.enqueued_on = True, alias
    return job


def _removed(task: TaskDefinition, alias: str, job_id: int, arguments: str) -> Job:
    """Return a `Job` for a row that is gone while its uniqueness window lasts: its id and task, without a state."""
    from django_pgqueue.models import Job  # as above

    call = codecs.readable(json.loads(arguments))
    job = Job(id=job_id, task_name=task.name, queue_name=task.queue_name, arguments=call, state="")
    job._state.db = job.enqueued_on = alias
    job._state.adding, job.is_duplicate = False, True
    return job


def neither_added_nor_found(task: TaskDefinition) -> QueueError:
    return QueueError(
        f"no job of {task.name} was enqueued: {TRIES} times another job had its unique key, and had ended when it was "
        "to be read. Enqueue it again. If that fails too, look for a trigger or a row security policy on pgqueue_job "
        "that rejects or hides rows"
    )


def duplicate(task: TaskDefinition, job_id: int | None) -> DuplicateJob:
    holder = "a job" if job_id is None else f"job {job_id}"
    return DuplicateJob(f"{holder} of {task.name} already has the unique key: nothing was enqueued", job_id)
