"""The entry point of a worker process. The supervisor calls `main()` in the process that it has just forked.

`main()` reads the worker's id, runs a `WorkerProcess`, and ends the process. It never returns, because the code above
it belongs to the supervisor.
"""

from __future__ import annotations

import logging
import os
from typing import NoReturn

from django_pgqueue.log_events import event

from .claiming.allowance import Allowance
from .claiming.shared_scans import SharedScans
from .execution.process_events import WORKER, stop_receivers
from .options import Options
from .runtime.background_log import background_log
from .runtime.exit_functions import forget_inherited_processes, run_exit_functions
from .runtime.process_signals import survive_signals
from .runtime.shared_memory import ProcessState
from .services import Services
from .worker_process import LAST_LINES_SECONDS, WorkerProcess

logger = logging.getLogger("django_pgqueue.worker")


def main(
    options: Options, process_state: ProcessState, orders: int, allowance: Allowance, shared_scans: SharedScans
) -> NoReturn:
    """Run this process as a worker process until it has to end, and exit."""
    worker_id = None
    try:
        survive_signals()
        forget_inherited_processes()
        worker_id = _worker_id(orders)
        if worker_id is not None:  # otherwise the supervisor has ended, and there is nothing to stop
            services = Services(options, process_state, worker_id, allowance, shared_scans)
            WorkerProcess(options, services, allowance, worker_id, orders).run()
    except BaseException:
        logger.exception("the worker process failed", extra=event("process_failed"))
    finally:
        try:
            run_exit_functions(None if worker_id is None else stop_receivers(WORKER, options.database))
            background_log.flush(LAST_LINES_SECONDS)
        finally:
            # A normal exit would wait for jobs that were released and still run here, which may never end.
            os._exit(0 if process_state.exit_reason else 1)


def _worker_id(orders: int) -> int | None:
    """Read this worker's id, the first line that the supervisor sends; return None if the supervisor ended first."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(orders, 1)
        if not byte:
            return None
        line += byte
    return int(line)
