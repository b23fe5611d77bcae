"""The register of workers: for people to look at, and for the ids that leases are held under."""

from __future__ import annotations

from collections.abc import Sequence

from django_pgqueue import sql
from django_pgqueue.db import Connection, execute


def register_worker(
    connection: Connection,
    *,
    hostname: str,
    pid: int,
    version: str,
    queue_names: str,
    concurrency: int,
    worker_id: int | None = None,
) -> int:
    """Record a worker process; return the id under which it holds leases.

    Without `worker_id` it gets a new one, which no worker has had before, also if the tables were emptied meanwhile.
    """
    params = {
        "hostname": hostname,
        "pid": pid,
        "version": version,
        "queue_names": queue_names,
        "concurrency": concurrency,
        "worker_id": worker_id,
    }
    return int(execute(connection, sql.REGISTER_WORKER, params)[0][0])


def beat_workers(connection: Connection, worker_ids: Sequence[int]) -> set[int]:
    """Record that these workers live; return the ids of those that have a record."""
    return {row[0] for row in execute(connection, sql.BEAT_WORKERS, {"worker_ids": list(worker_ids)})}


def unregister_worker(connection: Connection, worker_id: int) -> None:
    """Record that a worker has stopped."""
    execute(connection, sql.UNREGISTER_WORKER, {"worker_id": worker_id})


def prune_workers(connection: Connection, retention_seconds: float) -> None:
    """Remove the records of workers that have been silent for longer."""
    execute(connection, sql.PRUNE_WORKERS, {"retention_seconds": retention_seconds})
