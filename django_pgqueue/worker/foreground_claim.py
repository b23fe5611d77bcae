"""Claim one job in the foreground, and say why its limit does not admit it.

`foreground` calls this for `PGQUEUE["IMMEDIATE"]`, `foreground_run` for `manage.py pgqueue run`. It protects one
invariant: a job with a limit is claimed only while its limit admits it. `KeyClaims` sees to that, as for a worker.
"""

from __future__ import annotations

import math
import time
from typing import Any, Final, NamedTuple

from django.db.backends.base.base import BaseDatabaseWrapper

from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.db.statements import Connection, repeat_if_stale
from django_pgqueue.declared import limits
from django_pgqueue.display import visible
from django_pgqueue.lifecycle import claims as lifecycle_claims
from django_pgqueue.lifecycle import limits as lifecycle_limits
from django_pgqueue.lifecycle.execute import own_transaction
from django_pgqueue.lifecycle.limits import LimitedJob
from django_pgqueue.lifecycle.types import Claimed
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.stats.limits.answers import LimitWaitReason
from django_pgqueue.stats.limits.key_figures import read_states
from django_pgqueue.stats.limits.waits import ReadyJob, wait_of
from django_pgqueue.tasks import registry

from .claiming.limited.key_claims import KeyClaims, Visit

LOCK_SECONDS: Final = 2.0
"""How long `claim()` retries while another session claims jobs of the key, which usually takes milliseconds."""
LOCKED: Final = "another session is claiming jobs of this key: try again"
UNKNOWN: Final = "no task of this process declares the limit"
OLD_SNAPSHOT: Final = "the transaction does not see what others commit, so it cannot count the running jobs"


class ForegroundClaim(NamedTuple):
    """The claimed job. If its limit does not admit it, `reason` says why; it is "" if the job cannot be claimed."""

    claimed: Claimed | None
    reason: str = ""


def claim(connection: EngineConnection, job_id: int, *, worker_id: int) -> ForegroundClaim:
    """Claim a job, due or not. If another session claims jobs of its limit key, wait up to 2 s."""
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        tried = repeat_if_stale(lambda: _claim(connection, job_id, worker_id=worker_id, only_due=False))
        if tried.reason != LOCKED or time.monotonic() > deadline:
            return tried
        time.sleep(0.02)


def claim_at_enqueue(connection: BaseDatabaseWrapper, job_id: int, *, worker_id: int) -> ForegroundClaim:
    """Claim a job if it is due, in the transaction that the caller may have open.

    The lock of a limit key lasts until that transaction ends. No other session sees the execution before, so no other
    session may count. This function waits for no lock, so callers cannot deadlock.
    """
    return _claim(connection, job_id, worker_id=worker_id, only_due=True)


def _claim(connection: Connection, job_id: int, *, worker_id: int, only_due: bool) -> ForegroundClaim:
    options: dict[str, Any] = {"worker_id": worker_id, "lease_seconds": get_settings().LEASE}
    claimed = lifecycle_claims.claim_one(connection, job_id, only_due=only_due, **options)
    if claimed is not None or (only_due and not registry.limits()):
        return ForegroundClaim(claimed)
    job = lifecycle_limits.limited_job(connection, job_id)
    if job is None or (only_due and job.due_seconds > 0):
        return ForegroundClaim(None)
    if limits.name_of(job.limit_key) not in registry.limits():
        return ForegroundClaim(None, UNKNOWN)
    claims, keys = KeyClaims(time.monotonic, has_controls=True), [job.limit_key]
    with own_transaction(connection) as sees_others:
        if not sees_others:
            return ForegroundClaim(None, OLD_SNAPSHOT)
        options |= {"job_id": job_id, "is_early": not only_due}
        visit = claims.claim(connection, job.lane, keys, limit=1, free_slots=1, **options)
        if visit.claimed:
            return ForegroundClaim(visit.claimed[0])
        return ForegroundClaim(None, _reason(connection, job_id, job, visit) if visit.locked else LOCKED)


def _reason(connection: Connection, job_id: int, job: LimitedJob, visit: Visit) -> str:
    """Return what a job waits for."""
    if (pause := visit.controls.pause_of(job.limit_key)) is not None:
        by = f" by {visible(pause.paused_by)}" if pause.paused_by else ""
        return f"its limit or its limit key is paused{by}: resume it first"
    policy = visit.controls.policy_of(job.limit_key, registry.limits()[limits.name_of(job.limit_key)])
    [state] = read_states(connection, [job.limit_key])
    reason, wait_seconds = wait_of(policy, None, state, ReadyJob(job_id, 0.0, job.weight))
    in_seconds = math.ceil(wait_seconds or 0.0)
    if reason is LimitWaitReason.HOLD:
        return f"a task has raised Throttled, which holds the key for {in_seconds} s more"
    if reason in (LimitWaitReason.ORDER, LimitWaitReason.BLOCKED_BY_DEAD):
        return f"job {state.head_id} of the same ordered key comes first, and it is {state.head_state}"
    if reason is LimitWaitReason.SLOT:
        slots = policy.concurrency or 0
        used = min(state.running_weight, slots)
        return f"{used} of {slots} slots are in use, and the job takes {min(job.weight, slots)}"
    if reason is LimitWaitReason.TOKEN:
        count = min(job.weight, policy.burst)
        tokens = "token" if count == 1 else f"{count} tokens"
        return f"its next {tokens} of the rate {policy.rate} will be there in {in_seconds} s"
    return ""
