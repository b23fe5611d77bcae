"""The main function of the metrics process: serve the worker's health and metrics until the supervisor ends.

The supervisor forks this process, and starts it again if it ends or hangs (see `supervision.metrics_server`). It reads
the shared memory of the worker, and takes no lock of another process. Only with `--queue-metrics` does it read the
database (see `ScrapedFigures`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from itertools import chain
from threading import Thread
from typing import Final, NoReturn

from django.db import connections

from django_pgqueue.ground.log_events import event
from django_pgqueue.ground.prometheus import Fresh, families_of, render
from django_pgqueue.ground.readings import NOT_READ, Reading, of_several
from django_pgqueue.worker.runtime.background_log import background_log
from django_pgqueue.worker.runtime.counts import counts
from django_pgqueue.worker.runtime.exit_functions import forget_inherited_processes
from django_pgqueue.worker.runtime.health_report import HealthReport
from django_pgqueue.worker.runtime.process_info import request_death_signal
from django_pgqueue.worker.runtime.shared_memory import HealthMemory, health_memory

from .http_server import TEXT, HttpServer, Page, Request, Response
from .metrics import families

logger = logging.getLogger("django_pgqueue.worker")

CACHE_SECONDS: Final = 10.0
"""How long the same figures are served."""
WAIT_SECONDS: Final = 3.0
"""How long a scrape waits for a read: less than the server's limit for a page."""

ReadQueue = Callable[[], Sequence[Reading]]
"""Reads the figures of the queue from the database. It returns `NOT_READ` if the database is not available."""
ReadQueues = ReadQueue | Mapping[str, ReadQueue]
"""The same for a worker with several databases, by alias."""


class ScrapedFigures:
    """Reads the figures of the queue for scrapes, if `runworker --queue-metrics` asks for them.

    A read takes a thread of its own and a database connection, which is closed at its end, so probes and the worker's
    other processes never wait for the database. However many scrapes come, one read runs at a time, and at most one in
    `CACHE_SECONDS`.

    Args:
        read: Reads the figures, in a thread.
    """

    def __init__(self, read: ReadQueue) -> None:
        self._read = read
        self._figures = Fresh(self._read_alone, CACHE_SECONDS)
        self._reading: asyncio.Future[Sequence[Reading]] | None = None

    async def get(self) -> Sequence[Reading]:
        """Return the figures, at most `CACHE_SECONDS` old; only `NOT_READ` if they are not read in `WAIT_SECONDS`."""
        reading = self._reading
        if reading is None or (reading.done() and self._figures.is_due):
            loop = asyncio.get_running_loop()
            self._reading = reading = loop.create_future()
            # A daemon thread, because a read that hangs must not delay the end of the process.
            Thread(target=self._run, args=[loop, reading], name="pgqueue-queue-figures", daemon=True).start()
        done, _ = await asyncio.wait([reading], timeout=WAIT_SECONDS)
        return reading.result() if done else (NOT_READ,)

    def _run(self, loop: asyncio.AbstractEventLoop, reading: asyncio.Future[Sequence[Reading]]) -> None:
        readings = self._figures.get()
        with suppress(RuntimeError):  # the loop is closed: the process ends
            loop.call_soon_threadsafe(reading.set_result, readings)

    def _read_alone(self) -> Sequence[Reading]:
        """Read the figures, and close the connection of this thread."""
        try:
            return self._read()
        except Exception:
            logger.exception("the figures of the queue could not be read", extra=event("metrics_failed"))
            return (NOT_READ,)
        finally:
            with suppress(Exception):  # a lost connection
                connections.close_all()


class FiguresOfSeveral:
    """Reads the figures of several databases at once, so that one that is away delays no other.

    Args:
        reads: For each alias, a function that reads its figures.
    """

    def __init__(self, reads: Mapping[str, ReadQueue]) -> None:
        self._figures = {alias: ScrapedFigures(read) for alias, read in reads.items()}

    async def get(self) -> Sequence[Reading]:
        """Return the figures of all databases, as `ScrapedFigures.get()`, with the label `database`."""
        read = await asyncio.gather(*(figures.get() for figures in self._figures.values()))
        return of_several(dict(zip(self._figures, read, strict=True)))


JSON: Final = "application/json"
SIGN_SECONDS: Final = 1.0


class Pages:
    """Makes the responses from shared memory. Probes read nothing else.

    Args:
        report: The worker's health.
        read_queue: Reads the figures of the queue for `/metrics`, or None to serve the worker's figures only. For
            several databases, a function for each alias.
    """

    def __init__(self, report: HealthReport, read_queue: ReadQueues | None = None) -> None:
        self.report = report
        self._queue: ScrapedFigures | FiguresOfSeveral | None = None
        if read_queue is not None:
            self._queue = ScrapedFigures(read_queue) if callable(read_queue) else FiguresOfSeveral(read_queue)
        self._rendering = asyncio.Lock()

    def by_path(self) -> dict[str, Page]:
        """Return the pages by their paths."""
        return {"/livez": self.livez, "/readyz": self.readyz, "/metrics": self.metrics}

    async def livez(self, request: Request) -> Response:
        """Return 200 if the worker is alive, otherwise 503."""
        return self._health(request, is_well=self.report.judge().is_alive)

    async def readyz(self, request: Request) -> Response:
        """Return 200 if the worker is ready, otherwise 503."""
        return self._health(request, is_well=self.report.judge().is_ready)

    async def metrics(self, request: Request) -> Response:
        """Return the figures of the worker's processes, and of the queue if the worker was asked to.

        Threads read and render them, so that probes need not wait.
        """
        readings = () if self._queue is None else await self._queue.get()
        async with self._rendering:
            text, content_type = await asyncio.to_thread(self._text, request.accept, readings)
        return Response(HTTPStatus.OK, text.encode(), content_type)

    def _text(self, accept: str, readings: Sequence[Reading]) -> tuple[str, str]:
        return render(chain(families(self.report), families_of(readings)), accept)

    def _health(self, request: Request, *, is_well: bool) -> Response:
        status = HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE
        about = self.report.as_dict()
        if JSON in request.accept or "format=json" in request.query.split("&"):
            return Response(status, json.dumps(about).encode(), JSON)
        reasons = "".join(f"- {reason}\n" for reason in about["reasons"])
        return Response(status, f"{about['status']} since {about['since']}\n{reasons}".encode(), TEXT)


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
