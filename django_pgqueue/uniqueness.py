"""Enqueueing jobs of which there is to be one for each key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from django.db import transaction

from . import enqueueing, lifecycle
from .arguments import chunks, encode_arguments
from .exceptions import DuplicateJob
from .validation import wrong_key

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from .models import Job
    from .task import Task

BATCH: Final = 1000
TRIES: Final = 20
"""Between an insert that met another job and the look for it, that one may have ended: then it is tried again."""

Call = tuple[Sequence[Any], Mapping[str, Any], dict[str, Any]]
"""Of one job: its arguments as given, positional and by name, and as JSON has them."""


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
    ready_only = task.unique_while == "ready"
    add = lifecycle.replace if task.on_conflict == "replace" else lifecycle.enqueue_unique
    for _ in range(TRIES):
        enqueued = add(connection, arguments=arguments, unique_key=key, ready_only=ready_only, **row)
        if enqueued is not None:
            job = enqueueing.as_job(task, connection.alias, enqueued, arguments, row["headers"])
            job.unique_key, job.unique_ready_only = key, ready_only or None
            return job
        holder_id = lifecycle.holders(connection, task.name, [key]).get(key)
        if holder_id is not None and (job_there := _existing(task, connection.alias, holder_id)) is not None:
            return job_there
    raise _duplicate(task, None)


def insert_many(
    task: Task[Any, Any], connection: BaseDatabaseWrapper, calls: Iterable[Call], row: dict[str, Any]
) -> list[int]:
    """Add many, all or none; return for each call the id of the job that has its key, a new one or another.

    Raises `DuplicateJob` if the task says so and one of them is not new. Reads `calls` in pieces.
    """
    ids: list[int] = []
    left = iter(calls)
    with transaction.atomic(using=connection.alias):
        while batch := [(key_of(task, args, kwargs), args, kwargs, call) for args, kwargs, call in islice(left, BATCH)]:
            added = _add(task, connection, [(key, call) for key, _, _, call in batch], row)
            without = iter([job_id for job_id, key in added if key is None])
            by_key = {key: job_id for job_id, key in added if key is not None}
            by_key |= lifecycle.holders(connection, task.name, {key for key, *_ in batch if key} - by_key.keys())
            for key, args, kwargs, _ in batch:
                if key is not None and key not in by_key:  # the job that had it has ended since
                    job = insert(task, connection, key, encode_arguments(args, kwargs), row)
                    enqueueing.tell(task, connection, [] if job.is_duplicate else [job.pk])
                    by_key[key] = job.pk
                ids.append(next(without) if key is None else by_key[key])
    return ids


def _add(
    task: Task[Any, Any],
    connection: BaseDatabaseWrapper,
    keyed: Sequence[tuple[str | None, dict[str, Any]]],
    row: dict[str, Any],
) -> list[tuple[int, str | None]]:
    """Add what can be added of a batch; return the new or changed jobs' ids and keys."""
    added: list[tuple[int, str | None]] = []
    for chunk in chunks({"key": key, "call": call} for key, call in keyed):
        added += lifecycle.enqueue_many_unique(
            connection,
            calls=chunk,
            ready_only=task.unique_while == "ready",
            replace=task.on_conflict == "replace",
            **row,
        )
    if task.on_conflict == "raise" and len(added) < len(keyed):
        raise _duplicate(task, None)
    enqueueing.tell(task, connection, [job_id for job_id, _ in added])
    return added


def _existing(task: Task[Any, Any], alias: str, job_id: int) -> Job | None:
    from .models import Job  # tasks load before the apps are ready

    if task.on_conflict == "raise":
        raise _duplicate(task, job_id)
    job = Job.objects.using(alias).filter(pk=job_id).first()
    if job is not None:
        job.is_duplicate = True
    return job


def _duplicate(task: Task[Any, Any], job_id: int | None) -> DuplicateJob:
    which = "a job" if job_id is None else f"job {job_id}"
    return DuplicateJob(f"{which} of {task.name} has the unique key already: nothing was enqueued", job_id)
