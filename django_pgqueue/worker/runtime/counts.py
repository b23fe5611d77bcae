"""Count what this process does. The metrics port shows the counts. Without a port, each method returns at once.

The services call the one instance of their process, `counts`. They count whole batches, because a call for each job
would cost as much as the rest of the completer. A lock serves the threads of this process. No thread that runs jobs
calls this, because an exception that the worker raises there could leave the lock locked.

The counts are in shared memory, which the metrics process reads. All cells are aligned doubles. A process writes a cell
with one store of 8 bytes, which the processors that CPython runs on do not tear, so neither side needs a lock. Each
memory has one writer at a time. A process that replaces another one continues in the same memory, so totals never go
back, and the counts of a process that was killed are kept.
"""

from __future__ import annotations

import mmap
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.ground.endings import Ending
from django_pgqueue.states import State

from .shared_memory import ExitReason

LABEL_BYTES: Final = 120
"""Bytes that a label keeps. Names have at most 100 characters."""
OTHER: Final = "other"
DURATIONS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0)
"""The upper limits of the buckets of times, in seconds. A last bucket has no limit."""
SIZES: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
"""The upper limits of the buckets of batch sizes."""
OF_DURATIONS: Final = len(DURATIONS) + 2
OF_SIZES: Final = len(SIZES) + 2
"""Cells of a histogram: one for each bucket, one for larger values, and one for the sum of the values."""

OUTCOMES: Final = ("succeeded", "failed", "dead", "cancelled", "snoozed", "released", "crashed")
RUN_AT: Final = len(OUTCOMES)
WAIT_AT: Final = RUN_AT + OF_DURATIONS
JOB_CELLS: Final = WAIT_AT + OF_DURATIONS
"""A row of jobs: the count of each outcome, the histogram of run times, and that of waits."""
JOB_ROWS: Final = 201
STATEMENT_CELLS: Final = 2
"""A row of statements: how many were run, and how many seconds they took."""
STATEMENT_ROWS: Final = 101

EXIT_REASONS: Final = ("crashed", "stopped", "empty", "recycled", "lease_lost", "stuck", "promoted", "foreign")
"""The names of `ExitReason`, in its order."""
RESCUED_AT: Final = 0
LEASES_LOST_AT: Final = 1
ENDED_AT: Final = 2
CLAIMS_AT: Final = ENDED_AT + len(EXIT_REASONS)
COMPLETIONS_AT: Final = CLAIMS_AT + OF_SIZES
SCHEDULES_AT: Final = COMPLETIONS_AT + OF_SIZES
FIGURES: Final = SCHEDULES_AT + OF_DURATIONS
"""The cells without labels: rescued jobs, lost leases, ends of processes by reason, and three histograms."""


class CountMemory:
    """The counts of one process."""

    def __init__(self) -> None:
        cells = FIGURES + 1 + JOB_ROWS * JOB_CELLS + 1 + STATEMENT_ROWS * STATEMENT_CELLS
        labels = (2 * JOB_ROWS + STATEMENT_ROWS) * LABEL_BYTES
        memory = mmap.mmap(-1, 8 * cells + labels)
        self.cells = memoryview(memory)[: 8 * cells].cast("d")
        self.figures = self.cells[:FIGURES]
        text = memoryview(memory)[8 * cells :]
        jobs_end = FIGURES + 1 + JOB_ROWS * JOB_CELLS
        names_end = 2 * JOB_ROWS * LABEL_BYTES
        self.jobs = CountTable(self.cells[FIGURES:jobs_end], text[:names_end], JOB_CELLS, labels=2)
        self.statements = CountTable(self.cells[jobs_end:], text[names_end:], STATEMENT_CELLS, labels=1)


class CountTable:
    """Rows of cells by their labels.

    The writer stores the labels first and increases the number of rows last, so a reader sees complete labels only.
    Names come from rows in the database, so the number of rows is limited: further combinations share the last row,
    `OTHER`.

    Args:
        cells: The number of rows in use, then the cells of all rows.
        text: The labels of all rows, each in `LABEL_BYTES`, filled with zero bytes.
        width: Cells of a row.
        labels: Labels of a row.
    """

    def __init__(self, cells: memoryview[float], text: memoryview[int], width: int, *, labels: int) -> None:
        self.cells = cells
        self._text = text
        self._width = width
        self._labels = labels
        self._limit = (len(cells) - 1) // width
        self._starts: dict[tuple[str, ...], int] = {}
        self._read = 0

    def start_of(self, labels: tuple[str, ...]) -> int:
        """Return the index of the first cell of a row, and add the row if it is new. Only the writer calls this."""
        start = self._starts.get(labels)
        return self._add(labels) if start is None else start

    def rows(self) -> Iterator[tuple[tuple[str, ...], Sequence[float]]]:
        """Yield the labels and a copy of the cells of each row."""
        for row in range(int(self.cells[0])):
            start = 1 + row * self._width
            yield self._labels_of(row), self.cells[start : start + self._width].tolist()

    def _add(self, labels: tuple[str, ...]) -> int:
        rows = int(self.cells[0])
        while self._read < rows:  # the rows of a process that counted here before
            self._starts[self._labels_of(self._read)] = 1 + self._read * self._width
            self._read += 1
        cut = tuple(_cut(label) for label in labels)
        if cut not in self._starts and rows >= self._limit - 1:
            cut = (OTHER,) * self._labels
        if cut not in self._starts:
            for number, label in enumerate(cut):
                encoded = label.encode()
                at = (rows * self._labels + number) * LABEL_BYTES
                self._text[at : at + len(encoded)] = encoded
            self._starts[cut] = 1 + rows * self._width
            self._read = rows + 1
            self.cells[0] = rows + 1
        if len(self._starts) < 4 * self._limit:  # otherwise unlimited names would fill this process's memory
            self._starts[labels] = self._starts[cut]
        return self._starts[cut]

    def _labels_of(self, row: int) -> tuple[str, ...]:
        at = row * self._labels * LABEL_BYTES
        labels = bytes(self._text[at : at + self._labels * LABEL_BYTES])
        found = [labels[start : start + LABEL_BYTES] for start in range(0, len(labels), LABEL_BYTES)]
        return tuple(label.rstrip(b"\0").decode(errors="replace") for label in found)


def _cut(label: str) -> str:
    """Return the part of a label that fits. It contains no zero byte, because PostgreSQL stores none."""
    return label.encode()[:LABEL_BYTES].decode(errors="ignore")


if TYPE_CHECKING:
    from django_pgqueue.lifecycle.types import Claimed
    from django_pgqueue.reactions import JobTransition, TimedAttempt
    from django_pgqueue.worker.execution.report import Report

MEASURED: Final = 16
"""How many reports of a batch are measured at most. Each counts for several then, so that the totals are exact. To
measure one costs about 1 µs, and a batch can have 1,000."""
SUCCESSES: Final = (Ending.SUCCEEDED, Ending.DISCARDED, Ending.WRITTEN)
SUCCEEDED: Final = OUTCOMES.index("succeeded")
OUTCOME_OF_ENDING: Final = {
    Ending.FAILED: "failed",
    Ending.CRASHED: "crashed",
    Ending.RELEASED: "released",
    Ending.UNKNOWN: "released",
    Ending.POSTPONED: "released",
    Ending.SNOOZED: "snoozed",
    Ending.SUSPENDED: "snoozed",
}
OUTCOME_OF_STATE: Final = {State.DEAD: "dead", State.CANCELLED: "cancelled"}
NAME_PREFIX: Final = "/* pgqueue:"


class Counts:
    """The counts of one process. An observer of its transitions too: it counts all outcomes except successes."""

    def __init__(self) -> None:
        self._memory: CountMemory | None = None
        self._lock = threading.Lock()
        self._clock_offset = 0.0
        """The database's clock minus the monotonic clock, in seconds."""

    @property
    def is_on(self) -> bool:
        """Whether this process counts."""
        return self._memory is not None

    def use(self, memory: CountMemory | None) -> None:
        """Count in this memory from now on, or not at all. A process calls this before it starts threads."""
        self._memory = memory
        self._lock = threading.Lock()
        EngineConnection.record_statement = None if memory is None else self.ran_statement

    def claimed(self, jobs: Sequence[Claimed]) -> None:
        """Count the jobs of one claim."""
        if (memory := self._memory) is None or not jobs:
            return
        self._clock_offset = jobs[0].claimed_ms / 1000 - time.monotonic()
        with self._lock:
            size = sum(1 if job.others is None else 1 + len(job.others) for job in jobs)
            _observe(memory.figures, CLAIMS_AT, SIZES, size)

    def completed(self, reports: Sequence[Report], unwritten: Sequence[Report], lost: Sequence[Report]) -> None:
        """Count the reports of one write: all of them, except those that were not written or no longer count."""
        memory = self._memory
        if memory is None:
            return
        if unwritten or lost:
            left_out = {id(report) for report in (*unwritten, *lost)}
            reports = [report for report in reports if id(report) not in left_out]
        with self._lock:
            memory.figures[LEASES_LOST_AT] += len(lost)
            if reports:
                _observe(memory.figures, COMPLETIONS_AT, SIZES, len(reports))
                self._count_reports(memory, reports)

    def _count_reports(self, memory: CountMemory, reports: Sequence[Report]) -> None:
        cells, start_of = memory.jobs.cells, memory.jobs.start_of
        succeeded, discarded, written = SUCCESSES  # compared by identity, because an Enum's hash is slow
        successes = Counter(
            [
                (report.claimed.queue_name, report.claimed.task_name)
                for report in reports
                if (ending := report.ending) is succeeded or ending is discarded or ending is written
            ]
        )
        for labels, count in successes.items():
            cells[start_of(labels) + SUCCEEDED] += count
        measured = reports[:: 1 + len(reports) // MEASURED]
        each, more = divmod(len(reports), len(measured))
        for number, report in enumerate(measured):
            weight = each + (number < more)
            claimed = report.claimed
            start = start_of((claimed.queue_name, claimed.task_name))
            seconds = report.finished_at - report.started_at
            cells[start + RUN_AT + bisect_left(DURATIONS, seconds)] += weight
            cells[start + RUN_AT + len(DURATIONS) + 1] += weight * seconds
            seconds = max(0.0, report.started_at + self._clock_offset - claimed.run_after.timestamp())
            cells[start + WAIT_AT + bisect_left(DURATIONS, seconds)] += weight
            cells[start + WAIT_AT + len(DURATIONS) + 1] += weight * seconds

    def count_successes(self, attempts: Sequence[TimedAttempt]) -> None:
        """Do nothing: `completed()` counts successes."""

    def observe(self, transition: JobTransition, database: str) -> None:
        """Count a transition that ended an attempt otherwise than with success, or that ended a job."""
        memory, state = self._memory, transition.result.state
        if memory is None or transition.ending in SUCCESSES:
            return
        outcome = OUTCOME_OF_STATE.get(state) if state is not None else None
        if outcome is None and transition.ending is not None:
            outcome = OUTCOME_OF_ENDING.get(transition.ending)
        if outcome is None:
            return
        labels = (str(transition.details.get("queue_name", "")), transition.task_name or "")
        with self._lock:
            memory.jobs.cells[memory.jobs.start_of(labels) + OUTCOMES.index(outcome)] += 1
            memory.figures[RESCUED_AT] += transition.is_rescued

    def ran_statement(self, statement: str, seconds: float) -> None:
        """Count a statement of this package, by its name, on a connection of the worker's own."""
        memory = self._memory
        if memory is None or not statement.startswith(NAME_PREFIX):
            return
        name = statement[len(NAME_PREFIX) : statement.find(" ", len(NAME_PREFIX))]
        with self._lock:
            start = memory.statements.start_of((name,))
            memory.statements.cells[start] += 1
            memory.statements.cells[start + 1] += seconds

    def fired(self, tick_at: datetime, seen_at: datetime) -> None:
        """Count a tick of a schedule, and how late it was fired."""
        if (memory := self._memory) is not None:
            with self._lock:
                _observe(memory.figures, SCHEDULES_AT, DURATIONS, max(0.0, (seen_at - tick_at).total_seconds()))

    def process_ended(self, reason: ExitReason) -> None:
        """Count the end of a worker process."""
        if (memory := self._memory) is not None:
            with self._lock:
                memory.figures[ENDED_AT + reason] += 1


def _observe(cells: Any, at: int, limits: Sequence[float], value: float) -> None:
    cells[at + bisect_left(limits, value)] += 1
    cells[at + len(limits) + 1] += value


counts: Final = Counts()
"""The instance of this process."""
