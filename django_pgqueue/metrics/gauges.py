"""The gauges of the queue: their names, their labels, and how they are read from the database.

The page `docs/reference/metrics.md` lists the same names and labels. The number of series is bounded, because queues
beyond a limit are counted together.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from django.db import Error
from django.db.backends.base.base import BaseDatabaseWrapper

from django_pgqueue import stats
from django_pgqueue.db.statements import execute
from django_pgqueue.doctor.session import Session
from django_pgqueue.ground.readings import DATABASE_UP, NOT_READ, Gauge, Reading, Sample
from django_pgqueue.stats import CauseKind, Count, LimitFigures, Overview, QueueStats
from django_pgqueue.stats.alias import connection_of
from django_pgqueue.stats.answers import FIGURE_OF_STATE, STATES
from django_pgqueue.stats.causes.current import causes_of, current
from django_pgqueue.stats.causes.words import Words
from django_pgqueue.stats.suspended import BatchFigures, SuspendedJobs, batch_figures, suspended_jobs, unreceived_events
from django_pgqueue.stats.unread import Figures, read_each
from django_pgqueue.tasks import registry

logger = logging.getLogger("django_pgqueue.metrics")

QUEUES_LIMIT: Final = 200
"""Queues with a label of their own. Further ones have the label `OTHER` together."""
LIMITS_LIMIT: Final = 200
"""The same for limits that tasks of this process declare. Others have the label `OTHER`, too."""
OTHER: Final = "other"
STATEMENT_TIMEOUT_SECONDS: Final = 2
NEEDS: Final = {
    "pgqueue_oldest_due_seconds": ("ready",),
    **dict.fromkeys(("pgqueue_enqueued_per_minute", "pgqueue_enqueued_estimated"), ("enqueued",)),
    "pgqueue_finished_per_minute": ("finished",),
    **dict.fromkeys(("pgqueue_queue_workers", "pgqueue_queue_slots", "pgqueue_live_workers"), ("workers",)),
    "pgqueue_queue_slots_busy": ("workers", "running"),
    "pgqueue_dead_last_day": ("dead",),
    **dict.fromkeys(("pgqueue_jobs_suspended", "pgqueue_oldest_suspended_seconds"), ("suspended",)),
    **dict.fromkeys(("pgqueue_batches", "pgqueue_oldest_open_batch_seconds"), ("batches",)),
}
"""The figures without which a gauge has no samples. A wrong 0 would end an alert."""
NO_BATCHES: Final = BatchFigures({}, 0.0)
SUSPENSIONS: Final = {"sleep": "sleeping", "event": "waiting", "step": "retrying"}
"""The state of a suspended job for the kind of its step."""

# How late the latest schedule is that is on.
#
# Cost: reads all schedules
LATEST_SCHEDULE: Final = """/* pgqueue:latest_schedule */
SELECT coalesce(max(
    date_part('epoch', statement_timestamp() + %(time_shift)s::interval
        - greatest(next_run_at, paused_until)) - jitter_seconds
), 0)
FROM pgqueue_schedule
WHERE enabled
"""

# Whether the role of this process may read schedules. The role of a worker that fires none may not.
MAY_READ_SCHEDULES: Final = """/* pgqueue:may_read_schedules */
SELECT has_table_privilege('pgqueue_schedule', 'SELECT')
"""


class Snapshot:
    """The figures behind several gauges, read at one moment. A gauge of its own figure reads that itself.

    Each is read alone. `figures.unread` has those that a value in a row makes unreadable.
    """

    def __init__(self, connection: BaseDatabaseWrapper, figures: Figures) -> None:
        self.alias = connection.alias
        self.figures = figures
        facts = current(connection.alias, figures)
        self.overview: Overview = facts.overview
        self.causes, self.unread_kinds = causes_of(facts, Words()), facts.unread_kinds
        figures.unread.update(self.overview.unread)
        self.schedules_late_seconds = self.figures.read("schedules", lambda: _late_seconds(connection), None)
        self.named, rest = _with_label(self.overview.queues)
        """The queues with a label of their own."""
        self.groups: list[tuple[str, list[QueueStats]]] = [(queue.name, [queue]) for queue in self.named]
        """Each label with its queues."""
        if rest:
            self.groups.append((OTHER, rest))
        self.limits: dict[str, list[LimitFigures]] = self.figures.read("limits", lambda: _limits(connection.alias), {})
        """Each label with its limits. Nothing is read if no task of this process declares a limit."""
        self.suspended: dict[tuple[str, str], SuspendedJobs] = self.figures.read(
            "suspended", lambda: suspended_jobs(connection.alias).by_kind, {}
        )
        self.batches = self.figures.read("batches", lambda: batch_figures(connection.alias), NO_BATCHES)


def _late_seconds(connection: BaseDatabaseWrapper) -> float | None:
    """Return how late the latest schedule is. None: the role of this process may not read schedules."""
    if not execute(connection, MAY_READ_SCHEDULES, {})[0][0]:
        return None
    return max(0.0, float(execute(connection, LATEST_SCHEDULE, {})[0][0]))


def _limits(alias: str) -> dict[str, list[LimitFigures]]:
    return _limits_by_label(stats.limits(alias)) if registry.limits() else {}


def _with_label(queues: Sequence[QueueStats]) -> tuple[list[QueueStats], list[QueueStats]]:
    """Return the queues with a label of their own, the first by name, and the others."""
    if len(queues) <= QUEUES_LIMIT:
        return list(queues), []
    named = [queue for queue in queues if queue.name != OTHER][:QUEUES_LIMIT]
    names = {queue.name for queue in named}
    return named, [queue for queue in queues if queue.name not in names]


def _limits_by_label(limits: Iterable[LimitFigures]) -> dict[str, list[LimitFigures]]:
    """Return the limits by their label. Names in the rows of jobs alone have none, because SQL can add any name."""
    found: dict[str, list[LimitFigures]] = {}
    for limit in limits:
        has_label = limit.is_declared and limit.name != OTHER and len(found.keys() - {OTHER}) < LIMITS_LIMIT
        found.setdefault(limit.name if has_label else OTHER, []).append(limit)
    return found


Read = Callable[[Snapshot], Iterator[Sample]]


def _one(value: Callable[[Snapshot], float]) -> Read:
    return lambda snapshot: iter([((), value(snapshot))])


def _by_state(value: Callable[[Count], float]) -> Read:
    def read(snapshot: Snapshot) -> Iterator[Sample]:
        states = [state for state in STATES if FIGURE_OF_STATE.get(state, state) not in snapshot.figures.unread]
        for label, queues in snapshot.groups:
            for state in states:
                yield (label, state), value(sum((getattr(queue, state) for queue in queues), start=Count()))

    return read


def _by_label(value: Callable[[list[QueueStats]], float]) -> Read:
    return lambda snapshot: (((label,), value(queues)) for label, queues in snapshot.groups)


def _by_queue(value: Callable[[QueueStats], float]) -> Read:
    """Read a figure of single queues. It has no sum, because one worker can serve several queues."""
    return lambda snapshot: (((queue.name,), value(queue)) for queue in snapshot.named)


def _by_limit(value: Callable[[LimitFigures], float], merge: Callable[[Iterable[float]], float] = sum) -> Read:
    return lambda snapshot: (((label,), merge(map(value, limits))) for label, limits in snapshot.limits.items())


def _limit_jobs(snapshot: Snapshot) -> Iterator[Sample]:
    for label, limits in snapshot.limits.items():
        yield (label, "due"), sum(limit.due.value for limit in limits)
        yield (label, "scheduled"), sum(limit.later.value for limit in limits)


def _finished(snapshot: Snapshot) -> Iterator[Sample]:
    if snapshot.overview.finished_per_minute is not None:  # workers keep no statistics
        yield from _by_label(lambda queues: sum(queue.finished_per_minute or 0.0 for queue in queues))(snapshot)


def _suspended(snapshot: Snapshot) -> Iterator[Sample]:
    for label, queues in snapshot.groups:
        for kind, state in SUSPENSIONS.items():
            yield (label, state), sum(found.jobs for found in _suspended_in(snapshot, queues, kind))


def _oldest_suspended(snapshot: Snapshot) -> Iterator[Sample]:
    for label, queues in snapshot.groups:
        for kind, state in SUSPENSIONS.items():
            ages = (found.oldest_seconds for found in _suspended_in(snapshot, queues, kind))
            yield (label, state), max(ages, default=0.0)


def _suspended_in(snapshot: Snapshot, queues: Iterable[QueueStats], kind: str) -> Iterator[SuspendedJobs]:
    return (snapshot.suspended[queue.name, kind] for queue in queues if (queue.name, kind) in snapshot.suspended)


def _batches(snapshot: Snapshot) -> Iterator[Sample]:
    return (((state,), count) for state, count in snapshot.batches.by_state.items())


def _causes(snapshot: Snapshot) -> Iterator[Sample]:
    found = Counter(cause.kind for cause in snapshot.causes)
    return (((kind,), found[kind]) for kind in CauseKind if kind not in snapshot.unread_kinds)


def _schedules(snapshot: Snapshot) -> Iterator[Sample]:
    if snapshot.schedules_late_seconds is not None:
        yield (), snapshot.schedules_late_seconds


def _unread(snapshot: Snapshot) -> Iterator[Sample]:
    yield (), len(snapshot.figures.unread)


QUEUE: Final = ("queue",)
LIMIT: Final = ("limit",)
QUEUE_AND_STATE: Final = ("queue", "state")
READS: Final[tuple[tuple[Gauge, Read], ...]] = (
    (DATABASE_UP, _one(lambda snapshot: 1.0)),
    (Gauge("pgqueue_figures_unread", "Figures of the queue that a value in a row makes unreadable."), _unread),
    (Gauge("pgqueue_jobs", "Jobs by state.", QUEUE_AND_STATE), _by_state(lambda count: count.value)),
    (
        Gauge("pgqueue_jobs_capped", "1 if pgqueue_jobs is a lower bound.", QUEUE_AND_STATE),
        _by_state(lambda count: not count.is_exact),
    ),
    (
        Gauge("pgqueue_oldest_due_seconds", "How long the oldest due job has been due, or 0.", QUEUE),
        _by_label(lambda queues: max(queue.oldest_due_seconds or 0.0 for queue in queues)),
    ),
    (
        Gauge("pgqueue_enqueued_per_minute", "Jobs enqueued in the last minute.", QUEUE),
        _by_label(lambda queues: sum(queue.enqueued_per_minute or 0.0 for queue in queues)),
    ),
    (
        Gauge("pgqueue_enqueued_estimated", "1 if pgqueue_enqueued_per_minute is an estimate.", QUEUE),
        _by_label(lambda queues: any(queue.enqueued_is_estimate for queue in queues)),
    ),
    (Gauge("pgqueue_finished_per_minute", "Jobs that ended in the last complete minute.", QUEUE), _finished),
    (Gauge("pgqueue_queue_paused", "1 if the queue is paused.", QUEUE), _by_queue(lambda queue: queue.is_paused)),
    (
        Gauge("pgqueue_queue_workers", "Live worker processes that serve the queue.", QUEUE),
        _by_queue(lambda queue: queue.workers or 0),
    ),
    (
        Gauge("pgqueue_queue_slots", "Jobs of the queue that these processes can run at a time.", QUEUE),
        _by_queue(lambda queue: queue.slots_total or 0),
    ),
    (
        Gauge("pgqueue_queue_slots_busy", "Slots of these processes that run a job, of any queue.", QUEUE),
        _by_queue(lambda queue: queue.slots_busy or 0),
    ),
    (Gauge("pgqueue_live_workers", "Live worker processes."), _one(lambda snapshot: snapshot.overview.workers or 0)),
    (
        Gauge("pgqueue_dead_last_day", "Jobs that became dead within 24 hours and were not retried, at most 10,000."),
        _one(lambda snapshot: snapshot.overview.dead_24h.value),
    ),
    (Gauge("pgqueue_causes", "Causes that keep jobs from running or make them fail, by kind.", ("kind",)), _causes),
    (Gauge("pgqueue_schedules_late_seconds", "How late the latest schedule is, or 0."), _schedules),
    (
        Gauge("pgqueue_jobs_suspended", "Jobs that a durable step suspends, at most 10,000.", QUEUE_AND_STATE),
        _suspended,
    ),
    (
        Gauge("pgqueue_oldest_suspended_seconds", "How long the oldest such step has waited, or 0.", QUEUE_AND_STATE),
        _oldest_suspended,
    ),
    (
        Gauge("pgqueue_events_unreceived", "Events among the newest 10,000 that no job has received."),
        _one(lambda snapshot: unreceived_events(snapshot.alias)),
    ),
    (Gauge("pgqueue_batches", "Batches by state, at most 10,000.", ("state",)), _batches),
    (
        Gauge("pgqueue_oldest_open_batch_seconds", "How long ago the oldest open batch was created, or 0."),
        _one(lambda snapshot: snapshot.batches.oldest_open_seconds),
    ),
    (
        Gauge("pgqueue_limit_running_weight", "Weights of the running jobs of a limit.", LIMIT),
        _by_limit(lambda limit: limit.running_weight),
    ),
    (Gauge("pgqueue_limit_jobs", "Ready jobs of a limit.", ("limit", "state")), _limit_jobs),
    (
        Gauge("pgqueue_limit_jobs_capped", "1 if pgqueue_limit_jobs is a lower bound.", LIMIT),
        _by_limit(lambda limit: not (limit.due + limit.later).is_exact, max),
    ),
    (
        Gauge("pgqueue_limit_keys", "Keys of a limit that have ready jobs.", LIMIT),
        _by_limit(lambda limit: limit.keys.value),
    ),
    (
        Gauge("pgqueue_limit_keys_held", "Keys of a limit that are held, because a task raised Throttled.", LIMIT),
        _by_limit(lambda limit: limit.held_keys.value),
    ),
    (
        Gauge("pgqueue_limit_oldest_due_seconds", "How long the oldest due job of a limit has been due, or 0.", LIMIT),
        _by_limit(lambda limit: limit.oldest_due_seconds or 0.0, max),
    ),
)
"""Every gauge, and the function that reads it, with the statement timeout of `collect()`. Add a gauge here."""


def collect(database: str | None = None) -> list[Reading]:
    """Read the gauges of the queue from the database.

    Runs about 16 read-only statements, or three if the counts of the last five seconds are used again, and up to nine
    more if a task declares a limit. Each runs for at most 2 s, in a transaction of its own or in a savepoint of the
    open one. Their cost is bounded: see `stats.queues()` and `stats.limits()`.

    Args:
        database: Alias of the database of the jobs. By default the database routers choose it.

    Returns:
        Each gauge with its samples. If a value in a row makes a figure unreadable, its gauges have no samples,
        `pgqueue_figures_unread` counts it, and a warning is logged. If the database cannot be read, this function logs
        a warning, and the list has only `pgqueue_database_up` with the value 0.

    Example:
        >>> for gauge, samples in collect():
        ...     for labels, value in samples:
        ...         send(gauge.name, dict(zip(gauge.labels, labels, strict=True)), value)
    """
    connection = connection_of(database)
    try:
        with Session(connection.alias).read_only(statement_timeout_seconds=STATEMENT_TIMEOUT_SECONDS):
            return read_each(connection, lambda figures: _readings(Snapshot(connection, figures)))
    except Error as error:
        reason = str(error).partition("\n")[0]
        logger.warning("the figures of the database %r could not be read: %s", connection.alias, reason)
        return [NOT_READ]


def _readings(snapshot: Snapshot) -> list[Reading]:
    found = {gauge.name: Reading(gauge, _samples(snapshot, gauge, read)) for gauge, read in READS}
    unread = {gauge.name: gauge for gauge, _ in READS}["pgqueue_figures_unread"]
    found[unread.name] = Reading(unread, tuple(_unread(snapshot)))  # also counts the gauges that read their figure last
    return list(found.values())


def _samples(snapshot: Snapshot, gauge: Gauge, read: Read) -> tuple[Sample, ...]:
    if any(figure in snapshot.figures.unread for figure in NEEDS.get(gauge.name, ())):
        return ()
    return snapshot.figures.read(gauge.name, lambda: tuple(read(snapshot)), ())
