"""Write the completions of this process, on a connection of its own.

Slots hand over reports from any thread; the completer's thread writes them in batches, with one statement for each
kind of ending. It uses no timer: a single report is written at once, a flood in batches of hundreds.

The lease monitor extends the leases of queued reports until their write is acknowledged. Otherwise the finished jobs of
a worker that cannot write would count as lost and run again.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, islice
from typing import Final

from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.ends.end_check import Reactor
from django_pgqueue.ends.end_checks import NEVER, EndChecks
from django_pgqueue.ground.endings import NOT_COUNTED, Ending
from django_pgqueue.reactions import Reactions
from django_pgqueue.worker.execution.job_events import FOREGROUND
from django_pgqueue.worker.execution.report import Report
from django_pgqueue.worker.runtime.connection import ConnectionSource
from django_pgqueue.worker.runtime.counts import counts
from django_pgqueue.worker.runtime.service import Service
from django_pgqueue.worker.runtime.shared_memory import health_memory

from .breaker_counter import BreakerCounter
from .progress_writer import Notes
from .unwritten import UnwrittenReports
from .writer import finish

BATCH: Final = 1000
BUFFER_LIMIT: Final = 5000
"""Queued reports above which no more jobs are claimed."""
BATCH_SIZE: Final = 1024 * 1024
BUFFER_SIZE: Final = 16 * 1024 * 1024
"""The same two limits in characters of results and tracebacks. `BUFFER_SIZE` also counts the arguments, because reports
keep them in memory."""
ALWAYS_BUFFERED: Final = 64
"""Up to this number of reports, `BUFFER_SIZE` is not checked."""
BEHIND_SECONDS: Final = 1.0
"""If a report waits and nothing is written for this long, no more jobs are claimed."""
WRITE_INTERVAL_SECONDS: Final = 0.005
"""Minimum time between the starts of two writes, unless a full batch or an awaited report is queued."""
LONGEST_INTERVAL_SECONDS: Final = 0.02
WRITE_FACTOR: Final = 10
"""Up to `LONGEST_INTERVAL_SECONDS`, the interval is this multiple of the duration of the last write. Then the writes of
small batches take a tenth of the time at most, and a slow disk or server makes the batches larger."""
LOCKED_PAUSE_SECONDS: Final = 0.05


class Completer(Service):
    """Accept reports from any thread and write them in its own thread."""

    def __init__(
        self,
        link: ConnectionSource,
        reactions: Reactions = FOREGROUND,
        *,
        on_unwritten: Callable[[Iterable[int]], None] = lambda execution_ids: None,
        on_recovery: Callable[[], None] = lambda: None,
        on_written: Callable[[Sequence[Report]], None] = lambda reports: None,
        on_locked: Callable[[Iterable[int]], None] = lambda execution_ids: None,
        is_awaited: Callable[[Report], bool] = lambda report: False,
        breakers: BreakerCounter | None = None,
        ends: EndChecks | None = None,
    ) -> None:
        """Create the service.

        Args:
            link: The connection of this service.
            reactions: What follows from the transitions.
            on_unwritten: Called with the executions whose reports the database refuses, when these change.
            on_recovery: Called when writes succeed again. The fetcher claimed nothing during the outage.
            on_written: Called with the reports of each batch that was written.
            on_locked: Called with the executions whose rows another session has locked. Their reports wait longer.
            is_awaited: Whether a slot of this process is free until the end of this job lets others start. It is asked
                about jobs with a limit and nodes of workflows. Any thread may call it.
            breakers: Counts for circuit breakers. It is one of the counters of `reactions`. None: nobody counts.
            ends: Does what follows the ends of jobs.
        """
        super().__init__("completer")
        self.link = link
        self._on_recovery = on_recovery
        self._on_written = on_written
        self._on_locked = on_locked
        self._is_awaited = is_awaited
        self._has_awaited = threading.Event()
        """Set if an awaited report is queued: the next write begins at once."""
        self._breakers = breakers
        self._ends = ends if ends is not None else EndChecks(Reactor(reactions.react))
        self.pending: deque[Report] = deque()
        self.notes = Notes(self.wake)
        """Progress of running jobs. It is written here because it must be written before the completion."""
        self._reactions = reactions
        self.unwritten = UnwrittenReports(reactions, self._answered, on_unwritten, self._ends.note_reports)
        """Reports that the database refuses in every form. They are retried with a growing backoff."""
        timed = (self.notes, self.unwritten, self._ends, breakers)
        self._timed = [part for part in timed if part is not None]
        self.finished = 0
        """Reports written since the process began."""
        self._writing: list[Report] = []
        self._failing_since: float | None = time.monotonic()
        """Since when writes fail: since the start until it has connected, or since the first error in a row."""
        self._answered_at = time.monotonic()
        """When the database last answered a write."""

    def hand_over(self, report: Report) -> None:
        """Take responsibility for writing a report."""
        self.pending.append(report)
        if (report.claimed.limit_key is not None or report.claimed.in_graph) and self._is_awaited(report):
            self._has_awaited.set()
        if not self._wake.is_set():  # as in `wake()`, without a call for each job
            self._wake.set()

    @property
    def is_full(self) -> bool:
        """Whether so many reports are queued that no more jobs should be claimed.

        The caller adds up their size, once per claim. A running total that every reporting thread updates would need a
        lock.
        """
        count = len(self.pending) + len(self.unwritten)
        return count > BUFFER_LIMIT or (count > ALWAYS_BUFFERED and _buffered_size(list(self.pending)) > BUFFER_SIZE)

    @property
    def behind_since(self) -> float | None:
        """Since when nothing could be written, by the monotonic clock; None while completions are written in time.

        In a flood, a report may wait long for its turn. That does not count as long as batches are written.
        """
        if self._failing_since is not None:
            return self._failing_since
        oldest_at = self.oldest_at
        if oldest_at is None:
            return None
        since = max(oldest_at, self._answered_at)
        return since if time.monotonic() - since > BEHIND_SECONDS else None

    @property
    def oldest_at(self) -> float | None:
        """When the job of the oldest queued report ended, by the monotonic clock; None if no report is queued."""
        try:
            oldest = self._writing[0] if self._writing else self.pending[0]
        except IndexError:
            return None
        return oldest.finished_at

    @property
    def is_behind(self) -> bool:
        """Whether no more jobs should be claimed, because completions cannot be written."""
        return self.behind_since is not None

    def __len__(self) -> int:
        return len(self.pending) + len(self._writing)

    def ids(self) -> set[int]:
        """Return the executions whose completion is queued or being written."""
        waiting = {report.claimed.execution_id for report in (*list(self.pending), *self._writing)}
        return waiting | self.unwritten.ids()

    def tick(self) -> float:
        """Write a batch of queued reports. The first round only connects, before any job is claimed."""
        self._has_awaited.clear()
        self._writing += self.unwritten.take_due()
        is_whole = self._fill_batch()
        if self._failing_since is not None and not self._writing:
            with self.link.use():
                self._answered()
        self._write_due()
        if not self._writing:
            return max(0.0, min([part.due_in_seconds for part in self._timed]))
        began = time.monotonic()
        reports = self._writing
        with self.link.use() as connection:
            ready, locked = self._write_progress_first(connection, reports) if self.notes else (reports, [])
            done = finish(connection, ready, self._reactions)
            self._answered()
            locked += done.locked
            counts.completed(ready, [*done.locked, *(refused.row for refused in done.refused)], done.lost)
            if done.refused or len(self.unwritten):
                locked += self.unwritten.settle(connection, ready, done)
            self._ends.note_reports(ready)
            self._ends.check(connection)
            if self._breakers is not None:
                self._breakers.write(connection)
        self._on_written(ready)
        self._writing = []
        self.finished += len(reports) - len(locked)
        health_memory.finished = self.finished
        self.pending.extend(locked)
        self._on_locked(report.claimed.execution_id for report in locked if report.ending not in NOT_COUNTED)
        if not is_whole:
            took_seconds = time.monotonic() - began
            self._has_awaited.wait(write_interval(took_seconds) - took_seconds)
        return LOCKED_PAUSE_SECONDS if locked and len(locked) == len(self.pending) else 0.0

    def at_end(self) -> None:
        """Write counts of circuit breakers, and do what follows ends before it is due. The process waits for it."""
        if self._breakers:
            with self.link.use() as connection:
                self._breakers.write_last(connection)
        if self._ends.due_in_seconds < NEVER:
            with self.link.use() as connection:
                self._ends.check(connection, at_once=True)

    def _write_due(self) -> None:
        """Write progress and the counts of circuit breakers, and do what follows ends, if that is due."""
        if self.notes and not self.notes.due_in_seconds:
            with self.link.use() as connection:
                self.notes.write(connection)
        if self._breakers is not None and not self._breakers.due_in_seconds:
            with self.link.use() as connection:
                self._breakers.write(connection)
        if not self._ends.due_in_seconds:
            with self.link.use() as connection:
                self._ends.check(connection)

    def _answered(self) -> None:
        if self._failing_since is not None:
            self._failing_since = None
            self._on_recovery()
        self._answered_at = time.monotonic()
        self.progressed()
        health_memory.answered("completion")

    def _pause_after(self, error: BaseException) -> float:
        if self._failing_since is None:
            self._failing_since = time.monotonic()
        return super()._pause_after(error)

    def _write_progress_first(
        self, connection: EngineConnection, reports: list[Report]
    ) -> tuple[list[Report], list[Report]]:
        """Write the last progress of these attempts. Return the reports to write, and those with locked rows."""
        for report in reports:
            if report.ending is Ending.DISCARDED:
                self.notes.logs.pop(report.claimed.key, None)
        locked = self.notes.write(connection, [report.claimed.key for report in reports])
        if not locked:
            return reports, []
        waiting = [report for report in reports if report.claimed.key in locked]
        return [report for report in reports if report.claimed.key not in locked], waiting

    def _fill_batch(self) -> bool:
        """Move queued reports into the batch, up to a number and a size. Return whether the batch is full."""
        queued = list(islice(self.pending, max(0, BATCH - len(self._writing))))
        size = _payload_size(self._writing)  # reports that an error left unwritten
        sizes_before = list(accumulate([len(report.result or report.traceback) for report in queued], initial=size))
        count = bisect_left(sizes_before, BATCH_SIZE)
        self._writing += queued[:count]  # first add, then remove, so that `ids()` always finds the reports
        remove_first = self.pending.popleft
        for _ in queued[:count]:
            remove_first()
        return count < len(sizes_before) or len(self._writing) >= BATCH


def write_interval(took_seconds: float) -> float:
    """Return the time from the start of a write to that of the next one."""
    return min(max(WRITE_INTERVAL_SECONDS, WRITE_FACTOR * took_seconds), LONGEST_INTERVAL_SECONDS)


def _payload_size(reports: list[Report]) -> int:
    return sum([len(report.result or report.traceback) for report in reports])


def _buffered_size(reports: list[Report]) -> int:
    return _payload_size(reports) + sum([len(report.claimed.arguments) for report in reports])
