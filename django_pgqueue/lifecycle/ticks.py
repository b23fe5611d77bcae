"""Enqueue the jobs of schedules: those of their ticks, and one that an operator asks for.

The worker's scheduler and the admin call these functions. Each one decides and records with one statement, and adds the
jobs with another, in one transaction. Two invariants: a tick fires at most once, and nothing that was computed from an
older version of a schedule is written (the `revision` and the expected tick are the fence).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final, NamedTuple, cast

from psycopg import errors

from django_pgqueue import sql
from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.db.statements import Connection, Row, exact, execute

from .enqueueing import NewJob
from .execute import TRANSIENT_EXCEPT_LOCKS, idle_wait, transaction_with_retry
from .schedules import Scheduled, repeat_while_locked
from .unique import add_jobs

CONFIRMED_SECONDS: Final = 180.0
"""How long a worker's confirmation that its code has a schedule is valid."""
KEY_WAIT: Final = "500ms"
"""How long the job of a tick waits for an uncommitted transaction that has taken its unique key."""
ANY: Final = "any"
"""Value of `seen_last_run` that matches every last run."""


class Tick(NamedTuple):
    """A tick to fire, and its job, which gets the arguments of the schedule's row."""

    scheduled: Scheduled
    expected_at: datetime
    """The next tick that the row must have."""
    tick_at: datetime
    following_at: datetime
    """The next tick that the row gets."""
    job: NewJob

    def columns(self) -> dict[str, Any]:
        """Return what FIRE needs of it, as values for JSON."""
        return {
            "schedule_id": self.scheduled.schedule_id,
            "revision": self.scheduled.revision,
            "expected_at": self.expected_at.isoformat(),
            "tick_at": self.tick_at.isoformat(),
            "following_at": self.following_at.isoformat(),
        }


class Fired(NamedTuple):
    """The result of a tick.

    * "fired": its job was enqueued. "again": the tick was fired before.
    * "skipped": an earlier job is not finished. "duplicate": another job has the unique key.
    * "skipped by an operator": before the tick came.
    * "waits": for an earlier job, or for an uncommitted transaction that has taken the unique key.
    """

    what: str
    job_id: int | None


class _KeyTaken(Exception):
    """Another job has the unique key, so the transaction is rolled back."""


def fire(connection: Connection, tick: Tick) -> Fired | None:
    """Enqueue the job of a tick and set the next tick; return None if the schedule has changed or is locked.

    If an uncommitted transaction has the unique key and does not end within `KEY_WAIT`, the result is "waits". The
    scheduler tries again in its next turn, so the other schedules are not delayed.
    """
    return fire_many(connection, [tick]).get(tick.scheduled.schedule_id)


def fire_many(connection: Connection, ticks: Sequence[Tick]) -> dict[int, Fired]:
    """Do for ticks of different schedules what `fire()` does for one, in one transaction.

    Of several ticks, none may have a job with a unique key. Return the results by the id of the schedule, without the
    schedules that have changed or are locked. If a table is locked, the result of each is "waits".
    """
    fire_once = partial(_fire, connection, ticks)
    try:
        return transaction_with_retry(connection, fire_once, TRANSIENT_EXCEPT_LOCKS)
    except _KeyTaken:
        return transaction_with_retry(connection, partial(fire_once, is_duplicate=True), TRANSIENT_EXCEPT_LOCKS)
    except errors.LockNotAvailable:
        return {tick.scheduled.schedule_id: Fired("waits", None) for tick in ticks}


def _fire(connection: Connection, ticks: Sequence[Tick], *, is_duplicate: bool = False) -> dict[int, Fired]:
    jobs = {tick.scheduled.schedule_id: tick.job for tick in ticks}
    waits = any(job.key for job in jobs.values()) and isinstance(connection, EngineConnection)
    params = {
        "ticks": json.dumps([tick.columns() for tick in ticks]),
        "confirmed_seconds": CONFIRMED_SECONDS,
        "key_wait": KEY_WAIT if waits else None,
        "idle_wait": idle_wait(connection),
        "is_duplicate": is_duplicate,
    }
    rows = execute(connection, sql.schedules.FIRE, params)
    _add(connection, {row[2]: jobs[row[0]]._replace(arguments=row[3]) for row in rows if row[2] is not None})
    return {schedule_id: Fired(what, job_id) for schedule_id, what, job_id, _ in rows}


def run_schedule(
    connection: Connection, scheduled: Scheduled, job: NewJob, *, seen_last_run: datetime | str | None = ANY
) -> Fired | None:
    """Enqueue a job of a schedule now, even if it is paused.

    Return None if the schedule has changed, or has run since `seen_last_run`. Return "fired" with the job, or
    "duplicate" if another job has the unique key; nothing is written then. Raise `JobLocked` if the row stays locked.
    """
    last = seen_last_run if isinstance(seen_last_run, str) else exact(seen_last_run)
    params = {"schedule_id": scheduled.schedule_id, "revision": scheduled.revision, "seen_last_run": last}

    def run() -> list[Row]:
        [[exists, job_id, arguments]] = execute(connection, sql.schedules.RUN_SCHEDULE, params)
        if job_id is not None:
            _add(connection, {job_id: job._replace(arguments=arguments)})
        return [(exists, job_id and Fired("fired", job_id))]

    try:
        repeat = partial(transaction_with_retry, connection, run)
        return cast("Fired | None", repeat_while_locked(repeat, scheduled.schedule_id))
    except _KeyTaken:
        return Fired("duplicate", None)


def _add(connection: Connection, jobs: dict[int, NewJob]) -> None:
    if len(add_jobs(connection, jobs)) < len(jobs):
        raise _KeyTaken
