"""Write the register of workers: the ids that own leases, and what the admin shows of each worker.

The supervisor calls these functions, as does `manage.py pgqueue run`. No two workers ever get the same id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from django_pgqueue import sql
from django_pgqueue.db.statements import Connection, execute

from .execute import Divided, divided
from .ranges import rows_in_ranges

NO_MEMORY: Final[Mapping[int, int | None]] = MappingProxyType({})
"""The memory of no worker is known."""


def register_worker(
    connection: Connection,
    *,
    hostname: str,
    pid: int,
    version: str,
    queue_names: str,
    concurrency: int,
    worker_id: int | None = None,
    supervisor_pid: int | None = None,
) -> int:
    """Record a worker process; return the id that owns its leases.

    Without `worker_id` the worker gets a new id that no worker has had before, even if the tables were emptied. Only a
    worker with a supervisor answers requests.
    """
    params = {
        "hostname": hostname,
        "pid": pid,
        "supervisor_pid": supervisor_pid,
        "version": version,
        "queue_names": queue_names,
        "concurrency": concurrency,
        "worker_id": worker_id,
    }
    return int(execute(connection, sql.workers.REGISTER_WORKER, params)[0][0])


def record_heartbeats(
    connection: Connection, worker_ids: Sequence[int], resident_mib: Mapping[int, int | None] = NO_MEMORY
) -> dict[int, bool]:
    """Record a heartbeat of these workers, and their memory. Return which of them have a record.

    The value is whether the worker has a request that it has not answered. If the database refuses to write one record,
    the others are still written. The refused one counts as existing, and so does one that time was up for.
    """

    def update(part: Sequence[int]) -> dict[int, bool]:
        params = {"worker_ids": list(part), "resident_mib": [resident_mib.get(worker_id) for worker_id in part]}
        return dict(execute(connection, sql.workers.RECORD_HEARTBEATS, params))

    parts: Divided[int, bool] = divided(connection, worker_ids, update)
    unwritten = [*(refused.row for refused in parts.refused), *parts.left]
    return {**parts.answers, **dict.fromkeys(unwritten, False)}


def unregister_worker(connection: Connection, worker_id: int) -> bool:
    """Record that a worker has stopped. Return False if another session has locked its record."""
    [[is_recorded]] = execute(connection, sql.workers.UNREGISTER_WORKER, {"worker_id": worker_id})
    return bool(is_recorded)


def prune_workers(connection: Connection, retention_seconds: float) -> None:
    """Remove the records of workers whose last heartbeat is older than `retention_seconds`."""
    params = {"retention_seconds": retention_seconds}
    rows_in_ranges(connection, "the removal of worker", sql.workers.PRUNE_WORKERS, params)
