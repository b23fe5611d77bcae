"""Run and resume schedules for an operator. The admin and `manage.py pgqueue schedules` call these functions.

They write with `lifecycle`, on a Django connection and in the caller's transaction, and wake the workers after the
commit. To pause a schedule, call `lifecycle.schedules.pause_schedule()`.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from django.db import transaction

from django_pgqueue.db.notifications import wake_workers_after_commit
from django_pgqueue.lifecycle import schedules, ticks
from django_pgqueue.lifecycle.schedules import Scheduled
from django_pgqueue.lifecycle.ticks import ANY

from . import job_options, next_ticks

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper


def run_now(
    connection: BaseDatabaseWrapper, schedule: Scheduled, *, seen_last_run: datetime | str | None = ANY
) -> int | None:
    """Enqueue a job of a schedule now, also if it is paused, and return the job's id.

    Return None if the schedule has changed, or has run since `seen_last_run`. Raise `CannotFire` with the reason if no
    job can be enqueued, and `JobLocked` if the row stays locked.
    """
    job = job_options.next_job(connection, schedule)
    fired = ticks.run_schedule(connection, schedule, job, seen_last_run=seen_last_run)
    if fired is None:
        return None
    if fired.job_id is None:
        raise job_options.CannotFire(f"{job_options.holder_of(connection, job)} has its unique key.")
    wake_workers_after_commit(connection)
    job_options.send_enqueued(connection, job, fired.job_id)
    return fired.job_id


def resume(connection: BaseDatabaseWrapper, schedule_id: int) -> bool:
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
        return schedules.plan_schedule(connection, schedule, next_run_at)
