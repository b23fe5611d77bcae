"""The frozen dataclass that `stats.why()` returns, and its reasons. All durations are in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple

from django_pgqueue.states import State

from .answers import Count, PauseStats


class Reason(StrEnum):
    """Why a job is where it is. The values are stable."""

    GONE = "gone"
    """The job has no row: its transaction has not committed, or the row was removed."""
    FINISHED = "finished"
    RUNNING = "running"
    PREFETCHED = "prefetched"
    """A worker has claimed the job and has no free slot for it yet."""
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
        ahead: How many due jobs are claimed before it. For a job with a limit, those of its limit key alone; of an
            ordered key, all jobs that come first.
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


class FoundReason(NamedTuple):
    """The answer of an explainer: a reason, its sentence, and further fields of `Why`."""

    reason: Reason
    sentence: str
    fields: Mapping[str, Any] = MappingProxyType({})
