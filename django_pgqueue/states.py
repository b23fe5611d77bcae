"""The state machine as data: states, outcomes of an execution, and every edge a job may take.

Nothing here moves a job: `lifecycle` does, and only it. A test runs every act in every state
against `TRANSITIONS`, and another compares the drawing in docs/state_machine.md with it.
"""

from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple


class State(StrEnum):
    """Where a job is. A job due later, or waiting for its retry, is `ready` with a later `run_after`."""

    READY = "ready"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    DEAD = "dead"
    CANCELLED = "cancelled"
    WAITING = "waiting"
    """Reserved for jobs that depend on others; no act leads to it yet."""


FINISHED: Final = frozenset({State.SUCCEEDED, State.DEAD, State.CANCELLED})
"""States that only an operator's retry leaves, and that prune removes."""


class Outcome(StrEnum):
    """How an execution ended; an open execution has none."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CRASHED = "crashed"
    """Its worker was lost: the supervisor saw it die, or its lease ran out."""
    CANCELLED = "cancelled"
    RELEASED = "released"
    """Given back, not counted as an attempt: a stopping worker, or a task it does not know."""
    SNOOZED = "snoozed"
    """Given back until later at the task's own wish, not counted as an attempt."""


class Seen(NamedTuple):
    """A job as an operator saw it: an act changes the job only if it is still the same.

    `retry` and `cancel` compare the state and `finished_at`; `run_now` compares the state and `run_after`.
    """

    state: str
    finished_at: datetime | None = None
    run_after: datetime | None = None


class Pausable(StrEnum):
    """What can be paused: all jobs of a queue, or of a task. No state of a job: it waits as it did."""

    QUEUE = "queue"
    TASK = "task"


class Act(StrEnum):
    """What can be done to a job: one name for one function of `lifecycle`."""

    ENQUEUE = "enqueue"
    REPLACE = "replace"
    FIRE = "fire"
    CLAIM = "claim"
    CLAIM_ONE = "claim_one"
    EXTEND = "extend"
    NOTE_PROGRESS = "note_progress"
    SUCCEED = "succeed"
    FAIL = "fail"
    RELEASE = "release"
    SNOOZE = "snooze"
    END_CANCELLED = "end_cancelled"
    RESCUE = "rescue"
    REQUEUE = "requeue"
    SET_ASIDE = "set_aside"
    EXPIRE = "expire"
    CANCEL = "cancel"
    RETRY = "retry"
    RUN_NOW = "run_now"
    PRUNE = "prune"


GONE: Final = None
"""The job's row does not exist: before enqueue, after prune."""

TRANSITIONS: Final[dict[State | None, dict[Act, frozenset[State | None]]]] = {
    GONE: {Act.ENQUEUE: frozenset({State.READY}), Act.FIRE: frozenset({State.READY})},
    State.READY: {
        Act.REPLACE: frozenset({State.READY}),
        Act.CLAIM: frozenset({State.RUNNING}),
        Act.CLAIM_ONE: frozenset({State.RUNNING}),
        Act.CANCEL: frozenset({State.CANCELLED}),
        Act.RUN_NOW: frozenset({State.READY}),
        Act.SET_ASIDE: frozenset({State.DEAD}),
        Act.EXPIRE: frozenset({State.CANCELLED}),
    },
    State.RUNNING: {
        Act.EXTEND: frozenset({State.RUNNING}),
        Act.NOTE_PROGRESS: frozenset({State.RUNNING}),
        Act.SUCCEED: frozenset({State.SUCCEEDED, GONE}),
        Act.FAIL: frozenset({State.READY, State.DEAD, State.CANCELLED}),
        Act.RELEASE: frozenset({State.READY, State.CANCELLED}),
        Act.SNOOZE: frozenset({State.READY, State.CANCELLED}),
        Act.END_CANCELLED: frozenset({State.CANCELLED}),
        Act.RESCUE: frozenset({State.READY, State.DEAD, State.CANCELLED}),
        Act.REQUEUE: frozenset({State.READY, State.DEAD, State.CANCELLED}),
        Act.CANCEL: frozenset({State.RUNNING}),
    },
    State.SUCCEEDED: {Act.RETRY: frozenset({State.READY}), Act.PRUNE: frozenset({GONE})},
    State.DEAD: {Act.RETRY: frozenset({State.READY}), Act.PRUNE: frozenset({GONE})},
    State.CANCELLED: {Act.RETRY: frozenset({State.READY}), Act.PRUNE: frozenset({GONE})},
}
"""Every edge: for each state, the acts that move a job and the states it may reach.

An act that is not listed for a state changes nothing there.
"""
