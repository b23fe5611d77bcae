"""The figures on the metrics port: their names, kinds and labels, and how they are read from shared memory.

`families()` reads all of them. The page `docs/reference/metrics.md` lists the same names, kinds and labels.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from django_pgqueue import __version__
from django_pgqueue.ground.prometheus import Family, Histogram, Kind
from django_pgqueue.ground.readings import DATABASE
from django_pgqueue.worker.runtime.counts import (
    CLAIMS_AT,
    COMPLETIONS_AT,
    DURATIONS,
    ENDED_AT,
    EXIT_REASONS,
    FIGURES,
    LEASES_LOST_AT,
    OUTCOMES,
    RESCUED_AT,
    RUN_AT,
    SCHEDULES_AT,
    SIZES,
    WAIT_AT,
    CountMemory,
    CountTable,
)
from django_pgqueue.worker.runtime.health_report import HealthReport, judge
from django_pgqueue.worker.runtime.shared_memory import HealthMemory
from django_pgqueue.worker.runtime.worker_memory import WorkerMemory

Values = Sequence[float]
Sample = tuple[tuple[str, ...], float | Histogram]
"""The values of the labels, and the value."""


class Totals:
    """The counts of all processes of a supervisor, added up at one moment."""

    def __init__(self, memory: WorkerMemory) -> None:
        self.judgement = judge(memory)
        self.processes = memory.living()
        memories = memory.counts
        self.figures: list[float] = [0.0] * FIGURES
        for each in memories:
            self.figures = [total + value for total, value in zip(self.figures, each.figures.tolist(), strict=True)]
        self.jobs = _added_up(memories, lambda memory: memory.jobs)
        self.statements = _added_up(memories, lambda memory: memory.statements)


def _added_up(
    memories: Sequence[CountMemory], table_of: Callable[[CountMemory], CountTable]
) -> dict[tuple[str, ...], list[float]]:
    rows: defaultdict[tuple[str, ...], list[float]] = defaultdict(list)
    for memory in memories:
        for labels, values in table_of(memory).rows():
            total = rows[labels]
            rows[labels] = [a + b for a, b in zip(total, values, strict=True)] if total else list(values)
    return rows


def _histogram(cells: Values, at: int, limits: Sequence[float]) -> Histogram:
    return Histogram(limits, cells[at : at + len(limits) + 1], cells[at + len(limits) + 1])


class Metric(NamedTuple):
    """One metric. The name of a counter has no `_total`, which the text format adds."""

    name: str
    kind: Kind
    help: str
    read: Callable[[Totals], Iterator[Sample]]
    labels: tuple[str, ...] = ()


def _one(value: Callable[[Totals], float | Histogram]) -> Callable[[Totals], Iterator[Sample]]:
    return lambda totals: iter([((), value(totals))])


def _sum(value: Callable[[HealthMemory], float]) -> Callable[[Totals], Iterator[Sample]]:
    return _one(lambda totals: float(sum(value(process) for process in totals.processes)))


def _outcomes(totals: Totals) -> Iterator[Sample]:
    for labels, cells in totals.jobs.items():
        for outcome, count in zip(OUTCOMES, cells, strict=False):
            if count:
                yield (*labels, outcome), count


def _times(at: int) -> Callable[[Totals], Iterator[Sample]]:
    def read(totals: Totals) -> Iterator[Sample]:
        for labels, cells in totals.jobs.items():
            histogram = _histogram(cells, at, DURATIONS)
            if any(histogram.counts):
                yield labels, histogram

    return read


def _statements(cell: int) -> Callable[[Totals], Iterator[Sample]]:
    return lambda totals: ((labels, cells[cell]) for labels, cells in totals.statements.items())


def _ends(totals: Totals) -> Iterator[Sample]:
    for reason, count in zip(EXIT_REASONS, totals.figures[ENDED_AT:], strict=False):
        yield (reason,), count


def _oldest_report_seconds(totals: Totals) -> float:
    waiting = [process.oldest_report_at for process in totals.processes if process.oldest_report_at]
    return max(0.0, time.monotonic() - min(waiting)) if waiting else 0.0


QUEUE_AND_TASK: Final = ("queue", "task")
METRICS: Final[tuple[Metric, ...]] = (
    Metric("pgqueue_attempts", "counter", "Attempts that ended, by outcome.", _outcomes, (*QUEUE_AND_TASK, "outcome")),
    Metric("pgqueue_run_seconds", "histogram", "Time that attempts ran.", _times(RUN_AT), QUEUE_AND_TASK),
    Metric(
        "pgqueue_wait_seconds",
        "histogram",
        "Time from when jobs were due to when they started.",
        _times(WAIT_AT),
        QUEUE_AND_TASK,
    ),
    Metric(
        "pgqueue_leases_lost",
        "counter",
        "Attempts whose result did not count, because another process had closed their execution.",
        _one(lambda totals: totals.figures[LEASES_LOST_AT]),
    ),
    Metric(
        "pgqueue_rescued",
        "counter",
        "Executions that this worker rescued from lost workers.",
        _one(lambda totals: totals.figures[RESCUED_AT]),
    ),
    Metric(
        "pgqueue_claim_batch_size",
        "histogram",
        "Jobs per claim that found any.",
        _one(lambda totals: _histogram(totals.figures, CLAIMS_AT, SIZES)),
    ),
    Metric(
        "pgqueue_completion_batch_size",
        "histogram",
        "Results per write.",
        _one(lambda totals: _histogram(totals.figures, COMPLETIONS_AT, SIZES)),
    ),
    Metric(
        "pgqueue_schedule_lag_seconds",
        "histogram",
        "Time from a tick of a schedule to when this worker fired it.",
        _one(lambda totals: _histogram(totals.figures, SCHEDULES_AT, DURATIONS)),
    ),
    Metric(
        "pgqueue_statements", "counter", "Statements on the worker's own connections.", _statements(0), ("statement",)
    ),
    Metric("pgqueue_statement_seconds", "counter", "Time that these statements took.", _statements(1), ("statement",)),
    Metric("pgqueue_process_ends", "counter", "Worker processes that ended, by reason.", _ends, ("reason",)),
    Metric("pgqueue_processes", "gauge", "Worker processes that live.", _sum(lambda process: 1)),
    Metric(
        "pgqueue_processes_listening",
        "gauge",
        "Worker processes that receive notifications.",
        _sum(lambda process: process.listens),
    ),
    Metric("pgqueue_slots", "gauge", "Jobs that may run at a time.", _sum(lambda process: process.slots)),
    Metric("pgqueue_slots_busy", "gauge", "Jobs that run.", _sum(lambda process: process.running)),
    Metric(
        "pgqueue_prefetched", "gauge", "Claimed jobs that wait for a slot.", _sum(lambda process: process.prefetched)
    ),
    Metric(
        "pgqueue_oldest_unwritten_seconds",
        "gauge",
        "Age of the oldest result that is not written, or 0.",
        _one(_oldest_report_seconds),
    ),
    Metric(
        "pgqueue_alive",
        "gauge",
        "1 if the worker is alive, as /livez says.",
        _one(lambda totals: float(totals.judgement.is_alive)),
    ),
    Metric(
        "pgqueue_ready",
        "gauge",
        "1 if the worker is ready, as /readyz says.",
        _one(lambda totals: float(totals.judgement.is_ready)),
    ),
    Metric(
        "pgqueue_worker_info",
        "gauge",
        "Always 1. The label has the version of django_pgqueue.",
        lambda totals: iter([((__version__,), 1.0)]),
        ("version",),
    ),
)
"""Every metric of the port. Labels are bounded: see `CountTable`."""


def families(report: HealthReport) -> Iterator[Family]:
    """Yield each metric of one worker with its samples. With several databases, each has the label `database`."""
    by_database = report.by_database
    memories: dict[tuple[str, ...], WorkerMemory] = {(alias,): each for alias, each in by_database.items()}
    parts = [(own, Totals(memory)) for own, memory in (memories or {(): report.memory}).items()]
    for metric in METRICS:
        labels = (DATABASE, *metric.labels) if by_database else metric.labels
        samples = [((*own, *values), value) for own, totals in parts for values, value in metric.read(totals)]
        yield Family(metric.name, metric.kind, metric.help, labels, samples)
