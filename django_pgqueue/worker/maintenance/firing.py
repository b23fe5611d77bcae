"""Fire the ticks of one schedule that are due: add their jobs, and set the next tick.

`scheduler` calls it for each schedule that a worker has confirmed. FIRE compares and sets, so one worker fires each
tick, and no leader is needed. Python calculates ticks, and the database's clock decides which ticks are due.
"""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime, timedelta
from typing import Final

from django_pgqueue import lifecycle
from django_pgqueue.db.notifications import wake_workers
from django_pgqueue.db.statements import Connection
from django_pgqueue.lifecycle import JobOptions, Scheduled
from django_pgqueue.schedules import expressions, job_options
from django_pgqueue.worker.runtime.counts import counts

from . import schedule_log

LATE_SECONDS: Final = 60.0
"""A tick up to this old is late, and fires. An older tick is missed: the schedule's rule for missed ticks applies."""
FIRST_TICK: Final = datetime(2000, 1, 1, tzinfo=UTC)
"""A next tick before this one, such as minus infinity, means a damaged row. It does not fire, and is set again."""
MISSED_LIMIT: Final = 100
"""The number of missed ticks, counted from the latest, that are fired afterwards at most."""
LOCKED_RETRY_SECONDS: Final = 1.0
"""Interval before the next attempt at a schedule whose row another session had locked or changed."""


def fire_due(
    connection: Connection, schedule: Scheduled, application: job_options.Application = job_options.IN_THIS_THREAD
) -> float:
    """Fire the due ticks of a schedule. Return the seconds until the next tick, or infinity if a tick has to wait.

    Raises `ValueError` if its expression or time zone is invalid, `job_options.CannotFire` if its job cannot be made.
    """
    following_at = expressions.next_after(schedule.expression, schedule.time_zone, schedule.seen_at)
    wait_seconds = (following_at - schedule.seen_at).total_seconds()
    if schedule.next_run_at > schedule.seen_at or schedule.next_run_at < FIRST_TICK:
        if schedule.next_run_at != following_at:  # a clock was corrected, or the rules of a time zone have changed
            lifecycle.plan_schedule(connection, schedule, following_at)
        return wait_seconds
    ticks = due_ticks(schedule)
    if not ticks:
        planned = lifecycle.plan_schedule(connection, schedule, following_at)
        return wait_seconds if planned else LOCKED_RETRY_SECONDS
    expected_at = schedule.next_run_at
    for tick_at, next_tick_at in zip(ticks, [*ticks[1:], following_at], strict=True):
        options = job_options.options_of(connection, schedule, application)
        fired = lifecycle.fire(
            connection,
            schedule,
            expected_at=expected_at,
            tick_at=tick_at,
            following_at=next_tick_at,
            options=options,
            delay_seconds=random.uniform(0, schedule.jitter_seconds),  # noqa: S311 -- spreads load, hides nothing
        )
        if fired is None:
            return LOCKED_RETRY_SECONDS
        if fired.what == "waits":
            return math.inf
        _report_tick(connection, schedule, options, tick_at, fired, application)
        expected_at = next_tick_at
    return wait_seconds


def due_ticks(schedule: Scheduled) -> list[datetime]:
    """Return the ticks to fire now: the stored next tick and those since, by the schedule's rule for missed ticks."""
    later_ticks = expressions.last_between(
        schedule.expression, schedule.time_zone, schedule.next_run_at, schedule.seen_at, MISSED_LIMIT
    )
    ticks = [schedule.next_run_at, *later_ticks][-MISSED_LIMIT:]
    on_time = schedule.seen_at - timedelta(seconds=LATE_SECONDS)
    if schedule.next_run_at >= on_time or schedule.missed == "all":
        return ticks
    return ticks[-1:] if schedule.missed == "latest" else [tick for tick in ticks if tick >= on_time]


def _report_tick(
    connection: Connection,
    schedule: Scheduled,
    options: JobOptions,
    tick_at: datetime,
    fired: lifecycle.Fired,
    application: job_options.Application,
) -> None:
    """Log what happened to a tick. If it has made a job, wake workers and send the signals of an enqueue."""
    outcome = fired.what
    if fired.job_id is None:
        if outcome == "duplicate":
            outcome = f"skipped: {job_options.holder_of(connection, options)} has its unique key"
        schedule_log.log_skipped(schedule.name, tick_at, outcome)
        return
    counts.fired(tick_at, schedule.seen_at)
    schedule_log.log_fired(schedule.name, tick_at, fired.job_id)
    wake_workers(connection)
    job_options.send_enqueued(connection, schedule, options, fired.job_id, application)
