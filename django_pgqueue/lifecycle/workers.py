"""Write the register of workers: the ids that own leases, and what the admin shows of each worker.

The supervisor calls these functions, as does `manage.py pgqueue run`. No two workers ever get the same id.
"""

from __future__ import annotations

from django_pgqueue import sql
from django_pgqueue.db.statements import Connection, execute

from .ranges import rows_in_ranges


def register_worker(
    connection: Connection,
    *,
    hostname: str,
    pid: int,
    version: str,
    queue_names: str,
    concurrency: int,
    release: str = "",
    worker_id: int | None = None,
    supervisor_pid: int | None = None,
) -> int:
    """Record a worker process; return the id that owns its leases.

    Without `worker_id` the worker gets a new id that no worker has had before, even if the tables were emptied. Only a
    worker with a supervisor answers requests. `release` is the name of the project's release, or "".
    """
    params = {
        "hostname": hostname,
        "pid": pid,
        "supervisor_pid": supervisor_pid,
        "version": version,
        "release": release,
        "queue_names": queue_names,
        "concurrency": concurrency,
        "worker_id": worker_id,
    }
    return int(execute(connection, sql.workers.REGISTER_WORKER, params)[0][0])


def unregister_worker(connection: Connection, worker_id: int) -> bool:
    """Record that a worker has stopped. Return False if another session has locked its record."""
    [[is_recorded]] = execute(connection, sql.workers.UNREGISTER_WORKER, {"worker_id": worker_id})
    return bool(is_recorded)


def has_stopped(connection: Connection, worker_id: int) -> bool:
    """Return whether a worker has recorded that it has stopped."""
    return bool(execute(connection, sql.workers.HAS_STOPPED, {"worker_id": worker_id})[0][0])


def prune_workers(connection: Connection, retention_seconds: float) -> None:
    """Remove the records of workers whose last heartbeat is older than `retention_seconds`."""
    params = {"retention_seconds": retention_seconds}
    rows_in_ranges(connection, "the removal of worker", sql.workers.PRUNE_WORKERS, params)
