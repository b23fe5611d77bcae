"""Enqueue many jobs with unique keys: `MixedChunk` calls `insert_keyed()` for its calls.

Each statement takes the keys of its calls in sorted order, so that two transactions with the same keys cannot deadlock.
This module protects that order: a transaction that holds keys never takes one that is sorted before them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

from django.db import transaction

from django_pgqueue import lifecycle
from django_pgqueue.reactions import after_enqueue

from . import unique
from .search_keys import write_search_keys
from .unique import TRIES, Added, KeyedCall, Row, TaskAndKey

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_pgqueue.definition import TaskDefinition


def insert_keyed(connection: BaseDatabaseWrapper, calls: Sequence[KeyedCall]) -> list[tuple[int, bool]]:
    """Insert a job for each call, announce it, and return the id of each call's job and whether it is a duplicate.

    The calls have equal options, or all their tasks can share a statement. Runs in a transaction that the caller rolls
    back after an error. Raises as `insert()`.
    """
    added, existing = _add_or_find(connection, calls)
    without_key = iter([job_id for job_id, _, key in added if key is None])
    new: dict[TaskAndKey, int] = {(name, key): job_id for job_id, name, key in added if key is not None}
    results: list[tuple[int, bool]] = []
    announced: dict[int, KeyedCall] = {}
    for call in calls:
        task, task_and_key = call.task, (call.task.name, call.key)
        if call.key is None:
            job_id, is_duplicate = next(without_key), False
        elif task_and_key in new:
            job_id = new[task_and_key]
            is_duplicate = job_id in announced and task.on_conflict != "replace"
        else:
            job_id, is_duplicate = existing[task_and_key], True
        if is_duplicate and task.on_conflict == "raise":
            raise unique.duplicate(task, None)
        if not is_duplicate:
            announced[job_id] = call
        results.append((job_id, is_duplicate))
    write_search_keys(connection, [(call.task, job_id, call.search_keys) for job_id, call in announced.items()])
    _send_enqueued(connection, announced)
    return results


def _add_or_find(
    connection: BaseDatabaseWrapper, calls: Sequence[KeyedCall]
) -> tuple[list[Added], dict[TaskAndKey, int]]:
    """Add the jobs whose keys are free. Return them, and the ids of the existing jobs that have the other keys.

    Each statement takes keys in sorted order, so that two transactions with the same keys cannot deadlock. An existing
    job can end after the insert and before it is read. Its key must not be taken now, because this transaction may hold
    keys that are sorted after it. Instead, roll back to a savepoint, which frees all keys of these calls, and insert
    anew without the calls whose existing jobs were found. So each try is left with fewer calls.
    """
    existing: dict[TaskAndKey, int] = {}
    left = calls
    for _ in range(TRIES):
        with suppress(_KeyFreed), _savepoint(connection, left):
            added = _add_all(connection, left) if left else []
            new = {(name, key) for _, name, key in added}
            taken = [call for call in left if call.key is not None and (call.task.name, call.key) not in new]
            if refused := next((call for call in taken if call.task.on_conflict == "raise"), None):
                raise unique.duplicate(refused.task, None)
            existing |= _all_holders(connection, taken)
            left = [call for call in left if (call.task.name, call.key) not in existing]
            if all((call.task.name, call.key) in existing for call in taken):
                return added, existing
            raise _KeyFreed
    raise unique.neither_added_nor_found(left[0].task)


def _savepoint(connection: BaseDatabaseWrapper, calls: Sequence[KeyedCall]) -> AbstractContextManager[Any]:
    """Return a savepoint, unless a key that is taken ends the call with an error."""
    is_needed = any(call.key is not None and call.task.on_conflict != "raise" for call in calls)
    return transaction.atomic(using=connection.alias) if is_needed else nullcontext()


class _KeyFreed(Exception):
    """A job had a key when this transaction tried to take it, and has ended when it was to be read."""


def _send_enqueued(connection: BaseDatabaseWrapper, calls: Mapping[int, KeyedCall]) -> None:
    by_queue: dict[tuple[str, str], list[int]] = {}
    for job_id, call in calls.items():
        by_queue.setdefault((call.task.name, call.row["queue_name"]), []).append(job_id)
    for (task_name, queue_name), job_ids in by_queue.items():
        after_enqueue(connection, task_name, queue_name, job_ids)


def _add_all(connection: BaseDatabaseWrapper, calls: Sequence[KeyedCall]) -> list[Added]:
    """Add the jobs of calls whose keys are free, or replace waiting ones."""
    task, row = calls[0].task, calls[0].row
    if not unique.can_share_statement(task) or all(call.row is row for call in calls):
        add = _add_many if unique.period_seconds(task) is None else _add_many_for_period
        return [(job_id, task.name, key) for job_id, key in add(task, connection, calls, row)]
    numbers: dict[int, int] = {}
    rows: list[Row] = []
    for call in calls:
        if id(call.row) not in numbers:
            numbers[id(call.row)] = len(rows)
            rows.append({**call.row, "unique_ready_only": call.task.unique_while == "ready" or None})
    return lifecycle.enqueue_each_unique(
        connection,
        arguments=f"[{','.join(call.arguments for call in calls)}]",
        unique_keys=[call.key for call in calls],
        limits=[call.limit for call in calls],
        numbers=[numbers[id(call.row)] for call in calls],
        rows=rows,
    )


def _all_holders(connection: BaseDatabaseWrapper, calls: Sequence[KeyedCall]) -> dict[TaskAndKey, int]:
    """Return the ids of the existing jobs that have the keys of calls, by task and key."""
    wanted: dict[str, tuple[TaskDefinition, set[str]]] = {}
    for call in calls:
        if call.key is not None:
            wanted.setdefault(call.task.name, (call.task, set()))[1].add(call.key)
    return {
        (name, key): job_id
        for name, (task, keys) in wanted.items()
        for key, job_id in unique.holders(task, connection, keys).items()
    }


def _given(calls: Sequence[KeyedCall]) -> dict[str, Any]:
    """Return calls with equal options as the functions of `lifecycle` take them."""
    pairs = ((call.key, call.arguments) for call in calls)
    return {"calls": unique.calls_as_json(pairs), "limits": [call.limit for call in calls]}


def _add_many(
    task: TaskDefinition, connection: BaseDatabaseWrapper, calls: Sequence[KeyedCall], row: Row
) -> list[tuple[int, str | None]]:
    """Insert the jobs of calls whose keys are free, or replace waiting ones; return ids and keys of these jobs."""
    return lifecycle.enqueue_many_unique(
        connection,
        **_given(calls),
        ready_only=task.unique_while == "ready",
        replace=task.on_conflict == "replace",
        has_steps=task.takes_context,
        **row,
    )


def _add_many_for_period(
    task: TaskDefinition, connection: BaseDatabaseWrapper, calls: Sequence[KeyedCall], row: Row
) -> list[tuple[int, str | None]]:
    """Do the same as `_add_many()` for keys with a uniqueness window.

    Of several calls with one key, the first is inserted; with `on_conflict="replace"` the last one is.
    """
    replaces = task.on_conflict == "replace"
    kept = {call.key: call for call in (calls if replaces else reversed(calls)) if call.key is not None}
    once = [call for call in calls if call.key is None or kept[call.key] is call]
    window_seconds = unique.period_seconds(task) or 0.0
    jobs = lifecycle.enqueue_for_period(connection, **_given(once), period_seconds=window_seconds, **row)
    ids = [job.job_id for job in jobs]
    keys = {job_id: key for key, job_id in lifecycle.open_windows(connection, task.name, kept.keys(), ids).items()}
    added = [(job_id, keys.get(job_id)) for job_id in ids]
    new = {key for _, key in added}
    taken = [call for call in once if call.key is not None and call.key not in new]
    if replaces and taken:
        replaced = lifecycle.replace_for_period(connection, **_given(taken), has_steps=task.takes_context, **row)
        added += [(job.job_id, key) for job, key in replaced]
    return added
