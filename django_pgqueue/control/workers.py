"""Request something of one running worker process: to stop, or to write the stacks of its jobs.

The admin and `manage.py pgqueue workers` call it. A worker reads the request after a notification. Without
notifications, it reads it within a second if it runs jobs, and otherwise with the heartbeat that it records once per
lease. It stores its answer in `pgqueue_worker_request`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from django.db import connections, transaction

from django_pgqueue.db.notifications import WORKER_REQUESTED, wake_workers_after_commit
from django_pgqueue.lifecycle import audit, worker_requests
from django_pgqueue.states import RequestKind

AUDITED_AS: Final = {RequestKind.STOP: "stop_worker", RequestKind.STACK: "live_stack"}
"""The action of the audit's entry for each kind of request."""


class Requested(NamedTuple):
    """A request to a worker. It is not new if the same request was waiting for its answer."""

    request_id: int
    is_new: bool


def request(
    worker_id: int, kind: RequestKind, database: str, *, execution_id: int = 0, by: str = ""
) -> Requested | None:
    """Add a request to a worker process with an entry in the audit, and notify the process. Return the request.

    The change is part of the transaction that is open on the database. While the same request waits for its answer, a
    repetition returns that request and adds nothing, also no entry.

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
    with transaction.atomic(using=database):
        added = worker_requests.request_of_worker(connection, worker_id, kind, execution_id=execution_id, by=by[:150])
        if added is None:
            request_id = worker_requests.open_request(connection, worker_id, kind, execution_id=execution_id)
            found = None if request_id is None else Requested(request_id, is_new=False)
        else:
            chosen = {"worker": added.worker, "worker_id": worker_id}
            jobs = [] if added.job_id is None else [added.job_id]
            audit.add_audit(connection, AUDITED_AS[kind], chosen, jobs, done_by=by)
            found = Requested(added.request_id, is_new=True)
        if found is not None:  # a repetition too, because the first notification may be lost
            wake_workers_after_commit(connection, WORKER_REQUESTED)
    return found
