"""The main function of the metrics process: serve the worker's health and metrics until the supervisor ends.

The supervisor forks this process, and starts it again if it ends or hangs (see `supervision.metrics_server`). It reads
the shared memory of the worker, and takes no lock of another process. Only with `--queue-metrics` does it read the
database (see `queue_figures`).
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from typing import Final, NoReturn

from django_pgqueue.worker.runtime.background_log import background_log
from django_pgqueue.worker.runtime.counts import counts
from django_pgqueue.worker.runtime.exit_functions import forget_inherited_processes
from django_pgqueue.worker.runtime.health_memory import HealthMemory, health_memory
from django_pgqueue.worker.runtime.health_report import HealthReport
from django_pgqueue.worker.runtime.process_info import request_death_signal

from .http_server import HttpServer
from .pages import Pages
from .queue_figures import ReadQueues

SIGN_SECONDS: Final = 1.0


def main(
    listener: socket.socket, supervisor: int, report: HealthReport, read_queue: ReadQueues | None = None
) -> NoReturn:
    """Serve until the pipe `supervisor` is closed, and exit without running exit functions of the application."""
    exit_code = 1
    try:
        request_death_signal(signal.SIGKILL)
        forget_inherited_processes()
        background_log.start()
        health_memory.become(HealthMemory())  # the inherited one belongs to the supervisor
        counts.use(None)
        asyncio.run(_serve(listener, supervisor, report, read_queue))
        exit_code = 0
    finally:
        background_log.flush(SIGN_SECONDS)
        os._exit(exit_code)


async def _serve(listener: socket.socket, supervisor: int, report: HealthReport, read_queue: ReadQueues | None) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(supervisor, ended.set)
    server = await HttpServer(Pages(report, read_queue).by_path()).start(listener)
    while not ended.is_set():
        report.memory.metrics_answered_at = asyncio.get_running_loop().time()
        report.judge()  # so that the report knows since when the status is what it is
        try:
            async with asyncio.timeout(SIGN_SECONDS):
                await ended.wait()
        except TimeoutError:
            continue
    server.close()
