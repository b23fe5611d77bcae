"""Enqueueing jobs of which there is to be one for each key."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from django.db import transaction

from . import enqueueing, lifecycle
from .arguments import chunks, encode_arguments, normalise_call
from .exceptions import DuplicateJob, seconds
from .validation import wrong_key

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from .models import Job
    from .task import Task

BATCH: Final = 1000
TRIES: Final = 20
"""Between an insert that met another job and the look for it, that one may have ended: then it is tried again."""

Prepare = Callable[[Any, int], tuple[Sequence[Any], Mapping[str, Any]]]
"""Checks a call as it was given, with its place; returns its arguments, positional and by name."""
Placed = tuple[int, str | None, Sequence[Any], Mapping[str, Any]]
"""Of one job: the place of its call, its key, and its arguments as given, positional and by name."""
Keyed = tuple[str | None, dict[str, Any]]
"""Of one job: its key, and its arguments as JSON has them."""


def key_of(task: Task[Any, Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Return the unique key of a call, None if it has none; raises `TypeError` or `ValueError` for what can be none."""
    if task.unique_key is None or isinstance(task.unique_key, str):
        return task.unique_key
    key = task.unique_key(*args, **kwargs)
    if key is not None and not isinstance(key, str):
        raise TypeError(f"{task.name}: unique_key must return a string or None, not {type(key).__name__}")
    for wrong in wrong_key(key):
        raise ValueError(f"{task.name}: {wrong}")
    return key


def insert(task: Task[Any, Any], connection: BaseDatabaseWrapper, key: str, arguments: str, row: dict[str, Any]) -> Job:
    """Add a job with a key, or return the one that has it; raises `DuplicateJob` if the task says so."""
    is_for_period = _period_seconds(task) is not None
    add = _add_one_for_period if is_for_period else _add_one
    for _ in range(TRIES):
        enqueued = add(task, connection, key, arguments, row)
        if enqueued is not None:
            job = enqueueing.as_job(task, connection.alias, enqueued, arguments, row["headers"])
            if not is_for_period:
                job.unique_key, job.unique_ready_only = key, task.unique_while == "ready" or None
            return job
        holder_id = _holders(task, connection, [key]).get(key)
        if holder_id is None:
            continue
        job_there = _existing(task, connection.alias, holder_id)
        if job_there is None and is_for_period:
            job_there = _removed(task, connection.alias, holder_id, arguments)
        if job_there is not None:
            return job_there
    raise _duplicate(task, None)


def insert_many(
    task: Task[Any, Any], connection: BaseDatabaseWrapper, calls: Iterable[Any], prepare: Prepare, row: dict[str, Any]
) -> list[int]:
    """Add many, all or none; return for each call the id of the job that has its key, a new one or another.

    Raises `DuplicateJob` if the task says so and one of them is not new. Reads `calls` in pieces.
    """
    places: list[int] = []
    ids: list[int] = []
    ordered = _in_key_order(task, calls, prepare)
    add = _add_many if _period_seconds(task) is None else _add_many_for_period
    with transaction.atomic(using=connection.alias):
        while batch := list(islice(ordered, BATCH)):
            added = add(task, connection, [(key, normalise_call(args, kwargs)) for _, key, args, kwargs in batch], row)
            if task.on_conflict == "raise" and len(added) < len(batch):
                raise _duplicate(task, None)
            enqueueing.tell(task, connection, [job_id for job_id, _ in added])
            without = iter([job_id for job_id, key in added if key is None])
            by_key = {key: job_id for job_id, key in added if key is not None}
            by_key |= _holders(task, connection, {key for _, key, *_ in batch if key} - by_key.keys())
            for place, key, args, kwargs in batch:
                if key is not None and key not in by_key:  # the job that had it has ended since
                    job = insert(task, connection, key, encode_arguments(args, kwargs), row)
                    enqueueing.tell(task, connection, [] if job.is_duplicate else [job.pk])
                    by_key[key] = job.pk
                places.append(place)
                ids.append(next(without) if key is None else by_key[key])
    return [job_id for _, job_id in sorted(zip(places, ids, strict=True))]


def _in_key_order(task: Task[Any, Any], calls: Iterable[Any], prepare: Prepare) -> Iterator[Placed]:
    """Yield each call with its place and its key; those of a sequence that is more than one batch in order of the keys.

    Two transactions that take the same keys in different orders can wait for each other. A statement sorts the keys of
    its own batch; here the batches are put in order too. An iterator is not sorted, because it may not fit in memory.
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
    """Return the calls as JSON for one statement each; in order of their keys if that takes more than one."""
    texts = list(chunks({"key": key, "call": call} for key, call in keyed))
    if len(texts) == 1:
        return texts
    return list(chunks({"key": key, "call": call} for key, call in sorted(keyed, key=lambda each: each[0] or "")))


def _period_seconds(task: Task[Any, Any]) -> float | None:
    """Return for how long a key is taken; None: for as long as its job waits, or runs."""
    return None if isinstance(task.unique_while, str) else seconds(task.unique_while)


def _holders(task: Task[Any, Any], connection: BaseDatabaseWrapper, keys: Collection[str]) -> dict[str, int]:
    """Return, by key, the ids of the jobs that keep others with these keys away."""
    if not keys:
        return {}
    look = lifecycle.holders if _period_seconds(task) is None else lifecycle.holds
    return look(connection, task.name, keys)


def _add_one(
    task: Task[Any, Any], connection: BaseDatabaseWrapper, key: str, arguments: str, row: dict[str, Any]
) -> lifecycle.Enqueued | None:
    add = lifecycle.replace if task.on_conflict == "replace" else lifecycle.enqueue_unique
    return add(connection, arguments=arguments, unique_key=key, ready_only=task.unique_while == "ready", **row)


def _add_one_for_period(
    task: Task[Any, Any], connection: BaseDatabaseWrapper, key: str, arguments: str, row: dict[str, Any]
) -> lifecycle.Enqueued | None:
    calls = f'[{{"key":{json.dumps(key)},"call":{arguments}}}]'
    added = lifecycle.enqueue_for_period(connection, calls=calls, period_seconds=_period_seconds(task) or 0.0, **row)
    if not added and task.on_conflict == "replace":
        added = [job for job, _ in lifecycle.replace_for_period(connection, calls=calls, **row)]
    return added[0] if added else None


def _add_many(
    task: Task[Any, Any], connection: BaseDatabaseWrapper, keyed: Sequence[Keyed], row: dict[str, Any]
) -> list[tuple[int, str | None]]:
    """Add what can be added of a batch; return the new or changed jobs' ids and keys."""
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
    task: Task[Any, Any], connection: BaseDatabaseWrapper, keyed: Sequence[Keyed], row: dict[str, Any]
) -> list[tuple[int, str | None]]:
    """Do the same; of calls with one key the first is added, or the last where each replaces the one before."""
    replaces = task.on_conflict == "replace"
    by_key = {key: call for key, call in (keyed if replaces else reversed(keyed)) if key is not None}
    once = [(key, call) for key, call in keyed if key is None or by_key[key] is call]
    period_seconds = _period_seconds(task) or 0.0
    ids: list[int] = []
    for chunk in _chunks(once):
        jobs = lifecycle.enqueue_for_period(connection, calls=chunk, period_seconds=period_seconds, **row)
        ids += [job.job_id for job in jobs]
    keys = {job_id: key for key, job_id in lifecycle.holds(connection, task.name, by_key.keys(), ids).items()}
    added = [(job_id, keys.get(job_id)) for job_id in ids]
    if replaces:
        new = {key for _, key in added}
        for chunk in _chunks([(key, call) for key, call in by_key.items() if key not in new]):
            added += [(job.job_id, key) for job, key in lifecycle.replace_for_period(connection, calls=chunk, **row)]
    return added


def _existing(task: Task[Any, Any], alias: str, job_id: int) -> Job | None:
    from .models import Job  # tasks load before the apps are ready

    if task.on_conflict == "raise":
        raise _duplicate(task, job_id)
    job = Job.objects.using(alias).filter(pk=job_id).first()
    if job is not None:
        job.is_duplicate = True
        job.enqueued_on = alias
    return job


def _removed(task: Task[Any, Any], alias: str, job_id: int, arguments: str) -> Job:
    """Return what is known of a job whose key is held, and whose row is gone: its id, its task, no state."""
    from .models import Job  # as above

    job = Job(id=job_id, task_name=task.name, queue_name=task.queue_name, arguments=json.loads(arguments), state="")
    job._state.db = job.enqueued_on = alias
    job._state.adding, job.is_duplicate = False, True
    return job


def _duplicate(task: Task[Any, Any], job_id: int | None) -> DuplicateJob:
    which = "a job" if job_id is None else f"job {job_id}"
    return DuplicateJob(f"{which} of {task.name} has the unique key already: nothing was enqueued", job_id)
