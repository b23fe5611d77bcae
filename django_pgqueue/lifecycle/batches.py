"""Create and close batches, decide their ends, and count their jobs.

`composed.batches` calls these functions for applications, and `ends.batches` for workers. They protect one invariant:
each callback of a batch is added once, in the transaction that records the end. No counter is kept. The ends are
decided from the rows of the jobs, so that a crash or a transition by another path cannot make a count wrong.

Concurrency: a session that adds a job locks the batch until its transaction ends (JOIN_BATCH), and a session that ends
the batch locks it against that. The decision follows in a second statement, whose snapshot contains all jobs that were
added before the lock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import NamedTuple, cast

from django_pgqueue import sql
from django_pgqueue.db.statements import Connection, execute, numbers

from .enqueueing import NewJob, stored_job
from .execute import TRANSIENT_EXCEPT_LOCKS, execute_with_retry, own_transaction
from .pruning import PRUNE_LIMIT
from .ranges import PrunedPage, page_in_ranges
from .unique import add_jobs


class CreatedBatch(NamedTuple):
    """The values of a new batch that the database chose."""

    batch_id: int
    created_at: datetime


class BatchEvent(NamedTuple):
    """A batch that has failed, completed or succeeded, and the job of its callback, if it has one."""

    batch_id: int
    parent_id: int | None
    name: str
    """"failure", "complete" or "success"."""
    job_id: int | None
    job: NewJob | None


def create_batch(
    connection: Connection, *, description: str, parent_id: int | None, callbacks: Mapping[str, str | None]
) -> CreatedBatch:
    """Create an open batch. `callbacks` has the JSON text of `on_success`, `on_complete` and `on_failure`."""
    params = {"description": description, "parent_id": parent_id, **callbacks}
    [row] = execute(connection, sql.batches.CREATE_BATCH, params)
    return CreatedBatch._make(row)


def join_batch(connection: Connection, batch_id: int) -> bool | None:
    """Keep a batch from ending until the caller's transaction ends, and return whether it is complete already.

    Return None if there is no such batch. Outside of a transaction the lock ends at once.
    """
    rows = execute(connection, sql.batches.JOIN_BATCH, {"batch_id": batch_id})
    return bool(rows[0][0]) if rows else None


def close_batch(connection: Connection, batch_id: int) -> bool:
    """Close a batch. Return whether it was open."""
    return bool(execute(connection, sql.batches.CLOSE_BATCH, {"batch_id": batch_id}))


def batches_to_end(connection: Connection, batch_ids: Iterable[int]) -> list[int]:
    """Return those of these batches for which `end_batches()` has something to do."""
    params = {"batch_ids": numbers(sorted(batch_ids))}
    rows = execute_with_retry(connection, sql.batches.BATCHES_TO_END, params, TRANSIENT_EXCEPT_LOCKS)
    return [row[0] for row in rows]


def end_batches(connection: Connection, batch_ids: Collection[int]) -> dict[int, list[BatchEvent] | None]:
    """Record the ends of batches and add the jobs of their callbacks, in one transaction; return the events of each.

    The result is None for a batch that another session has locked. It is None for all batches if the isolation level of
    the caller's transaction hides the commits of others: the statement could miss a job that was added since.
    """
    with own_transaction(connection) as sees_others:
        ids = numbers(sorted(batch_ids))
        rows = execute(connection, sql.batches.LOCK_BATCHES, {"batch_ids": ids}) if sees_others else []
        events: dict[int, list[BatchEvent] | None] = dict.fromkeys(batch_ids)
        events |= {row[0]: [] for row in rows}
        if rows:
            params = {"batch_ids": numbers(row[0] for row in rows)}
            ended = execute(connection, sql.batches.END_BATCHES, params)
            jobs = {job_id: stored_job(call, arguments) for *_, job_id, call, arguments in ended if job_id is not None}
            add_jobs(connection, jobs)
            for batch_id, parent_id, name, job_id, *_ in ended:
                event = BatchEvent(batch_id, parent_id, name, job_id, jobs.get(job_id))
                cast("list[BatchEvent]", events[batch_id]).append(event)
    return events


def incomplete_batches(connection: Connection, after_id: int, limit: int) -> list[int]:
    """Return the ids of up to `limit` batches behind `after_id` that are not complete, in order."""
    rows = execute(connection, sql.batches.INCOMPLETE_BATCHES, {"after_id": after_id, "limit": limit})
    return [row[0] for row in rows]


def unsettled_batches(connection: Connection, after_id: int, limit: int) -> list[int]:
    """Return the ids of up to `limit` batches behind `after_id` that have not succeeded, in order."""
    rows = execute(connection, sql.batches.UNSETTLED_BATCHES, {"after_id": after_id, "limit": limit})
    return [row[0] for row in rows]


def count_jobs(connection: Connection, batch_ids: Iterable[int]) -> dict[int, dict[str, int]]:
    """Return how many jobs each batch and the batches nested in it have, by state, in one statement."""
    counts: dict[int, dict[str, int]] = {batch_id: {} for batch_id in batch_ids}
    rows = execute(connection, sql.batches.COUNT_BATCH_JOBS, {"batch_ids": numbers(counts)})
    for batch_id, state, count in rows:
        counts[batch_id][state] = count
    return counts


def forget_callbacks(connection: Connection, limit: int = PRUNE_LIMIT) -> int:
    """Remove the callbacks of all batches that have not succeeded, a page at a time. Return their number."""
    count, after_id, found = 0, 0, limit
    while found == limit:
        params = {"after_id": after_id, "limit": limit}
        [(found, forgotten, after_id)] = execute(connection, sql.batches.FORGET_CALLBACKS, params)
        count += forgotten
    return count


def delete_batches(connection: Connection, batch_ids: Collection[int]) -> list[int]:
    """Remove complete batches whose jobs and nested batches are gone. Return the ids of those that were removed."""
    params = {"batch_ids": numbers(sorted(batch_ids))}
    return [row[0] for row in execute_with_retry(connection, sql.batches.DELETE_BATCHES, params)]


def prune_batches(
    connection: Connection, retention_seconds: float, after_id: int = 0, limit: int = PRUNE_LIMIT
) -> PrunedPage:
    """Remove old complete batches whose jobs are gone, from the page of `limit` batches behind `after_id`."""
    params = {"after_id": after_id, "limit": limit, "retention_seconds": retention_seconds}
    return page_in_ranges(connection, "the removal of batch", sql.batches.PRUNE_BATCHES, params)
