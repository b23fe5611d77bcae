"""Enqueue jobs with a unique key: at most one job per task and key while the key is in use.

`Task.insert()` and `Task.enqueue_many()` call it. The database guarantees uniqueness: by a unique index for keys that
last as long as the job waits or runs, by a row of its own for keys with a uniqueness window (`unique_while` as a
duration).

Concurrency: after an insert that found an existing job, the code reads that job. It can end between the two statements;
then no job has the key, and the insert is repeated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from django.db import transaction

from django_pgqueue import codecs, lifecycle
from django_pgqueue.exceptions import DuplicateJob, seconds
from django_pgqueue.serialization import chunks, encode_arguments, normalise_call
from django_pgqueue.validation import wrong_key

from . import plain

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_pgqueue.definition import TaskDefinition
    from django_pgqueue.models import Job

BATCH: Final = 1000
TRIES: Final = 20
"""Number of attempts to insert a job or to read the existing one, which can end between the two statements."""

Prepare = Callable[[Any, int], tuple[Sequence[Any], Mapping[str, Any]]]
"""Checks a call and its position in `calls`; returns its positional and keyword arguments."""
Placed = tuple[int, str | None, Sequence[Any], Mapping[str, Any]]
"""Position of a call in `calls`, its key, and its positional and keyword arguments."""
Keyed = tuple[str | None, dict[str, Any]]
"""Key of a call, and its arguments in the form that is stored as JSON."""


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
    if key is not None and not isinstance(key, str):
        raise TypeError(f"{task.name}: unique_key must return a string or None, not {type(key).__name__}")
    for problem in wrong_key(key):
        raise ValueError(f"{task.name}: {problem}")
    return key


def insert(task: TaskDefinition, connection: BaseDatabaseWrapper, key: str, arguments: str, row: dict[str, Any]) -> Job:
    """Insert a job with a unique key, or return the existing job that has the key.

    With `on_conflict="raise"`, raises `DuplicateJob` if there is an existing job. Waits if another transaction has just
    taken the key and is not committed yet.
    """
    is_for_period = _period_seconds(task) is not None
    add = _add_one_for_period if is_for_period else _add_one
    for _ in range(TRIES):
        enqueued = add(task, connection, key, arguments, row)
        if enqueued is not None:
            job = plain.as_job(connection.alias, enqueued, arguments, row)
            if not is_for_period:
                job.unique_key, job.unique_ready_only = key, task.unique_while == "ready" or None
            return job
        holder_id = _holders(task, connection, [key]).get(key)
        if holder_id is None:
            continue
        existing_job = _existing(task, connection.alias, holder_id)
        if existing_job is None and is_for_period:
            existing_job = _removed(task, connection.alias, holder_id, arguments)
        if existing_job is not None:
            return existing_job
    raise _duplicate(task, None)


def insert_many(
    task: TaskDefinition, connection: BaseDatabaseWrapper, calls: Iterable[Any], prepare: Prepare, row: dict[str, Any]
) -> list[int]:
    """Insert a job for each call, all or none, and return the id of each call's job, new or existing.

    Runs in the caller's transaction, or in one of its own. With `on_conflict="raise"`, raises `DuplicateJob` if a call
    has an existing job. Reads `calls` in batches.
    """
    places: list[int] = []
    ids: list[int] = []
    ordered = _in_key_order(task, calls, prepare)
    add = _add_many if _period_seconds(task) is None else _add_many_for_period
    with transaction.atomic(using=connection.alias):
        while batch := list(islice(ordered, BATCH)):
            added = add(
                task,
                connection,
                [(key, normalise_call(*task.encoded_call(args, kwargs))) for _, key, args, kwargs in batch],
                row,
            )
            if task.on_conflict == "raise" and len(added) < len(batch):
                raise _duplicate(task, None)
            plain.send_enqueued(task, connection, [job_id for job_id, _ in added])
            without_key = iter([job_id for job_id, key in added if key is None])
            by_key = {key: job_id for job_id, key in added if key is not None}
            by_key |= _holders(task, connection, {key for _, key, *_ in batch if key} - by_key.keys())
            for place, key, args, kwargs in batch:
                if key is not None and key not in by_key:  # the job that had the key has ended in the meantime
                    job = insert(task, connection, key, encode_arguments(*task.encoded_call(args, kwargs)), row)
                    plain.send_enqueued(task, connection, [] if job.is_duplicate else [job.pk])
                    by_key[key] = job.pk
                places.append(place)
                ids.append(next(without_key) if key is None else by_key[key])
    return [job_id for _, job_id in sorted(zip(places, ids, strict=True))]


def _in_key_order(task: TaskDefinition, calls: Iterable[Any], prepare: Prepare) -> Iterator[Placed]:
    """Yield each call with its position and key, in order of the keys if `calls` is a sequence of several batches.

    Two transactions that take the same keys in different orders can deadlock. Each statement sorts the keys of its own
    batch, and this function orders the batches. An iterator is not sorted, because it may not fit in memory.
    """
    if not isinstance(calls, Sequence) or len(calls) <= BATCH:
        for place, call in enumerate(calls):
            args, kwargs = prepare(call, place)
            yield place, key_of(task, args, kwargs), args, kwargs
        return
    keys = [key_of(task, *prepare(call, place)) for place, call in enumerate(calls)]
    for place in sorted(range(len(keys)), key=lambda place: keys[place] or ""):
        args, kwargs = prepare(calls[place], place)
        yield place, keys[place], args, kwargs


def _chunks(keyed: Sequence[Keyed]) -> list[str]:
    """Return the calls as one JSON text per statement, in order of their keys if there are several statements."""
    texts = list(chunks({"key": key, "call": call} for key, call in keyed))
    if len(texts) == 1:
        return texts
    return list(chunks({"key": key, "call": call} for key, call in sorted(keyed, key=lambda call: call[0] or "")))


def _period_seconds(task: TaskDefinition) -> float | None:
    """Return the uniqueness window in seconds, or None if the key lasts as long as its job waits or runs."""
    return None if isinstance(task.unique_while, str) else seconds(task.unique_while)


def _holders(task: TaskDefinition, connection: BaseDatabaseWrapper, keys: Collection[str]) -> dict[str, int]:
    """Return, by key, the ids of the existing jobs that have these keys."""
    if not keys:
        return {}
    find = lifecycle.holders if _period_seconds(task) is None else lifecycle.open_windows
    return find(connection, task.name, keys)


def _add_one(
    task: TaskDefinition, connection: BaseDatabaseWrapper, key: str, arguments: str, row: dict[str, Any]
) -> lifecycle.Enqueued | None:
    """Insert or replace a job whose key lasts as long as the job; return None if another job keeps the key."""
    add = lifecycle.replace if task.on_conflict == "replace" else lifecycle.enqueue_unique
    return add(connection, arguments=arguments, unique_key=key, ready_only=task.unique_while == "ready", **row)


def _add_one_for_period(
    task: TaskDefinition, connection: BaseDatabaseWrapper, key: str, arguments: str, row: dict[str, Any]
) -> lifecycle.Enqueued | None:
    """Insert or replace a job whose key has a uniqueness window; return None if another job keeps the key."""
    calls = f'[{{"key":{json.dumps(key)},"call":{arguments}}}]'
    added = lifecycle.enqueue_for_period(connection, calls=calls, period_seconds=_period_seconds(task) or 0.0, **row)
    if not added and task.on_conflict == "replace":
        added = [job for job, _ in lifecycle.replace_for_period(connection, calls=calls, **row)]
    return added[0] if added else None


def _add_many(
    task: TaskDefinition, connection: BaseDatabaseWrapper, keyed: Sequence[Keyed], row: dict[str, Any]
) -> list[tuple[int, str | None]]:
    """Insert the jobs of a batch whose keys are free, or replace waiting ones; return ids and keys of these jobs."""
    added: list[tuple[int, str | None]] = []
    for chunk in _chunks(keyed):
        added += lifecycle.enqueue_many_unique(
            connection,
            calls=chunk,
            ready_only=task.unique_while == "ready",
            replace=task.on_conflict == "replace",
            **row,
        )
    return added


def _add_many_for_period(
    task: TaskDefinition, connection: BaseDatabaseWrapper, keyed: Sequence[Keyed], row: dict[str, Any]
) -> list[tuple[int, str | None]]:
    """Do the same as `_add_many()` for keys with a uniqueness window.

    Of several calls with one key, the first is inserted; with `on_conflict="replace"` the last one is.
    """
    replaces = task.on_conflict == "replace"
    by_key = {key: call for key, call in (keyed if replaces else reversed(keyed)) if key is not None}
    once = [(key, call) for key, call in keyed if key is None or by_key[key] is call]
    period_seconds = _period_seconds(task) or 0.0
    ids: list[int] = []
    for chunk in _chunks(once):
        jobs = lifecycle.enqueue_for_period(connection, calls=chunk, period_seconds=period_seconds, **row)
        ids += [job.job_id for job in jobs]
    keys = {job_id: key for key, job_id in lifecycle.open_windows(connection, task.name, by_key.keys(), ids).items()}
    added = [(job_id, keys.get(job_id)) for job_id in ids]
    if replaces:
        new = {key for _, key in added}
        for chunk in _chunks([(key, call) for key, call in by_key.items() if key not in new]):
            added += [(job.job_id, key) for job, key in lifecycle.replace_for_period(connection, calls=chunk, **row)]
    return added


def _existing(task: TaskDefinition, alias: str, job_id: int) -> Job | None:
    """Return the existing job, or None if its row is gone; raise `DuplicateJob` with `on_conflict="raise"`."""
    from django_pgqueue.models import Job  # task modules are imported before models can be

    if task.on_conflict == "raise":
        raise _duplicate(task, job_id)
    job = Job.objects.using(alias).filter(pk=job_id).first()
    if job is not None:
        job.is_duplicate = True
        job.enqueued_on = alias
    return job


def _removed(task: TaskDefinition, alias: str, job_id: int, arguments: str) -> Job:
    """Return a `Job` for a row that is gone while its uniqueness window lasts: its id and task, without a state."""
    from django_pgqueue.models import Job  # as above

    call = codecs.readable(json.loads(arguments))
    job = Job(id=job_id, task_name=task.name, queue_name=task.queue_name, arguments=call, state="")
    job._state.db = job.enqueued_on = alias
    job._state.adding, job.is_duplicate = False, True
    return job


def _duplicate(task: TaskDefinition, job_id: int | None) -> DuplicateJob:
    holder = "a job" if job_id is None else f"job {job_id}"
    return DuplicateJob(f"{holder} of {task.name} already has the unique key: nothing was enqueued", job_id)
