"""Register a worker process in the table of workers.

Called by the supervisor after it has forked a process, by a heartbeat that finds the record missing because the tables
were emptied, and by `foreground_run`. Worker ids are never reused, so a record that is written again under its old id
still names the same process.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import django_pgqueue
from django_pgqueue import lifecycle

if TYPE_CHECKING:
    from django_pgqueue.db.engine_connection import EngineConnection
    from django_pgqueue.worker.options import Options


def register(connection: EngineConnection, options: Options, pid: int, worker_id: int | None = None) -> int:
    """Register a worker process under `worker_id`, or under a new id if that is None; return the id."""
    return lifecycle.register_worker(
        connection,
        hostname=socket.gethostname(),
        pid=pid,
        supervisor_pid=os.getpid() if pid != os.getpid() else None,
        version=django_pgqueue.__version__,
        queue_names=options.served.as_text(),
        concurrency=options.concurrency,
        worker_id=worker_id,
    )
