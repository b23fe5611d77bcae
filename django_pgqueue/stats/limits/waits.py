"""Find what a job with a limit waits for, and when its limit admits it.

`key_figures` calls this module for the next job of a key, `explanation` for one job. The result is what the next claim
of the key would find: the rules are those of the statement CLAIM_KEYS, and a test compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from django_pgqueue.states import State

from .answers import LimitWaitReason

if TYPE_CHECKING:
    from django_pgqueue.declared.limit_policies import KeyPolicy
    from django_pgqueue.stats.answers import PauseStats


class KeyState(NamedTuple):
    """The state of a key that decides what claims take from it, with the columns of STATES_OF_KEYS.

    Times are seconds from now.
    """

    limit_key: str
    running: int
    running_weight: int
    running_job_ids: Sequence[int] | None
    full_seconds: float | None
    """Until all tokens of the key have come back."""
    held_until: datetime | None
    held_seconds: float | None
    head_id: int | None
    """The first job of the ordered key that has not ended, or that blocks the key."""
    head_state: str | None
    head_due_seconds: float | None
    head_weight: int
    head_queue_name: str | None
    head_priority: int | None
    head_task_name: str | None

    @property
    def is_held(self) -> bool:
        """Whether the key is held now."""
        return self.held_seconds is not None and self.held_seconds > 0


class ReadyJob(NamedTuple):
    """A ready job of the key."""

    job_id: int
    due_seconds: float
    """Seconds until it is due, 0 or less if it is due."""
    weight: int


class LimitWait(NamedTuple):
    """The reason why a job waits, and the seconds until its limit admits it. None: time alone does not help."""

    reason: LimitWaitReason
    seconds: float | None


def next_of(policy: KeyPolicy | None, state: KeyState, first: ReadyJob) -> ReadyJob:
    """Return the job of the key that starts next: of an ordered key that with the lowest id, of others the first."""
    if policy is not None and policy.is_ordered and state.head_id is not None and state.head_state == State.READY:
        return ReadyJob(state.head_id, state.head_due_seconds or 0.0, state.head_weight)
    return first


def wait_of(policy: KeyPolicy | None, pause: PauseStats | None, state: KeyState, job: ReadyJob) -> LimitWait:
    """Return what a ready job of a key waits for."""
    if pause is not None:
        return LimitWait(LimitWaitReason.PAUSED, None)
    if policy is None:
        return LimitWait(LimitWaitReason.UNDECLARED, None)
    if policy.is_ordered and state.head_id not in (None, job.job_id):
        is_dead = state.head_state == State.DEAD
        return LimitWait(LimitWaitReason.BLOCKED_BY_DEAD if is_dead else LimitWaitReason.ORDER, None)
    times = {
        LimitWaitReason.NOT_DUE: job.due_seconds,
        LimitWaitReason.HOLD: state.held_seconds or 0.0,
        LimitWaitReason.TOKEN: _token_seconds(policy, state, job.weight),
    }
    last = max(times, key=times.__getitem__)
    is_later = times[LimitWaitReason.NOT_DUE] > 0 or times[LimitWaitReason.HOLD] > 0
    slots = policy.concurrency
    if slots is not None and state.running_weight + min(job.weight, slots) > slots and not is_later:
        return LimitWait(LimitWaitReason.SLOT, None)
    return LimitWait(last, times[last]) if times[last] > 0 else LimitWait(LimitWaitReason.WORKER, 0.0)


def _token_seconds(policy: KeyPolicy, state: KeyState, weight: int) -> float:
    if policy.interval_seconds is None:
        return 0.0
    missing = min(weight, policy.burst) - policy.burst
    return used_seconds(policy, state, policy.interval_seconds) + missing * policy.interval_seconds


def used_seconds(policy: KeyPolicy, state: KeyState, interval_seconds: float) -> float:
    """Return the seconds until all tokens of a key have come back, at most those of an empty bucket."""
    return min(max(state.full_seconds or 0.0, 0.0), policy.burst * interval_seconds)
