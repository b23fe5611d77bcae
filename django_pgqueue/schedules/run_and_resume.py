"""Run, pause, resume and remove schedules, and skip their runs or undo that, for an operator.

The admin and `manage.py pgqueue` call these functions.

They write with `lifecycle`, on a Django connection and in the caller's transaction, and wake the workers after the
commit. Each change is in the audit, because both are written together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from django.db import transaction

from django_pgqueue.db.notifications import wake_workers_after_commit
from django_pgqueue.lifecycle import schedules, ticks
from django_pgqueue.lifecycle.audit import add_audit
from django_pgqueue.lifecycle.schedules import Scheduled
from django_pgqueue.lifecycle.ticks import ANY
from django_pgqueue.stats.sentences import utc_text

from . import job_options, next_ticks

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper


def run_now(
    connection: BaseDatabaseWrapper, schedule: Scheduled, *, by: str = "", seen_last_run: datetime | str | None = ANY
) -> int | None:
    """Enqueue a job of a schedule now, also if it is paused, and return the job's id. `by` is the operator.

    Return None if the schedule has changed, or has run since `seen_last_run`. Raise `CannotFire` with the reason if no
    job can be enqueued, and `JobLocked` if the row stays locked.
    """
    job = job_options.next_job(connection, schedule)
    with transaction.atomic(using=connection.alias):
        fired = ticks.run_schedule(connection, schedule, job, seen_last_run=seen_last_run)
        if fired is not None and fired.job_id is not None:
            _record(connection, "run_schedule", schedule.schedule_id, schedule.name, by, [fired.job_id])
    if fired is None:
        return None
    if fired.job_id is None:
        raise job_options.CannotFire(f"{job_options.holder_of(connection, job)} has its unique key.")
    wake_workers_after_commit(connection)
    job_options.send_enqueued(connection, job, fired.job_id)
    return fired.job_id


def pause(
    connection: BaseDatabaseWrapper,
    schedule_id: int,
    name: str,
    *,
    until: datetime | timedelta | None = None,
    by: str = "",
    reason: str = "",
) -> bool:
    """Pause a schedule until a time, or until `resume()`. Return False if that changes nothing.

    At its end, the schedule goes on by itself, and its rule for missed ticks applies to those of the pause. A schedule
    that was paused without an end goes on at its next tick from now. Jobs that it has enqueued are left alone.

    Raise `JobLocked` if the row stays locked, and `ValueError` if its expression is invalid and it was paused before.
    """
    bounds: dict[str, Any] = {} if until is None else {"until": until}
    if isinstance(until, timedelta):
        bounds = {"for_seconds": until.total_seconds()}
    with transaction.atomic(using=connection.alias):
        switched = schedules.pause_schedule(connection, schedule_id, **bounds)
        if switched is None:
            return False
        if bounds and not switched.was_enabled:
            _plan_from_now(connection, schedule_id)
        end = {"until": switched.until.isoformat()} if switched.until else {}
        _record(connection, "pause_schedule", schedule_id, name, by, about=end, reason=reason)
    return True


def resume(connection: BaseDatabaseWrapper, schedule_id: int, *, by: str = "") -> bool:
    """Resume a schedule at its next tick from now; return whether it was paused.

    Another session may change the definition meanwhile, or keep the row locked for seconds. So the next tick is
    computed from what is read after the row is locked. Otherwise the schedule would fire once by its former definition,
    or for a tick of the pause.

    Raise `ValueError` if the schedule's expression is invalid, and `JobLocked` if the row stays locked. Then it stays
    paused.
    """
    with transaction.atomic(using=connection.alias):
        if not schedules.resume_schedule(connection, schedule_id):  # this locks the row
            return False
        name = _plan_from_now(connection, schedule_id)
        _record(connection, "resume_schedule", schedule_id, name, by)
    return True


def _plan_from_now(connection: BaseDatabaseWrapper, schedule_id: int) -> str:
    """Set the next tick of a schedule whose row this transaction has locked. Return its name."""
    schedule = _read(connection, schedule_id)
    assert schedule is not None, "the row is locked"  # noqa: S101 -- for the type checker
    next_run_at = next_ticks.next_after(schedule.expression, schedule.time_zone, schedule.seen_at)
    schedules.plan_schedule(connection, schedule, next_run_at)
    return schedule.name


def _read(connection: BaseDatabaseWrapper, schedule_id: int) -> Scheduled | None:
    _now, rows = schedules.read_schedules(connection)
    return next((each for each in rows if each.schedule_id == schedule_id), None)


class RunNotSkippedError(ValueError):
    """The next run of a schedule was not skipped. The message gives the operator the reason."""


def skip_run(
    connection: BaseDatabaseWrapper,
    schedule: Scheduled,
    tick_at: datetime,
    *,
    by: str = "",
    reason: str = "",
    time_text: Callable[[datetime], str] = utc_text,
) -> None:
    """Skip the next run of a schedule, which the operator has seen at `tick_at`.

    Raise `RunNotSkippedError` if the schedule has another next run by now, is paused, or has changed since `schedule`
    was read, and if the run is due or is skipped already. `time_text` formats the times in the reason. Raise
    `JobLocked` if the row stays locked.
    """
    with transaction.atomic(using=connection.alias):
        if schedules.skip_run(connection, schedule, tick_at, by[:150]):
            run = {"tick_at": tick_at.isoformat()}
            _record(connection, "skip_run", schedule.schedule_id, schedule.name, by, about=run, reason=reason)
            return
    raise RunNotSkippedError(_why_not_skipped(_read(connection, schedule.schedule_id), tick_at, time_text))


def undo_skip(connection: BaseDatabaseWrapper, schedule: Scheduled, tick_at: datetime, *, by: str = "") -> bool:
    """Undo the skip of the next run of a schedule, at `tick_at`, so that a worker fires it. Return whether it did so.

    It was not if the run has come, if no operator has skipped it, or if the schedule is paused, or has changed since
    `schedule` was read. Raise `JobLocked` if the row stays locked.
    """
    with transaction.atomic(using=connection.alias):
        is_undone = schedules.undo_skip(connection, schedule, tick_at)
        if is_undone:
            run = {"tick_at": tick_at.isoformat()}
            _record(connection, "undo_skip", schedule.schedule_id, schedule.name, by, about=run)
    return is_undone


def _why_not_skipped(now: Scheduled | None, tick_at: datetime, time_text: Callable[[datetime], str]) -> str:
    if now is None:
        return "The schedule does not exist any more."
    if not now.is_on:
        return "The schedule is paused."
    if now.next_run_at <= now.seen_at:
        return f"The run of {time_text(now.next_run_at)} is due already."
    if now.next_run_at != tick_at:
        return f"The next run is another one now, at {time_text(now.next_run_at)}."
    return "The run is skipped already, or the schedule has changed."


def remove(connection: BaseDatabaseWrapper, names: Mapping[int, str], *, by: str = "") -> list[int]:
    """Remove schedules with the records of their runs, and return their ids. Schedules that workers' code defines stay.

    `names` are the names by the ids.
    """
    with transaction.atomic(using=connection.alias):
        removed = schedules.remove_schedules(connection, list(names), ticks.CONFIRMED_SECONDS)
        for schedule_id in removed:
            _record(connection, "delete_schedule", schedule_id, names[schedule_id], by)
    return removed


def _record(
    connection: BaseDatabaseWrapper,
    action: str,
    schedule_id: int,
    name: str,
    by: str,
    job_ids: Sequence[int] = (),
    about: Mapping[str, str] = MappingProxyType({}),
    reason: str = "",
) -> None:
    """Write an entry of the audit. `about` has more values of its filter."""
    chosen = {"schedule": name, "schedule_id": schedule_id, **about}
    add_audit(connection, action, chosen, job_ids, done_by=by, reason=reason)
