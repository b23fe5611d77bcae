"""The pages of the metrics port: `/livez`, `/readyz` and `/metrics`."""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from typing import Final

from django_pgqueue.worker.runtime.health_report import HealthReport

from .http_server import TEXT, Page, Request, Response, error
from .queue_figures import FiguresOfSeveral, QueueFigures, ReadQueues

JSON: Final = "application/json"
NO_CLIENT: Final = "Metrics need the package prometheus_client: pip install 'dj-pgqueue[prometheus]'."


class Pages:
    """Makes the responses from shared memory. Probes read nothing else.

    Args:
        report: The worker's health.
        read_queue: Reads the figures of the queue for `/metrics`, or None to serve the worker's figures only. For
            several databases, a function for each alias.
    """

    def __init__(self, report: HealthReport, read_queue: ReadQueues | None = None) -> None:
        self.report = report
        self._queue: QueueFigures | FiguresOfSeveral | None = None
        if read_queue is not None:
            self._queue = QueueFigures(read_queue) if callable(read_queue) else FiguresOfSeveral(read_queue)
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
        try:
            from .collector import render  # only a scrape needs the optional package
        except ImportError:
            return error(HTTPStatus.NOT_IMPLEMENTED, NO_CLIENT)
        readings = () if self._queue is None else await self._queue.get()
        async with self._rendering:
            body, content_type = await asyncio.to_thread(render, self.report, request.accept, readings)
        return Response(HTTPStatus.OK, body, content_type)

    def _health(self, request: Request, *, is_well: bool) -> Response:
        status = HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE
        about = self.report.as_dict()
        if JSON in request.accept or "format=json" in request.query.split("&"):
            return Response(status, json.dumps(about).encode(), JSON)
        reasons = "".join(f"- {reason}\n" for reason in about["reasons"])
        return Response(status, f"{about['status']} since {about['since']}\n{reasons}".encode(), TEXT)
