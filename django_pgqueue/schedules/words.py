"""Choose the word for the state of a schedule, find its next run, and say why a schedule cannot run.

The admin and `manage.py pgqueue schedules` call this module, so that both say the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from django_pgqueue.lifecycle.ticks import CONFIRMED_SECONDS
from django_pgqueue.stats.answers import Count
from django_pgqueue.stats.schedule_runs import PastRun

from . import next_ticks

if TYPE_CHECKING:
    from django_pgqueue.models import Schedule


class ScheduleWord(StrEnum):
    """The words for the state of a schedule. Of those that fit, the first one is shown."""

    CANNOT_RUN = "cannot run"
    PAUSED = "paused"
    UNDECLARED = "in no worker's code"
    FAILING = "failing"
    ON = "on"


def problem_of(schedule: Schedule) -> str:
    """Return why a schedule cannot run, "" if it can: an invalid expression, or the problem that a worker recorded."""
    try:
        next_ticks.check(schedule.expression, schedule.time_zone)
    except ValueError as error:
        return str(error)
    return str(schedule.problem)


def word_of(schedule: Schedule, seen_at: datetime, failed_in_a_row: Count) -> ScheduleWord:
    """Return the word for the state of a schedule.

    Args:
        schedule: The row.
        seen_at: The time of the database when the row was read.
        failed_in_a_row: How many of its latest jobs died.
    """
    if problem_of(schedule):
        return ScheduleWord.CANNOT_RUN
    if is_paused(schedule, seen_at):
        return ScheduleWord.PAUSED
    confirmed_at = schedule.confirmed_at
    if confirmed_at is not None and (seen_at - confirmed_at).total_seconds() > CONFIRMED_SECONDS:
        return ScheduleWord.UNDECLARED
    return ScheduleWord.FAILING if failed_in_a_row.value else ScheduleWord.ON


def is_paused(schedule: Schedule, seen_at: datetime) -> bool:
    """Return whether a schedule is paused: without an end, or until a time after `seen_at`."""
    return not schedule.enabled or (schedule.paused_until is not None and schedule.paused_until > seen_at)


class NextRun(NamedTuple):
    """The next run of a schedule that will happen, and the one before it that an operator has skipped."""

    at: datetime
    skipped_at: datetime | None = None
    skipped_by: str = ""


def next_run_of(schedule: Schedule, runs: Sequence[PastRun]) -> NextRun:
    """Return the next run of a schedule. `runs` are its latest ones, among which a skipped one is.

    Raise `ValueError` if its expression is invalid and the next run is skipped.
    """
    at = schedule.next_run_at
    skipped_by = next((run.skipped_by for run in runs if run.tick_at == at), None)
    if skipped_by is None:
        return NextRun(at)
    return NextRun(next_ticks.next_after(schedule.expression, schedule.time_zone, at), at, skipped_by)
