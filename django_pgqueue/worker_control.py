"""Request something of one running worker process: to stop, or to write the stacks of its jobs.

The admin and `manage.py pgqueue workers` call it. A worker reads the request after a notification. Without
notifications, it reads it within a second if it runs jobs, and otherwise with the heartbeat that it records once per
lease. It stores its answer in `pgqueue_worker_request`.
"""

from __future__ import annotations

from django.db import connections

from . import lifecycle
from .db.notifications import WORKER_REQUESTED, wake_workers_after_commit
from .states import RequestKind


def request(worker_id: int, kind: RequestKind, database: str, *, execution_id: int = 0, by: str = "") -> int | None:
    """Add a request to a worker process, and notify it. Return the id of the request.

    The change is part of the transaction that is open on the database. While the same request waits for its answer, a
    repetition returns its id and adds nothing.

    Args:
        worker_id: Id of the worker process.
        kind: What it is to do. `STOP` stops its supervisor with all of its processes.
        database: Alias of the database of the jobs.
        execution_id: The running execution whose stack is requested. 0: the stacks of all jobs.
        by: Name of the operator.

    Returns:
        None if the worker has stopped, is unknown, or answers no requests because it has no supervisor.
    """
    connection = connections[database]
    found = lifecycle.request_of_worker(connection, worker_id, kind, execution_id=execution_id, by=by[:150])
    if found is not None:
        wake_workers_after_commit(connection, WORKER_REQUESTED)
    return found
