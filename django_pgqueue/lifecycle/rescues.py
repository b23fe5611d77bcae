"""Rescue jobs of lost workers: close executions whose lease has expired, and requeue their jobs.

The maintenance of every worker calls `rescue()`. A worker that was only slow loses nothing but the execution: its later
writes match no open execution.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from django_pgqueue import sql
from django_pgqueue.db.statements import Connection, execute, numbers, sparse

from .completions import as_returned, key_params, release
from .execute import execute_with_retry
from .refused_rows import divided
from .types import ExecutionKey, OpenExecution, Released, TransitionResult


def ending_leases(connection: Connection, within_seconds: float) -> dict[int, float]:
    """Return the open executions whose leases have ended, or end within these seconds, with the end of each lease.

    The end is in milliseconds since 1970.
    """
    rows = execute(connection, sql.rescues.ENDING_LEASES, {"within_seconds": within_seconds})
    return {execution_id: float(end_ms) for execution_id, end_ms in rows}


def prove_commit(connection: Connection) -> None:
    """Commit a transaction that writes, and wait as long as the commit of a heartbeat would wait."""
    execute(connection, sql.rescues.PROVE_COMMIT, {})


def rescue(
    connection: Connection,
    delay_for: Callable[[OpenExecution], float | None],
    *,
    error: str,
    leases: Mapping[int, float] | None = None,
    skipped_ids: Sequence[int] = (),
    on_refused: Callable[[OpenExecution, Exception], bool] = lambda execution, error: False,
) -> list[tuple[OpenExecution, TransitionResult]]:
    """Close executions whose lease has expired, and requeue their jobs.

    One call rescues at most 100 executions or a fifth of the open ones, whichever is more. `delay_for` returns the
    seconds until the next attempt, or None to make the job dead. Executions in `skipped_ids` are left out. With
    `leases`, only these executions are rescued, and only while they have these leases (see `ending_leases()`).

    An execution whose worker has recorded its stop is released without counting the attempt. All executions that were
    open then have been closed, so its claim was committed later and it never started.

    The other executions are closed by a second statement. It is fenced by the lease as well, so a heartbeat between the
    two keeps its execution. If the database refuses to store the next attempt, the execution is passed to `on_refused`,
    which returns whether only this row is to blame. The job becomes dead then, if the database accepts that.
    """
    params = {
        "skipped_ids": numbers(skipped_ids),
        "execution_ids": None if leases is None else numbers(leases),
    }
    found = [OpenExecution(*row) for row in execute_with_retry(connection, sql.rescues.RESCUABLE, params)]
    expired = {execution.execution_id: execution for execution in found}
    unused = [Released(execution.key) for execution in expired.values() if execution.worker_has_stopped]
    rows = [
        Lost(execution.key, delay_for(execution), (leases or {}).get(execution.execution_id))
        for execution in expired.values()
        if not execution.worker_has_stopped
    ]
    released, not_released, _ = divided(connection, unused, lambda part: release(connection, part))
    done, refused, _ = divided(connection, rows, lambda part: _close_lost(connection, part, error))
    dead = [
        row._replace(delay_seconds=None)
        for row, refusal in refused
        if on_refused(expired[row.key.execution_id], refusal)
    ]
    reason = f"{error}; its next attempt could not be stored"
    done |= divided(connection, dead, lambda part: _close_lost(connection, part, reason)).answers
    for row, refusal in not_released:
        on_refused(expired[row.key.execution_id], refusal)
    return [(expired[execution_id], result) for execution_id, result in {**released, **done}.items()]


class Lost(NamedTuple):
    """An execution whose lease has expired; `delay_seconds` until the next attempt, or None to make the job dead."""

    key: ExecutionKey
    delay_seconds: float | None
    lease_ms: float | None
    """The end of its lease, in milliseconds since 1970. None: any lease that has expired."""


def _close_lost(connection: Connection, rows: Sequence[Lost], error: str) -> dict[int, TransitionResult]:
    params = {
        **key_params([row.key for row in rows]),
        "delays_seconds": sparse([row.delay_seconds for row in rows]),
        "leases_ms": sparse([row.lease_ms for row in rows]),
        "error": error,
    }
    return as_returned(execute_with_retry(connection, sql.rescues.RESCUE, params))
