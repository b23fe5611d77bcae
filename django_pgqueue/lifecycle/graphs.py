"""Add the nodes of workflows, advance them when their dependencies have ended, and restore them after a retry.

`workflows` calls these functions for applications, `ends.graphs` for workers. They protect one invariant:
a waiting job becomes ready or cancelled exactly once, and becomes ready only after all its dependencies have ended. If
one of them is retried, it waits again. The rows of the dependencies decide. There is no counter, which a crash or a
transition by another path could make wrong.

Concurrency: a session that advances a job locks it first, and decides in a second statement. An operator's retry of a
dependency locks the same jobs before it restores them. So the session that comes second sees what the first has done.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Final, NamedTuple

from django_pgqueue import sql
from django_pgqueue.db.statements import Connection, execute, numbers, texts
from django_pgqueue.exceptions import JobLocked
from django_pgqueue.states import State

from .enqueueing import NewJob, params_of
from .execute import TRANSIENT_EXCEPT_LOCKS, LockWait, execute_with_retry, own_transaction
from .ranges import written
from .refused_rows import Refused, divided
from .types import NodeResult

FIND_LIMIT: Final = 1000
"""Edges, ended jobs or waiting jobs that one statement looks at, and about how many of them one page of an advance
does. A worker writes completions between two pages."""
LOCK_SECONDS: Final = 5.0
"""How long a retry tries to lock the dependents of a job."""


Ended = Mapping[int, int]
"""Ended jobs, each with the last of its dependents that was looked at. 0: none was."""


class AdvancedJob(NamedTuple):
    """A waiting job that became ready or cancelled."""

    job_id: int
    state: State
    task_name: str
    queue_name: str
    batch_id: int | None
    is_due: bool


class Advanced(NamedTuple):
    """The result of `advance()`."""

    jobs: list[AdvancedJob]
    locked_ids: set[int]
    """Jobs that another session has locked, or that time was up for: pass them to `advance()` later, or leave them to
    the sweep."""
    refused: list[Refused[int]]


class Restored(NamedTuple):
    """A job that has to wait because of a retry. `state` is cancelled if another dependency of it has failed.

    `finished_at` is when it was cancelled before. None: it was ready.
    """

    state: State
    finished_at: datetime | None


class FoundWaiting(NamedTuple):
    """One page of the waiting jobs, as the sweep reads it. `last_id` is the end of the page, or None after the last."""

    job_ids: list[int]
    last_id: int | None
    is_empty: bool


# --------------------------------------------------------------------------- add


def draw_ids(connection: Connection, count: int) -> list[int]:
    """Return new ids of jobs, in ascending order."""
    return sorted(row[0] for row in execute(connection, sql.graphs.DRAW_JOB_IDS, {"count": count}))


def add_nodes(connection: Connection, job_ids: Sequence[int], waits: Sequence[bool], jobs: Sequence[NewJob]) -> None:
    """Add nodes of a workflow with these ids, in one statement. `waits`: whether a node has dependencies."""
    drawn = {"job_ids": numbers(job_ids), "waits": texts("t" if each else "f" for each in waits)}
    execute(connection, sql.graphs.ADD_NODES, {**drawn, **params_of(jobs)})


def add_dependencies(connection: Connection, edges: Sequence[tuple[int, int, str]]) -> None:
    """Add edges, each with the ids of the dependent and of the dependency, and the failure policy."""
    params = {
        "job_ids": numbers(edge[0] for edge in edges),
        "needs_ids": numbers(edge[1] for edge in edges),
        "policies": texts(edge[2] for edge in edges),
    }
    execute(connection, sql.graphs.ADD_DEPENDENCIES, params)


# --------------------------------------------------------------------------- advance


def advance(connection: Connection, ended_ids: Iterable[int], found_ids: Collection[int] = ()) -> Advanced:
    """Advance the dependents of ended jobs, and those of the jobs that this cancels.

    Call it after the ends have committed, or in their transaction. `found_ids` are further waiting jobs to advance, as
    far as their dependencies have ended.
    """
    done, left = advance_page(connection, dict.fromkeys(ended_ids, 0), found_ids)
    while left:
        page, left = advance_page(connection, left)
        done = Advanced(done.jobs + page.jobs, done.locked_ids | page.locked_ids, [*done.refused, *page.refused])
    return done._replace(locked_ids=done.locked_ids.difference(job.job_id for job in done.jobs))


def advance_page(
    connection: Connection, ended: Ended, found_ids: Collection[int] = ()
) -> tuple[Advanced, dict[int, int]]:
    """Advance the dependents of ended jobs as `advance()` does, but end after about `FIND_LIMIT` jobs and edges.

    Return what is left to do as the ended jobs of the next page. These include jobs that this page has cancelled.
    """
    done, looked, found, left = Advanced([], set(), []), 0, set(found_ids), dict(ended)
    while True:
        parts = divided(connection, sorted(found), partial(_advance_jobs, connection))
        jobs = [job for job in parts.answers.values() if job is not None]
        done.jobs.extend(jobs)
        done.refused.extend(parts.refused)
        done.locked_ids.update(parts.left, (job_id for job_id, job in parts.answers.items() if job is None))
        left |= {job.job_id: 0 for job in jobs if job.state is State.CANCELLED}
        if not left or looked >= FIND_LIMIT:
            break
        found, left, count = find_dependents(connection, left)
        looked += count
    locked = _selected(connection, sql.graphs.STILL_WAITING, done.locked_ids) if done.locked_ids else []
    return done._replace(locked_ids=set(locked)), left


def find_dependents(connection: Connection, ended: Ended) -> tuple[set[int], dict[int, int], int]:
    """Look at the next edges of ended jobs. Return the dependents that can be advanced, what is left, and the effort.

    Later jobs come first: a dependent has a larger id than its dependencies. So the jobs that a page cancels are looked
    at before the other dependents of the same job, and few jobs are left at any time.
    """
    job_ids = sorted(ended)
    left, page = job_ids[:-FIND_LIMIT], job_ids[-FIND_LIMIT:]
    params = {"job_ids": numbers(page), "after_ids": numbers(ended[job_id] for job_id in page), "limit": FIND_LIMIT}
    rows = execute_with_retry(connection, sql.graphs.FIND_DEPENDENTS, params, TRANSIENT_EXCEPT_LOCKS)
    [(count, last_needs_id, last_job_id, found)] = rows
    later = {job_id: ended[job_id] for job_id in left}
    if count == FIND_LIMIT:
        later |= {job_id: ended[job_id] for job_id in page if job_id > last_needs_id} | {last_needs_id: last_job_id}
    return set(found), later, count + len(page)


def find_missed(connection: Connection, after_id: int = 0) -> FoundWaiting:
    """Return those waiting jobs of one page, behind the job `after_id`, that can be advanced."""
    params = {"after_id": after_id, "limit": FIND_LIMIT}
    [(count, last_id, job_ids)] = execute_with_retry(connection, sql.graphs.FIND_MISSED, params)
    return FoundWaiting(job_ids, last_id if count == FIND_LIMIT else None, not count)


def _advance_jobs(connection: Connection, job_ids: Sequence[int]) -> dict[int, AdvancedJob | None]:
    """Advance waiting jobs in one transaction. The result is None for a job that was not locked.

    Such a job no longer waits, or another session has locked it. The result is None for all jobs if the isolation level
    of the caller's transaction hides the commits of others: the statement could miss the end of a dependency.
    """
    advanced: dict[int, AdvancedJob | None] = dict.fromkeys(job_ids)
    with own_transaction(connection) as sees_others:
        locked = _selected(connection, sql.graphs.LOCK_WAITING, job_ids) if sees_others else []
        for job_id in locked:
            del advanced[job_id]
        return advanced | {job.job_id: job for job in _decide(connection, locked)}


def _decide(connection: Connection, locked_ids: Sequence[int]) -> list[AdvancedJob]:
    """Advance waiting jobs that the transaction has locked."""
    rows = execute(connection, sql.graphs.ADVANCE, {"job_ids": numbers(locked_ids)}) if locked_ids else []
    return [AdvancedJob(job_id, State(state), *more) for job_id, state, *more in rows]


def _selected(connection: Connection, statement: str, job_ids: Iterable[int]) -> list[int]:
    """Run a statement that returns some of these jobs."""
    return [row[0] for row in execute(connection, statement, {"job_ids": numbers(sorted(job_ids))})]


# --------------------------------------------------------------------------- restore


def restore(
    connection: Connection, retried_ids: Collection[int], lock_seconds: float = LOCK_SECONDS
) -> dict[int, Restored]:
    """Make the jobs wait again that depend on these retried jobs. Call it in the retry's transaction.

    They were cancelled because of a retried job, or are ready. Jobs that are running are left alone. Return each job
    that changed, retried ones included: they wait if they have to.

    A job that has to wait and has another failed dependency is cancelled again at once.

    Raises:
        JobLocked: Another session has kept a dependent locked for `lock_seconds`, at most 5 s.
    """
    _lock_restorable(connection, retried_ids, lock_seconds)
    params = {"job_ids": numbers(sorted(retried_ids))}
    ends: dict[int, datetime | None] = dict(execute(connection, sql.graphs.RESTORE, params))
    states = dict.fromkeys(ends, State.WAITING)
    states |= {job.job_id: job.state for job in _decide(connection, sorted(ends))}
    if State.CANCELLED in states.values():  # that is an end: with "ignore", its dependents are ready again
        left = sorted(job_id for job_id, state in states.items() if state is State.WAITING)
        states |= {job.job_id: job.state for job in _decide(connection, left)}
    return {job_id: Restored(state, ends[job_id]) for job_id, state in states.items()}


def add_restored(restored: dict[int, Restored], found: Mapping[int, Restored]) -> None:
    """Add jobs that a later retry has restored. Of a job that is there already, keep when it had ended at first."""
    for job_id, job in found.items():
        restored[job_id] = restored.get(job_id, job)._replace(state=job.state)


def waiting_ids(restored: Mapping[int, Restored]) -> set[int]:
    """Return which restored jobs wait. The others were cancelled again, or are ready."""
    return {job_id for job_id, job in restored.items() if job.state is State.WAITING}


def postpone(connection: Connection, job_ids: Collection[int]) -> list[int]:
    """Make ready nodes wait again whose dependencies have not ended. Return them: `advance()` has to look at them."""
    select = partial(_selected, connection, sql.graphs.POSTPONE)
    return written(connection, "the return to waiting of job", sorted(job_ids), select).done


def nodes_of(connection: Connection, job_ids: Collection[int]) -> list[int]:
    """Return which of these jobs are nodes of workflows, in ascending order."""
    return sorted(_selected(connection, sql.graphs.NODES_OF, job_ids))


def _lock_restorable(connection: Connection, retried_ids: Collection[int], lock_seconds: float) -> None:
    """Lock the jobs that a retry concerns. Look again after each lock, because the state may have changed before it."""
    params, locked = {"job_ids": numbers(sorted(retried_ids))}, set[int]()
    wait = LockWait(min(lock_seconds, LOCK_SECONDS))
    while missing := {row[0] for row in execute(connection, sql.graphs.RESTORABLE, params)} - locked:
        taken = _selected(connection, sql.graphs.LOCK_RESTORABLE, missing)
        locked |= set(taken)
        if not taken and not wait.sleep():
            raise JobLocked(f"job {min(missing)} is locked by another session: nothing was changed, try again")


# --------------------------------------------------------------------------- read and remove


def read_results(
    connection: Connection, needs: Mapping[int, Sequence[tuple[int, int]]], most_bytes: int | None = None
) -> dict[int, dict[int, NodeResult]]:
    """Return for each of these nodes the results of its dependencies in some ranges of ids, with one query.

    `most_bytes` leaves out the jobs with a larger result.
    """
    given = [(job_id, *job_range) for job_id, ranges in needs.items() for job_range in ranges]
    params = {
        "job_ids": numbers(job_id for job_id, _, _ in given),
        "first_ids": numbers(first for _, first, _ in given),
        "last_ids": numbers(last for _, _, last in given),
        "most_bytes": most_bytes,
    }
    results: dict[int, dict[int, NodeResult]] = {job_id: {} for job_id in needs}
    for job_id, needs_id, *result in execute(connection, sql.graphs.READ_RESULTS, params):
        results[job_id][needs_id] = NodeResult(*result)
    return results
