"""Enqueue the jobs at the rate, or up to the depth, that the harness asks for."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from django.db import DatabaseError, InterfaceError, connection

from django_pgqueue.models import Job

from . import config
from .jobs.tasks import bench_job, bench_job_async
from .samples import Figures

TASK = bench_job_async if config.IS_ASYNC else bench_job
RETRY_S = 0.2
DEPTH_S = 0.2
"""The time between two counts of the waiting jobs."""
FULL_S = 0.01
"""How long to wait when enough jobs wait."""


def log(text: str) -> None:
    """Print a line on standard error, because standard output belongs to the protocol."""
    print(f"[pgqueue] {text}", file=sys.stderr, flush=True)  # noqa: T201 -- the log of the adapter


class Producer:
    """Enqueues jobs until the adapter stops."""

    def __init__(self, stopping: threading.Event, figures: Figures) -> None:
        self.stopping = stopping
        self.figures = figures
        self.enqueue_next = 0
        """The number of the next job."""

    def run(self) -> None:
        """Enqueue batches."""
        for count in self._batches():
            try:
                self._enqueue(count)
            except (DatabaseError, InterfaceError) as error:
                log(f"enqueue failed: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}")
                connection.close()  # Django does this at the end of a request; a loop has to do it itself
                self.stopping.wait(RETRY_S)

    def _enqueue(self, count: int) -> None:
        enqueued_at_us, began = time.time_ns() // 1_000, time.monotonic()
        calls = [(self.enqueue_next + number, enqueued_at_us, config.PADDING) for number in range(count)]
        TASK.enqueue_many(calls, returning=False)
        self.figures.enqueueing.add([int((time.monotonic() - began) * 1e6 / count)] * count)
        self.figures.enqueued += count
        self.enqueue_next += count

    def _batches(self) -> Iterator[int]:
        """Yield how many jobs to enqueue, each number at its time."""
        if config.MODE == "depth-target":
            return self._up_to_depth()
        return self._tokens() if config.PACING == "harness" else self._at_rate()

    def _up_to_depth(self) -> Iterator[int]:
        self.figures.target_rate = 0.0
        while not self.stopping.is_set():
            if (missing := config.TARGET_DEPTH - self.figures.depth) > 0:
                yield min(config.BATCH_MAX, missing)
            else:
                self.stopping.wait(FULL_S)

    def _tokens(self) -> Iterator[int]:
        """Yield the numbers that the harness writes to standard input."""
        for line in sys.stdin:
            if self.stopping.is_set():
                return
            if line.startswith("ENQUEUE "):
                yield int(line.split()[1])

    def _at_rate(self) -> Iterator[int]:
        """Credit the rate for the time that has really passed, so that a slow batch lowers it for its duration only."""
        credit, last = 0.0, time.monotonic()
        while not self.stopping.wait(max(0.0, config.BATCH_S - (time.monotonic() - last))):
            self.figures.target_rate = self._wanted_rate()
            now = time.monotonic()
            credit, last = credit + self.figures.target_rate * (now - last), now
            while credit >= 1 and not self.stopping.is_set():
                count = min(config.BATCH_MAX, int(credit))
                credit -= count
                yield count

    def _wanted_rate(self) -> float:
        """Return the rate that the harness asks for now. It writes the rate to a file, which may be incomplete."""
        if not config.RATE_FILE:
            return config.RATE
        try:
            return float(Path(config.RATE_FILE).read_text())
        except (OSError, ValueError):
            return self.figures.target_rate


def count_waiting_until(stopping: threading.Event, figures: Figures) -> None:
    """Count the jobs that wait for a worker five times a second, until the adapter stops."""
    while not stopping.wait(DEPTH_S):
        try:
            figures.depth = Job.objects.due().filter(queue_name="bench").count()
        except (DatabaseError, InterfaceError):
            connection.close()
