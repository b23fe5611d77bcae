"""How an attempt can end, and what follows from each ending: one enum and one table.

`Attempt` and the isolated process report an `Ending`, the completer chooses the transition by it, and `reactions` the
signal. `tests/test_states.py` compares the table with the transitions in `states`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

from django_pgqueue import signals
from django_pgqueue.signals import TaskSignal
from django_pgqueue.states import UNCOUNTED, Outcome, State


class Ending(Enum):
    """How an attempt ended. The values appear in logs and in stored errors."""

    SUCCEEDED = "succeeded"
    DISCARDED = "succeeded; its row is removed (retention=0)"
    WRITTEN = "succeeded in the task's own transaction"
    FAILED = "failed"
    CRASHED = "crashed its process"
    RELEASED = "released"
    UNKNOWN = "released: this worker cannot run the job now"
    POSTPONED = "released: a job that it depends on has not ended"
    SNOOZED = "snoozed"
    SUSPENDED = "suspended"
    CANCELLED = "cancelled"


class Consequences(NamedTuple):
    """The consequences of an ending.

    `outcome` is stored in the execution. `signals` maps each state that the job can have afterwards to the signal that
    reports it.
    """

    outcome: Outcome
    signals: Mapping[State, TaskSignal]


_Signals = dict[State, TaskSignal]
_SUCCESS: Final[_Signals] = {State.SUCCEEDED: signals.job_succeeded}
_CANCELLED: Final[_Signals] = {State.CANCELLED: signals.job_cancelled}
_FAILURE: Final[_Signals] = {State.READY: signals.job_failed, State.DEAD: signals.job_dead, **_CANCELLED}
_RELEASE: Final[_Signals] = {State.READY: signals.job_released, **_CANCELLED}
_SNOOZE: Final[_Signals] = {State.READY: signals.job_snoozed, **_CANCELLED}
_SUSPENSION: Final[_Signals] = {State.READY: signals.job_suspended, **_CANCELLED}

ENDINGS: Final[dict[Ending, Consequences]] = {
    Ending.SUCCEEDED: Consequences(Outcome.SUCCEEDED, _SUCCESS),
    Ending.DISCARDED: Consequences(Outcome.SUCCEEDED, _SUCCESS),
    Ending.WRITTEN: Consequences(Outcome.SUCCEEDED, _SUCCESS),
    Ending.FAILED: Consequences(Outcome.FAILED, _FAILURE),
    Ending.CRASHED: Consequences(Outcome.CRASHED, _FAILURE),
    Ending.RELEASED: Consequences(Outcome.RELEASED, _RELEASE),
    Ending.UNKNOWN: Consequences(Outcome.RELEASED, _RELEASE),
    Ending.POSTPONED: Consequences(Outcome.RELEASED, _RELEASE),
    Ending.SNOOZED: Consequences(Outcome.SNOOZED, _SNOOZE),
    Ending.SUSPENDED: Consequences(Outcome.SUSPENDED, _SUSPENSION),
    Ending.CANCELLED: Consequences(Outcome.CANCELLED, _CANCELLED),
}
SUCCESSES: Final = frozenset(ending for ending in Ending if ENDINGS[ending].outcome is Outcome.SUCCEEDED)
"""The endings of attempts whose work counts."""
REPORTED: Final = SUCCESSES | {Ending.FAILED, Ending.CANCELLED}
"""The endings of attempts that end the job, unless a retry follows. A report of one says what follows the end."""
NOT_COUNTED: Final = frozenset(ending for ending in Ending if ENDINGS[ending].outcome in UNCOUNTED)
"""The endings after which the attempt does not count. After some of them, nothing of the job has begun."""
