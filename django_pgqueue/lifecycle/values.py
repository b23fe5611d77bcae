"""What goes into the acts and comes out of them."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import Enum
from typing import Final, NamedTuple, Required, TypedDict

from django_pgqueue.progress import Progress
from django_pgqueue.states import Outcome, State

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Fate(Enum):
    """What an act did to an execution; see the package's first lines."""

    DONE = "done"
    DONE_BEFORE = "done before"
    LOST = "lost"
    LOCKED = "locked"


class Row(TypedDict, total=False):
    """What new jobs have in common. `run_after` overrules `delay_seconds`, `expires_at` overrules `expires_seconds`."""

    task_name: Required[str]
    queue_name: Required[str]
    priority: Required[int]
    max_attempts: Required[int]
    run_after: Required[datetime | None]
    delay_seconds: Required[float]
    headers: str | None
    expires_at: datetime | None
    expires_seconds: float | None


DEFAULTS: Final[dict[str, None]] = dict.fromkeys(["headers", "expires_at", "expires_seconds"])


class Enqueued(NamedTuple):
    """What the database decided of a new job."""

    job_id: int
    run_after: datetime
    enqueued_at: datetime
    expires_at: datetime | None


class Lane(NamedTuple):
    """One queue at one priority: a range of the ready index."""

    queue_name: str
    priority: int


class Cursor(NamedTuple):
    """Where a lane's last claim ended; the next one looks behind it."""

    run_after: datetime = EPOCH
    job_id: int = 0


class Look(NamedTuple):
    """What waits, and where.

    `due_in`: the lanes that hold ready jobs, by queue name, highest priority first; with each, the seconds until its
    first job is due, not above 0 if it is. That of a paused queue is due when the pause ends, or never (infinity).
    `paused_queues`, `paused_tasks`: names, to be left out of a claim; also where no job waits at all.
    """

    due_in: dict[Lane, float]
    paused_queues: tuple[str, ...]
    paused_tasks: tuple[str, ...]
    seen_at: datetime
    """The time of this look by the database's clock."""


class ExecutionKey(NamedTuple):
    """The name of an execution in every fenced statement: its id, and when it was claimed.

    Ids start anew after TRUNCATE ... RESTART IDENTITY (`manage.py flush`) and go back when an older dump is restored.
    The time of the claim never recurs, so the report of an old execution cannot close a new one of the same id.
    """

    execution_id: int
    claimed_ms: float
    """Whole milliseconds since 1970, by the database's clock."""


class Claimed(NamedTuple):
    """A job in this worker's hands: one open execution. `arguments` is JSON text, not decoded yet.

    `isolated`: it has once taken a worker down, and runs in a process of its own.
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
    """JSON text, not decoded yet either."""
    start_by: float | None = None
    """By the monotonic clock: the job is not to start later. None: whenever."""

    @property
    def key(self) -> ExecutionKey:
        """The execution's name in fenced statements."""
        return ExecutionKey(self.execution_id, self.claimed_ms)


class Noted(NamedTuple):
    """What the attempt of an execution has told of its progress, and how many seconds before now."""

    key: ExecutionKey
    progress: Progress
    noted_seconds_ago: float


class Succeeded(NamedTuple):
    """An execution that returned: its result as JSON text (None: not kept), its times as seconds before now."""

    key: ExecutionKey
    result: str | None
    started_seconds_ago: float
    finished_seconds_ago: float


class Failed(NamedTuple):
    """An execution that failed: `delay_seconds` until the next attempt, or None for no more (dead)."""

    key: ExecutionKey
    outcome: Outcome
    delay_seconds: float | None
    started_seconds_ago: float | None
    finished_seconds_ago: float
    exception_class: str = ""
    error: str = ""
    traceback: str = ""


class Released(NamedTuple):
    """An execution given back: `delay_seconds` from now, or None for the time its job was due at."""

    key: ExecutionKey
    delay_seconds: float | None = None
    error: str = ""


class Cancelled(NamedTuple):
    """An execution that ended cancelled, with the reason."""

    key: ExecutionKey
    started_seconds_ago: float | None
    finished_seconds_ago: float
    error: str = ""


class Held(NamedTuple):
    """An open execution, with what the retry policy asks. `task_name` is None if its job was deleted."""

    execution_id: int
    job_id: int
    task_name: str | None
    queue_name: str
    attempt: int
    max_attempts: int
    crashes: int
    started: bool
    claimed_ms: float
    """See `ExecutionKey`."""

    @property
    def key(self) -> ExecutionKey:
        """The execution's name in fenced statements."""
        return ExecutionKey(self.execution_id, self.claimed_ms)


class Moved(NamedTuple):
    """What an act that may end differently did to one execution: its fate, and the job's state if done."""

    fate: Fate
    state: State | None = None


class Beat(NamedTuple):
    """One open execution in the answer to a beat. Not extended: somebody is finishing it just now."""

    worker_id: int
    execution_id: int
    extended: bool


class Pruned(NamedTuple):
    """One batch of a prune: jobs looked at, jobs removed, and where it ended (the mark for the next)."""

    found: int
    removed: int
    mark: datetime | None
