"""Fire the ticks of schedules that are due: add their jobs, and set the next ticks.

`scheduler` calls it for the schedules that a worker has confirmed. FIRE compares and sets, so one worker fires each
tick, and no leader is needed. Python calculates ticks, and the database's clock decides which ticks are due.

The next ticks of up to `BATCH` schedules are fired by one statement, because each commit costs more than a tick. A tick
whose job has a unique key is fired alone: it may wait for another transaction, and the others must not.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, Protocol

from django_pgqueue.db.notifications import wake_workers
from django_pgqueue.db.statements import Connection
from django_pgqueue.ground.log_events import event
from django_pgqueue.lifecycle import refused_rows
from django_pgqueue.lifecycle import schedules as lifecycle_schedules
from django_pgqueue.lifecycle import ticks as lifecycle_ticks
from django_pgqueue.lifecycle.schedules import Scheduled
from django_pgqueue.lifecycle.ticks import Fired, Tick
from django_pgqueue.schedules import job_options, next_ticks
from django_pgqueue.tasks.registry import in_words
from django_pgqueue.worker.runtime.counts import counts
from django_pgqueue.worker.runtime.service import restart_time_limit

logger = logging.getLogger("django_pgqueue.worker")
LATE_SECONDS: Final = 60.0
"""A tick up to this old is late, and fires. An older tick is missed: the schedule's rule for missed ticks applies."""
FIRST_TICK: Final = datetime(2000, 1, 1, tzinfo=UTC)
"""A next tick before this one, such as minus infinity, means a damaged row. It does not fire, and is set again."""
MISSED_LIMIT: Final = 100
"""The number of missed ticks, counted from the latest, that are fired afterwards at most."""
LOCKED_RETRY_SECONDS: Final = 1.0
"""Interval before the next attempt at a schedule whose row another session had locked or changed."""
BATCH: Final = 100
"""Ticks that one statement fires at most. It locks their rows, and if one is refused, it is repeated for parts."""
TURN_SECONDS: Final = 1.0
"""How long one call of `fire_all()` fires. Then the connection is free for maintenance, and the rest follows."""


def log_changed(name: str) -> None:
    """Log that the stored schedule was replaced by the code's definition."""
    extra = event("schedule_changed", schedule=name)
    logger.info("schedule %s now has the definition of this worker's code", in_words(name), extra=extra)


def log_fired(name: str, tick_at: datetime, job_id: int) -> None:
    """Log that a tick has made a job."""
    extra = event("schedule_fired", schedule=name, job_id=job_id)
    logger.info("schedule %s: job %s for the tick of %s", in_words(name), job_id, tick_at, extra=extra)


def log_skipped(name: str, tick_at: datetime, outcome: str) -> None:
    """Log that a tick has made no job."""
    extra = event("schedule_skipped", schedule=name, reason=outcome)
    logger.info("schedule %s: tick of %s %s", in_words(name), tick_at, outcome, extra=extra)


def log_failed(name: str, reason: str, cause: BaseException | None, *, is_left: bool) -> None:
    """Log that a schedule cannot run here, at level WARNING if other workers can run it (`is_left`)."""
    level, effect = (logging.WARNING, "is left to other workers") if is_left else (logging.ERROR, "does not run")
    extra = event("schedule_failed", schedule=name, reason=reason)
    logger.log(level, "schedule %s %s: %s", in_words(name), effect, reason, exc_info=cause, extra=extra)


class Containing(Protocol):
    """Contain the errors of one schedule, so that the others are fired. Without an error, its last problem is over."""

    def __call__(self, schedule: Scheduled, *, is_over: bool = True) -> AbstractContextManager[None]: ...


@dataclass(slots=True)
class _Due:
    """The ticks of a schedule that are due and not yet fired, the oldest first."""

    schedule: Scheduled
    ticks: deque[datetime]
    following_at: datetime
    """The first tick that is not due."""
    expected_at: datetime

    def next_tick(self, connection: Connection, application: job_options.Application) -> Tick:
        """Return the oldest tick. Raises `job_options.CannotFire` if its job cannot be made."""
        job = job_options.next_job(connection, self.schedule._replace(next_run_at=self.expected_at), application)
        job.row["delay_seconds"] = random.uniform(0, self.schedule.jitter_seconds)  # noqa: S311 -- spreads load
        following_at = self.ticks[1] if len(self.ticks) > 1 else self.following_at
        return Tick(self.schedule, self.expected_at, self.ticks[0], following_at, job)


def fire_all(
    connection: Connection, schedules: Iterable[Scheduled], application: job_options.Application, contain: Containing
) -> float:
    """Fire the due ticks of schedules, the oldest first, for `TURN_SECONDS` at most.

    Return the seconds until the next tick: 0 if some are left, infinity if all have to wait.
    """
    until = time.monotonic() + TURN_SECONDS
    waits, due = [math.inf], deque[_Due]()
    for schedule in sorted(schedules, key=lambda schedule: schedule.next_run_at):
        with contain(schedule, is_over=not is_due(schedule)):
            waits.append(_look(connection, schedule, due))
    while due:
        if time.monotonic() > until:
            return 0.0
        batch = [due.popleft() for _ in range(min(BATCH, len(due)))]
        for one, outcome in _fire(connection, batch, application):
            if isinstance(outcome, job_options.NotReturned):
                waits.append(outcome.retry_seconds)
                continue
            with contain(one.schedule):
                if isinstance(outcome, Exception):
                    raise outcome
                waits.append(_settle(connection, one, outcome, due, application))
        restart_time_limit()
    return min(waits)


def is_due(schedule: Scheduled) -> bool:
    """Return whether the stored next tick has come."""
    return FIRST_TICK <= schedule.next_run_at <= schedule.seen_at


def _look(connection: Connection, schedule: Scheduled, due: deque[_Due]) -> float:
    """Add the due ticks of a schedule to `due`, or set its next tick. Return the seconds until the next tick.

    Raises `ValueError` if its expression or time zone is invalid.
    """
    following_at = next_ticks.next_after(schedule.expression, schedule.time_zone, schedule.seen_at)
    wait_seconds = (following_at - schedule.seen_at).total_seconds()
    if not is_due(schedule):
        if schedule.next_run_at != following_at:  # a clock was corrected, or the rules of a time zone have changed
            lifecycle_schedules.plan_schedule(connection, schedule, following_at)
        return wait_seconds
    ticks = due_ticks(schedule)
    if ticks:
        due.append(_Due(schedule, deque(ticks), following_at, schedule.next_run_at))
        return math.inf
    planned = lifecycle_schedules.plan_schedule(connection, schedule, following_at)
    return wait_seconds if planned else LOCKED_RETRY_SECONDS


def _fire(
    connection: Connection, batch: Iterable[_Due], application: job_options.Application
) -> Iterator[tuple[_Due, tuple[Tick, Fired | None] | Exception]]:
    """Fire the oldest tick of each schedule. Yield the tick with its result, or the error."""
    together: dict[int, tuple[_Due, Tick]] = {}
    for one in batch:
        outcome: tuple[Tick, Fired | None] | Exception
        try:
            tick = one.next_tick(connection, application)
            if tick.job.key is None:
                together[one.schedule.schedule_id] = one, tick
                continue
            outcome = tick, lifecycle_ticks.fire(connection, tick)
        except Exception as error:  # noqa: BLE001 -- the caller decides which errors end the turn
            outcome = error
        yield one, outcome
    ticks = [tick for _, tick in together.values()]
    done = refused_rows.divided(connection, ticks, partial(lifecycle_ticks.fire_many, connection))
    if any(fired.job_id is not None for fired in done.answers.values()):
        wake_workers(connection)
    refused = {tick.scheduled.schedule_id: error for tick, error in done.refused}
    for schedule_id, (one, tick) in together.items():
        yield one, refused.get(schedule_id) or (tick, done.answers.get(schedule_id))


def _settle(
    connection: Connection,
    one: _Due,
    outcome: tuple[Tick, Fired | None],
    due: deque[_Due],
    application: job_options.Application,
) -> float:
    """Report what happened to a tick, and put the schedule's next one in line. Return the seconds until the next."""
    tick, fired = outcome
    if fired is None:
        return LOCKED_RETRY_SECONDS
    if fired.what == "waits":
        return math.inf
    _report_tick(connection, tick, fired, application)
    one.ticks.popleft()
    one.expected_at = tick.following_at
    if one.ticks:
        due.append(one)
        return math.inf
    return (one.following_at - one.schedule.seen_at).total_seconds()


def due_ticks(schedule: Scheduled) -> list[datetime]:
    """Return the ticks to fire now: the stored next tick and those since, by the schedule's rule for missed ticks."""
    later_ticks = next_ticks.last_between(
        schedule.expression, schedule.time_zone, schedule.next_run_at, schedule.seen_at, MISSED_LIMIT
    )
    ticks = [schedule.next_run_at, *later_ticks][-MISSED_LIMIT:]
    on_time = schedule.seen_at - timedelta(seconds=LATE_SECONDS)
    if schedule.paused_until is not None and schedule.paused_until <= schedule.seen_at:
        on_time = max(on_time, schedule.paused_until)  # what came during the pause was missed, however late it ended
    if schedule.missed == "all":
        return ticks
    late = [tick for tick in ticks if tick >= on_time]
    return late or ticks[-1:] if schedule.missed == "latest" else late


def _report_tick(connection: Connection, tick: Tick, fired: Fired, application: job_options.Application) -> None:
    """Log what happened to a tick. If it has made a job, send the signals of an enqueue."""
    schedule, outcome = tick.scheduled, fired.what
    if fired.job_id is None:
        if outcome == "duplicate":
            outcome = f"skipped: {job_options.holder_of(connection, tick.job)} has its unique key"
        log_skipped(schedule.name, tick.tick_at, outcome)
        return
    counts.fired(tick.tick_at, schedule.seen_at)
    log_fired(schedule.name, tick.tick_at, fired.job_id)
    if tick.job.key is not None:
        wake_workers(connection)
    job_options.send_enqueued(connection, tick.job, fired.job_id, application)
