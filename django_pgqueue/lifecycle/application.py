"""The acts of the application and of an operator: on the caller's connection, in the caller's transaction."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Final, Unpack

import psycopg
from django.db import IntegrityError

from django_pgqueue import sql
from django_pgqueue.db import Connection, execute, told
from django_pgqueue.exceptions import JobLocked
from django_pgqueue.states import Seen, State

from .arrays import exact, texts
from .persistence import Divided, divided, persistently, savepoint
from .values import DEFAULTS, Enqueued, Row

logger = logging.getLogger("django_pgqueue.lifecycle")

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

    def act(ids: Sequence[int]) -> dict[int, str | None]:
        compared = {
            "job_ids": list(ids),
            "seen_states": texts(seen[job_id].state if seen and job_id in seen else "" for job_id in ids),
            "seen_instants": texts(exact(instants.get(job_id)) for job_id in ids),
        }
        return dict(persistently(connection, statement, {**compared, **params}))

    changed: dict[int, State] = {}
    answered: dict[int, str | None]
    refused: list[int]
    waiting = sorted(set(job_ids))
    deadline, pause = time.monotonic() + LOCK_WAIT_SECONDS, 0.005
    while waiting:
        if alone or statement is sql.RETRY:  # whose caller judges the error
            answered, refused = act(waiting), []
        else:
            answered, refused = _in_parts(connection, waiting, act)
        changed |= {job_id: State(state) for job_id, state in answered.items() if state}
        waiting = existing(connection, sorted(set(waiting) - set(answered) - set(refused)))
        if waiting and time.monotonic() > deadline:
            if alone:
                raise JobLocked(f"job {waiting[0]} is locked by another session; nothing was changed")
            break
        if waiting:
            time.sleep(pause)
            pause = min(2 * pause, 0.25)
    return changed


def _in_parts(
    connection: Connection, job_ids: Sequence[int], act: Callable[[Sequence[int]], dict[int, str | None]]
) -> tuple[dict[int, str | None], list[int]]:
    """Run an act on many jobs; return its answer, and the jobs that the database refuses to change.

    Raises the error of the first one if it refuses all of them.
    """
    done: Divided[int, str | None] = divided(connection, job_ids, act)
    if done.refused and not done.answers:
        raise done.refused[0].error
    for job_id, error in done.refused:
        logger.warning("job %s was not changed, because the database refuses it: %s", job_id, told(error))
    return done.answers, [job_id for job_id, _ in done.refused]


def existing(connection: Connection, job_ids: Sequence[int]) -> list[int]:
    """Return the ids of those jobs that are there, as this connection sees it."""
    return sorted(row[0] for row in execute(connection, sql.EXISTING, {"job_ids": job_ids})) if job_ids else []
