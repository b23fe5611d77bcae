"""Run, pause and resume schedules from the admin, and undo a skip: permissions, reasons for a refusal, and the history.

Called by `schedules`. *Run now* enqueues a job only if the schedule's last run is still the one that the page showed.
Therefore a double click or a second operator cannot enqueue two jobs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db import connections
from django.http import HttpRequest
from django.utils.text import format_lazy
from django.utils.translation import gettext as _
from django.utils.translation import ngettext_lazy

from django_pgqueue import acts
from django_pgqueue.admin import databases, shown
from django_pgqueue.admin.act_view import log_change
from django_pgqueue.admin.formatting import seen_at, visible
from django_pgqueue.admin.row_operations import Operation
from django_pgqueue.exceptions import JobLocked
from django_pgqueue.lifecycle import schedules
from django_pgqueue.lifecycle.schedules import Scheduled
from django_pgqueue.models import Schedule
from django_pgqueue.schedules import job_options, run_and_resume, words

from .past_runs import next_run


@dataclass(frozen=True)
class ScheduleOperation(Operation):
    """One operation on a schedule."""

    fits: Callable[[Schedule], bool]
    do: Callable[[Any, Scheduled, datetime | str | None, str], int]
    """Called with the connection, the schedule, the last run that the page showed, and the name of the user.

    Returns the id of the job that it enqueued, or True if it changed the schedule, or False if it did nothing.
    """


class NotDone(Exception):
    """An operation was refused. The message gives the operator the reason."""


def _run(connection: Any, schedule: Scheduled, seen_last_run: datetime | str | None, by: str) -> int:
    try:
        return run_and_resume.run_now(connection, schedule, by=by, seen_last_run=seen_last_run) or 0
    except job_options.CannotFire as error:
        values = {"name": visible(schedule.name), "why": visible(str(error))}
        raise NotDone(_("No job is enqueued for %(name)s: %(why)s") % values) from None


def _pause(connection: Any, schedule: Scheduled, _seen_last_run: object, by: str) -> bool:
    return run_and_resume.pause(connection, schedule.schedule_id, schedule.name, by=by)


def _resume(connection: Any, schedule: Scheduled, _seen_last_run: object, by: str) -> bool:
    try:
        return run_and_resume.resume(connection, schedule.schedule_id, by=by)
    except ValueError:  # the list shows what is wrong with the expression
        return False


def _undo_skip(connection: Any, schedule: Scheduled, _seen_last_run: object, by: str) -> bool:
    return run_and_resume.undo_skip(connection, schedule, schedule.next_run_at, by=by)


RUN: Final = ScheduleOperation(
    "run",
    acts.RUN_SCHEDULE,
    ngettext_lazy("%(count)d job is enqueued.", "%(count)d jobs are enqueued.", "count"),
    lambda schedule: True,
    _run,
)
PAUSE: Final = ScheduleOperation(
    "pause",
    acts.PAUSE_SCHEDULE,
    ngettext_lazy("%(count)d schedule is paused.", "%(count)d schedules are paused.", "count"),
    lambda schedule: not words.is_paused(schedule, seen_at(schedule)),
    _pause,
)
RESUME: Final = ScheduleOperation(
    "resume",
    acts.RESUME_SCHEDULE,
    ngettext_lazy("%(count)d schedule is resumed.", "%(count)d schedules are resumed.", "count"),
    lambda schedule: words.is_paused(schedule, seen_at(schedule)),
    _resume,
)
UNDO_SKIP: Final = ScheduleOperation(
    "undo_skip",
    acts.UNDO_SKIP,
    ngettext_lazy("The skip of %(count)d run is undone.", "The skips of %(count)d runs are undone.", "count"),
    lambda schedule: (found := next_run(schedule)) is not None and found.skipped_at is not None,
    _undo_skip,
)
OPERATIONS: Final = (RUN, PAUSE, RESUME, UNDO_SKIP)


def offered(request: HttpRequest, schedule: Schedule) -> list[ScheduleOperation]:
    """Return the operations that the user may run on this schedule in its state. Requires `attach_runs()`."""
    return [operation for operation in OPERATIONS if operation.is_allowed(request) and operation.fits(schedule)]


def act_on_one(request: HttpRequest, operation: ScheduleOperation, schedule: Schedule) -> int:
    """Run an operation on a schedule, and log it in the history. Return what the operation's function returned.

    Raise `NotDone` with a reason for the operator if it is refused.
    """
    connection = connections[databases.chosen(request)]
    found = {each.schedule_id: each for each in schedules.read_schedules(connection)[1]}
    seen = shown.read_schedule(request, schedule.pk)
    if operation is RUN and seen is None:
        raise NotDone(_("Nothing was changed: the form did not say which run the page showed. Try again from here."))
    revision, last_run_at = seen or (None, None)
    try:
        changed: int = schedule.pk in found and operation.do(
            connection,
            found[schedule.pk] if revision is None else found[schedule.pk]._replace(revision=revision),
            last_run_at,
            request.user.get_username(),
        )
    except JobLocked:
        return False
    if changed:
        log_change(request, schedule, format_lazy("{}.", operation.label))
    return changed
