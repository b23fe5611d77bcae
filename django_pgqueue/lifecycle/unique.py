"""Add jobs with a unique key, on the caller's connection and in the caller's transaction.

`django_pgqueue.enqueue.unique` calls these functions. The unique indexes protect the invariant: at most one job of a
task has a key at a time, by the states of that job or for a uniqueness window (a row of `pgqueue_uniqueness_window`).
`row` is as in `enqueueing`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final, cast

from django_pgqueue import sql
from django_pgqueue.db import statements
from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.db.statements import Connection, execute
from django_pgqueue.declared.limits import NO_LIMIT
from django_pgqueue.exceptions import JobLocked
from django_pgqueue.options.task_options import UNSET

from .enqueueing import Limits, NewJob, limits_as_json, params_of
from .execute import transaction_of
from .ranges import rows_in_ranges
from .search_keys import add_search_keys
from .steps import remove_steps
from .types import Enqueued

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

WINDOWS_PRUNED: Final = 1000
"""Uniqueness windows that one statement removes at most."""


def enqueue_unique(
    connection: Connection, *, arguments: str, unique_key: str, ready_only: bool, **row: Any
) -> Enqueued | None:
    """Add one ready job if no other job has its key; otherwise return None.

    With `ready_only` the job has its key until it is claimed for the first time, otherwise until it has ended. If an
    uncommitted transaction has just taken the key, this function waits for the end of that transaction.
    """
    return _enqueue(connection, sql.unique.ENQUEUE_UNIQUE, arguments, unique_key, ready_only=ready_only, row=row)


def replace(
    connection: Connection,
    *,
    arguments: str,
    unique_key: str,
    ready_only: bool,
    has_steps: bool = False,
    **row: Any,
) -> Enqueued | None:
    """Replace the call of the ready job that has the key, or add a job; return None if that job is running.

    A ready job with a pending compensation counts as running.

    `has_steps`: the jobs can have durable steps. See `_steps_removed()`.
    """
    statement = sql.unique.ENQUEUE_OR_REPLACE
    with _steps_removed(connection, has_steps=has_steps) as replaced:
        enqueued = _enqueue(connection, statement, arguments, unique_key, ready_only=ready_only, row=row)
        replaced += [] if enqueued is None else [enqueued.job_id]
    return enqueued


@contextmanager
def _steps_removed(connection: Connection, *, has_steps: bool) -> Iterator[list[int]]:
    """Remove the steps of those jobs that the block adds to the yielded list, in one transaction with the block.

    The statements that replace calls remove the steps that they see. While such a statement waits for a lock, the job
    can be claimed, store a step and be suspended. The snapshot of the statement does not contain that step, and an
    attempt with the new arguments would use its value. This second statement sees it, and no attempt can store another
    one, because the transaction has locked the job. Only tasks that can have steps pay for it.

    If a step that it sees has a compensation, the job must not be replaced. Then the transaction is rolled back.

    Raises:
        JobLocked: Such a step was stored while the statement waited. Nothing is written, and a new try finds it.
    """
    replaced: list[int] = []
    with transaction_of(connection) if has_steps else nullcontext():
        yield replaced
        if has_steps and replaced:
            _check_compensations(connection, remove_steps(connection, replaced))


def _check_compensations(connection: Connection, job_ids: Collection[int]) -> None:
    """Raise `JobLocked` if jobs have lost a compensation, and let nothing of the caller's transaction be committed."""
    if not job_ids:
        return
    if not isinstance(connection, EngineConnection):
        django_connection = cast("BaseDatabaseWrapper", connection)
        if django_connection.in_atomic_block:
            django_connection.set_rollback(True)
    raise JobLocked(f"job {min(job_ids)} was running until now: nothing was enqueued, try again")


def _enqueue(
    connection: Connection, statement: str, arguments: str, unique_key: str, *, ready_only: bool, row: dict[str, Any]
) -> Enqueued | None:
    key = {"unique_key": unique_key, "unique_ready_only": ready_only or None}
    rows = execute(connection, statement, {"arguments": arguments, **UNSET, **NO_LIMIT, **row, **key})
    return Enqueued._make(rows[0]) if rows else None


def enqueue_many_unique(
    connection: Connection,
    *,
    calls: str,
    ready_only: bool,
    replace: bool,
    limits: Limits = (),
    has_steps: bool = False,
    **row: Any,
) -> list[tuple[int, str | None]]:
    """Do as `enqueue_unique()` or `replace()` for each of `calls`, in one statement.

    `calls` is a JSON array of objects with `call` and `key`. A job with a null key is always added.

    Return the ids of the jobs that were added or replaced, with their keys, sorted by id. The ids of new jobs have the
    order of `calls`.
    """
    statement = sql.unique.ENQUEUE_MANY_OR_REPLACE if replace else sql.unique.ENQUEUE_MANY_UNIQUE
    params = {"arguments": calls, **UNSET, **row, "unique_ready_only": ready_only or None}
    params["limits"] = limits_as_json(limits)
    with _steps_removed(connection, has_steps=has_steps and replace) as replaced:
        rows = execute(connection, statement, params)
        replaced += [job_id for job_id, key in rows if key is not None]
    return sorted(((job_id, key) for job_id, key in rows), key=lambda pair: pair[0])


def enqueue_each_unique(
    connection: Connection, jobs: Sequence[NewJob], job_ids: Collection[int] = ()
) -> list[tuple[int, str, str | None]]:
    """Do as `enqueue_unique()` for each of these jobs, in one statement. A job without a key is always added.

    `job_ids` are the ids of the jobs, if they were drawn before. Otherwise the ids have the order of `jobs`. Return the
    ids, tasks and keys of the new jobs, sorted by id.
    """
    params = {**params_of(jobs), "keys": json.dumps([job.key for job in jobs]), "job_ids": statements.numbers(job_ids)}
    return sorted(execute(connection, sql.unique.ENQUEUE_EACH_UNIQUE, params), key=lambda row: row[0])


def add_jobs(connection: Connection, jobs: Mapping[int, NewJob]) -> list[int]:
    """Add jobs by the ids that were drawn for them, with their search keys, in the caller's transaction.

    The transitions that add jobs themselves call it: ends of batches, compensations and schedules. A job with a unique
    key is not added if another job has the key. A job whose key has a uniqueness window must be alone. Return the ids
    of the new jobs.
    """
    if not jobs:
        return []
    first = next(iter(jobs.values()))
    if first.key is not None and first.uniqueness is not None and first.uniqueness.period_seconds is not None:
        calls = f'[{{"key":{json.dumps(first.key)},"call":{first.arguments}}}]'
        period: dict[str, Any] = {"period_seconds": first.uniqueness.period_seconds, "job_ids": jobs.keys()}
        opened = enqueue_for_period(connection, calls=calls, limits=[first.limit], **period, **first.row)
        added = [enqueued.job_id for enqueued in opened]
    else:
        added = [row[0] for row in enqueue_each_unique(connection, list(jobs.values()), jobs.keys())]
    add_search_keys(connection, {job_id: jobs[job_id].search_keys or {} for job_id in added})
    return added


def holders(connection: Connection, task_name: str, unique_keys: Collection[str]) -> dict[str, int]:
    """Return the ids of the jobs of a task that have these keys now, by key."""
    rows = execute(connection, sql.unique.HOLDERS, {"task_name": task_name, "unique_keys": list(unique_keys)})
    return dict(rows)


def enqueue_for_period(
    connection: Connection,
    *,
    calls: str,
    period_seconds: float,
    limits: Limits = (),
    job_ids: Collection[int] = (),
    **row: Any,
) -> list[Enqueued]:
    """Add those of `calls` whose keys have no open uniqueness window, and open one of `period_seconds` for each.

    `calls` is a JSON array as for `enqueue_many_unique()`, with no key in it twice. A job with a null key is always
    added. If an uncommitted transaction has just taken one of the keys, this function waits for its end.

    `job_ids` are the ids of the jobs, if they were drawn before. Return the new jobs in the order of `calls`.
    """
    given = {"calls": calls, "limits": limits_as_json(limits), "period_seconds": period_seconds}
    params = {**UNSET, **row, **given, "job_ids": statements.numbers(job_ids)}
    return list(map(Enqueued._make, execute(connection, sql.unique.ENQUEUE_FOR_PERIOD, params)))


def replace_for_period(
    connection: Connection, *, calls: str, limits: Limits = (), has_steps: bool = False, **row: Any
) -> list[tuple[Enqueued, str]]:
    """Replace the calls of the jobs whose uniqueness windows have these keys, if the jobs are ready.

    Return the replaced jobs and their keys. For `has_steps`, see `replace()`.
    """
    params: dict[str, Any] = {**UNSET, **row, "calls": calls, "limits": limits_as_json(limits)}
    params.pop("queue_name")  # the job stays in its queue
    with _steps_removed(connection, has_steps=has_steps) as replaced:
        rows = execute(connection, sql.unique.REPLACE_FOR_PERIOD, params)
        replaced += [row[0] for row in rows]
    return [(Enqueued._make(columns[:4]), columns[4]) for columns in rows]


def open_windows(
    connection: Connection, task_name: str, unique_keys: Collection[str], job_ids: Sequence[int] = ()
) -> dict[str, int]:
    """Return the ids of the jobs that opened the uniqueness windows of these keys of a task, by key.

    The jobs may have ended, and their rows may be gone. Jobs in `job_ids` are returned even if their window has ended.
    """
    params = {"task_name": task_name, "unique_keys": list(unique_keys), "job_ids": list(job_ids)}
    return dict(execute(connection, sql.unique.OPEN_WINDOWS, params))


def prune_windows(connection: Connection, limit: int = WINDOWS_PRUNED) -> int:
    """Remove up to `limit` uniqueness windows that have ended; return how many."""
    params = {"limit": limit}
    return len(rows_in_ranges(connection, "the removal of the window of job", sql.unique.PRUNE_WINDOWS, params))
