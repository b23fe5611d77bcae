"""Claim one job in the foreground, and say why its limit does not admit it.

`foreground` calls this for `PGQUEUE["IMMEDIATE"]`, `foreground_run` for `manage.py pgqueue run`. It protects one
invariant: a job with a limit is claimed only while its limit admits it, as by a worker.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from django_pgqueue import lifecycle, limits, registry
from django_pgqueue.chunks import is_chunk_key
from django_pgqueue.conf import get_settings
from django_pgqueue.db.statements import repeat_if_stale
from django_pgqueue.db.transactions import is_in_transaction, read_committed, sees_new_commits
from django_pgqueue.display import visible

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_pgqueue.db.engine_connection import EngineConnection
    from django_pgqueue.db.statements import Connection
    from django_pgqueue.lifecycle import Claimed
    from django_pgqueue.lifecycle.limit_overrides import KeyPause
    from django_pgqueue.lifecycle.limited_job import LimitWait
    from django_pgqueue.limit_policies import KeyPolicy

LOCK_SECONDS: Final = 2.0
"""How long `claim()` retries while another session claims jobs of the key, which usually takes milliseconds."""
NO_LIMIT: Final = limits.Limit("chunks", key="{job}")
"""The limit of jobs with a chunk key: it admits all of them."""
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
        tried = repeat_if_stale(
            lambda: _claim(connection, _own_transaction(connection), job_id, worker_id=worker_id, only_due=False)
        )
        if tried.reason != LOCKED or time.monotonic() > deadline:
            return tried
        time.sleep(0.02)


def claim_at_enqueue(connection: BaseDatabaseWrapper, job_id: int, *, worker_id: int) -> ForegroundClaim:
    """Claim a job if it is due, in the transaction that the caller may have open.

    The lock of a limit key lasts until that transaction ends. No other session sees the execution before, so no other
    session may count. This function waits for no lock, so callers cannot deadlock.
    """
    return _claim(connection, _callers_transaction(connection), job_id, worker_id=worker_id, only_due=True)


@contextmanager
def _own_transaction(connection: EngineConnection) -> Iterator[bool]:
    """Open a transaction. Yield whether it sees what others commit."""
    with connection.transaction():
        yield True


@contextmanager
def _callers_transaction(connection: BaseDatabaseWrapper) -> Iterator[bool]:
    """Open a transaction unless the caller has one. Yield whether it sees what others commit."""
    if is_in_transaction(connection):
        yield sees_new_commits(connection)
    else:
        with read_committed(connection):
            yield True


def _claim(
    connection: Connection, transaction: AbstractContextManager[bool], job_id: int, *, worker_id: int, only_due: bool
) -> ForegroundClaim:
    """Claim a job. `transaction` is opened only if no plain job was claimed."""
    lease_seconds = get_settings().LEASE
    claimed = lifecycle.claim_one(
        connection, job_id, worker_id=worker_id, lease_seconds=lease_seconds, only_due=only_due
    )
    if claimed is not None or (only_due and not (registry.limits() or registry.chunk_keys())):
        return ForegroundClaim(claimed)
    with transaction as sees_others:
        found = lifecycle.limited_job.lock_key_of(connection, job_id)
        if found is None:
            return ForegroundClaim(None)
        limit = NO_LIMIT if is_chunk_key(found.limit_key) else registry.limits().get(limits.name_of(found.limit_key))
        if limit is None:
            return ForegroundClaim(None, UNKNOWN)
        if not found.is_locked:
            return ForegroundClaim(None, LOCKED)
        if not sees_others:
            return ForegroundClaim(None, OLD_SNAPSHOT)
        controls = lifecycle.limit_overrides.controls_of(connection, [found.limit_key])
        if (pause := controls.pause_of(found.limit_key)) is not None:
            return ForegroundClaim(None, _paused(pause))
        policy = controls.policy_of(found.limit_key, limit)
        claimed, wait = lifecycle.limited_job.claim_limited_job(
            connection,
            job_id,
            found.limit_key,
            policy,
            worker_id=worker_id,
            lease_seconds=lease_seconds,
            only_due=only_due,
        )
    return ForegroundClaim(claimed, "" if wait is None else _in_words(wait, policy))


def _paused(pause: KeyPause) -> str:
    by = f" by {visible(pause.paused_by)}" if pause.paused_by else ""
    return f"its limit or its limit key is paused{by}: resume it first"


def _in_words(wait: LimitWait, policy: KeyPolicy) -> str:
    """Return what a job waits for."""
    if wait.held_seconds > 0:
        return f"a task has raised Throttled, which holds the key for {math.ceil(wait.held_seconds)} s more"
    if wait.first_job_id is not None:
        return f"job {wait.first_job_id} of the same ordered key comes first, and it is {wait.first_state}"
    slots = policy.concurrency
    if slots is not None and (wait.used_slots or 0) + min(wait.weight, slots) > slots:
        return f"{wait.used_slots} of {slots} slots are in use, and the job takes {min(wait.weight, slots)}"
    count = min(wait.weight, policy.burst)
    tokens = "token" if count == 1 else f"{count} tokens"
    return f"its next {tokens} of the rate {policy.rate} will be there in {math.ceil(wait.token_seconds)} s"
