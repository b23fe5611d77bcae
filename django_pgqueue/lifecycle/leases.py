"""Extend the leases of open executions, and read which of them are open or to be cancelled.

The supervisor's heartbeat and each worker process's lease monitor call these functions. A worker keeps a job only as
long as its lease is extended; after that, another worker may rescue the job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat, starmap
from typing import Final

from django_pgqueue import sql
from django_pgqueue.db.statements import Connection, execute
from django_pgqueue.states import State

from .completions import key_params, results_of
from .execute import FAILURES, divided, execute_with_retry, may_divide, savepoint
from .types import ExecutionKey, HeartbeatReply, OpenExecution, TransitionResult, TransitionStatus

STILL_RUNNING: Final = TransitionResult(TransitionStatus.DONE, State.RUNNING)


def extend(
    connection: Connection,
    worker_ids: Sequence[int],
    *,
    lease_seconds: float,
    started_ids: Sequence[int] = (),
    first_id: int = 0,
    on_refused: Callable[[int, Exception], object] = lambda execution_id, error: None,
) -> list[HeartbeatReply]:
    """Extend the leases of these workers' open executions with ids from `first_id`; return all that are open.

    If the database refuses to extend an execution, it is passed to `on_refused`. Its lease expires; the leases of the
    others are extended.
    """
    params = {"lease_seconds": lease_seconds, "started_ids": list(started_ids)}
    try:
        with savepoint(connection):
            all_open = {"worker_ids": list(worker_ids), "first_id": first_id, **params}
            return list(map(HeartbeatReply._make, execute_with_retry(connection, sql.leases.EXTEND, all_open)))
    except FAILURES as error:
        if not may_divide(connection, error):
            raise
    worker_of = {
        execution.key: worker_id for worker_id in worker_ids for execution in open_executions(connection, worker_id)
    }
    extended, refused, _ = divided(
        connection,
        sorted(worker_of),
        lambda keys: dict.fromkeys(extend_each(connection, keys, lease_seconds=lease_seconds, started_ids=started_ids)),
    )
    for key, refusal in refused:
        on_refused(key.execution_id, refusal)
    return [
        HeartbeatReply(worker_id, key.execution_id, key.execution_id in extended)
        for key, worker_id in sorted(worker_of.items())
    ]


def extend_each(
    connection: Connection, keys: Sequence[ExecutionKey], *, lease_seconds: float, started_ids: Sequence[int] = ()
) -> list[int]:
    """Extend the leases of these executions; return the ids of those that were open and not locked."""
    params = {**key_params(keys), "lease_seconds": lease_seconds, "started_ids": list(started_ids)}
    return [row[0] for row in execute_with_retry(connection, sql.leases.EXTEND_EACH, params)]


def extend_executions(
    connection: Connection, keys: Sequence[ExecutionKey], *, lease_seconds: float
) -> dict[int, TransitionResult]:
    """Extend the leases of executions that run on remote workers. Each is in the result, also if it is closed."""
    rows = sorted(keys)
    done = dict.fromkeys(extend_each(connection, rows, lease_seconds=lease_seconds), STILL_RUNNING)
    return results_of(connection, rows, done, repeat(None))


def cancel_requests(connection: Connection, worker_ids: Sequence[int], *, first_id: int = 0) -> list[tuple[int, int]]:
    """Return (worker id, execution id) of the open executions whose jobs have a cancellation request."""
    rows = execute(connection, sql.leases.CANCEL_REQUESTS, {"worker_ids": list(worker_ids), "first_id": first_id})
    return [(row[0], row[1]) for row in rows]


def open_executions(connection: Connection, worker_id: int) -> list[OpenExecution]:
    """Return a worker's open executions, oldest first."""
    return list(starmap(OpenExecution, execute(connection, sql.leases.OPEN_EXECUTIONS, {"worker_id": worker_id})))
