"""Writes what the slots report, on its own connection: whatever waits, in one statement. One result is written at
once, a flood in hundreds; there is no timer.

The leases of what waits here are extended like any others, until the write is acknowledged: finished jobs of a worker
that cannot write would else be taken for lost and run again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final

from django_pgqueue.db import EngineConnection

from .awaited import Awaited
from .events import IN_THIS_THREAD, Events
from .link import Link
from .notes import Notes
from .pulse import pulse
from .report import Ending, Report
from .service import Service
from .unwritten import UnwrittenReports

BATCH: Final = 1000
BUFFER_LIMIT: Final = 5000
"""Reports that wait at the most before no more jobs are claimed."""
BATCH_SIZE: Final = 1024 * 1024
BUFFER_SIZE: Final = 16 * 1024 * 1024
"""The same two in characters: of results and tracebacks, and in the buffer of arguments, which reports hold too."""
FEW: Final = 64
"""So many reports are never too large."""
BEHIND_SECONDS: Final = 1.0
"""For how long nothing may be written, while a report waits, before no more jobs are claimed."""
WRITE_INTERVAL_SECONDS: Final = 0.005
"""From the beginning of one write to that of the next, unless hundreds wait."""
LOCKED_PAUSE_SECONDS: Final = 0.05
DUE_AGAIN: Final = frozenset({Ending.FAILED, Ending.CRASHED, Ending.RELEASED, Ending.UNKNOWN, Ending.SNOOZED})


class Completer(Service):
    """Takes reports from any thread, writes them in its own."""

    def __init__(self, link: Link, events: Events = IN_THIS_THREAD) -> None:
        super().__init__("completer")
        self.link = link
        self.events = events
        self.pending: deque[Report] = deque()
        self.notes = Notes(self.wake)
        """How far the running jobs are: written here too, for that has to come before the end of an attempt."""
        self.awaited = Awaited()
        """The jobs whose ends somebody waits to be told of."""
        self.on_ready: Callable[[], None] = lambda: None
        """Called when jobs were written that will be due again: the fetcher may be asleep for longer than they wait."""
        self.unwritten = UnwrittenReports(events, self._answered)
        """Reports that the database refuses in each form: tried again, with a pause that grows."""
        self.finished = 0
        """How many reports were written since the process began."""
        self._writing: list[Report] = []
        self._failing_since: float | None = time.monotonic()
        """Since when it cannot write: since its birth, until it has connected, or since its first error in a row."""
        self._answered_at = time.monotonic()
        """When the database last answered a write."""

    def hand_over(self, report: Report) -> None:
        """Take responsibility for writing a report."""
        self.pending.append(report)
        self.wake()

    @property
    def is_full(self) -> bool:
        """Whether so much waits that nothing more should be claimed.

        What waits is added up by who asks, once a claim: a total that all who report keep would need a lock.
        """
        count = len(self.pending) + len(self.unwritten)
        return count > BUFFER_LIMIT or (count > FEW and _held(list(self.pending)) > BUFFER_SIZE)

    @property
    def behind_since(self) -> float | None:
        """Since when nothing could be written, by the monotonic clock; None while completions are written in time.

        In a flood a report may wait for its turn for long. As long as batches are written, that is no trouble.
        """
        if self._failing_since is not None:
            return self._failing_since
        try:
            oldest = self._writing[0] if self._writing else self.pending[0]
        except IndexError:  # nothing waits
            return None
        since = max(oldest.finished_at, self._answered_at)
        return since if time.monotonic() - since > BEHIND_SECONDS else None

    @property
    def is_behind(self) -> bool:
        """Whether nothing more should be claimed, because the ends of jobs cannot be written."""
        return self.behind_since is not None

    def __len__(self) -> int:
        return len(self.pending) + len(self._writing)

    def ids(self) -> set[int]:
        """Return the executions whose end waits here, or is being written."""
        waiting = {report.claimed.execution_id for report in (*list(self.pending), *self._writing)}
        return waiting | self.unwritten.ids()

    def tick(self) -> float:
        """Write a batch of what waits; the first round only connects, before any job is claimed."""
        self._writing += self.unwritten.take_due()
        is_whole = self._fill_batch()
        if self._failing_since is not None and not self._writing:
            with self.link.use():
                self._answered()
        if self.notes and not self.notes.due_in_seconds:
            with self.link.use() as connection:
                self.notes.write(connection)
        if not self._writing:
            return max(0.0, min(self.notes.due_in_seconds, self.unwritten.due_in_seconds))
        began = time.monotonic()
        reports = self._writing
        with self.link.use() as connection:
            ready, locked = self._with_their_progress(connection, reports) if self.notes else (reports, [])
            locked += self.unwritten.write(connection, ready, self.awaited)
        self._writing = []
        self._answered()
        self.finished += len(reports) - len(locked)
        self.pending.extend(locked)
        if any(report.ending in DUE_AGAIN for report in reports):
            self.on_ready()
        if not is_whole:
            self._stopping.wait(began + WRITE_INTERVAL_SECONDS - time.monotonic())
        return LOCKED_PAUSE_SECONDS if locked and len(locked) == len(self.pending) else 0.0

    def _answered(self) -> None:
        if self._failing_since is not None:
            self._failing_since = None
            self.on_ready()  # the fetcher has claimed nothing meanwhile
        self._answered_at = time.monotonic()
        self.progressed()
        pulse.answered("completion")

    def _pause_after(self, error: BaseException) -> float:
        if self._failing_since is None:
            self._failing_since = time.monotonic()
        return super()._pause_after(error)

    def _with_their_progress(
        self, connection: EngineConnection, reports: list[Report]
    ) -> tuple[list[Report], list[Report]]:
        """Write what these attempts have told last; return the reports that may be written, and those that wait."""
        locked = self.notes.write(connection, [report.claimed.key for report in reports])
        if not locked:
            return reports, []
        waits = [report for report in reports if report.claimed.key in locked]
        return [report for report in reports if report.claimed.key not in locked], waits

    def _fill_batch(self) -> bool:
        """Take of what waits into what is written; say whether that is as much as one statement should carry."""
        size = _carried(self._writing)  # what an error has left
        while len(self._writing) < BATCH and size < BATCH_SIZE:
            if not self.pending:
                return False
            report = self.pending[0]
            self._writing.append(report)  # in both for a moment, never in neither
            self.pending.popleft()
            size += len(report.result or report.traceback)
        return True


def _carried(reports: list[Report]) -> int:
    return sum([len(report.result or report.traceback) for report in reports])


def _held(reports: list[Report]) -> int:
    return _carried(reports) + sum([len(report.claimed.arguments) for report in reports])
