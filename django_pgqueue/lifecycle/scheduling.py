"""Schedules: what is written of them, and the jobs that their ticks make."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from psycopg import errors

from django_pgqueue import sql
from django_pgqueue.db import Connection, EngineConnection, Row, execute
from django_pgqueue.exceptions import JobLocked

from .application import LOCK_WAIT_SECONDS
from .arrays import exact
from .persistence import NOT_FOR_A_LOCK, persistently

VOUCHED_SECONDS: Final = 180.0
"""How long a worker's word for its code's definition counts."""
KEY_WAIT: Final = "500ms"
"""How long FIRE waits for a transaction that has just taken its unique key."""
FIRST_FIELDS: Final = 11
"""Of a definition, in every digest. One that comes later is in it where it is set, or a new release would find all
definitions changed."""
ANY: Final = "any"
"""In place of a schedule's last run: whenever it was."""
PRUNE_LIMIT: Final = 10_000
"""Ticks of each schedule that one statement forgets."""


class Definition(NamedTuple):
    """What a schedule is. `arguments` is JSON text; the options of its jobs are the task's as of now."""

    name: str
    task_name: str
    arguments: str
    expression: str
    time_zone: str
    missed: str
    if_running: str
    jitter_seconds: float
    queue_name: str
    priority: int
    max_attempts: int
    expires_seconds: float | None = None
    is_unique: bool = False

    @property
    def digest(self) -> str:
        """What two equal definitions have in common, and no others; without the later options what it always was."""
        later = {name: value for name, value in list(self._asdict().items())[FIRST_FIELDS:] if value}
        parts = [*self[:FIRST_FIELDS], *([later] if later else [])]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


class Scheduled(NamedTuple):
    """A schedule as its row was at `seen_at`, by the database's clock."""

    seen_at: datetime
    schedule_id: int
    name: str
    origin: str
    task_name: str
    expression: str
    time_zone: str
    missed: str
    jitter_seconds: float
    queue_name: str
    priority: int
    max_attempts: int
    enabled: bool
    next_run_at: datetime
    revision: int
    digest: str
    former_digests: str
    vouched_at: datetime | None
    expires_seconds: float | None
    is_unique: bool

    @property
    def is_of_code(self) -> bool:
        """Whether the code defines it."""
        return self.origin == "code"

    @property
    def unvouched_seconds(self) -> float:
        """How long ago a worker vouched for it; 0 for those that need nobody's word, below 0 if the clock went back."""
        return 0.0 if self.vouched_at is None else (self.seen_at - self.vouched_at).total_seconds()


class JobOptions(NamedTuple):
    """What a schedule's next job is enqueued with. `headers` is JSON text."""

    queue_name: str
    priority: int
    max_attempts: int
    expires_seconds: float | None = None
    headers: str | None = None
    unique_key: str | None = None
    unique_ready_only: bool | None = None
    period_seconds: float | None = None
    """For how long the key is taken; None: by the states of the job that has it."""
    task_name: str | None = None
    """The task's present name, where the row may have an earlier one: a key counts for the present one."""


class Fired(NamedTuple):
    """What became of a tick.

    "fired" (with its job); "skipped" for an earlier job, or as a "duplicate" of another with the unique key; "waits"
    for an earlier job, or for a transaction that has just taken the key; or "again": it was done before.
    """

    what: str
    job_id: int | None


def schedules(connection: Connection) -> tuple[datetime, list[Scheduled]]:
    """Return the database's clock, and all schedules by id, paused ones too; instants in UTC.

    The session's own time zone may be another, in which Python compares by the clock on the wall.
    """
    rows = [tuple(map(_in_utc, row)) for row in execute(connection, sql.SCHEDULES, {})]
    return rows[0][0], [Scheduled._make(row) for row in rows if row[1] is not None]


def fire(
    connection: Connection,
    scheduled: Scheduled,
    *,
    expected_at: datetime,
    tick_at: datetime,
    following_at: datetime,
    options: JobOptions,
    delay_seconds: float = 0.0,
) -> Fired | None:
    """Make the job of a tick and set the next one; None if the schedule is not any more as it was read, or locked.

    Where a transaction has taken the unique key and does not end within `KEY_WAIT`, it "waits": the next look is soon
    enough, and the other schedules are not to wait too.
    """
    params = {
        "schedule_id": scheduled.schedule_id,
        "revision": scheduled.revision,
        "expected_at": expected_at,
        "tick_at": tick_at,
        "following_at": following_at,
        "delay_seconds": delay_seconds,
        "vouched_seconds": VOUCHED_SECONDS,
        "key_wait": KEY_WAIT if options.unique_key and isinstance(connection, EngineConnection) else None,
        **options._asdict(),
    }
    try:
        rows = persistently(connection, sql.FIRE, params, again_for=NOT_FOR_A_LOCK)
    except errors.LockNotAvailable:
        return Fired("waits", None)
    return Fired._make(rows[0]) if rows else None


def run_schedule(
    connection: Connection, scheduled: Scheduled, options: JobOptions, *, seen_last_run: datetime | str | None = ANY
) -> Fired | None:
    """Make a job of a schedule now, paused or not; None if it is not as it was read, or has run since `seen_last_run`.

    It is "fired" with its job, or a "duplicate" of another job with the unique key, and then nothing is written.
    """
    last = seen_last_run if isinstance(seen_last_run, str) else exact(seen_last_run)
    known = {"schedule_id": scheduled.schedule_id, "revision": scheduled.revision, "seen_last_run": last}
    params = {**known, **options._asdict()}

    def act() -> list[Row]:
        [[is_there, what, job_id]] = persistently(connection, sql.RUN_SCHEDULE, params)
        return [(is_there, what and Fired(what, job_id))]

    fired: Fired | None = _insist(act, scheduled.schedule_id)
    return fired


def arguments_of(connection: Connection, scheduled: Scheduled) -> str | None:
    """Return what the task is called with, JSON text; None if the schedule is not any more as it was read."""
    params = {"schedule_id": scheduled.schedule_id, "revision": scheduled.revision}
    rows = execute(connection, sql.SCHEDULE_ARGUMENTS, params)
    return rows[0][0] if rows else None


def note_problem(connection: Connection, scheduled: Scheduled, problem: str) -> None:
    """Write down why a schedule does not run, for the admin; nothing if its row is locked, or not as it was read."""
    read = {"schedule_id": scheduled.schedule_id, "revision": scheduled.revision}
    params = {**read, "expected_at": scheduled.next_run_at, "problem": problem}
    execute(connection, sql.NOTE_PROBLEM, params)


def plan_schedule(connection: Connection, scheduled: Scheduled, following_at: datetime) -> bool:
    """Set the next tick without firing; say whether the schedule was still as it was read."""
    read = {"schedule_id": scheduled.schedule_id, "revision": scheduled.revision}
    params = {**read, "expected_at": scheduled.next_run_at, "following_at": following_at}
    return bool(persistently(connection, sql.PLAN_SCHEDULE, params))


def add_schedule(
    connection: Connection, definition: Definition, *, origin: str, next_run_at: datetime, enabled: bool = True
) -> int | None:
    """Add a schedule; return its id, or None if there is one of that name and origin."""
    digest = definition.digest if origin == "code" else ""
    params = {
        **definition._asdict(),
        "origin": origin,
        "digest": digest,
        "next_run_at": next_run_at,
        "enabled": enabled,
    }
    rows = persistently(connection, sql.ADD_SCHEDULE, params)
    return rows[0][0] if rows else None


def change_schedule(
    connection: Connection,
    schedule_id: int,
    definition: Definition,
    *,
    revision: int,
    next_run_at: datetime,
    digest: str = "",
    former_digests: str = "",
    tries: bool = False,
) -> bool:
    """Give a schedule another definition, if it has still the one of that `revision`; say whether it had.

    A tick that is due stays owed. With `tries` it insists, as `run_schedule` does.
    """
    params = {
        **definition._asdict(),
        "schedule_id": schedule_id,
        "revision": revision,
        "next_run_at": next_run_at,
        "digest": digest,
        "former_digests": former_digests,
    }
    if not tries:
        return persistently(connection, sql.CHANGE_SCHEDULE, params)[0][1] is not None
    return _insist(lambda: persistently(connection, sql.CHANGE_SCHEDULE, params), schedule_id) is not None


def vouch(connection: Connection, schedule_ids: Sequence[int]) -> None:
    """Say that this worker's code has these schedules as they are."""
    execute(connection, sql.VOUCH, {"schedule_ids": list(schedule_ids)})


def pause_schedule(connection: Connection, schedule_id: int) -> bool:
    """Stop a schedule; say whether it was on. A job that it has made is left alone."""
    return _switch(connection, schedule_id, enabled=False, next_run_at=None)


def resume_schedule(connection: Connection, schedule_id: int, next_run_at: datetime) -> bool:
    """Go on with a schedule, from a tick to come; say whether it was paused."""
    return _switch(connection, schedule_id, enabled=True, next_run_at=next_run_at)


def remove_schedules(connection: Connection, schedule_ids: Sequence[int], unvouched_seconds: float) -> list[int]:
    """Remove schedules of the admin, and those of code that nobody has vouched for in so long; return which."""
    params = {"schedule_ids": list(schedule_ids), "vouched_seconds": unvouched_seconds}
    return [row[0] for row in persistently(connection, sql.REMOVE_SCHEDULES, params)]


def prune_schedule_runs(
    connection: Connection, retention_seconds: float, *, kept: int, limit: int = PRUNE_LIMIT
) -> int:
    """Forget ticks that are older, but for the `kept` last ones of each schedule; return how many."""
    params = {"retention_seconds": retention_seconds, "kept": kept, "limit": limit}
    return len(persistently(connection, sql.PRUNE_SCHEDULE_RUNS, params))


def _in_utc(value: Any) -> Any:
    return value.astimezone(UTC) if isinstance(value, datetime) else value


def _switch(connection: Connection, schedule_id: int, *, enabled: bool, next_run_at: datetime | None) -> bool:
    params = {"schedule_id": schedule_id, "enabled": enabled, "next_run_at": next_run_at}
    return bool(_insist(lambda: persistently(connection, sql.SWITCH_SCHEDULE, params), schedule_id))


def _insist(act: Callable[[], list[Row]], schedule_id: int) -> Any:
    """Do an operator's act, again while the row is locked; return None if it is not there, or not as it was read.

    Raises `JobLocked` after `LOCK_WAIT_SECONDS`.
    """
    deadline, pause = time.monotonic() + LOCK_WAIT_SECONDS, 0.005
    while True:
        [[is_there, answer]] = act()
        if not is_there or answer is not None:
            return answer
        if time.monotonic() > deadline:
            raise JobLocked(f"schedule {schedule_id} is locked by another session; nothing was changed")
        time.sleep(pause)
        pause = min(2 * pause, 0.25)
