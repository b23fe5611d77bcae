"""Explain why the limit of a due job does not admit it. `explanation` calls this module for jobs with a limit.

The reason is that of `limit_waits`, for this job instead of the next one of its key. The number of jobs that come first
counts those of the same key and lane. How many jobs of other keys come first cannot be known, because keys take turns.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Any, Final

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_pgqueue.db.statements import execute
from django_pgqueue.declared.chunks import is_chunk_key
from django_pgqueue.declared.limit_policies import KeyPolicy
from django_pgqueue.declared.limits import name_of
from django_pgqueue.states import State
from django_pgqueue.stats.answers import NONE, Count, Reason
from django_pgqueue.stats.depths import COUNT_LIMIT
from django_pgqueue.stats.explained_job import ExplainedJob, FoundReason
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
PROBING: Final = gettext_lazy("Its circuit breaker is open, so one job at a time probes the key.")


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
        is_open = job.controls.has_open_breaker(row.limit_key)
        probe = f" {PROBING} {job.controls.open_breakers[row.limit_key].text(job.time_text)}" if is_open else ""
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
    hint = _(" (did you mean %(name)s?)") % {"name": close[0]} if close else ""
    text = _(
        "No task of this process declares its limit %(name)s%(hint)s, so workers with the same code do not start it: "
        "declare the limit, or deploy the code that does."
    )
    return text % {"name": in_words(name), "hint": hint}


def _order(job: ExplainedJob, state: KeyState) -> str:
    """Return which job of the ordered key comes first."""
    row, due_seconds = job.row, state.head_due_seconds or 0.0
    if state.head_state == State.DEAD:
        text = _(
            "Job %(job)d of the same ordered key %(key)s comes first, and it is dead: retry, acknowledge or delete it."
        )
    elif state.head_state == State.RUNNING:
        text = _("Job %(job)d of the same ordered key %(key)s comes first, and it is running.")
    elif due_seconds > 0:
        text = _("Job %(job)d of the same ordered key %(key)s comes first, and it is due at %(time)s.")
    else:
        text = _("Job %(job)d of the same ordered key %(key)s comes first, and it is due.")
    due_at = job.time_text(row.seen_at + timedelta(seconds=due_seconds))
    return text % {"job": state.head_id, "key": in_words(row.limit_key), "time": due_at}


def _slots(row: Any, policy: KeyPolicy, state: KeyState, ahead: Count) -> str:
    """Return which jobs use the slots of the key."""
    ids = list(state.running_job_ids or ())
    jobs = ", ".join(map(str, ids)) + (", …" if state.running > len(ids) else "")
    weight = _(", and it takes %(number)d") % {"number": row.limit_weight} if row.limit_weight > 1 else ""
    text = ngettext(
        "It waits for a slot of its limit key %(key)s: %(used)d of %(slots)d are in use (job %(jobs)s)%(weight)s.",
        "It waits for a slot of its limit key %(key)s: %(used)d of %(slots)d are in use (jobs %(jobs)s)%(weight)s.",
        len(ids),
    )
    return text % {
        "key": in_words(row.limit_key),
        "used": state.running_weight,
        "slots": policy.concurrency,
        "jobs": jobs,
        "weight": f"{weight}{_behind(ahead)}",
    }


def _time_of(job: ExplainedJob, policy: KeyPolicy, reason: Reason, admitted_at: datetime, ahead: Count) -> str:
    """Return when the hold ends, or when the rate admits the job."""
    key, at = in_words(job.row.limit_key), job.time_text(admitted_at)
    text = (
        _("Its limit key %(key)s is held until %(time)s, because a task raised Throttled%(jobs_ahead)s.")
        if reason is Reason.KEY_HELD
        else _("The rate %(rate)s of its limit key %(key)s does not admit it before %(time)s%(jobs_ahead)s.")
    )
    return text % {"key": key, "time": at, "rate": policy.rate, "jobs_ahead": _behind(ahead)}


def _behind(ahead: Count) -> str:
    return f"; {jobs_ahead(ahead, of_key=True)}" if ahead.value else ""
