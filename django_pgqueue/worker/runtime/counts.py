"""Count what this process does. The metrics port shows the counts. Without a port, each method returns at once.

The services call the one instance of their process, `counts`. They count whole batches, because a call for each job
would cost as much as the rest of the completer. A lock serves the threads of this process; other processes only read
the memory (see `count_memory`). No thread that runs jobs calls this, because an exception that the worker raises there
could leave the lock locked.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.ground.endings import Ending
from django_pgqueue.states import State

from .count_memory import (
    CLAIMS_AT,
    COMPLETIONS_AT,
    DURATIONS,
    ENDED_AT,
    LEASES_LOST_AT,
    OUTCOMES,
    RESCUED_AT,
    RUN_AT,
    SCHEDULES_AT,
    SIZES,
    WAIT_AT,
    CountMemory,
)
from .shared_memory import ExitReason

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
