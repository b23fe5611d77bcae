"""The public functions that describe queues, tasks and lanes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from django_pgqueue.ground.served_queues import ServedQueues
from django_pgqueue.settings.conf import get_settings, known_queues
from django_pgqueue.tasks import registry

from .alias import connection_of
from .answers import (
    FIGURE_OF_STATE,
    NONE,
    NOT_READ,
    STATES,
    Count,
    LaneStats,
    Overview,
    QueueStats,
    TaskStats,
    WorkerStats,
)
from .depths import COUNT_LIMIT, DepthReading, DepthSums, read_ready, read_ready_unlimited
from .fleet import Pauses, SlotsOfQueues, read_workers
from .lane_counts import Ready
from .limits.ready import WaitingKey
from .suspended import suspended_jobs
from .unread import Figures, read_each

STATES_OF_LANES: Final = ("due", "held", "scheduled", "retrying", "unknown")
FIRST_OF_LANE: Final = 1000
"""Jobs of each lane among which `due_tasks()` counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFigures:
    """The answers of `queues()`, `lanes()` and `workers()`, read at once.

    `ready` has the rows that `lanes` sums up, and `waiting_keys` the limit keys that have due jobs.
    """

    queues: list[QueueStats]
    lanes: list[LaneStats]
    workers: list[WorkerStats]
    unread: Mapping[str, str] = field(default_factory=dict)
    ready: Sequence[Ready] = ()
    waiting_keys: Sequence[WaitingKey] = ()
    has_all_keys: bool = True


def queues(database: str | None = None) -> list[QueueStats]:
    """Return the queues: how many jobs of each are in each state, their rates, and the workers that serve them.

    Runs about nine read-only statements, and two more if jobs with a limit are due. Their cost is bounded: see `Count`.
    If a lane has more than 10,000 due jobs, or all lanes together have more than 100,000, the counts are lower bounds.
    So are the counts of jobs that are due later from 10,000 on, those of jobs with a limit from 20,000 on, and while a
    task is paused those of due jobs from 20,000 on. Dead jobs are counted among the newest 10,000.

    Args:
        database: Alias of the database of the jobs. By default the database routers choose it.

    Returns:
        The queues of jobs that are not finished, of the newest dead jobs, of live workers with `--queues`, of pauses,
        of this process's tasks and of `PGQUEUE["QUEUES"]`, by name.

    Example:
        >>> [(queue.name, str(queue.due), queue.oldest_due_seconds) for queue in stats.queues()]
        [('default', '412', 3.4), ('mail', '10,000+', 512.9)]
    """
    connection = connection_of(database)
    reading = DepthReading(connection, by_task=False)
    return _queues(reading, workers_of(reading))


def tasks(database: str | None = None) -> list[TaskStats]:
    """Return the tasks: how many jobs of each are in each state, and their rates.

    Runs about eight read-only statements, and two more if jobs with a limit are due. No index has the tasks of waiting
    jobs, so their rows are read: from 20,000 due jobs on, the counts of all tasks are lower bounds.

    Args:
        database: Alias of the database of the jobs. By default the database routers choose it.

    Returns:
        The tasks of jobs that are not finished, of the newest dead jobs, of pauses, and of this process, by name.
    """
    reading = DepthReading(connection_of(database), by_task=True)
    names = {*reading.sums, *reading.pauses.of_tasks, *(task.name for task in registry.all_tasks())}
    return [TaskStats(**reading.of_name(name)) for name in sorted(names)]


def lanes(database: str | None = None) -> list[LaneStats]:
    """Return the lanes with ready jobs, by queue, the highest priority first.

    A lane is one queue at one priority. Runs three read-only statements, and two more if jobs with a limit are due.

    Args:
        database: Alias of the database of the jobs. By default the database routers choose it.

    Returns:
        At most 1,000 lanes.
    """
    connection = connection_of(database)
    pauses = Pauses(connection)
    return _lanes(read_ready(connection, pauses, by_task=False).rows, pauses)


def queue_figures(database: str | None = None, figures: Figures | None = None) -> QueueFigures:
    """Return the queues, the lanes and the workers, with the statements of `queues()` alone.

    While a task is paused, fewer jobs of each lane are counted than by `lanes()`: see `queues()`.

    Args:
        database: Alias of the database of the jobs. By default the database routers choose it.
        figures: Reads each figure, as in `read_each()`. By default the first one that cannot be read raises.
    """
    reading = DepthReading(connection_of(database), by_task=False, figures=figures)
    found = workers_of(reading)
    return QueueFigures(
        queues=_queues(reading, found),
        lanes=_lanes(reading.ready, reading.pauses),
        workers=found,
        ready=reading.ready,
        waiting_keys=reading.waiting_keys,
        has_all_keys=reading.has_all_keys,
        unread=reading.figures.unread,
    )


def due_tasks(figures: QueueFigures, queue_name: str, database: str | None = None) -> Counter[str]:
    """Return how many due jobs of a queue each task has, among the first of each lane. Runs at most one statement.

    Those that their limit holds count too. `figures` must be of the same database.
    """
    of_queue = [ready for ready in figures.ready if ready.queue_name == queue_name]
    rows = [ready for ready in of_queue if ready.is_limited or ready.task_name is not None]
    if any(ready.task_name is None and ready.due for ready in of_queue):
        connection = connection_of(database)
        unlimited = read_ready_unlimited(connection, by_task=True, limit=FIRST_OF_LANE)
        rows += [ready for ready in unlimited if ready.queue_name == queue_name]
    found: Counter[str] = Counter()
    for ready in rows:
        found[ready.task_name or ""] += ready.due + ready.held + ready.paused
    return +found


def overview(database: str | None = None, figures: Figures | None = None) -> Overview:
    """Return the figures of all queues together, and the queues.

    Runs one read-only statement more than `queues()`. If a value in a row makes a figure unreadable, it reads each
    figure alone, and `Overview.unread` names those that are missing.

    Args:
        database: Alias of the database of the jobs. By default the database routers choose it.
        figures: Reads each figure, if the caller has others to read too.

    Example:
        >>> overview = stats.overview()
        >>> print(f"{overview.due} due, the oldest for {overview.oldest_due_seconds or 0:.0f} s")
        412 due, the oldest for 3 s
    """
    connection = connection_of(database)
    if figures is not None:
        return _overview(DepthReading(connection, by_task=False, figures=figures))
    return read_each(connection, lambda each: _overview(DepthReading(connection, by_task=False, figures=each)))


def _overview(reading: DepthReading) -> Overview:
    return overview_of(reading, workers_of(reading))


def overview_of(reading: DepthReading, workers: Sequence[WorkerStats]) -> Overview:
    """Return the figures of all queues together, from what was read of each and from the workers."""
    connection, unread = reading.connection, reading.figures.unread
    live = [worker for worker in workers if worker.is_live]
    all_queues = _queues(reading, workers)
    suspended = reading.figures.read("suspended", lambda: suspended_jobs(connection.alias).jobs, NOT_READ)
    oldest = [queue.oldest_due_seconds for queue in all_queues if queue.oldest_due_seconds is not None]
    sums: dict[str, Any] = {
        state: NOT_READ
        if FIGURE_OF_STATE.get(state, state) in unread
        else sum((getattr(queue, state) for queue in all_queues), start=NONE)
        for state in STATES
    }
    return Overview(
        **sums,
        oldest_due_seconds=max(oldest, default=None),
        dead_24h=NOT_READ
        if "dead" in unread
        else Count.up_to(sum(sums.dead_24h for sums in reading.sums.values()), COUNT_LIMIT),
        suspended=suspended,
        enqueued_per_minute=None
        if "enqueued" in unread
        else sum(queue.enqueued_per_minute or 0.0 for queue in all_queues),
        enqueued_is_estimate=reading.enqueued_is_estimate,
        finished_per_minute=sum(queue.finished_per_minute or 0.0 for queue in all_queues)
        if get_settings().STATS and "finished" not in unread
        else None,
        **_slots(reading, len(live), *_sums(live)),
        queues=tuple(all_queues),
        unserved_queues=tuple(queue.name for queue in all_queues if queue.is_unserved),
        unread=unread,
    )


def workers_of(reading: DepthReading) -> list[WorkerStats]:
    """Read the worker processes. Return none if they cannot be read."""
    return reading.figures.read("workers", lambda: read_workers(reading.connection, reading.open_groups), [])


def _sums(workers: Iterable[WorkerStats]) -> tuple[int, int]:
    """Return how many slots of some workers are busy, and how many there are."""
    slots = [(worker.slots_busy, worker.slots_total) for worker in workers]
    return sum(busy for busy, _ in slots), sum(total for _, total in slots)


def _slots(reading: DepthReading, workers: int, busy: int, total: int) -> dict[str, Any]:
    """Return the fields of workers and slots, with None for what could not be read."""
    has_workers = "workers" not in reading.figures.unread
    return {
        "workers": workers if has_workers else None,
        "slots_busy": busy if has_workers and "running" not in reading.figures.unread else None,
        "slots_total": total if has_workers else None,
    }


def _queues(reading: DepthReading, workers: Sequence[WorkerStats]) -> list[QueueStats]:
    live = [worker for worker in workers if worker.is_live]
    names = {
        *reading.sums,
        *reading.pauses.of_queues,
        *(name for worker in live for name in ServedQueues(worker.queues, worker.queue_concurrency).named),
        *(task.queue_name for task in registry.all_tasks()),
        *(known_queues() or ()),
    }
    found, slots = [], SlotsOfQueues(live, reading.open_groups)
    for name in sorted(names):
        serving = [worker for worker in live if worker.serves(name)]
        fields = _slots(reading, len(serving), *slots.sums(name, serving))
        found.append(QueueStats(**fields, **reading.of_name(name)))
    return found


def _lanes(rows: Iterable[Ready], pauses: Pauses) -> list[LaneStats]:
    """Return the lanes, by queue, the highest priority first. A lane may have a row for each task."""
    sums: defaultdict[tuple[str, int], DepthSums] = defaultdict(DepthSums)
    for ready in rows:
        sums[ready.queue_name, -ready.priority].add_ready(ready, is_paused=False)
    return [
        LaneStats(
            queue_name=queue_name,
            priority=-negative,
            **{state: lane.counts[state] for state in STATES_OF_LANES if state != "held"},
            held=lane.counts["held"] + lane.counts["paused"],
            oldest_due_seconds=lane.oldest_due_seconds,
            is_paused=queue_name in pauses.of_queues,
        )
        for (queue_name, negative), lane in sorted(sums.items())
    ]
