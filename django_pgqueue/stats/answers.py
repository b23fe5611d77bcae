"""The frozen dataclasses that the functions of `stats` return, for queues, tasks, lanes and workers. Times: seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

from django_pgqueue.display import number
from django_pgqueue.states import Pausable, State


@dataclass(frozen=True, slots=True)
class Count:
    """A number of jobs, or a lower bound of it.

    Counting stops at a limit, so that the cost does not grow. `is_exact` says whether there were fewer jobs than that
    limit: `str(Count(10000, False))` is "10,000+". If nothing is known, `str(Count(0, False))` is "–".
    """

    value: int = 0
    is_exact: bool = True

    @classmethod
    def up_to(cls, found: int, limit: int) -> Count:
        """Return what a statement has counted that reads at most `limit` rows."""
        return cls(found, found < limit)

    def __add__(self, other: Count) -> Count:
        return Count(self.value + other.value, self.is_exact and other.is_exact)

    def __str__(self) -> str:
        return f"{number(self.value)}{'' if self.is_exact else '+'}" if self.value or self.is_exact else "–"

    @property
    def plural(self) -> int:
        """The number that chooses between singular and plural: "1 job waits", and "1+ jobs wait"."""
        return self.value if self.is_exact else max(2, self.value)


NONE: Final = Count()
NOT_READ: Final = Count(0, is_exact=False)
"""The count of a figure that a value in a row makes unreadable."""


@dataclass(frozen=True, slots=True)
class PauseStats:
    """A pause of a queue or a task. `until` is None if the pause lasts until somebody ends it."""

    kind: Pausable
    name: str
    paused_at: datetime
    until: datetime | None
    by: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """How many jobs are in each state, each job in one of them.

    Attributes:
        due: Ready jobs that a worker may start now. If more than 500 limit keys have due jobs, those of further keys
            count as due, and neither `due` nor `held` is exact.
        held: Ready jobs that are due, and that their limit does not admit now: its slots are in use, its rate has no
            token, an ordered key has another job first, its key is held, or no task of this process declares it.
        scheduled: Ready jobs that are due later and have not been attempted.
        retrying: Ready jobs that are due later, after an attempt.
        unknown: Ready jobs that are due later, because workers release them: they do not know the task, or the
            arguments do not fit it. Between two releases, such a job counts as due for a moment.
        paused: Ready jobs that are due, and whose queue, task, limit or limit key is paused. If more than 500 limit
            keys have due jobs, it is not exact either.
        waiting: Jobs of workflows that wait for other jobs.
        running: Jobs that a worker runs.
        prefetched: Jobs that a worker has claimed, and that wait there for a free slot.
        lost: Jobs that a worker has claimed, but their lease is over, and no worker has rescued them yet.
        dead: Dead letters. Jobs that were acknowledged do not count.
        oldest_due_seconds: How long the oldest job in `due` has been due. None if no job is due.
    """

    due: Count = NONE
    held: Count = NONE
    scheduled: Count = NONE
    retrying: Count = NONE
    unknown: Count = NONE
    paused: Count = NONE
    waiting: Count = NONE
    running: Count = NONE
    prefetched: Count = NONE
    lost: Count = NONE
    dead: Count = NONE
    oldest_due_seconds: float | None = None


STATES: Final = tuple(name for name in Depth.__slots__ if name != "oldest_due_seconds")
"""The fields of `Depth` that count jobs."""
FIGURE_OF_STATE: Final = {
    **dict.fromkeys(("due", "held", "scheduled", "retrying", "unknown", "paused"), "ready"),
    **dict.fromkeys(("prefetched", "lost"), "running"),
}
"""The figure that counts a state, as `Overview.unread` names it, if it has another name than the state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedDepth(Depth):
    """The jobs of one queue or one task.

    Attributes:
        name: The name in the rows of the jobs.
        pause: The pause of the queue or task, or None.
        enqueued_per_minute: Jobs enqueued in the last minute. Jobs whose row is removed already are not counted. None
            if they could not be read.
        enqueued_is_estimate: Whether all queues together had 10,000 or more such jobs. Then only the newest 10,000 were
            counted, and `enqueued_per_minute` is their share of the ids that the last minute has used.
        finished_per_minute: Jobs that ended in the last complete minute. None if the workers keep no statistics, or if
            these could not be read.
    """

    name: str
    pause: PauseStats | None = None
    enqueued_per_minute: float | None = 0.0
    enqueued_is_estimate: bool = False
    finished_per_minute: float | None = None

    @property
    def is_paused(self) -> bool:
        """Whether an operator has paused it."""
        return self.pause is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStats(NamedDepth):
    """The jobs of one task. A renamed task has jobs under several names, each with its own figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats(NamedDepth):
    """The jobs of one queue, and the workers that serve it.

    Attributes:
        workers: Number of live worker processes that serve the queue.
        slots_busy: Number of slots of these processes that run a job, of this queue or of another. Slots that
            `--queue` keeps from this queue are not counted.
        slots_total: Number of jobs of the queue that these processes can run at a time.

    These numbers are None if they could not be read.
    """

    workers: int | None = 0
    slots_busy: int | None = 0
    slots_total: int | None = 0

    @property
    def is_unserved(self) -> bool:
        """Whether jobs are due, and no live worker serves the queue."""
        return bool(self.due.value or self.held.value) and self.workers == 0

    @property
    def empties_in_seconds(self) -> float | None:
        """Seconds until no job is due, if the rates of the last minute last. None if the queue does not get shorter.

        It is as exact as `due`, and an estimate if `enqueued_is_estimate` is true.
        """
        if self.enqueued_per_minute is None:
            return None
        net = (self.finished_per_minute or 0.0) - self.enqueued_per_minute
        return 60 * self.due.value / net if net > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneStats:
    """The ready jobs of one lane: one queue at one priority.

    The fields are those of `Depth`, but `held` has the jobs of paused limits too.
    """

    queue_name: str
    priority: int
    due: Count
    held: Count
    scheduled: Count
    retrying: Count
    unknown: Count
    oldest_due_seconds: float | None
    is_paused: bool
    """Whether the queue is paused. Jobs of a paused task are counted as due here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStats:
    """One worker process.

    Attributes:
        id: The id that owns its leases.
        host, pid: Where it runs.
        version, release: The version of this package, and the release that `runworker --release` names, or "".
        queues: The queues that it serves. Empty: all queues. Without `queue_concurrency`, it serves them in this order.
        queue_concurrency: The values of `--queue`: how many jobs of a queue it runs at a time, None for as many as it
            has slots. The name `*` stands for all queues that are not named. Empty without `--queue`.
        slots_total: Number of jobs that it can run at a time.
        slots_busy: Number of its slots that run a job. All jobs of a chunk run in one slot.
        prefetched: Number of jobs that it has claimed and not started.
        claimed: Number of jobs that it has claimed, the running and the prefetched ones.
        started_at, last_heartbeat_at: When it started, and when its supervisor last sent a heartbeat for it.
        heartbeat_age_seconds: How long ago that heartbeat was.
        is_live: Whether that was less than a lease ago. Otherwise the worker was lost, or its database was.
        supervisor_pid: Process id of its supervisor. None for `manage.py pgqueue run`, which has none.
        resident_mib: Its resident memory in MiB at the last heartbeat. None if the operating system does not say it.
    """

    id: int
    host: str
    pid: int
    version: str
    queues: tuple[str, ...]
    slots_total: int
    slots_busy: int
    prefetched: int
    claimed: int
    started_at: datetime
    last_heartbeat_at: datetime
    heartbeat_age_seconds: float
    is_live: bool
    supervisor_pid: int | None = None
    resident_mib: int | None = None
    release: str = ""
    queue_concurrency: Mapping[str, int | None] = field(default_factory=dict)

    def serves(self, queue_name: str) -> bool:
        """Return whether it claims the jobs of a queue."""
        return not self.queues or queue_name in self.queues


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview(Depth):
    """All queues together.

    Attributes:
        dead_24h: Jobs that became dead within 24 hours and were neither retried nor acknowledged since.
        suspended: Jobs that a durable step suspends. They are counted as `scheduled` or `retrying` too.
        enqueued_per_minute, finished_per_minute: The sums of `queues`.
        enqueued_is_estimate: As in `queues`.
        workers: Number of live worker processes. None if they could not be read.
        slots_busy, slots_total: The sums of these processes. None if they could not be read.
        queues: The queues, by name.
        unserved_queues: The names of the queues that have due jobs and no live worker.
        unread: The figures that could not be read because of a value in a row, each with the reason. Their counts are 0
            and not exact, and their other numbers are None. Their names are `ready` (due, held, later and paused jobs),
            `running`, `waiting`, `dead` (with `dead_24h`), `enqueued`, `finished`, `workers` and `suspended`.
    """

    dead_24h: Count
    suspended: Count
    enqueued_per_minute: float | None
    enqueued_is_estimate: bool
    finished_per_minute: float | None
    workers: int | None
    slots_busy: int | None
    slots_total: int | None
    queues: tuple[QueueStats, ...]
    unserved_queues: tuple[str, ...]
    unread: Mapping[str, str] = field(default_factory=dict)


class Reason(StrEnum):
    """Why a job is where it is. The values are stable."""

    GONE = "gone"
    """The job has no row: its transaction has not committed, or the row was removed."""
    FINISHED = "finished"
    RUNNING = "running"
    PREFETCHED = "prefetched"
    """A worker has claimed the job, and no start is recorded: it waits for a free slot, or has just started."""
    CANCELLING = "cancelling"
    """The job runs, and somebody has asked it to stop."""
    LOST = "lost"
    """Its lease is over, and no worker has rescued it yet."""
    EXPIRED = "expired"
    """It did not start by its `expires_at`. A worker will cancel it."""
    UNKNOWN_TASK = "unknown task"
    """A worker has released it, because it could not run it: it does not know the task, for example."""
    SUSPENDED = "suspended"
    """A step of its task sleeps, waits for an event, or is to be tried again."""
    WAITING = "waiting"
    """It waits for other jobs of its workflow."""
    DEPENDENCY_FAILED = "dependency failed"
    """A job that it depends on has failed. It is cancelled, or blocked until a retry of that job succeeds."""
    SCHEDULED = "scheduled"
    RETRYING = "retrying"
    QUEUE_PAUSED = "queue paused"
    TASK_PAUSED = "task paused"
    LIMIT_PAUSED = "limit paused"
    """Its limit or its limit key is paused."""
    NO_WORKER = "no worker"
    QUEUE_NOT_SERVED = "queue not served"
    """Workers run, and none of them serves the queue."""
    LIMIT_UNDECLARED = "limit undeclared"
    """No task of this process declares its limit, so workers with the same code do not start it."""
    BLOCKED_BY_DEAD = "blocked by dead"
    """A dead job of its ordered key comes first, and waits for an operator."""
    KEY_ORDER = "key order"
    """Another job of its ordered key comes first."""
    LIMIT_SLOTS = "limit slots"
    """Running jobs use the slots of its limit key."""
    KEY_HELD = "key held"
    """Its limit key is held, because a task raised `Throttled`."""
    LIMIT_RATE = "limit rate"
    """The rate of its limit does not admit it yet."""
    CHUNK = "chunk"
    """It waits until its chunk has more jobs, or until `chunk_wait` has passed."""
    SLOTS_BUSY = "slots busy"
    IN_LINE = "in line"
    NEXT = "next"
    """Nothing keeps it from being claimed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyTask:
    """A task that occupies slots: how many, and since how many seconds for the longest."""

    task_name: str
    slots: int
    longest_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """Why a job has not started, or what became of it. Fields that do not concern the reason are None or empty.

    Attributes:
        job_id: The job.
        reason: The first reason that applies, in the order of `Reason`.
        sentence: The same for people.
        state, task_name, queue_name: The values of the row. None if the job is gone.
        due_at: When the job is or was due.
        finished_at: When it ended.
        expires_at: The time by which it must start.
        attempt, max_attempts: How many attempts have counted, and how many may count.
        exception_class, error: The reason why the last attempt ended. The error is cut to 500 characters.
        worker_id, worker: The worker process of the running attempt, and "host:pid" if it is registered.
        started_at: When the running attempt started. None if it is prefetched.
        lease_expires_at: Until when the running attempt belongs to its worker.
        unknown_since: When a worker first released the job because it does not know the task.
        pause: The pause that holds it.
        workers: How many live worker processes serve the queue.
        slots_busy, slots_total: The slots of these processes.
        busy_tasks: What occupies these slots, the longest first.
        ahead: How many due jobs are claimed before it, without those that their limit does not admit now. For a job
            with a limit, those of its limit key alone; of an ordered key, all jobs that come first.
        limit_key: Its limit key, or None if it has no limit.
        admitted_at: When its limit admits it, if no job of its key comes first.
        blocking_job_id: The job of its ordered key that comes first.
        running_job_ids: The jobs that use the slots of its limit key, at most 5.
        dependency_ids: The jobs that it waits for, or that have cancelled it, at most 3.
    """

    job_id: int
    reason: Reason
    sentence: str
    state: State | None = None
    task_name: str | None = None
    queue_name: str | None = None
    due_at: datetime | None = None
    finished_at: datetime | None = None
    expires_at: datetime | None = None
    attempt: int | None = None
    max_attempts: int | None = None
    exception_class: str = ""
    error: str = ""
    worker_id: int | None = None
    worker: str = ""
    started_at: datetime | None = None
    lease_expires_at: datetime | None = None
    unknown_since: datetime | None = None
    pause: PauseStats | None = None
    workers: int | None = None
    slots_busy: int | None = None
    slots_total: int | None = None
    busy_tasks: tuple[BusyTask, ...] = field(default=())
    ahead: Count | None = None
    limit_key: str | None = None
    admitted_at: datetime | None = None
    blocking_job_id: int | None = None
    running_job_ids: tuple[int, ...] = field(default=())
    dependency_ids: tuple[int, ...] = field(default=())
