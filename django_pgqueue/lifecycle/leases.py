"""Extend leases, and read which executions of a worker are open or to be cancelled.

A worker has one lease for all its executions. The supervisor's heartbeat extends it, and each worker process's lease
monitor reads. A worker keeps its jobs only as long as its lease is extended; after that, another worker may rescue
them. Remote workers have a lease for each execution instead: the server cannot know which of them they still run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import repeat, starmap
from types import MappingProxyType
from typing import Final

from django_pgqueue import sql
from django_pgqueue.db.statements import Connection, execute, numbers
from django_pgqueue.states import State

from .completions import key_params, results_of
from .execute import execute_with_retry
from .refused_rows import Divided, Refused, divided
from .types import ExecutionKey, Heartbeat, OpenExecution, TransitionResult, TransitionStatus

STILL_RUNNING: Final = TransitionResult(TransitionStatus.DONE, State.RUNNING)
NO_MEMORY: Final[Mapping[int, int | None]] = MappingProxyType({})
"""The memory of no worker is known."""


def extend(
    connection: Connection,
    worker_ids: Sequence[int],
    *,
    lease_seconds: float | None,
    resident_mib: Mapping[int, int | None] = NO_MEMORY,
    on_refused: Callable[[int, Exception], object] = lambda worker_id, error: None,
) -> dict[int, Heartbeat]:
    """Extend the leases of these workers, and record a heartbeat and their memory.

    A worker without a record is missing in the answer. If the database refuses to write one record, it is passed to
    `on_refused`, and the others are still written. Neither that lease was extended nor one that time was up for.
    Without `lease_seconds`, only the heartbeat is recorded.
    """

    def write(part: Sequence[int]) -> dict[int, Heartbeat]:
        params = {
            "worker_ids": list(part),
            "lease_seconds": lease_seconds,
            "resident_mib": [resident_mib.get(worker_id) for worker_id in part],
        }
        rows = execute_with_retry(connection, sql.leases.EXTEND, params)
        return {worker_id: Heartbeat(has_requests, is_extended) for worker_id, has_requests, is_extended in rows}

    parts: Divided[int, Heartbeat] = divided(connection, worker_ids, write)
    for refused in parts.refused:
        on_refused(refused.row, refused.error)
    unwritten = [*(refused.row for refused in parts.refused), *parts.left]
    return {**parts.answers, **dict.fromkeys(unwritten, Heartbeat(has_requests=False, is_extended=False))}


def note_started(connection: Connection, worker_ids: Sequence[int], execution_ids: Sequence[int]) -> list[Refused[int]]:
    """Record that these executions of these workers have started, unless that is recorded. Return the refused ones.

    Locked ones are left out.
    """

    def write(part: Sequence[int]) -> dict[int, bool]:
        params = {"worker_ids": list(worker_ids), "execution_ids": list(part)}
        execute_with_retry(connection, sql.leases.NOTE_STARTED, params)
        return dict.fromkeys(part, True)

    return divided(connection, execution_ids, write).refused


def extend_executions(
    connection: Connection, leases_seconds: Mapping[ExecutionKey, float]
) -> dict[int, TransitionResult]:
    """Extend the leases of executions that run on remote workers. Each is in the result, also if it is closed.

    `leases_seconds` says for each how long its lease lasts from now. If the database refuses to extend one, the others
    are extended.
    """

    def write(part: Sequence[ExecutionKey]) -> dict[int, TransitionResult]:
        params = {**key_params(part), "leases_seconds": numbers(leases_seconds[key] for key in part)}
        return {row[0]: STILL_RUNNING for row in execute_with_retry(connection, sql.leases.EXTEND_EACH, params)}

    rows = sorted(leases_seconds)
    return results_of(connection, rows, divided(connection, rows, write).answers, repeat(None))


def cancel_requests(connection: Connection, worker_ids: Sequence[int], *, first_id: int = 0) -> list[tuple[int, int]]:
    """Return (worker id, execution id) of the open executions whose jobs have a cancellation request."""
    rows = execute(connection, sql.leases.CANCEL_REQUESTS, {"worker_ids": list(worker_ids), "first_id": first_id})
    return [(row[0], row[1]) for row in rows]


def open_executions(connection: Connection, worker_id: int) -> list[OpenExecution]:
    """Return a worker's open executions, oldest first."""
    return list(starmap(OpenExecution, execute(connection, sql.leases.OPEN_EXECUTIONS, {"worker_id": worker_id})))
