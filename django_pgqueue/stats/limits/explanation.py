"""Explain why the limit of a due job does not admit it. `explanation` calls this module for jobs with a limit.

The reason is that of `limit_waits`, for this job instead of the next one of its key. The number of jobs that come first
counts those of the same key and lane. How many jobs of other keys come first cannot be known, because keys take turns.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Any, Final

from django_pgqueue.db.statements import execute
from django_pgqueue.declared.chunks import is_chunk_key
from django_pgqueue.declared.limit_policies import KeyPolicy
from django_pgqueue.declared.limits import name_of
from django_pgqueue.states import State
from django_pgqueue.stats.answers import NONE, Count, FoundReason, Reason
from django_pgqueue.stats.depths import COUNT_LIMIT
from django_pgqueue.stats.explained_job import ExplainedJob
from django_pgqueue.stats.sentences import jobs_ahead
from django_pgqueue.tasks import registry
from django_pgqueue.tasks.registry import in_words

from . import key_queries
from .answers import LimitWaitReason
from .key_figures import read_states
from .waits import KeyState, ReadyJob, wait_of

REASONS: Final = {
    LimitWaitReason.UNDECLARED: Reason.LIMIT_UNDECLARED,
    LimitWaitReason.BLOCKED_BY_DEAD: Reason.BLOCKED_BY_DEAD,
    LimitWaitReason.ORDER: Reason.KEY_ORDER,
    LimitWaitReason.SLOT: Reason.LIMIT_SLOTS,
    LimitWaitReason.HOLD: Reason.KEY_HELD,
    LimitWaitReason.TOKEN: Reason.LIMIT_RATE,
}
"""The reasons of a job that is due. If the limit admits it, the reason lies outside of the limit."""
PROBING: Final = " Its circuit breaker is open, so one job at a time probes the key."


def reason_of_limit(job: ExplainedJob) -> FoundReason | None:
    """Return why the limit of a due job does not admit it. None: it does. The key is not paused."""
    row = job.row
    if row.limit_key is None or is_chunk_key(row.limit_key):
        return None
    policy = job.controls.policy_of(row.limit_key)
    if policy is None:
        return FoundReason(Reason.LIMIT_UNDECLARED, _undeclared(row.limit_key), {"ahead": NONE})
    [state] = read_states(job.connection, [row.limit_key])
    wait = wait_of(policy, None, state, ReadyJob(row.job_id, 0.0, row.limit_weight))
    if wait.reason is LimitWaitReason.WORKER:
        return None
    reason, ahead = REASONS[wait.reason], ahead_in_key(job)
    if reason in (Reason.BLOCKED_BY_DEAD, Reason.KEY_ORDER):
        return FoundReason(reason, _order(job, state), {"ahead": ahead, "blocking_job_id": state.head_id})
    if wait.seconds is None:
        job_ids = tuple(state.running_job_ids or ())
        probe = PROBING if job.controls.has_open_breaker(row.limit_key) else ""
        return FoundReason(
            reason, _slots(row, policy, state, ahead) + probe, {"ahead": ahead, "running_job_ids": job_ids}
        )
    admitted_at = row.seen_at + timedelta(seconds=wait.seconds)
    return FoundReason(
        reason, _time_of(job, policy, reason, admitted_at, ahead), {"ahead": ahead, "admitted_at": admitted_at}
    )


def ahead_in_key(job: ExplainedJob) -> Count:
    """Count the due jobs of the key that are claimed first in the lane; those before it, if the key is ordered."""
    row, policy = job.row, job.controls.policy_of(job.row.limit_key)
    is_in_order = policy is not None and policy.is_ordered and row.limit_order is not None
    params = {
        "queue_name": row.queue_name,
        "priority": row.priority,
        "limit_key": row.limit_key,
        "run_after": row.run_after,
        "job_id": row.job_id,
        "limit": COUNT_LIMIT,
    }
    statement = key_queries.AHEAD_IN_ORDER if is_in_order else key_queries.AHEAD_IN_KEY
    found = execute(job.connection, statement, params)[0][0]
    return Count.up_to(found, COUNT_LIMIT)


def _undeclared(limit_key: str) -> str:
    name = name_of(limit_key)
    close = get_close_matches(name, registry.limits(), n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    return (
        f"No task of this process declares its limit {in_words(name)}{hint}, so workers with the same code do not "
        "start it: declare the limit, or deploy the code that does."
    )


def _order(job: ExplainedJob, state: KeyState) -> str:
    """Return which job of the ordered key comes first."""
    row = job.row
    first = f"Job {state.head_id} of the same ordered key {in_words(row.limit_key)} comes first"
    if state.head_state == State.DEAD:
        return f"{first}, and it is dead: retry, acknowledge or delete it."
    if state.head_state == State.RUNNING:
        return f"{first}, and it is running."
    due_seconds = state.head_due_seconds or 0.0
    if due_seconds > 0:
        return f"{first}, and it is due at {job.time_text(row.seen_at + timedelta(seconds=due_seconds))}."
    return f"{first}, and it is due."


def _slots(row: Any, policy: KeyPolicy, state: KeyState, ahead: Count) -> str:
    """Return which jobs use the slots of the key."""
    ids = list(state.running_job_ids or ())
    jobs = ", ".join(map(str, ids)) + (", …" if state.running > len(ids) else "")
    weight = f", and it takes {row.limit_weight}" if row.limit_weight > 1 else ""
    used = f"{state.running_weight} of {policy.concurrency}"
    return (
        f"It waits for a slot of its limit key {in_words(row.limit_key)}: {used} are in use "
        f"({'job' if len(ids) == 1 else 'jobs'} {jobs}){weight}{_behind(ahead)}."
    )


def _time_of(job: ExplainedJob, policy: KeyPolicy, reason: Reason, admitted_at: datetime, ahead: Count) -> str:
    """Return when the hold ends, or when the rate admits the job."""
    key, at = in_words(job.row.limit_key), job.time_text(admitted_at)
    if reason is Reason.KEY_HELD:
        return f"Its limit key {key} is held until {at}, because a task raised Throttled{_behind(ahead)}."
    return f"The rate {policy.rate} of its limit key {key} does not admit it before {at}{_behind(ahead)}."


def _behind(ahead: Count) -> str:
    return f"; {jobs_ahead(ahead, of_key=True)}" if ahead.value else ""
