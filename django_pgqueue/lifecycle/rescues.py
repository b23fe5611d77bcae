"""Rescue jobs of lost workers: close executions whose lease has expired, and requeue their jobs.

The maintenance of every worker calls `rescue()`. A worker that was only slow loses nothing but the execution: its later
writes match no open execution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from django_pgqueue import sql
from django_pgqueue.db.arrays import numbers, sparse
from django_pgqueue.db.statements import Connection
from django_pgqueue.states import State

from .completions import key_params, remove_orphans
from .execute import divided, execute_with_retry
from .types import ExecutionKey, OpenExecution, TransitionResult, TransitionStatus


def rescue(
    connection: Connection,
    delay_for: Callable[[OpenExecution], float | None],
    *,
    error: str,
    skipped_ids: Sequence[int] = (),
    on_refused: Callable[[OpenExecution, Exception], bool] = lambda execution, error: False,
) -> list[tuple[OpenExecution, TransitionResult]]:
    """Close executions whose lease has expired, and requeue their jobs.

    One call rescues at most 100 executions or a fifth of the open ones, whichever is more. `delay_for` returns the
    seconds until the next attempt, or None to make the job dead. Executions in `skipped_ids` are left out.

    It runs two statements. The second is fenced by the lease as well, so a heartbeat between the two keeps its
    execution. If the database refuses to store the next attempt, the execution is passed to `on_refused`, which returns
    whether only this row is to blame. The job becomes dead then, if the database accepts that.
    """
    found = list(
        map(
            OpenExecution._make,
            execute_with_retry(connection, sql.rescues.RESCUABLE, {"skipped_ids": numbers(skipped_ids)}),
        )
    )
    orphans = {execution.key: execution for execution in found if execution.task_name is None}
    for key, refusal in remove_orphans(connection, list(orphans)):
        on_refused(orphans[key], refusal)
    expired = {execution.execution_id: execution for execution in found if execution.task_name is not None}
    if not expired:
        return []
    rows = [Lost(execution.key, delay_for(execution)) for execution in expired.values()]
    done, refused = divided(connection, rows, lambda part: _close_lost(connection, part, error))
    dead = [
        row._replace(delay_seconds=None)
        for row, refusal in refused
        if on_refused(expired[row.key.execution_id], refusal)
    ]
    reason = f"{error}; its next attempt could not be stored"
    done |= divided(connection, dead, lambda part: _close_lost(connection, part, reason)).answers
    return [(expired[execution_id], result) for execution_id, result in done.items()]


class Lost(NamedTuple):
    """An execution whose lease has expired; `delay_seconds` until the next attempt, or None to make the job dead."""

    key: ExecutionKey
    delay_seconds: float | None


def _close_lost(connection: Connection, rows: Sequence[Lost], error: str) -> dict[int, TransitionResult]:
    params = {
        **key_params(row.key for row in rows),
        "delays_seconds": sparse([row.delay_seconds for row in rows]),
        "error": error,
    }
    return {
        key: TransitionResult(TransitionStatus.DONE, State(state))
        for key, state in execute_with_retry(connection, sql.rescues.RESCUE, params)
    }
