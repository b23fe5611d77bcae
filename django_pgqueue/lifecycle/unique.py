"""Add jobs with a unique key, on the caller's connection and in the caller's transaction.

`enqueue` calls these functions. The unique indexes protect the invariant: at most one job of a
task has a key at a time, by the states of that job or for a uniqueness window (a row of `pgqueue_uniqueness_window`).
The functions for several jobs take the row and the rule of the first one, but for `enqueue_each_unique()`.
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
from django_pgqueue.exceptions import JobLocked
from django_pgqueue.options.task_options import UNSET

from .enqueueing import UNSET_OF_ONE, NewJob, limits_as_json, params_of
from .execute import transaction_of
from .ranges import rows_in_ranges
from .search_keys import add_search_keys
from .steps import remove_steps
from .types import Enqueued

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

WINDOWS_PRUNED: Final = 1000
"""Uniqueness windows that one statement removes at most."""


def enqueue_unique(connection: Connection, job: NewJob) -> Enqueued | None:
    """Add one ready job if no other job has its key; otherwise return None.

    If an uncommitted transaction has just taken the key, this function waits for the end of that transaction.
    """
    return _enqueue(connection, sql.unique.ENQUEUE_UNIQUE, job)


def replace(connection: Connection, job: NewJob) -> Enqueued | None:
    """Replace the call of the ready job that has the key, or add a job; return None if that job is running.

    A ready job with a pending compensation counts as running.
    """
    with _steps_removed(connection, has_steps=job.rule.has_steps) as replaced:
        enqueued = _enqueue(connection, sql.unique.ENQUEUE_OR_REPLACE, job)
        replaced += [] if enqueued is None else [enqueued.job_id]
    return enqueued


def _enqueue(connection: Connection, statement: str, job: NewJob) -> Enqueued | None:
    key = {"unique_key": job.key, **job.rule.columns()}
    rows = execute(connection, statement, {**UNSET_OF_ONE, **job.columns(), "arguments": job.arguments, **key})
    return Enqueued._make(rows[0]) if rows else None


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


def enqueue_many_unique(connection: Connection, jobs: Sequence[NewJob]) -> list[tuple[int, str | None]]:
    """Do as `enqueue_unique()` or `replace()` for each of these jobs with one row and one rule, in one statement.

    A job without a key is always added.

    Return the ids of the jobs that were added or replaced, with their keys, sorted by id. The ids of new jobs have the
    order of `jobs`.
    """
    rule = jobs[0].rule
    replaces = rule.on_conflict == "replace"
    statement = sql.unique.ENQUEUE_MANY_OR_REPLACE if replaces else sql.unique.ENQUEUE_MANY_UNIQUE
    params = {"arguments": _calls(jobs), **_shared_params(jobs), **rule.columns()}
    with _steps_removed(connection, has_steps=rule.has_steps and replaces) as replaced:
        rows = execute(connection, statement, params)
        replaced += [job_id for job_id, key in rows if key is not None]
    return sorted(((job_id, key) for job_id, key in rows), key=lambda pair: pair[0])


def _calls(jobs: Sequence[NewJob]) -> str:
    """Return the keys and the arguments of jobs as JSON text."""
    return "[" + ",".join(f'{{"key":{json.dumps(job.key)},"call":{job.arguments}}}' for job in jobs) + "]"


def _shared_params(jobs: Sequence[NewJob]) -> dict[str, Any]:
    """Return the row that these jobs share, and the limits of all."""
    return {**UNSET, **jobs[0].row, "limits": limits_as_json([job.limit for job in jobs])}


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
    if first.key is not None and first.rule.period_seconds is not None:
        added = [enqueued.job_id for enqueued in enqueue_for_period(connection, [first], jobs.keys())]
    else:
        added = [row[0] for row in enqueue_each_unique(connection, list(jobs.values()), jobs.keys())]
    add_search_keys(connection, {job_id: jobs[job_id].search_keys or {} for job_id in added})
    return added


def holders(connection: Connection, task_name: str, unique_keys: Collection[str]) -> dict[str, int]:
    """Return the ids of the jobs of a task that have these keys now, by key."""
    rows = execute(connection, sql.unique.HOLDERS, {"task_name": task_name, "unique_keys": list(unique_keys)})
    return dict(rows)


def enqueue_for_period(connection: Connection, jobs: Sequence[NewJob], job_ids: Collection[int] = ()) -> list[Enqueued]:
    """Add those of these jobs with one row whose keys have no open uniqueness window, and open one for each.

    No key is in `jobs` twice. A job without a key is always added. If an uncommitted transaction has just taken one of
    the keys, this function waits for its end.

    `job_ids` are the ids of the jobs, if they were drawn before. Return the new jobs in the order of `jobs`.
    """
    given = {"calls": _calls(jobs), "period_seconds": jobs[0].rule.period_seconds}
    params = {**_shared_params(jobs), **given, "job_ids": statements.numbers(job_ids)}
    return list(map(Enqueued._make, execute(connection, sql.unique.ENQUEUE_FOR_PERIOD, params)))


def replace_for_period(connection: Connection, jobs: Sequence[NewJob]) -> list[tuple[Enqueued, str]]:
    """Replace the calls of the jobs whose uniqueness windows have the keys of these jobs, if those are ready.

    Return the replaced jobs and their keys.
    """
    params = {**_shared_params(jobs), "calls": _calls(jobs)}
    params.pop("queue_name")  # the job stays in its queue
    with _steps_removed(connection, has_steps=jobs[0].rule.has_steps) as replaced:
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
