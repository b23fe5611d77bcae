"""The record of a worker process in the register of workers.

The supervisor calls this when it has forked a process, and when a heartbeat finds that a record is gone because
somebody emptied the tables. The id never recurs, so a record made again names the same process as before.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import django_pgqueue
from django_pgqueue import lifecycle

if TYPE_CHECKING:
    from django_pgqueue.db import EngineConnection

    from .options import Options


def register(connection: EngineConnection, options: Options, pid: int, worker_id: int | None = None) -> int:
    """Record a worker process, under the id that it has already or under a new one; return the id."""
    return lifecycle.register_worker(
        connection,
        hostname=socket.gethostname(),
        pid=pid,
        version=django_pgqueue.__version__,
        queue_names=",".join(options.queue_names),
        concurrency=options.concurrency,
        worker_id=worker_id,
    )
