"""What workers do for each other: take back what the lost ones held, remove what is past its time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from django_pgqueue import sql
from django_pgqueue.db import Connection, execute
from django_pgqueue.states import State

from .arrays import numbers, sparse
from .finishes import key_params, remove_orphans
from .persistence import FAILURES, divided, may_divide, persistently, savepoint
from .values import EPOCH, ExecutionKey, Fate, Held, Moved, Pruned

PRUNE_LIMIT: Final = 1000
"""Jobs that one prune statement removes."""


def open_executions(connection: Connection, worker_id: int) -> list[Held]:
    """Return what a worker holds, oldest first."""
    return list(map(Held._make, execute(connection, sql.OPEN_EXECUTIONS, {"worker_id": worker_id})))


def rescue(
    connection: Connection,
    delay_for: Callable[[Held], float | None],
    *,
    error: str,
    skipped_ids: Sequence[int] = (),
    on_refused: Callable[[Held, Exception], None] = lambda held, error: None,
) -> list[tuple[Held, Moved]]:
    """Take back what lost workers held: executions whose lease is over, 100 or a fifth of the open ones at most.

    `delay_for` decides for each: seconds until the next attempt, or None for no more. Two statements, the second
    fenced by the lease as well, so that a beat in between saves its execution. Executions of `skipped_ids` are left
    out. If the database refuses a next attempt, the job is dead; what it refuses altogether goes to `on_refused`.
    """
    found = list(map(Held._make, persistently(connection, sql.RESCUABLE, {"skipped_ids": numbers(skipped_ids)})))
    remove_orphans(connection, [held.key for held in found if held.task_name is None])
    stale = {held.execution_id: held for held in found if held.task_name is not None}
    if not stale:
        return []
    rows = [Lost(held.key, delay_for(held)) for held in stale.values()]
    done, refused = divided(connection, rows, lambda part: _close_lost(connection, part, error))
    if refused:
        dead = [one.row._replace(delay_seconds=None) for one in refused]
        reason = f"{error}; its next attempt could not be stored"
        more, refused = divided(connection, dead, lambda part: _close_lost(connection, part, reason))
        done |= more
    for row, why in refused:
        on_refused(stale[row.key.execution_id], why)
    return [(stale[execution_id], moved) for execution_id, moved in done.items()]


class Lost(NamedTuple):
    """An execution whose lease is over: `delay_seconds` until the next attempt, or None for no more."""

    key: ExecutionKey
    delay_seconds: float | None


def _close_lost(connection: Connection, rows: Sequence[Lost], error: str) -> dict[int, Moved]:
    params = {
        **key_params(row.key for row in rows),
        "delays_seconds": sparse([row.delay_seconds for row in rows]),
        "error": error,
    }
    return {key: Moved(Fate.DONE, State(state)) for key, state in persistently(connection, sql.RESCUE, params)}


def _ignore(row_id: int, error: Exception) -> None:
    """Do nothing about a row that the database refuses to write."""


def prune(
    connection: Connection,
    state: State,
    retention_seconds: float,
    *,
    task_name: str | None = None,
    other_task_names: Sequence[str] = (),
    mark: datetime = EPOCH,
    limit: int = PRUNE_LIMIT,
    on_refused: Callable[[int, Exception], None] = _ignore,
) -> Pruned:
    """Remove up to `limit` jobs of a finished state that are older than the retention, with their executions.

    Either one task's, or all but those of `other_task_names`, which have a retention of their own. The jobs that the
    database refuses to remove, because of a user's trigger or foreign key, go to `on_refused`.
    """
    params = {"state": state.value, "retention_seconds": retention_seconds, "mark": mark, "limit": limit}
    which: dict[str, Any]
    if task_name is None:
        statement, one_by_one, which = sql.PRUNE, sql.OLD_JOBS, {"other_task_names": list(other_task_names)}
    else:
        statement, one_by_one, which = sql.PRUNE_TASK, sql.OLD_JOBS_OF_TASK, {"task_name": task_name}
    try:
        with savepoint(connection):
            return Pruned._make(persistently(connection, statement, {**params, **which})[0])
    except FAILURES as error:
        if not may_divide(connection, error):
            raise
    old: dict[int, datetime] = dict(execute(connection, one_by_one, {**params, **which}))
    removed, refused = divided(connection, list(old), lambda part: _prune_jobs(connection, part, params))
    for job_id, why in refused:
        on_refused(job_id, why)
    return Pruned(len(old), len(removed), max(old.values(), default=None))


def _prune_jobs(connection: Connection, job_ids: Sequence[int], params: Mapping[str, Any]) -> dict[int, bool]:
    given = {name: params[name] for name in ("state", "retention_seconds")}
    rows = persistently(connection, sql.PRUNE_JOBS, {**given, "job_ids": list(job_ids)})
    return {row[0]: True for row in rows}


def prunable(
    connection: Connection,
    state: State,
    retention_seconds: float,
    *,
    task_name: str | None = None,
    other_task_names: Sequence[str] = (),
) -> int:
    """Return how many jobs `prune` would remove in all; writes nothing."""
    params = {"state": state.value, "retention_seconds": retention_seconds}
    if task_name is None:
        rows = execute(connection, sql.PRUNABLE, {**params, "other_task_names": list(other_task_names)})
    else:
        rows = execute(connection, sql.PRUNABLE_TASK, {**params, "task_name": task_name})
    return int(rows[0][0])


def expire(
    connection: Connection,
    *,
    worker_id: int,
    error: str,
    limit: int = PRUNE_LIMIT,
    skipped_ids: Sequence[int] = (),
    on_refused: Callable[[int, Exception], None] = _ignore,
) -> list[tuple[int, str]]:
    """Cancel up to `limit` ready jobs that were to start by now; return their ids and tasks.

    Jobs of `skipped_ids` are left out; those that the database refuses to end go to `on_refused`.
    """
    which = {"limit": limit, "skipped_ids": numbers(skipped_ids)}
    by = {"worker_id": worker_id, "error": error}
    try:
        with savepoint(connection):
            return [(row[0], row[1]) for row in persistently(connection, sql.EXPIRE, {**by, **which})]
    except FAILURES as failure:
        if not may_divide(connection, failure):
            raise
    late = [row[0] for row in execute(connection, sql.LATE_JOBS, which)]
    expired, refused = divided(
        connection, late, lambda part: dict(persistently(connection, sql.EXPIRE_JOBS, {**by, "job_ids": list(part)}))
    )
    for job_id, why in refused:
        on_refused(job_id, why)
    return list(expired.items())


def repair_rows(connection: Connection, model_name: str) -> None:
    """Make the rows of a table fit its checks; for the migration that adds these."""
    statements = {
        "job": sql.REPAIR_JOBS,
        "execution": sql.REPAIR_EXECUTIONS,
        "schedule": sql.REPAIR_SCHEDULES,
        "pause": sql.REPAIR_PAUSES,
    }
    execute(connection, statements[model_name], {})
