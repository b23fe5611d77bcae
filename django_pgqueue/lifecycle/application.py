"""The acts of the application and of an operator: on the caller's connection, in the caller's transaction."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, Unpack

import psycopg
from django.db import IntegrityError

from django_pgqueue import sql
from django_pgqueue.db import Connection, execute
from django_pgqueue.exceptions import JobLocked
from django_pgqueue.states import Seen, State

from .arrays import exact, texts
from .persistence import persistently, savepoint
from .values import DEFAULTS, Enqueued, Row

UNIQUE_VIOLATIONS: Final = (psycopg.errors.UniqueViolation, IntegrityError)
LOCK_WAIT_SECONDS: Final = 5.0
"""How long an act on a single job waits for its row."""


def enqueue(connection: Connection, *, arguments: str, **row: Unpack[Row]) -> Enqueued:
    """Add one ready job with these `arguments`, JSON, in the transaction open on `connection`."""
    [added] = execute(connection, sql.ENQUEUE, {"arguments": arguments, **DEFAULTS, **row})
    return Enqueued._make(added)


def enqueue_many(connection: Connection, *, arguments: str, **row: Unpack[Row]) -> list[int]:
    """Add a ready job for each of `arguments`, a JSON array, in one statement; return their ids in that order."""
    rows = execute(connection, sql.ENQUEUE_MANY, {"arguments": arguments, **DEFAULTS, **row})
    return [row[0] for row in rows]


def cancel(
    connection: Connection,
    job_ids: Sequence[int],
    *,
    alone: bool = False,
    running: bool = True,
    seen: Mapping[int, Seen] | None = None,
) -> dict[int, State]:
    """Cancel ready jobs, and ask `running` ones to stop; return the state of each job that changed.

    A running job stays `running` until its worker obeys, or its attempt ends without success.
    Jobs that are not as `seen` stay as they are. For rows that others hold locked, see `_insist`.
    """
    instants = {job_id: each.finished_at for job_id, each in (seen or {}).items()}
    return _insist(connection, sql.CANCEL, job_ids, seen, instants, alone=alone, running=running)


def retry(
    connection: Connection, job_ids: Sequence[int], *, alone: bool = False, seen: Mapping[int, Seen] | None = None
) -> dict[int, State]:
    """Make finished jobs ready, now, with all their attempts; return the state of each job that changed.

    Jobs that are not as `seen` stay as they are: somebody else has retried them since.
    Those whose unique key another job has are left as they are, and of several with one key all but the latest. Where
    another session takes a key at that moment, the others are not kept from going: they go one by one then.
    """
    instants = {job_id: each.finished_at for job_id, each in (seen or {}).items()}
    try:
        with savepoint(connection):
            return _insist(connection, sql.RETRY, job_ids, seen, instants, alone=alone)
    except UNIQUE_VIOLATIONS:
        if len(job_ids) == 1:
            return {}
    ones = (retry(connection, [job_id], alone=alone, seen=seen) for job_id in sorted(set(job_ids), reverse=True))
    return {job_id: state for changed in ones for job_id, state in changed.items()}


def run_now(
    connection: Connection, job_ids: Sequence[int], *, alone: bool = False, seen: Mapping[int, Seen] | None = None
) -> dict[int, State]:
    """Make ready jobs that are due later due at once; return the state of each job that changed.

    Jobs that are not as `seen` stay as they are.
    """
    instants = {job_id: each.run_after for job_id, each in (seen or {}).items()}
    return _insist(connection, sql.RUN_NOW, job_ids, seen, instants, alone=alone)


def _insist(
    connection: Connection,
    statement: str,
    job_ids: Sequence[int],
    seen: Mapping[int, Seen] | None,
    instants: Mapping[int, datetime | None],
    *,
    alone: bool,
    **params: bool,
) -> dict[int, State]:
    """Run an operator's act, again for what others held locked, until nothing is or the wait is over.

    What stays locked for `LOCK_WAIT_SECONDS` is left out of the answer; if the act is on a job `alone`, that raises
    `JobLocked`. It asks again and again: to wait under a `lock_timeout` would change the caller's session.
    """
    changed: dict[int, State] = {}
    waiting = sorted(set(job_ids))
    deadline, pause = time.monotonic() + LOCK_WAIT_SECONDS, 0.005
    while waiting:
        states = [seen[job_id].state if seen and job_id in seen else "" for job_id in waiting]
        compared = {
            "job_ids": waiting,
            "seen_states": texts(states),
            "seen_instants": texts(exact(instants.get(job_id)) for job_id in waiting),
        }
        answered = persistently(connection, statement, {**compared, **params})
        changed |= {job_id: State(state) for job_id, state in answered if state}
        waiting = existing(connection, sorted(set(waiting) - {row[0] for row in answered}))
        if waiting and time.monotonic() > deadline:
            if alone:
                raise JobLocked(f"job {waiting[0]} is locked by another session; nothing was changed")
            break
        if waiting:
            time.sleep(pause)
            pause = min(2 * pause, 0.25)
    return changed


def existing(connection: Connection, job_ids: Sequence[int]) -> list[int]:
    """Return the ids of those jobs that are there, as this connection sees it."""
    return sorted(row[0] for row in execute(connection, sql.EXISTING, {"job_ids": job_ids})) if job_ids else []
