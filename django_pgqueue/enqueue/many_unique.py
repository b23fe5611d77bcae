"""Enqueue many jobs with unique keys: `MixedChunk` calls `insert_keyed()` for them.

Each statement takes the keys of its calls in sorted order, so that two transactions with the same keys cannot deadlock.
This module protects that order: a transaction that holds keys never takes one that is sorted before them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

from django.db import transaction

from django_pgqueue.lifecycle import unique
from django_pgqueue.lifecycle.enqueueing import NewJob, Uniqueness

from . import inserting
from .inserting import TRIES

Added = tuple[int, str, str | None]
"""Id, task name and key of a job that was added or replaced."""
TaskAndKey = tuple[str, str | None]
"""Name of a task, and a key of it."""

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper


def insert_keyed(connection: BaseDatabaseWrapper, jobs: Sequence[NewJob]) -> list[tuple[int, bool]]:
    """Insert jobs of tasks with unique keys, announce them, and return the id of each and whether it is a duplicate.

    The jobs have equal options, or all of them can share a statement. Runs in a transaction that the caller rolls back
    after an error. Raises as `inserting.insert()`.
    """
    added, existing = _add_or_find(connection, jobs)
    without_key = iter([job_id for job_id, _, key in added if key is None])
    new: dict[TaskAndKey, int] = {(name, key): job_id for job_id, name, key in added if key is not None}
    results: list[tuple[int, bool]] = []
    announced: dict[int, NewJob] = {}
    for job in jobs:
        task_and_key, on_conflict = (job.row["task_name"], job.key), job.rule.on_conflict
        if job.key is None:
            job_id, is_duplicate = next(without_key), False
        elif task_and_key in new:
            job_id = new[task_and_key]
            is_duplicate = job_id in announced and on_conflict != "replace"
        else:
            job_id, is_duplicate = existing[task_and_key], True
        if is_duplicate and on_conflict == "raise":
            raise inserting.duplicate(job.task_name, None)
        if not is_duplicate:
            announced[job_id] = job
        results.append((job_id, is_duplicate))
    inserting.write_search_keys(connection, announced.items())
    inserting.announce(connection, ((job_id, job.row) for job_id, job in announced.items()))
    return results


def _add_or_find(connection: BaseDatabaseWrapper, jobs: Sequence[NewJob]) -> tuple[list[Added], dict[TaskAndKey, int]]:
    """Add the jobs whose keys are free. Return them, and the ids of the existing jobs that have the other keys.

    Each statement takes keys in sorted order, so that two transactions with the same keys cannot deadlock. An existing
    job can end after the insert and before it is read. Its key must not be taken now, because this transaction may hold
    keys that are sorted after it. Instead, roll back to a savepoint, which frees all keys of these jobs, and insert
    anew without the jobs whose existing jobs were found. So each try is left with fewer jobs.
    """
    existing: dict[TaskAndKey, int] = {}
    left = jobs
    for _ in range(TRIES):
        with suppress(_KeyFreed), _savepoint(connection, left):
            added = _add_all(connection, left) if left else []
            new = {(name, key) for _, name, key in added}
            taken = [job for job in left if job.key is not None and (job.row["task_name"], job.key) not in new]
            if refused := next((job for job in taken if job.rule.on_conflict == "raise"), None):
                raise inserting.duplicate(refused.task_name, None)
            existing |= _all_holders(connection, taken)
            if all((job.task_name, job.key) in existing for job in taken):
                return added, existing
            left = [job for job in left if (job.task_name, job.key) not in existing]
            raise _KeyFreed
    raise inserting.neither_added_nor_found(left[0].task_name)


def _savepoint(connection: BaseDatabaseWrapper, jobs: Sequence[NewJob]) -> AbstractContextManager[Any]:
    """Return a savepoint, unless a key that is taken ends the call with an error."""
    is_needed = any(job.key is not None and job.rule.on_conflict != "raise" for job in jobs)
    return transaction.atomic(using=connection.alias) if is_needed else nullcontext()


class _KeyFreed(Exception):
    """A job had a key when this transaction tried to take it, and has ended when it was to be read."""


def _add_all(connection: BaseDatabaseWrapper, jobs: Sequence[NewJob]) -> list[Added]:
    """Add the jobs whose keys are free, or replace waiting ones."""
    first = jobs[0]
    if not first.rule.can_share_statement or all(job.row is first.row for job in jobs):
        add = unique.enqueue_many_unique if first.rule.period_seconds is None else _add_many_for_period
        return [(job_id, first.task_name, key) for job_id, key in add(connection, jobs)]
    return unique.enqueue_each_unique(connection, jobs)


def _all_holders(connection: BaseDatabaseWrapper, jobs: Sequence[NewJob]) -> dict[TaskAndKey, int]:
    """Return the ids of the existing jobs that have the keys of these, by task and key."""
    wanted: dict[str, tuple[Uniqueness, set[str]]] = {}
    for job in jobs:
        if job.key is not None:
            wanted.setdefault(job.task_name, (job.rule, set()))[1].add(job.key)
    return {
        (name, key): job_id
        for name, (rule, keys) in wanted.items()
        for key, job_id in inserting.holders(connection, name, rule, keys).items()
    }


def _add_many_for_period(connection: BaseDatabaseWrapper, jobs: Sequence[NewJob]) -> list[tuple[int, str | None]]:
    """Do as `enqueue_many_unique()` for keys with a uniqueness window.

    Of several jobs with one key, the first is inserted; with `on_conflict="replace"` the last one is.
    """
    replaces = jobs[0].rule.on_conflict == "replace"
    kept = {job.key: job for job in (jobs if replaces else reversed(jobs)) if job.key is not None}
    once = [job for job in jobs if job.key is None or kept[job.key] is job]
    ids = [enqueued.job_id for enqueued in unique.enqueue_for_period(connection, once)]
    windows = unique.open_windows(connection, jobs[0].task_name, kept.keys(), ids)
    keys = {job_id: key for key, job_id in windows.items()}
    added = [(job_id, keys.get(job_id)) for job_id in ids]
    new = {key for _, key in added}
    taken = [job for job in once if job.key is not None and job.key not in new]
    if replaces and taken:
        added += [(enqueued.job_id, key) for enqueued, key in unique.replace_for_period(connection, taken)]
    return added
