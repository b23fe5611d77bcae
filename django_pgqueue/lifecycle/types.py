"""Types of the arguments and results of the transitions in `lifecycle`."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import Enum
from typing import Final, NamedTuple

from django_pgqueue.ground.progress import Progress
from django_pgqueue.states import Outcome, State

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class TransitionStatus(Enum):
    """Whether a transition was made for one job; the docstring of `lifecycle` explains each value."""

    DONE = "done"
    ALREADY_DONE = "done before"
    LOST = "lost"
    LOCKED = "locked"


class TransitionResult(NamedTuple):
    """The result of a transition for one job. `state` is the job's new state if this call made the transition."""

    status: TransitionStatus
    state: State | None = None


class Enqueued(NamedTuple):
    """The values of a new job that the database chose."""

    job_id: int
    run_after: datetime
    enqueued_at: datetime
    expires_at: datetime | None


class Lane(NamedTuple):
    """One queue at one priority: a range of the index of ready jobs."""

    queue_name: str
    priority: int
    is_limited: bool = False
    """Whether it is the lane of the jobs with a limit, which is a range of the index of limited jobs."""
    chunk_key: str | None = None
    """The chunk key of its jobs, if it is the lane of one task with `chunk`."""

    @property
    def is_plain(self) -> bool:
        """Whether its jobs have neither a limit nor a chunk key."""
        return not self.is_limited and self.chunk_key is None


class ReadyPlace(NamedTuple):
    """A place in an index of ready jobs. Plain lanes have no limit key."""

    queue_name: str
    priority: int
    limit_key: str = ""

    def is_before(self, other: ReadyPlace) -> bool:
        """Return whether it comes before another one. The index compares code points, as Python does."""
        return (self.queue_name, -self.priority, self.limit_key) < (other.queue_name, -other.priority, other.limit_key)


class Cursor(NamedTuple):
    """The position in a lane where the last claim ended and the next one starts."""

    run_after: datetime = EPOCH
    job_id: int = 0


class LaneScan(NamedTuple):
    """The lanes that have ready jobs, and what is paused.

    `due_in` maps each lane that has ready jobs to the seconds until its first job is due, 0 or less if it is due now.
    The lanes are ordered by queue name, the highest priority first. A job in a paused queue is due when the pause ends,
    or never (infinity).

    `paused_queues` and `paused_tasks` are the names that a claim must leave out, whether or not they have ready jobs.
    """

    due_in: dict[Lane, float]
    paused_queues: tuple[str, ...]
    paused_tasks: tuple[str, ...]
    seen_at: datetime
    """When the lanes were read, by the database's clock."""


class ExecutionKey(NamedTuple):
    """Identifies an execution in every fenced statement: its id and the time of its claim.

    The id alone is not unique: ids restart after TRUNCATE ... RESTART IDENTITY (`manage.py flush`) and go back when an
    older dump is restored. The time of a claim never recurs, so a late completion of an old execution cannot close a
    new execution with the same id.
    """

    execution_id: int
    claimed_ms: float
    """Whole milliseconds since 1970, by the database's clock."""


class NodeResult(NamedTuple):
    """The state of a job, and its result as JSON text. The state is None if the job was removed."""

    state: str | None
    result: str | None


class Claimed(NamedTuple):
    """A job that this worker has claimed: one open execution. `arguments` is JSON text, not decoded yet.

    The arguments and the headers are "" if the row has more than a worker reads.

    `isolated`: the job has crashed a worker before, so it runs in an isolated process.
    """

    job_id: int
    execution_id: int
    task_name: str
    queue_name: str
    priority: int
    run_after: datetime
    arguments: str
    attempt: int
    max_attempts: int
    crashes: int
    isolated: bool
    unknown_seconds: float | None
    claimed_ms: float
    """See `ExecutionKey`."""
    headers: str | None = None
    """JSON text, not decoded yet."""
    start_by: float | None = None
    """The latest time at which the job may start, on the monotonic clock. None: no limit."""
    batch_id: int | None = None
    """Id of its batch. None: it belongs to no batch."""
    in_graph: bool | None = None
    """Whether it is a node of a workflow."""
    claimed_at: float = 0.0
    """When the claim was sent, on the monotonic clock."""
    limit_key: str | None = None
    is_probe: bool = False
    """Whether the circuit breaker of its limit key was open: the end of the job closes it, or opens it again."""
    chunk_key: str | None = None
    """The chunk key by which it was claimed."""
    others: tuple[Claimed, ...] | None = None
    """The other jobs of the chunk, which run in the same call. None: the job was not claimed as a chunk."""
    results: dict[int, NodeResult] | None = None
    """The results of other jobs that its arguments need. None: the attempt reads them itself, if there are any."""

    def __repr__(self) -> str:
        """Return the ids and the task. Error reports show the variables of frames, and arguments can be secret."""
        return f"Claimed(job_id={self.job_id}, execution_id={self.execution_id}, task_name={self.task_name!r})"

    @property
    def key(self) -> ExecutionKey:
        """The identity of the execution in fenced statements."""
        return ExecutionKey(self.execution_id, self.claimed_ms)

    @property
    def members(self) -> tuple[Claimed, ...]:
        """The job itself, and the other jobs of its chunk."""
        return (self, *(self.others or ()))


class SetAside(NamedTuple):
    """A job that was made dead because no claim can take it. The execution only carries the reason: nothing ran."""

    execution_id: int
    job_id: int
    task_name: str
    queue_name: str
    attempt: int


class Noted(NamedTuple):
    """The progress that a running execution has reported, and how many seconds ago."""

    key: ExecutionKey
    progress: Progress
    noted_seconds_ago: float


class Succeeded(NamedTuple):
    """An execution whose task returned. `result` is JSON text, or None if it is not kept. Times are seconds ago."""

    key: ExecutionKey
    result: str | None
    started_seconds_ago: float
    finished_seconds_ago: float

    def __repr__(self) -> str:
        """Return the execution without the result, which can be secret."""
        return f"Succeeded(key={self.key!r})"


class Failed(NamedTuple):
    """An execution that failed. `delay_seconds`: until the next attempt, or None to make the job dead."""

    key: ExecutionKey
    outcome: Outcome
    delay_seconds: float | None
    started_seconds_ago: float | None
    finished_seconds_ago: float
    exception_class: str = ""
    error: str = ""
    traceback: str = ""
    spare_seconds: float | None = None
    """The delay if `max_attempts` was raised since the claim. None: the job needs no attempt more, or must not run."""


class Released(NamedTuple):
    """An execution to release. `delay_seconds`: when its job is due, from now, or None to keep its `run_after`.

    `holds_key`: no job with the limit key of the job starts before that time either.
    """

    key: ExecutionKey
    delay_seconds: float | None = None
    error: str = ""
    holds_key: bool = False


class Cancelled(NamedTuple):
    """An execution that ended cancelled, with the reason."""

    key: ExecutionKey
    started_seconds_ago: float | None
    finished_seconds_ago: float
    error: str = ""


class OpenExecution(NamedTuple):
    """An open execution, with the values that the retry policy needs."""

    execution_id: int
    job_id: int
    task_name: str
    queue_name: str
    attempt: int
    max_attempts: int
    crashes: int
    started: bool
    claimed_ms: float
    """See `ExecutionKey`."""
    limit_key: str | None = None
    worker_has_stopped: bool = False
    """Whether its worker has recorded its stop. Only a rescue reads this."""

    @property
    def key(self) -> ExecutionKey:
        """The identity of the execution in fenced statements."""
        return ExecutionKey(self.execution_id, self.claimed_ms)


class Heartbeat(NamedTuple):
    """The answer to the heartbeat of one worker."""

    has_requests: bool
    """Whether the worker has a request of an operator that it has not answered."""
    is_extended: bool
    """Whether its lease was extended. It was not if another session has locked the worker's record."""


class Pruned(NamedTuple):
    """One page of a prune: how many jobs were removed, how many were locked, its end, and whether it was full."""

    removed: int
    locked: int
    last: Cursor
    is_full: bool
