"""Choose the word for the state of a schedule, and say why a schedule cannot run.

The admin and `manage.py pgqueue schedules` call this module, so that both say the same.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from django_pgqueue.lifecycle.ticks import CONFIRMED_SECONDS
from django_pgqueue.stats.answers import Count

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
    if not schedule.enabled:
        return ScheduleWord.PAUSED
    confirmed_at = schedule.confirmed_at
    if confirmed_at is not None and (seen_at - confirmed_at).total_seconds() > CONFIRMED_SECONDS:
        return ScheduleWord.UNDECLARED
    return ScheduleWord.FAILING if failed_in_a_row.value else ScheduleWord.ON
