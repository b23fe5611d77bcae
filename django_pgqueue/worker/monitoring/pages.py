"""The pages of the metrics port: `/livez`, `/readyz` and `/metrics`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from http import HTTPStatus
from itertools import chain
from typing import Final

from django_pgqueue.prometheus import families_of, render
from django_pgqueue.readings import Reading
from django_pgqueue.worker.runtime.health_report import HealthReport

from .http_server import TEXT, Page, Request, Response
from .metrics import families
from .queue_figures import FiguresOfSeveral, QueueFigures, ReadQueues

JSON: Final = "application/json"


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
