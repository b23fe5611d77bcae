"""Read what the causes are made of. Each statement reads a limited number of rows.

`current` calls `read_facts()` with the figures of the queues, which it has read already.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, NamedTuple, TypeVar

from django_pgqueue.db.statements import execute
from django_pgqueue.settings.conf import DAY_SECONDS, get_settings
from django_pgqueue.states import State
from django_pgqueue.stats.answers import NONE, Count, Overview, WorkerStats
from django_pgqueue.stats.depths import DepthReading, read_ready_unlimited
from django_pgqueue.stats.fleet import OpenGroup, Pauses
from django_pgqueue.stats.lane_counts import Ready
from django_pgqueue.stats.limits.ready import WaitingKey
from django_pgqueue.stats.ownership import other_installation

from . import queries
from .cause import CauseKind
from .long_running import HangingJobs, read_hanging

HOUR_SECONDS: Final = 3600.0
LEAST_DEAD: Final = 3
"""Jobs in a row that have to die until a task or a schedule counts as failing."""
JOBS_OF_TASK_READ: Final = 500
"""Latest finished jobs of a failing task that are searched for acknowledged ones."""
LATE_SECONDS: Final = 60.0
LISTED: Final = 20
"""Tasks that are read at most."""
SCHEDULES_LISTED: Final = 100
SCHEDULES_READ: Final = 500
RUNS_READ: Final = 20
DEAD_SEARCHED: Final = 10_000
"""Newest dead jobs among which those of workflows are looked for."""
DEAD_READ: Final = 1000
"""Dead jobs of workflows whose dependents are read."""
DEPENDENTS_READ: Final = 100
"""Dependents of one dead job that are counted."""
WAITING_READ: Final = 500
"""Waiting jobs whose dependencies are searched for acknowledged ones."""
EDGES_READ: Final = 2000
"""Dependencies of these jobs together. Reading them takes about 4 ms."""


_may_read_schedules: set[str] = set()
"""The aliases of databases in which the role of this process may read schedules. It hardly ever loses that right."""

T = TypeVar("T")


def late_limit_seconds() -> float:
    """Return how late a schedule has to be: workers look for due schedules once in an interval."""
    return LATE_SECONDS + 2 * get_settings().SCHEDULE_INTERVAL


class DeadInARow(NamedTuple):
    """How many jobs of a task died within the last hour, and since its last success, and were not acknowledged."""

    task_name: str
    dead: int
    is_exact: bool


class FailingSchedule(NamedTuple):
    """A schedule that is late, could not be fired, or whose latest jobs died."""

    schedule_id: int
    name: str
    task_name: str
    late_seconds: float
    problem: str
    dead: int
    is_exact: bool
    job_id: int | None
    running_id: int | None = None
    """The job of its latest run, if the next run waits for its end."""

    @property
    def is_late(self) -> bool:
        """Whether it should have been fired a while ago, and no worker has tried and failed."""
        return not self.problem and self.late_seconds >= late_limit_seconds()

    @property
    def is_failing(self) -> bool:
        """Whether enough of its latest jobs died."""
        return self.dead >= LEAST_DEAD


class DeadDependencies(NamedTuple):
    """The dead jobs of one task that other jobs wait for, and how many jobs wait directly.

    Either all of them were acknowledged, or none.
    """

    task_name: str
    dead: int
    first_id: int
    waiting: int
    is_cut: bool


class FailedWorkflows(NamedTuple):
    """The dead jobs of one task because of which jobs of workflows were cancelled, and how many were directly."""

    task_name: str
    dead: int
    first_id: int
    batch_id: int | None
    cancelled: Count
    workflows: Count


SOURCES_OF_KINDS: Final = {
    "dead": (CauseKind.JOBS_DIED,),
    "failing tasks": (CauseKind.TASK_FAILING,),
    "failing schedules": (CauseKind.SCHEDULE_FAILED, CauseKind.SCHEDULE_LATE, CauseKind.SCHEDULE_FAILING),
    "dead dependencies": (CauseKind.DEPENDENCY_FAILED, CauseKind.WORKFLOW_FAILED),
    "acknowledged dependencies": (CauseKind.DEPENDENCY_ACKNOWLEDGED,),
    "hanging jobs": (CauseKind.JOB_HANGING,),
}
"""The figures of which some kinds of causes are made, by their names in `Overview.unread`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The facts of which the causes are made, read at one moment."""

    overview: Overview
    read_at: datetime
    pauses: Pauses
    live_workers: list[WorkerStats]
    silent_workers: list[WorkerStats]
    """Workers that have not stopped and sent no heartbeat for a lease, and whose jobs are not rescued."""
    ended_workers: list[WorkerStats]
    """Workers of a supervisor that have not stopped and sent no heartbeat for a lease, within the last hour."""
    open_groups: list[OpenGroup]
    paused: dict[str, Count]
    """The due jobs of each paused task, by the name of its pause, without those of paused queues."""
    unknown: dict[str, Count]
    """The jobs of each task that workers release."""
    waiting_keys: list[WaitingKey]
    has_all_keys: bool
    """Whether no limit key with due jobs is missing in `waiting_keys`."""
    other_installation: str
    """The sentence about missing workers, "" if one runs or no job is due."""
    unread_kinds: frozenset[CauseKind] = frozenset()
    """The kinds of causes of which this reading knows nothing."""
    dead_in_a_row: list[DeadInARow] = field(default_factory=list)
    schedules: list[FailingSchedule] = field(default_factory=list)
    dead_dependencies: list[DeadDependencies] = field(default_factory=list)
    acknowledged_dependencies: list[DeadDependencies] = field(default_factory=list)
    failed_workflows: list[FailedWorkflows] = field(default_factory=list)
    hanging: list[HangingJobs] = field(default_factory=list)
    dead_by_task: Mapping[str, int] = field(default_factory=dict)
    """The jobs of each task that died within a day, by the names in their rows."""


def read_facts(reading: DepthReading, workers: list[WorkerStats], overview: Overview, read_at: datetime) -> Facts:
    """Read the facts. Runs two read-only statements, and more only if there is more to say.

    That is one if workers release jobs, one if jobs wait for others, one if jobs died within a day or block others, two
    if no worker is live, and two if a job runs for long. If the workers keep no statistics, no task counts as failing,
    and no job as hanging.
    """
    may_read, has_stats = _may_read(reading), get_settings().STATS
    blocked, failed = _dead_dependencies(reading, overview)
    lost = {group.worker_id for group in reading.open_groups if group.lost}
    facts = Facts(
        overview=overview,
        read_at=read_at,
        pauses=reading.pauses,
        live_workers=[worker for worker in workers if worker.is_live],
        silent_workers=[worker for worker in workers if not worker.is_live and worker.id in lost],
        ended_workers=[worker for worker in workers if not worker.is_live and _is_ended(worker)],
        open_groups=reading.open_groups,
        paused=_paused(reading),
        unknown=_unknown(_by_task(reading) if overview.unknown.value else ()),
        waiting_keys=reading.waiting_keys,
        has_all_keys=reading.has_all_keys,
        other_installation=(
            other_installation(reading.connection) if overview.workers == 0 and overview.unserved_queues else ""
        ),
        dead_in_a_row=_read(reading, "failing tasks", _dead_in_a_row) if has_stats else [],
        hanging=_read(reading, "hanging jobs", read_hanging) if has_stats else [],
        schedules=_read(reading, "failing schedules", _schedules) if may_read else [],
        dead_dependencies=blocked,
        failed_workflows=failed,
        acknowledged_dependencies=_read(reading, "acknowledged dependencies", _acknowledged_dependencies)
        if overview.waiting.value
        else [],
        dead_by_task=reading.dead_by_task,
    )
    unread = dict(reading.figures.unread)  # a copy, because this reading is kept
    return replace(
        facts,
        overview=replace(overview, unread=unread),
        unread_kinds=_unread_kinds(unread.keys(), may_read_schedules=may_read),
    )


def _unread_kinds(unread: AbstractSet[str], *, may_read_schedules: bool) -> frozenset[CauseKind]:
    """Return the kinds of causes that this reading could not find. The gauge must not report 0 for them."""
    if unread - SOURCES_OF_KINDS.keys():  # counts of jobs, which most kinds need
        return frozenset(CauseKind)
    missing = [kind for name in unread for kind in SOURCES_OF_KINDS[name]]
    if not may_read_schedules:
        missing += SOURCES_OF_KINDS["failing schedules"]
    if not get_settings().STATS:
        missing += (*SOURCES_OF_KINDS["failing tasks"], *SOURCES_OF_KINDS["hanging jobs"])
    return frozenset(missing)


def _may_read(reading: DepthReading) -> bool:
    """Return whether the role of this process may read schedules."""
    alias = reading.connection.alias
    if alias not in _may_read_schedules and execute(reading.connection, queries.MAY_READ_SCHEDULES, {})[0][0]:
        _may_read_schedules.add(alias)
    return alias in _may_read_schedules


def _read(reading: DepthReading, name: str, read: Callable[[DepthReading], list[T]]) -> list[T]:
    return reading.figures.read(name, lambda: read(reading), [])


def _by_task(reading: DepthReading) -> list[Ready]:
    """Return the ready jobs by task, also if the figures of the queues were read without the tasks."""
    by_task = [row for row in reading.ready if row.task_name is not None]
    if len(by_task) == len(reading.ready):
        return by_task
    return [*_read(reading, "ready", lambda _: read_ready_unlimited(reading.connection, by_task=True)), *by_task]


def _paused(reading: DepthReading) -> dict[str, Count]:
    found: defaultdict[str, Count] = defaultdict(Count)
    for row in reading.ready:
        pause = reading.pauses.of_tasks.get(row.task_name or "")
        if pause is not None and row.queue_name not in reading.pauses.of_queues:
            found[pause.name] += Count(row.due, not row.due_is_cut)
    return dict(found)


def _unknown(rows: Iterable[Ready]) -> dict[str, Count]:
    found: defaultdict[str, Count] = defaultdict(Count)
    for row in rows:
        if row.unknown and row.task_name is not None:
            found[row.task_name] += Count(row.unknown, not row.later_is_cut)
    return {name: jobs for name, jobs in found.items() if jobs != NONE}


def _dead_in_a_row(reading: DepthReading) -> list[DeadInARow]:
    params = {"seconds": HOUR_SECONDS, "least": LEAST_DEAD, "limit": LISTED, "jobs": JOBS_OF_TASK_READ}
    return [DeadInARow(*row) for row in execute(reading.connection, queries.DEAD_IN_A_ROW, params)]


def _is_ended(worker: WorkerStats) -> bool:
    """Return whether the heartbeats of a worker ended within the last hour. `pgqueue run` has no supervisor."""
    return worker.supervisor_pid is not None and worker.heartbeat_age_seconds < HOUR_SECONDS


def _dead_dependencies(
    reading: DepthReading, overview: Overview
) -> tuple[list[DeadDependencies], list[FailedWorkflows]]:
    """Return the dead jobs that jobs of workflows wait for, and those because of which such jobs were cancelled."""
    if not overview.dead_24h.value and not (overview.waiting.value and overview.dead.value):
        return [], []
    bounds = {"searched": DEAD_SEARCHED, "limit": DEAD_READ, "dependents": DEPENDENTS_READ, "tasks": LISTED}
    params = {**bounds, "seconds": DAY_SECONDS}
    rows = _read(reading, "dead dependencies", lambda each: execute(each.connection, queries.DEAD_DEPENDENCIES, params))
    blocked, failed = [], []
    are_all_searched = overview.dead.value < DEAD_SEARCHED
    for task_name, state, dead, first_id, batch_id, jobs, is_cut, workflows, has_more in rows:
        are_all = are_all_searched and not has_more
        found = Count(jobs, are_all and not is_cut)
        if state == State.WAITING:
            blocked.append(DeadDependencies(task_name, dead, first_id, found.value, not found.is_exact))
        else:
            failed.append(FailedWorkflows(task_name, dead, first_id, batch_id, found, Count(workflows, are_all)))
    return blocked, failed


def _acknowledged_dependencies(reading: DepthReading) -> list[DeadDependencies]:
    params = {"limit": WAITING_READ, "edges": EDGES_READ, "tasks": LISTED}
    return [DeadDependencies(*row) for row in execute(reading.connection, queries.ACKNOWLEDGED_DEPENDENCIES, params)]


def _schedules(reading: DepthReading) -> list[FailingSchedule]:
    params = {
        "schedules": SCHEDULES_READ,
        "runs": RUNS_READ,
        "late_seconds": late_limit_seconds(),
        "least": LEAST_DEAD,
        "limit": SCHEDULES_LISTED,
    }
    return [FailingSchedule(*row) for row in execute(reading.connection, queries.FAILING_SCHEDULES, params)]
