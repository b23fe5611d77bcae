"""Read and write schedules. `ticks` enqueues their jobs.

The worker's scheduler, the admin and `manage.py pgqueue` call these functions. The invariant: a definition, a problem
or a tick is written only if the schedule is as the caller has read it. The `revision` and the expected tick are the
fence.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, NamedTuple

from django_pgqueue import sql
from django_pgqueue.db.statements import Connection, Row, execute
from django_pgqueue.exceptions import JobLocked
from django_pgqueue.options.task_options import JobOptions

from .execute import LockWait, execute_with_retry
from .operator import LOCK_WAIT_SECONDS
from .ranges import rows_in_ranges

FIRST_OPTIONS: Final = 3
"""How many job options are in every digest. Others are included only if set, so a new release changes no digest."""
PRUNE_LIMIT: Final = 10_000
"""Ticks of each schedule that one statement removes at most."""


class Definition(NamedTuple):
    """The definition of a schedule. `arguments` is JSON text.

    The job options are the task's when it was defined, except for a queue and a priority of the schedule's own.
    """

    name: str
    task_name: str
    arguments: str
    expression: str
    time_zone: str
    missed: str
    if_running: str
    jitter_seconds: float
    options: JobOptions
    is_unique: bool = False
    is_limited: bool = False
    has_own_queue: bool = False
    """Used only for schedules of the admin, so it does not change the digest. The next field is neither."""
    has_own_priority: bool = False

    @property
    def digest(self) -> str:
        """Return a hash that is equal for equal definitions; unset later fields do not change it."""
        options = list(self.options._asdict().items())
        flags = [("is_unique", self.is_unique), ("is_limited", self.is_limited)]
        later = {name: value for name, value in [*options[FIRST_OPTIONS:], *flags] if value}
        first = [*self[: self._fields.index("options")], *(value for _, value in options[:FIRST_OPTIONS])]
        return hashlib.sha256(json.dumps([*first, *([later] if later else [])]).encode()).hexdigest()[:32]

    def columns(self) -> dict[str, Any]:
        """Return the columns of the schedule's row that contain the definition."""
        columns = {**self._asdict(), **self.options._asdict()}
        del columns["options"]
        return columns


class Scheduled(NamedTuple):
    """A schedule's row as read at `seen_at`, by the database's clock."""

    seen_at: datetime
    schedule_id: int
    name: str
    origin: str
    task_name: str
    expression: str
    time_zone: str
    missed: str
    jitter_seconds: float
    enabled: bool
    next_run_at: datetime
    revision: int
    digest: str
    former_digests: str
    confirmed_at: datetime | None
    paused_until: datetime | None
    """The end of a pause with an end. The schedule stays enabled."""
    is_unique: bool
    is_limited: bool
    has_own_queue: bool
    has_own_priority: bool
    options: JobOptions

    @property
    def is_on(self) -> bool:
        """Whether it fires: it is enabled, and no pause with an end is in force."""
        return self.enabled and self.pause_seconds == 0

    @property
    def pause_seconds(self) -> float:
        """Seconds until its pause with an end is over; 0 without one."""
        return 0.0 if self.paused_until is None else max(0.0, (self.paused_until - self.seen_at).total_seconds())

    @property
    def is_of_code(self) -> bool:
        """Whether the schedule is defined in code."""
        return self.origin == "code"

    @property
    def unconfirmed_seconds(self) -> float:
        """Seconds since a worker confirmed it; 0 if it needs no confirmation, negative if the clock went back."""
        return 0.0 if self.confirmed_at is None else (self.seen_at - self.confirmed_at).total_seconds()


def read_schedules(connection: Connection) -> tuple[datetime, list[Scheduled]]:
    """Return the database's clock, and all schedules (also paused ones) by id, with timestamps in UTC.

    The session may use another time zone. Python compares two timestamps of the same zone by their local time, which
    is wrong across a clock change.
    """
    rows = [tuple(map(_in_utc, row)) for row in execute(connection, sql.schedules.SCHEDULES, {})]
    first_option = Scheduled._fields.index("options")
    return rows[0][0], [
        Scheduled._make([*row[:first_option], JobOptions(*row[first_option:])]) for row in rows if row[1] is not None
    ]


def arguments_of(connection: Connection, scheduled: Scheduled) -> str | None:
    """Return the arguments of a schedule's jobs as JSON text; None if the schedule has changed."""
    params = {"schedule_id": scheduled.schedule_id, "revision": scheduled.revision}
    rows = execute(connection, sql.schedules.SCHEDULE_ARGUMENTS, params)
    return rows[0][0] if rows else None


def note_problem(connection: Connection, scheduled: Scheduled, problem: str) -> None:
    """Record why a schedule does not run. The admin shows it. Skip a row that is locked or has changed."""
    seen = {"schedule_id": scheduled.schedule_id, "revision": scheduled.revision}
    params = {**seen, "expected_at": scheduled.next_run_at, "problem": problem}
    execute(connection, sql.schedules.NOTE_PROBLEM, params)


def plan_schedule(connection: Connection, scheduled: Scheduled, following_at: datetime) -> bool:
    """Set the next tick without firing; return False if the schedule has changed or is locked."""
    seen = {"schedule_id": scheduled.schedule_id, "revision": scheduled.revision}
    params = {**seen, "expected_at": scheduled.next_run_at, "following_at": following_at}
    return bool(execute_with_retry(connection, sql.schedules.PLAN_SCHEDULE, params))


def add_schedule(
    connection: Connection, definition: Definition, *, origin: str, next_run_at: datetime, enabled: bool = True
) -> int | None:
    """Add a schedule; return its id, or None if a schedule with this name and origin exists."""
    digest = definition.digest if origin == "code" else ""
    options = {"origin": origin, "digest": digest, "next_run_at": next_run_at, "enabled": enabled}
    params = {**definition.columns(), **options}
    rows = execute_with_retry(connection, sql.schedules.ADD_SCHEDULE, params)
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
    """Change a schedule's definition if its `revision` is still this one; return whether it changed.

    A tick that is due stays due. With `tries`, repeat while the row is locked, as `run_schedule()` does.
    """
    seen = {"schedule_id": schedule_id, "revision": revision}
    changes = {"next_run_at": next_run_at, "digest": digest, "former_digests": former_digests}
    params = {**definition.columns(), **seen, **changes}

    def change() -> list[Row]:
        return execute_with_retry(connection, sql.schedules.CHANGE_SCHEDULE, params)

    return (repeat_while_locked(change, schedule_id) if tries else change()[0][1]) is not None


def confirm_schedules(connection: Connection, schedule_ids: Sequence[int]) -> dict[int, bool]:
    """Confirm that this worker's code defines these schedules as they are; return those whose row was not locked."""
    rows = execute(connection, sql.schedules.CONFIRM_SCHEDULES, {"schedule_ids": list(schedule_ids)})
    return {row[0]: True for row in rows}


class Switched(NamedTuple):
    """A schedule that was paused or resumed: whether it was enabled before, and the end of its pause."""

    was_enabled: bool
    until: datetime | None


def pause_schedule(
    connection: Connection, schedule_id: int, *, until: datetime | None = None, for_seconds: float | None = None
) -> Switched | None:
    """Pause a schedule: until a time, during a number of seconds, or until `resume_schedule()`.

    Return None if it is paused in this way already. Jobs that it has enqueued are left alone. With an end, it stays
    enabled, and goes on by itself. If it was not enabled, its next tick lies before this pause: call `plan_schedule()`
    afterwards, in the same transaction.
    """
    has_end = until is not None or for_seconds is not None
    return _switch(connection, schedule_id, enabled=has_end, until=until, for_seconds=for_seconds)


def resume_schedule(connection: Connection, schedule_id: int, next_run_at: datetime | None = None) -> bool:
    """Resume a schedule, with its next tick at `next_run_at`; return whether it was paused.

    Without `next_run_at`, call `plan_schedule()` afterwards, in the same transaction. It keeps the row locked.
    """
    return _switch(connection, schedule_id, enabled=True, next_run_at=next_run_at) is not None


def skip_run(connection: Connection, scheduled: Scheduled, tick_at: datetime, skipped_by: str) -> bool:
    """Skip the next run of a schedule, which is at `tick_at`: record its tick, so that no worker fires it.

    Return False if the schedule has changed, is paused, has another next run, or if this run is due or is skipped
    already. Raise `JobLocked` if the row stays locked.
    """
    seen = {"schedule_id": scheduled.schedule_id, "revision": scheduled.revision}
    params = {**seen, "tick_at": tick_at, "skipped_by": skipped_by}
    skip = partial(execute_with_retry, connection, sql.schedules.SKIP_RUN, params)
    return repeat_while_locked(skip, scheduled.schedule_id) is not None


def undo_skip(connection: Connection, scheduled: Scheduled, tick_at: datetime) -> bool:
    """Undo the skip of the next run of a schedule, which is at `tick_at`: remove the record of its tick.

    Return False if the schedule has changed, is paused, has another next run, or if no operator has skipped this run.
    Raise `JobLocked` if the row stays locked.
    """
    params = {"schedule_id": scheduled.schedule_id, "revision": scheduled.revision, "tick_at": tick_at}
    undo = partial(execute_with_retry, connection, sql.schedules.UNDO_SKIP, params)
    return repeat_while_locked(undo, scheduled.schedule_id) is not None


def remove_schedules(connection: Connection, schedule_ids: Sequence[int], unconfirmed_seconds: float) -> list[int]:
    """Remove schedules of the admin, and those of code not confirmed for `unconfirmed_seconds`; return their ids."""
    params = {"schedule_ids": list(schedule_ids), "confirmed_seconds": unconfirmed_seconds}
    return [row[0] for row in execute_with_retry(connection, sql.schedules.REMOVE_SCHEDULES, params)]


def prune_schedule_runs(
    connection: Connection, retention_seconds: float, *, kept: int, limit: int = PRUNE_LIMIT
) -> int:
    """Remove records of older ticks, except the last `kept` ones of each schedule; return how many."""
    params = {"retention_seconds": retention_seconds, "kept": kept, "limit": limit}
    return len(rows_in_ranges(connection, "the removal of tick", sql.schedules.PRUNE_SCHEDULE_RUNS, params))


def _in_utc(value: Any) -> Any:
    return value.astimezone(UTC) if isinstance(value, datetime) else value


def _switch(
    connection: Connection,
    schedule_id: int,
    *,
    enabled: bool,
    next_run_at: datetime | None = None,
    until: datetime | None = None,
    for_seconds: float | None = None,
) -> Switched | None:
    end = {"until": until, "for_seconds": for_seconds}
    params = {"schedule_id": schedule_id, "enabled": enabled, "next_run_at": next_run_at, **end}

    def switch() -> list[Row]:
        [[exists, has_changed, *switched]] = execute_with_retry(connection, sql.schedules.SWITCH_SCHEDULE, params)
        return [(exists, None if has_changed is None else (has_changed, switched))]

    answer = repeat_while_locked(switch, schedule_id)
    if answer is None:
        return None
    has_changed, switched = answer
    return Switched(*switched) if has_changed else None


def repeat_while_locked(change: Callable[[], list[Row]], schedule_id: int) -> Any:
    """Repeat an operator's change while the row is locked; return None if the row is missing or has changed.

    Raises `JobLocked` after `LOCK_WAIT_SECONDS`.
    """
    wait = LockWait(LOCK_WAIT_SECONDS)
    while True:
        [[exists, answer]] = change()
        if not exists or answer is not None:
            return answer
        if not wait.sleep():
            raise JobLocked(f"schedule {schedule_id} is locked by another session: nothing was changed, try again")
