"""Insert the job that `new_job()` returns, with everything that belongs to it, and announce it. For many, see `bulk`.

`Task.enqueue()` uses it. The database guarantees that at most one job of a task has a unique key at a time: by a
unique index for keys that last as long as the job waits or runs, by a row of its own for keys with a uniqueness window
(`unique_while` as a duration).

Concurrency: after an insert that found an existing job, the code reads that job. It can end between the two statements;
then no job has the key, and the insert is repeated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from django.db import router

from django_pgqueue.db.transactions import atomic_unless_open
from django_pgqueue.encoding import codecs
from django_pgqueue.exceptions import DuplicateJob, InvalidTask, QueueError
from django_pgqueue.ground.batch_reference import BatchFinished
from django_pgqueue.ground.envelope import CODEC
from django_pgqueue.lifecycle import batches, enqueueing, search_keys, unique
from django_pgqueue.lifecycle.enqueueing import NewJob, Row, Uniqueness
from django_pgqueue.lifecycle.types import Enqueued
from django_pgqueue.reactions import after_enqueue

from .new_job import job_model

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_pgqueue.models import Job
    from django_pgqueue.tasks.definition import TaskDefinition


TRIES: Final = 20
"""Number of attempts to insert a job or to read the existing one, which can end between the two statements."""
NEW: Final = {"state": "ready", "attempt": 0, "crashes": 0, "isolated": False}
"""The columns that are the same for all new jobs."""


class PreparedInsert(NamedTuple):
    """The insert of a job whose call has been checked and encoded."""

    alias: str
    run: Callable[[], Job]


def insert(connection: BaseDatabaseWrapper, job: NewJob) -> Job:
    """Insert a job with its search keys, all or none. Return the existing job if it has the unique key.

    A job without search keys and without a batch is one statement. For others, the insert opens a transaction unless
    one is open. It opens no savepoint in an open one. An insert with a unique key waits if another transaction has just
    taken the key and is not committed yet.

    Raises:
        BatchFinished: Its batch is complete.
        DuplicateJob: With `on_conflict="raise"`, another job has the key.
        QueueError: No try could insert the job or find the existing one.
    """
    if job.search_keys is None and job.row["batch_id"] is None:
        return _insert_row(connection, job)
    with atomic_unless_open(connection):
        check_open(connection, job.row["batch_id"])
        added = _insert_row(connection, job)
        if not added.is_duplicate:
            write_search_keys(connection, [(added.pk, job)])
    return added


def _insert_row(connection: BaseDatabaseWrapper, job: NewJob) -> Job:
    if job.key is None:
        return as_job(connection.alias, enqueueing.enqueue(connection, job), job)
    return _insert_unique(connection, job, job.key)


def _insert_unique(connection: BaseDatabaseWrapper, job: NewJob, key: str) -> Job:
    uniqueness = job.rule
    is_for_period = uniqueness.period_seconds is not None
    for _ in range(TRIES):
        enqueued = _add_one(connection, job)
        if enqueued is not None:
            added = as_job(connection.alias, enqueued, job)
            if not is_for_period:
                added.unique_key, added.unique_ready_only = key, uniqueness.ready_only or None
            return added
        holder_id = holders(connection, job.task_name, uniqueness, [key]).get(key)
        if holder_id is None:
            continue
        if uniqueness.on_conflict == "raise":
            raise duplicate(job.task_name, holder_id)
        existing_job = _existing(connection.alias, holder_id)
        if existing_job is None and is_for_period:
            existing_job = _removed(connection.alias, holder_id, job)
        if existing_job is not None:
            return existing_job
    raise (
        duplicate(job.task_name, None) if uniqueness.on_conflict == "raise" else neither_added_nor_found(job.task_name)
    )


def _add_one(connection: BaseDatabaseWrapper, job: NewJob) -> Enqueued | None:
    """Insert or replace a job; return None if another job keeps the key."""
    replaces = job.rule.on_conflict == "replace"
    if job.rule.period_seconds is None:
        return unique.replace(connection, job) if replaces else unique.enqueue_unique(connection, job)
    added = unique.enqueue_for_period(connection, [job])
    if not added and replaces:
        added = [enqueued for enqueued, _ in unique.replace_for_period(connection, [job])]
    return added[0] if added else None


def holders(
    connection: BaseDatabaseWrapper, task_name: str, uniqueness: Uniqueness, keys: Collection[str]
) -> dict[str, int]:
    """Return, by key, the ids of the existing jobs of a task that have these keys."""
    find = unique.holders if uniqueness.period_seconds is None else unique.open_windows
    return find(connection, task_name, keys) if keys else {}


def _existing(alias: str, job_id: int) -> Job | None:
    """Return the existing job, or None if its row is gone."""
    job = job_model().objects.using(alias).filter(pk=job_id).first()
    if job is not None:
        job.is_duplicate, job.enqueued_on = True, alias
    return job


def _removed(alias: str, job_id: int, new: NewJob) -> Job:
    """Return a `Job` for a row that is gone while its uniqueness window lasts: its id and task, without a state."""
    call = codecs.readable(json.loads(new.arguments))
    job = job_model()(id=job_id, task_name=new.task_name, queue_name=new.queue_name, arguments=call, state="")
    job._state.db = job.enqueued_on = alias
    job._state.adding, job.is_duplicate = False, True
    return job


def neither_added_nor_found(task_name: str) -> QueueError:
    return QueueError(
        f"no job of {task_name} was enqueued: {TRIES} times another job had its unique key, and had ended when it was "
        "to be read. Enqueue it again. If that fails too, look for a trigger or a row security policy on pgqueue_job "
        "that rejects or hides rows"
    )


def duplicate(task_name: str, job_id: int | None) -> DuplicateJob:
    holder = "a job" if job_id is None else f"job {job_id}"
    return DuplicateJob(f"{holder} of {task_name} already has the unique key: nothing was enqueued", job_id)


def check_open(connection: BaseDatabaseWrapper, batch_id: int | None) -> None:
    """Raise `BatchFinished` if a batch is complete, and `InvalidTask` if it does not exist.

    Otherwise the batch stays incomplete until the open transaction ends: the check locks it. Without a batch, send no
    statement.
    """
    if batch_id is None:
        return
    is_complete = batches.join_batch(connection, batch_id)
    if is_complete is None:
        raise InvalidTask(f"there is no batch {batch_id} in the database {connection.alias!r}: it was removed")
    if is_complete:
        raise BatchFinished(f"batch {batch_id} is complete and takes no more jobs: create a new batch", batch_id)


def write_search_keys(connection: BaseDatabaseWrapper, jobs: Iterable[tuple[int, NewJob]]) -> None:
    """Write the search keys of jobs that were added or replaced, in the caller's transaction.

    The keys of a replaced call are removed first.
    """
    searched = {job_id: job for job_id, job in jobs if job.search_keys is not None}
    replaced = [
        job_id for job_id, job in searched.items() if job.uniqueness and job.uniqueness.on_conflict == "replace"
    ]
    search_keys.remove_search_keys(connection, replaced)
    search_keys.add_search_keys(connection, {job_id: job.search_keys or {} for job_id, job in searched.items()})


def as_job(alias: str, enqueued: Enqueued, new: NewJob) -> Job:
    """Return a `Job` for a row that was just inserted, without a query."""
    call = json.loads(new.arguments)
    values = {
        **(new.row if new.limit is None else new.columns()),
        **NEW,
        "id": enqueued.job_id,
        "arguments": codecs.readable(call) if CODEC in call else call,
        "run_after": enqueued.run_after,
        "enqueued_at": enqueued.enqueued_at,
        "expires_at": enqueued.expires_at,
    }
    del values["delay_seconds"], values["expires_seconds"]  # the database has computed two of the times from them
    if values["headers"] is not None:
        values["headers"] = json.loads(values["headers"])
    job = job_model()(**values)
    job._state.db = job.enqueued_on = alias
    job._state.adding = False
    return job


def reload(job: Job) -> Job:
    """Return a job that may have run already as its row is now, or unchanged if the row is gone."""
    current = type(job).objects.using(job._state.db).filter(pk=job.pk).first()
    if current is None:
        return job
    current.enqueued_on = job.enqueued_on
    return current


def job_of(task: TaskDefinition, result_id: str | int) -> Job:
    """Return a job of a task by its id. Raises as `Task.get_result()`."""
    if callable(task.database):
        raise InvalidTask(f"{task.name} has jobs in several databases: call using(database=…).get_result()")
    model = job_model()
    alias = task.database or router.db_for_write(model)
    try:
        return model.objects.using(alias).get(pk=int(result_id), task_name__in=(task.name, *task.aliases))
    except (ValueError, OverflowError, model.DoesNotExist):
        raise model.DoesNotExist(f"{task.name} has no job {result_id!r} in the database {alias!r}") from None


def announce(connection: BaseDatabaseWrapper, jobs: Iterable[tuple[int, Row]]) -> None:
    """Wake the workers after the commit, and send `job_enqueued` for each job now, inside the caller's transaction."""
    by_queue: dict[tuple[str, str], list[int]] = {}
    for job_id, row in jobs:
        by_queue.setdefault((row["task_name"], row["queue_name"]), []).append(job_id)
    for (task_name, queue_name), job_ids in by_queue.items():
        after_enqueue(connection, task_name, queue_name, job_ids)
