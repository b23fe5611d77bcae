"""The figures on the metrics port: their names, kinds and labels, and how they are read from shared memory.

`families()` reads all of them. The page `docs/reference/metrics.md` lists the same names, kinds and labels.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
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

    def __init__(self, memory: WorkerMemory, release: str = "") -> None:
        self.release = release
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


QUEUE_AND_TASK: Final = ("queue", "task")


def _one(name: str, kind: Kind, text: str, value: Callable[[Totals], float | Histogram]) -> Metric:
    return Metric(name, kind, text, lambda totals: iter([((), value(totals))]))


def _gauge(name: str, text: str, value: Callable[[Totals], float]) -> Metric:
    return _one(name, "gauge", text, lambda totals: float(value(totals)))


def _sum(name: str, text: str, value: Callable[[HealthMemory], float]) -> Metric:
    return _gauge(name, text, lambda totals: sum(value(process) for process in totals.processes))


def _figure(name: str, text: str, at: int) -> Metric:
    return _one(name, "counter", text, lambda totals: totals.figures[at])


def _distribution(name: str, text: str, at: int, limits: Sequence[float]) -> Metric:
    return _one(name, "histogram", text, lambda totals: _histogram(totals.figures, at, limits))


def _times(name: str, text: str, at: int) -> Metric:
    def read(totals: Totals) -> Iterator[Sample]:
        for labels, cells in totals.jobs.items():
            histogram = _histogram(cells, at, DURATIONS)
            if any(histogram.counts):
                yield labels, histogram

    return Metric(name, "histogram", text, read, QUEUE_AND_TASK)


def _statements(name: str, text: str, cell: int) -> Metric:
    def read(totals: Totals) -> Iterator[Sample]:
        return ((labels, cells[cell]) for labels, cells in totals.statements.items())

    return Metric(name, "counter", text, read, ("statement",))


def _outcomes(totals: Totals) -> Iterator[Sample]:
    for labels, cells in totals.jobs.items():
        for outcome, count in zip(OUTCOMES, cells, strict=False):
            if count:
                yield (*labels, outcome), count


def _ends(totals: Totals) -> Iterator[Sample]:
    for reason, count in zip(EXIT_REASONS, totals.figures[ENDED_AT:], strict=False):
        yield (reason,), count


def _oldest_report_seconds(totals: Totals) -> float:
    waiting = [process.oldest_report_at for process in totals.processes if process.oldest_report_at]
    return max(0.0, time.monotonic() - min(waiting)) if waiting else 0.0


def _info(totals: Totals) -> Iterator[Sample]:
    yield (__version__, totals.release), 1.0


METRICS: Final[tuple[Metric, ...]] = (
    Metric("pgqueue_attempts", "counter", "Attempts that ended, by outcome.", _outcomes, (*QUEUE_AND_TASK, "outcome")),
    _times("pgqueue_run_seconds", "Time that attempts ran.", RUN_AT),
    _times("pgqueue_wait_seconds", "Time from when jobs were due to when they started.", WAIT_AT),
    _figure(
        "pgqueue_leases_lost",
        "Attempts whose result did not count, because another process had closed their execution.",
        LEASES_LOST_AT,
    ),
    _figure("pgqueue_rescued", "Executions that this worker rescued from lost workers.", RESCUED_AT),
    _distribution("pgqueue_claim_batch_size", "Jobs per claim that found any.", CLAIMS_AT, SIZES),
    _distribution("pgqueue_completion_batch_size", "Results per write.", COMPLETIONS_AT, SIZES),
    _distribution(
        "pgqueue_schedule_lag_seconds",
        "Time from a tick of a schedule to when this worker fired it.",
        SCHEDULES_AT,
        DURATIONS,
    ),
    _statements("pgqueue_statements", "Statements on the worker's own connections.", 0),
    _statements("pgqueue_statement_seconds", "Time that these statements took.", 1),
    Metric("pgqueue_process_ends", "counter", "Worker processes that ended, by reason.", _ends, ("reason",)),
    _sum("pgqueue_processes", "Worker processes that live.", lambda process: 1),
    _sum("pgqueue_processes_listening", "Worker processes that receive notifications.", attrgetter("listens")),
    _sum("pgqueue_slots", "Jobs that may run at a time.", attrgetter("slots")),
    _sum("pgqueue_slots_busy", "Jobs that run.", attrgetter("running")),
    _sum("pgqueue_prefetched", "Claimed jobs that wait for a slot.", attrgetter("prefetched")),
    _gauge(
        "pgqueue_oldest_unwritten_seconds",
        "Age of the oldest result that is not written, or 0.",
        _oldest_report_seconds,
    ),
    _gauge("pgqueue_alive", "1 if the worker is alive, as /livez says.", attrgetter("judgement.is_alive")),
    _gauge("pgqueue_ready", "1 if the worker is ready, as /readyz says.", attrgetter("judgement.is_ready")),
    Metric(
        "pgqueue_worker_info",
        "gauge",
        "Always 1. The labels have the version of django_pgqueue and the release of the project.",
        _info,
        ("version", "release"),
    ),
)
"""Every metric of the port. Labels are bounded: see `CountTable`."""


def families(report: HealthReport) -> Iterator[Family]:
    """Yield each metric of one worker with its samples. With several databases, each has the label `database`."""
    by_database = report.by_database
    memories: dict[tuple[str, ...], WorkerMemory] = {(alias,): each for alias, each in by_database.items()}
    parts = [(own, Totals(memory, report.release)) for own, memory in (memories or {(): report.memory}).items()]
    for metric in METRICS:
        labels = (DATABASE, *metric.labels) if by_database else metric.labels
        samples = [((*own, *values), value) for own, totals in parts for values, value in metric.read(totals)]
        yield Family(metric.name, metric.kind, metric.help, labels, samples)
