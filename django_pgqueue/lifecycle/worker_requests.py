"""Write the requests of operators to running workers, and the answers of the workers.

The admin and the commands add requests (see `worker_requests` in the package). The process that is asked reads and
answers them. They change no job: a worker that stops does so by the same steps as after a signal.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from django_pgqueue import sql
from django_pgqueue.db.statements import Connection, execute
from django_pgqueue.states import RequestKind

from .ranges import rows_in_ranges

REQUESTS_READ: Final = 20
"""Requests that a worker reads and answers at once."""
REQUESTS_PRUNED: Final = 1000
"""Requests that one call removes at most."""


class AddedRequest(NamedTuple):
    """A request to a worker that this call has added.

    `worker` is the host and pid of the process. `job_id` is the job whose stack is requested, if this worker runs one
    such execution.
    """

    request_id: int
    worker: str
    job_id: int | None


class WorkerRequestRow(NamedTuple):
    """A request that waits for the answer of a worker. With an `execution_id` of 0 it is about the whole worker."""

    request_id: int
    kind: str
    execution_id: int
    requested_by: str


def request_of_worker(
    connection: Connection, worker_id: int, kind: RequestKind, *, execution_id: int = 0, by: str = ""
) -> AddedRequest | None:
    """Add a request to a running worker, and return it.

    Return None if the same request waits for its answer, or if the worker has stopped, is unknown, or has no
    supervisor.
    """
    params = {"worker_id": worker_id, "kind": str(kind), "execution_id": execution_id, "by": by}
    rows = execute(connection, sql.worker_requests.ADD_REQUEST, params)
    return AddedRequest(rows[0][0], f"{rows[0][1]}:{rows[0][2]}", rows[0][3]) if rows else None


def open_request(connection: Connection, worker_id: int, kind: RequestKind, *, execution_id: int = 0) -> int | None:
    """Return the id of the request that waits for its answer, or None if none does."""
    params = {"worker_id": worker_id, "kind": str(kind), "execution_id": execution_id}
    rows = execute(connection, sql.worker_requests.OPEN_REQUEST, params)
    return int(rows[0][0]) if rows else None


def open_requests(connection: Connection, worker_id: int) -> list[WorkerRequestRow]:
    """Return the oldest requests to this worker that wait for their answer."""
    params = {"worker_id": worker_id, "limit": REQUESTS_READ}
    return list(map(WorkerRequestRow._make, execute(connection, sql.worker_requests.WORKER_REQUESTS, params)))


def answer_request(connection: Connection, request_id: int, answer: str) -> None:
    """Store the answer to a request. A request that was answered keeps its answer."""
    execute(connection, sql.worker_requests.ANSWER_REQUEST, {"request_id": request_id, "answer": answer})


def prune_worker_requests(connection: Connection, retention_seconds: float) -> None:
    """Remove the requests that are older than `retention_seconds`, `REQUESTS_PRUNED` of them at most."""
    params = {"retention_seconds": retention_seconds, "limit": REQUESTS_PRUNED}
    rows_in_ranges(connection, "the removal of request", sql.worker_requests.PRUNE_WORKER_REQUESTS, params)
