"""The state machine as data: job states, execution outcomes, and every allowed transition.

`lifecycle` is the only module that changes a job's state. Models, the admin and the worker read the names from here.
`tests/test_states.py` runs every transition in every state and compares the result with `TRANSITIONS`.
`tests/test_docs.py` compares the diagram in docs/concepts/life_cycle.md with it.
"""

from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple


class State(StrEnum):
    """State of a job.

    A job that is due later, or that waits for its next attempt, is `ready` with a `run_after` in the future.
    """

    READY = "ready"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    DEAD = "dead"
    CANCELLED = "cancelled"
    WAITING = "waiting"
    """A node of a workflow that waits for the ends of other jobs. No worker claims it."""


FINISHED: Final = frozenset({State.SUCCEEDED, State.DEAD, State.CANCELLED})
"""Final states. Only an operator's retry leaves them. Pruning, and an operator, delete jobs in these states."""


def least_attempts(state: str, attempt: int) -> int:
    """Return the lowest `max_attempts` that a job may get: one attempt is left, its present one if it runs."""
    return attempt if state == State.RUNNING else attempt + 1


READY_WORDS: Final = ("ready", "due", "scheduled", "retrying", "unknown", "paused")
LATER_WORDS: Final = ("scheduled", "retrying", "unknown")
"""The words of ready jobs that are due later."""
WAITING_WORDS: Final = ("waiting",)
RUNNING_WORDS: Final = ("running", "lost", "cancelling")
FINISHED_WORDS: Final = ("succeeded", "dead", "acknowledged", "cancelled")
WORDS: Final = (*READY_WORDS, *WAITING_WORDS, *RUNNING_WORDS, *FINISHED_WORDS)
"""The words that filters accept. `ready` and `running` stand for all jobs in this state, and `dead` for those that
nobody has acknowledged."""
STATE_OF: Final[dict[str, State]] = {
    **dict.fromkeys(READY_WORDS, State.READY),
    **dict.fromkeys(WAITING_WORDS, State.WAITING),
    **dict.fromkeys(RUNNING_WORDS, State.RUNNING),
    **{word: State(word) for word in FINISHED_WORDS if word != "acknowledged"},
    "acknowledged": State.DEAD,
}
"""The state in the row for each word."""


class Outcome(StrEnum):
    """How an execution ended. An open execution has no outcome."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CRASHED = "crashed"
    """Its worker was lost: the supervisor saw the process die, or the lease expired."""
    CANCELLED = "cancelled"
    RELEASED = "released"
    """The worker released the job without counting the attempt: it was stopping, or it does not know the task."""
    SNOOZED = "snoozed"
    """The task raised `Snooze` or `Throttled`: the job is ready again for later, and the attempt was not counted."""
    SUSPENDED = "suspended"
    """A step of the task sleeps, waits for an event, or is to be retried. The job is ready again for the time at which
    it continues, and the attempt was not counted."""


UNCOUNTED: Final = frozenset({Outcome.RELEASED, Outcome.SNOOZED, Outcome.SUSPENDED})
"""Outcomes that do not count as an attempt. They are not the reason of a later cancellation."""


class StepKind(StrEnum):
    """The kinds of durable steps."""

    STEP = "step"
    """A call of a function. Its return value is stored."""
    SLEEP = "sleep"
    EVENT = "event"
    """A wait for an event. The payload of the event is stored."""


class StepState(StrEnum):
    """The states of a durable step, as `JobStep.state` returns them."""

    FINISHED = "finished"
    RETRYING = "retrying"
    """The function of the step has failed. The step is tried again."""
    SLEEPING = "sleeping"
    WAITING = "waiting"
    """The event has not come yet."""
    TIMED_OUT = "timed out"
    """The event did not come in time."""


class FailurePolicy(StrEnum):
    """The consequence for a dependent of a dependency that is dead or cancelled."""

    CANCEL = "cancel"
    """The dependent is cancelled too. An operator's retry of the dependency restores it."""
    IGNORE = "ignore"
    """The dependent runs all the same."""
    BLOCK = "block"
    """The dependent waits until an operator has retried the dependency, and that has succeeded."""


class ActOutcome(StrEnum):
    """How an act on many jobs ended. An act that is under way, or that was interrupted, has no outcome."""

    DONE = "done"
    STOPPED = "stopped"
    """An operator stopped it."""
    REPEATED = "repeated"
    """It stopped by itself, because a retried job failed again with the error that it had died of."""
    FAILED = "failed"


class Seen(NamedTuple):
    """The state of a job when an operator read it. A transition changes the job only if these values still match.

    `retry`, `acknowledge`, `cancel` and `delete` compare `state` and `finished_at`. `run_now`, `move` and
    `set_max_attempts` compare `state` and `run_after`. The others also compare `is_acknowledged`, unless it is None: an
    acknowledgement changes neither the state nor the end of a job.
    """

    state: str
    finished_at: datetime | None = None
    run_after: datetime | None = None
    is_acknowledged: bool | None = None


class Pausable(StrEnum):
    """The kinds of things that an operator can pause: all jobs of a queue, of a task, or of a limit or limit key.

    A pause does not change the state of a job. Ready jobs stay ready until workers may claim them again.
    """

    QUEUE = "queue"
    TASK = "task"
    LIMIT = "limit"
    """All jobs of a limit, by its name, or the jobs of one limit key."""


class RequestKind(StrEnum):
    """The kinds of requests of an operator to one running worker process."""

    STOP = "stop"
    """Stop as at SIGTERM, with all processes of the same supervisor."""
    STACK = "stack"
    """Write the stacks of its running jobs, or of one of them."""


class TransitionName(StrEnum):
    """Name of a transition. Each one belongs to one function of `lifecycle`."""

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
    SUSPEND = "suspend"
    END_CANCELLED = "end_cancelled"
    RESCUE = "rescue"
    REQUEUE = "requeue"
    SET_ASIDE = "set_aside"
    EXPIRE = "expire"
    ADVANCE = "advance"
    RESTORE = "restore"
    POSTPONE = "postpone"
    CANCEL = "cancel"
    RETRY = "retry"
    ACKNOWLEDGE = "acknowledge"
    RUN_NOW = "run_now"
    WAKE = "wake"
    MOVE = "move"
    SET_MAX_ATTEMPTS = "set_max_attempts"
    DELETE = "delete"
    PRUNE = "prune"
    ARCHIVE = "archive"
    ERASE = "erase"


class Need(StrEnum):
    """Why a job must not be removed. The statements of `sql.needs`, and all that remove jobs, decide it."""

    UNFINISHED = "unfinished"
    WORKFLOW = "workflow"
    COMPENSATION = "compensation"
    ORDER = "order"
    SAGA = "saga"


NEED_TEXTS: Final[dict[Need, str]] = {
    Need.UNFINISHED: "it has not ended",
    Need.WORKFLOW: "another job of its workflow can need it",
    Need.COMPENSATION: "its compensations are not all enqueued yet",
    Need.ORDER: "it blocks the later jobs of its limit key until you retry, acknowledge or delete it",
    Need.SAGA: "earlier steps are compensated only after it: retry or delete it",
}
"""The reasons as operators read them. A removal at the end of a retention obeys all of them."""

KEPT_BY_DELETE: Final = frozenset({Need.WORKFLOW, Need.COMPENSATION})
"""Why `delete()` leaves a finished job. An operator who deletes it takes the decision that ORDER and SAGA wait for.
One who acknowledges it takes that of ORDER."""

GONE: Final = None
"""The job has no row: it is not enqueued yet, or its row was deleted."""

OF_FINISHED: Final[dict[TransitionName, frozenset[State | None]]] = {
    TransitionName.RETRY: frozenset({State.READY, State.WAITING}),
    TransitionName.DELETE: frozenset({GONE}),
    TransitionName.PRUNE: frozenset({GONE}),
    TransitionName.ARCHIVE: frozenset({GONE}),
}
"""The transitions that are the same for all finished jobs."""

TRANSITIONS: Final[dict[State | None, dict[TransitionName, frozenset[State | None]]]] = {
    GONE: {
        TransitionName.ENQUEUE: frozenset({State.READY, State.WAITING}),
        TransitionName.FIRE: frozenset({State.READY}),
    },
    State.WAITING: {
        TransitionName.ADVANCE: frozenset({State.READY, State.CANCELLED}),
        TransitionName.CANCEL: frozenset({State.CANCELLED}),
        TransitionName.RUN_NOW: frozenset({State.WAITING}),
        TransitionName.MOVE: frozenset({State.WAITING}),
        TransitionName.SET_MAX_ATTEMPTS: frozenset({State.WAITING}),
    },
    State.READY: {
        TransitionName.REPLACE: frozenset({State.READY}),
        TransitionName.CLAIM: frozenset({State.RUNNING}),
        TransitionName.CLAIM_ONE: frozenset({State.RUNNING}),
        TransitionName.CANCEL: frozenset({State.CANCELLED}),
        TransitionName.RUN_NOW: frozenset({State.READY}),
        TransitionName.WAKE: frozenset({State.READY}),
        TransitionName.MOVE: frozenset({State.READY}),
        TransitionName.SET_MAX_ATTEMPTS: frozenset({State.READY}),
        TransitionName.SET_ASIDE: frozenset({State.DEAD}),
        TransitionName.EXPIRE: frozenset({State.CANCELLED}),
        TransitionName.RESTORE: frozenset({State.WAITING}),
        TransitionName.POSTPONE: frozenset({State.WAITING}),
    },
    State.RUNNING: {
        TransitionName.EXTEND: frozenset({State.RUNNING}),
        TransitionName.NOTE_PROGRESS: frozenset({State.RUNNING}),
        TransitionName.SUCCEED: frozenset({State.SUCCEEDED, GONE}),
        TransitionName.FAIL: frozenset({State.READY, State.DEAD, State.CANCELLED}),
        TransitionName.RELEASE: frozenset({State.READY, State.CANCELLED}),
        TransitionName.SNOOZE: frozenset({State.READY, State.CANCELLED}),
        TransitionName.SUSPEND: frozenset({State.READY, State.CANCELLED}),
        TransitionName.END_CANCELLED: frozenset({State.CANCELLED}),
        TransitionName.RESCUE: frozenset({State.READY, State.DEAD, State.CANCELLED}),
        TransitionName.REQUEUE: frozenset({State.READY, State.DEAD, State.CANCELLED}),
        TransitionName.CANCEL: frozenset({State.RUNNING}),
        TransitionName.SET_MAX_ATTEMPTS: frozenset({State.RUNNING}),
    },
    State.SUCCEEDED: {**OF_FINISHED, TransitionName.ERASE: frozenset({State.SUCCEEDED})},
    State.DEAD: {
        **OF_FINISHED,
        TransitionName.ACKNOWLEDGE: frozenset({State.DEAD}),
        TransitionName.ERASE: frozenset({State.DEAD}),
    },
    State.CANCELLED: {
        **OF_FINISHED,
        TransitionName.RESTORE: frozenset({State.WAITING}),
        TransitionName.ERASE: frozenset({State.CANCELLED}),
    },
}
"""Allowed transitions by current state, each with the states that it can lead to.

A transition that is not listed for a state leaves a job in that state unchanged.
"""
