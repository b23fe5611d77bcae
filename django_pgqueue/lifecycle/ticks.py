"""Enqueue the jobs of schedules: those of their ticks, and one that an operator asks for.

The worker's scheduler and the admin call these functions. Two invariants: a tick fires at most once, and nothing that
was computed from an older version of a schedule is written (the `revision` and the expected tick are the fence).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, cast

from psycopg import errors

from django_pgqueue import sql
from django_pgqueue.db.arrays import exact
from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.db.statements import Connection, Row
from django_pgqueue.options import JobOptions

from .execute import TRANSIENT_EXCEPT_LOCKS, execute_with_retry
from .schedules import Scheduled, repeat_while_locked

CONFIRMED_SECONDS: Final = 180.0
"""How long a worker's confirmation that its code has a schedule is valid."""
KEY_WAIT: Final = "500ms"
"""How long FIRE waits for an uncommitted transaction that has taken its unique key."""
ANY: Final = "any"
"""Value of `seen_last_run` that matches every last run."""


OF_KEYS: Final = frozenset({"task_name", "unique_key", "unique_ready_only", "period_seconds"})
"""Options that FIRE_MANY does not get under these names."""


class Tick(NamedTuple):
    """A tick to fire, and the options of its job."""

    scheduled: Scheduled
    expected_at: datetime
    """The next tick that the row must have."""
    tick_at: datetime
    following_at: datetime
    """The next tick that the row gets."""
    options: JobOptions
    delay_seconds: float = 0.0

    def columns(self) -> dict[str, Any]:
        """Return what FIRE_MANY needs of it, as values for JSON."""
        options = self.options._asdict()
        return {
            **{name: value for name, value in options.items() if name not in OF_KEYS},
            "current_task_name": options["task_name"],
            "schedule_id": self.scheduled.schedule_id,
            "revision": self.scheduled.revision,
            "expected_at": self.expected_at.isoformat(),
            "tick_at": self.tick_at.isoformat(),
            "following_at": self.following_at.isoformat(),
            "delay_seconds": self.delay_seconds,
        }


class Fired(NamedTuple):
    """The result of a tick.

    * "fired": its job was enqueued. "again": the tick was fired before.
    * "skipped": an earlier job is not finished. "duplicate": another job has the unique key.
    * "waits": for an earlier job, or for an uncommitted transaction that has taken the unique key.
    """

    what: str
    job_id: int | None


def fire(connection: Connection, tick: Tick) -> Fired | None:
    """Enqueue the job of a tick and set the next tick; return None if the schedule has changed or is locked.

    If an uncommitted transaction has the unique key and does not end within `KEY_WAIT`, the result is "waits". The
    scheduler tries again in its next turn, so the other schedules are not delayed.
    """
    params = {
        "schedule_id": tick.scheduled.schedule_id,
        "revision": tick.scheduled.revision,
        "expected_at": tick.expected_at,
        "tick_at": tick.tick_at,
        "following_at": tick.following_at,
        "delay_seconds": tick.delay_seconds,
        "confirmed_seconds": CONFIRMED_SECONDS,
        "key_wait": KEY_WAIT if tick.options.unique_key and isinstance(connection, EngineConnection) else None,
        **tick.options._asdict(),
    }
    try:
        rows = execute_with_retry(connection, sql.schedules.FIRE, params, retry_on=TRANSIENT_EXCEPT_LOCKS)
    except errors.LockNotAvailable:
        return Fired("waits", None)
    return Fired._make(rows[0]) if rows else None


def fire_many(connection: Connection, ticks: Sequence[Tick]) -> dict[int, Fired]:
    """Do for ticks of different schedules what `fire()` does for one, in one transaction.

    Their jobs have no unique key. Return the results by the id of the schedule, without the schedules that have changed
    or are locked. If a table is locked, the result of each is "waits".
    """
    params = {"ticks": json.dumps([tick.columns() for tick in ticks]), "confirmed_seconds": CONFIRMED_SECONDS}
    try:
        rows = execute_with_retry(connection, sql.schedules.FIRE_MANY, params, retry_on=TRANSIENT_EXCEPT_LOCKS)
    except errors.LockNotAvailable:
        return {tick.scheduled.schedule_id: Fired("waits", None) for tick in ticks}
    return {schedule_id: Fired(what, job_id) for schedule_id, what, job_id in rows}


def run_schedule(
    connection: Connection, scheduled: Scheduled, options: JobOptions, *, seen_last_run: datetime | str | None = ANY
) -> Fired | None:
    """Enqueue a job of a schedule now, even if it is paused.

    Return None if the schedule has changed, or has run since `seen_last_run`. Return "fired" with the job, or
    "duplicate" if another job has the unique key; nothing is written then. Raise `JobLocked` if the row stays locked.
    """
    last = seen_last_run if isinstance(seen_last_run, str) else exact(seen_last_run)
    seen = {"schedule_id": scheduled.schedule_id, "revision": scheduled.revision, "seen_last_run": last}
    params = {**seen, **options._asdict()}

    def run() -> list[Row]:
        [[exists, what, job_id]] = execute_with_retry(connection, sql.schedules.RUN_SCHEDULE, params)
        return [(exists, what and Fired(what, job_id))]

    return cast("Fired | None", repeat_while_locked(run, scheduled.schedule_id))
