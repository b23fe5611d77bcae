"""Run, pause, resume and remove schedules for an operator. The admin and `manage.py pgqueue` call these functions.

They write with `lifecycle`, on a Django connection and in the caller's transaction, and wake the workers after the
commit. Each change is in the audit, because both are written together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from django.db import transaction

from django_pgqueue.db.notifications import wake_workers_after_commit
from django_pgqueue.lifecycle import schedules, ticks
from django_pgqueue.lifecycle.audit import add_audit
from django_pgqueue.lifecycle.schedules import Scheduled
from django_pgqueue.lifecycle.ticks import ANY

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


def pause(connection: BaseDatabaseWrapper, schedule_id: int, name: str, *, by: str = "") -> bool:
    """Pause a schedule; return whether it was enabled. Jobs that it has enqueued are left alone.

    Raise `JobLocked` if the row stays locked.
    """
    with transaction.atomic(using=connection.alias):
        is_paused = schedules.pause_schedule(connection, schedule_id)
        if is_paused:
            _record(connection, "pause_schedule", schedule_id, name, by)
    return is_paused


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
        _now, rows = schedules.read_schedules(connection)
        schedule = next(each for each in rows if each.schedule_id == schedule_id)
        next_run_at = next_ticks.next_after(schedule.expression, schedule.time_zone, schedule.seen_at)
        schedules.plan_schedule(connection, schedule, next_run_at)
        _record(connection, "resume_schedule", schedule_id, schedule.name, by)
    return True


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
    connection: BaseDatabaseWrapper, action: str, schedule_id: int, name: str, by: str, job_ids: Sequence[int] = ()
) -> None:
    """Write an entry of the audit."""
    add_audit(connection, action, {"schedule": name, "schedule_id": schedule_id}, job_ids, done_by=by)
