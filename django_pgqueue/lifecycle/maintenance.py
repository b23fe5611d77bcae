"""What workers do for each other: take back what the lost ones held, remove what is past its time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

from django_pgqueue import sql
from django_pgqueue.db import Connection, execute
from django_pgqueue.states import State

from .finishes import key_params, remove_orphans
from .persistence import persistently
from .values import EPOCH, Fate, Held, Moved, Pruned

PRUNE_LIMIT: Final = 1000
"""Jobs that one prune statement removes."""


def open_executions(connection: Connection, worker_id: int) -> list[Held]:
    """Return what a worker holds, oldest first."""
    return list(map(Held._make, execute(connection, sql.OPEN_EXECUTIONS, {"worker_id": worker_id})))


def rescue(
    connection: Connection, delay_for: Callable[[Held], float | None], *, error: str
) -> list[tuple[Held, Moved]]:
    """Take back what lost workers held: executions whose lease is over, 100 or a fifth of the open ones at most.

    `delay_for` decides for each: seconds until the next attempt, or None for no more. Two statements, the second
    fenced by the lease as well, so that a beat in between saves its execution.
    """
    found = list(map(Held._make, persistently(connection, sql.RESCUABLE, {})))
    remove_orphans(connection, [held.key for held in found if held.task_name is None])
    stale = {held.execution_id: held for held in found if held.task_name is not None}
    if not stale:
        return []
    done = persistently(
        connection,
        sql.RESCUE,
        {
            **key_params(held.key for held in stale.values()),
            "delays_seconds": [delay_for(held) for held in stale.values()],
            "error": error,
        },
    )
    return [(stale[execution_id], Moved(Fate.DONE, State(state))) for execution_id, state in done]


def prune(
    connection: Connection,
    state: State,
    retention_seconds: float,
    *,
    task_name: str | None = None,
    other_task_names: Sequence[str] = (),
    mark: datetime = EPOCH,
    limit: int = PRUNE_LIMIT,
) -> Pruned:
    """Remove up to `limit` jobs of a finished state that are older than the retention, with their executions.

    Either one task's, or all but those of `other_task_names`, which have a retention of their own.
    """
    params = {"state": state.value, "retention_seconds": retention_seconds, "mark": mark, "limit": limit}
    if task_name is None:
        rows = persistently(connection, sql.PRUNE, {**params, "other_task_names": list(other_task_names)})
    else:
        rows = persistently(connection, sql.PRUNE_TASK, {**params, "task_name": task_name})
    return Pruned._make(rows[0])


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


def expire(connection: Connection, *, worker_id: int, error: str, limit: int = PRUNE_LIMIT) -> list[tuple[int, str]]:
    """Cancel up to `limit` ready jobs that were to start by now; return their ids and tasks."""
    params = {"worker_id": worker_id, "error": error, "limit": limit}
    return [(row[0], row[1]) for row in persistently(connection, sql.EXPIRE, params)]
