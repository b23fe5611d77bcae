"""The figures of the queue for the metrics port, if `runworker --queue-metrics` asks for them.

The metrics process creates one `ScrapedFigures`. A read takes a thread of its own and a database connection, which is
closed at its end, so probes and the worker's other processes never wait for the database. However many scrapes come,
one read runs at a time, and at most one in `CACHE_SECONDS`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from threading import Thread
from typing import Final

from django.db import connections

from django_pgqueue.ground.log_events import event
from django_pgqueue.ground.prometheus import Fresh
from django_pgqueue.ground.readings import NOT_READ, Reading, of_several

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
    """Reads the figures of the queue for scrapes.

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
