"""The frozen dataclasses that describe limits and their keys. All durations are in seconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from django_pgqueue.declared import limits
from django_pgqueue.stats.answers import NONE, Count, PauseStats


class LimitWaitReason(StrEnum):
    """Reasons why the next job of a limit key has not started. The values are stable."""

    PAUSED = "paused"
    """An operator has paused the limit or the key."""
    UNDECLARED = "undeclared"
    """No task of this process declares the limit. Workers with the same code do not start the job."""
    BLOCKED_BY_DEAD = "blocked by dead"
    """A dead job of the ordered key comes first. It waits for an operator."""
    ORDER = "order"
    """Another job of the ordered key comes first."""
    SLOT = "slot"
    """The running jobs of the key use its slots."""
    NOT_DUE = "not due"
    """The next job is due later."""
    HOLD = "hold"
    """The key is held, because a task raised `Throttled`."""
    TOKEN = "token"  # noqa: S105 -- a token of a rate
    """The rate has no token for the job yet."""
    WORKER = "worker"
    """The limit admits the job, so a worker claims it in the next turn of the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitValues:
    """The values that claims of a limit or of one of its keys obey: those of the code, changed by overrides.

    Attributes:
        concurrency: Maximum jobs of a key that run at a time. None: no maximum. Of an ordered limit, and while the
            circuit breaker is open, it is 1.
        rate: Maximum starts of a key in a period, such as "100/m". None: no maximum.
        burst: How many jobs of a key may start at once.
        share: How many jobs of a key may start in one turn.
        is_ordered: Whether the jobs of a key run one after the other.
    """

    concurrency: int | None
    rate: str | None
    burst: int
    share: int
    is_ordered: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OverrideStats:
    """The override of a limit or of one key that is in force. Fields that it does not set are None.

    Attributes:
        limit_key: The name of the limit, or the limit key.
        concurrency, rate, burst, share: The values that it sets.
        changed_at: When it was changed last.
        until: When it ends. None if it lasts until somebody removes it.
        by: Who has changed it.
        reason: Why.
    """

    limit_key: str
    concurrency: int | None
    rate: str | None
    burst: int | None
    share: int | None
    changed_at: datetime
    until: datetime | None
    by: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitFigures:
    """The jobs of one limit.

    Attributes:
        name: The name of the limit.
        declaration: What the tasks of this process declare, such as "stripe (rate 100/m, burst 10)". Empty if none of
            them declares this limit.
        values: The values that keys without an override obey. None if no task of this process declares the limit.
        override: The override of all its keys. None if there is none.
        pause: The pause of all its keys. None if there is none.
        has_open_breaker: Whether the limit has no key and its circuit breaker is open. One job at a time runs, after
            the pause if there is one.
        overridden_keys: Limit keys with an override of their own.
        paused_keys: Limit keys with a pause of their own.
        open_breakers: Limit keys whose circuit breakers are open.
        running: Open executions of its jobs, including prefetched ones.
        running_weight: The sum of their weights. A lower bound if `running` is one.
        due: Ready jobs that are due, whether the limit admits them or not.
        later: Ready jobs that are due later.
        keys: Limit keys with ready jobs.
        held_keys: Limit keys that are held, because a task raised `Throttled`.
        oldest_due_seconds: How long the oldest due job of the keys that were counted has been due. None if none is due.
    """

    name: str
    declaration: str
    values: LimitValues | None = None
    override: OverrideStats | None = None
    pause: PauseStats | None = None
    has_open_breaker: bool = False
    overridden_keys: Count = NONE
    paused_keys: Count = NONE
    open_breakers: Count = NONE
    running: Count = NONE
    running_weight: int = 0
    due: Count = NONE
    later: Count = NONE
    keys: Count = NONE
    held_keys: Count = NONE
    oldest_due_seconds: float | None = None

    @property
    def is_declared(self) -> bool:
        """Whether a task of this process declares it."""
        return bool(self.declaration)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitKeyFigures:
    """The jobs of one limit key.

    Attributes:
        limit_key: The limit key in the rows of the jobs, such as "import:4711".
        values: The values that its claims obey. None if no task of this process declares the limit.
        override: The override of this key alone. None if there is none.
        pause: The pause of the key or of its limit. None if there is none.
        has_open_breaker: Whether its circuit breaker is open. One job at a time runs, after the pause if there is one.
        running: Open executions of its jobs, including prefetched ones.
        running_weight: The sum of their weights. A lower bound if `running` is one.
        running_job_ids: The first of these jobs, at most 5.
        due: Ready jobs that are due, whether the limit admits them or not.
        later: Ready jobs that are due later.
        oldest_due_seconds: How long the oldest due job has been due. None if none is due.
        waits_for: What the next job waits for. None if no job is ready.
        next_start_seconds: Seconds until the limit admits the next job. None if it waits for another job or for an
            operator, or if no job is ready.
        next_job_id: The ready job that starts next. None if no job is ready.
        blocking_job_id: The running or dead job of the ordered key that comes first. None if there is no such job.
        held_until: When the hold of the key ends. None if it is not held.
    """

    limit_key: str
    values: LimitValues | None = None
    override: OverrideStats | None = None
    pause: PauseStats | None = None
    has_open_breaker: bool = False
    running: Count = NONE
    running_weight: int = 0
    running_job_ids: tuple[int, ...] = field(default=())
    due: Count = NONE
    later: Count = NONE
    oldest_due_seconds: float | None = None
    waits_for: LimitWaitReason | None = None
    next_start_seconds: float | None = None
    next_job_id: int | None = None
    blocking_job_id: int | None = None
    held_until: datetime | None = None

    @property
    def name(self) -> str:
        """The name of the limit."""
        return limits.name_of(self.limit_key)

    @property
    def waiting(self) -> Count:
        """All ready jobs of the key."""
        return self.due + self.later


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitKeyPage:
    """A page of the keys of a limit, in the order of their bytes.

    Attributes:
        keys: The keys with ready or running jobs.
        next_after: The argument `after` for the next page. None after the last page.
    """

    keys: tuple[LimitKeyFigures, ...]
    next_after: str | None
