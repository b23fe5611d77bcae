"""What an operator does to schedules: who may, and what is written down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, cast

from django.contrib.admin.models import CHANGE, LogEntry
from django.core.exceptions import PermissionDenied
from django.db import connections, router
from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext_lazy

from django_pgqueue import expressions, firing, lifecycle
from django_pgqueue.db import wake_workers_after_commit
from django_pgqueue.exceptions import JobLocked
from django_pgqueue.models import Schedule

from . import shown
from .words import visible


@dataclass(frozen=True)
class Operation:
    """One act as the admin offers it: `name` is in the URL, `permission` what it needs."""

    name: str
    permission: str
    label: Promise | str
    done: Any
    fits: Callable[[Schedule], bool]
    do: Callable[[Any, lifecycle.Scheduled, datetime | str | None], bool]
    """With the connection, the schedule, and the last run that the page showed."""

    def is_allowed(self, request: HttpRequest) -> bool:
        """Say whether the user may do it, and see schedules at all."""
        return request.user.has_perm(self.permission) and request.user.has_perm("pgqueue.view_schedule")


class NotDone(Exception):
    """Why an act was not done, in words for the operator."""


def _run(connection: Any, one: lifecycle.Scheduled, seen_last_run: datetime | str | None) -> bool:
    try:
        options = firing.options_of(connection, one)
    except firing.CannotFire as error:
        told = {"name": visible(one.name), "why": visible(str(error))}
        raise NotDone(_("No job is enqueued for %(name)s: %(why)s") % told) from None
    fired = lifecycle.run_schedule(connection, one, options, seen_last_run=seen_last_run)
    if fired is None:
        return False
    if fired.job_id is None:
        told = {"name": visible(one.name), "holder": firing.holder_of(connection, options)}
        raise NotDone(_("No job is enqueued for %(name)s: %(holder)s has its unique key.") % told)
    wake_workers_after_commit(connection)
    firing.tell(connection, one, options, fired.job_id)
    return True


def _pause(connection: Any, one: lifecycle.Scheduled, _seen_last_run: object) -> bool:
    return lifecycle.pause_schedule(connection, one.schedule_id)


def _resume(connection: Any, one: lifecycle.Scheduled, _seen_last_run: object) -> bool:
    try:
        next_run_at = expressions.next_after(one.expression, one.time_zone, one.seen_at)
    except ValueError:  # the list says what is wrong with it
        return False
    return lifecycle.resume_schedule(connection, one.schedule_id, next_run_at)


RUN: Final = Operation(
    "run",
    "pgqueue.run_schedule",
    gettext_lazy("Run now"),
    ngettext_lazy("%(count)d job is enqueued.", "%(count)d jobs are enqueued.", "count"),
    lambda one: True,
    _run,
)
PAUSE: Final = Operation(
    "pause",
    "pgqueue.pause_schedule",
    gettext_lazy("Pause"),
    ngettext_lazy("%(count)d schedule is paused.", "%(count)d schedules are paused.", "count"),
    lambda one: one.enabled,
    _pause,
)
RESUME: Final = Operation(
    "resume",
    "pgqueue.pause_schedule",
    gettext_lazy("Resume"),
    ngettext_lazy("%(count)d schedule goes on.", "%(count)d schedules go on.", "count"),
    lambda one: not one.enabled,
    _resume,
)
OPERATIONS: Final = (RUN, PAUSE, RESUME)


def offered(request: HttpRequest, one: Schedule) -> list[Operation]:
    """Return the operations that this user may do to this schedule as it stands."""
    return [operation for operation in OPERATIONS if operation.is_allowed(request) and operation.fits(one)]


def act_on_one(request: HttpRequest, operation: Operation, one: Schedule) -> bool:
    """Do it, and write it down; say whether anything changed. Raises `PermissionDenied`, `NotDone` with a reason."""
    if not operation.is_allowed(request):
        raise PermissionDenied
    connection = connections[router.db_for_write(Schedule, instance=one)]
    found = {each.schedule_id: each for each in lifecycle.schedules(connection)[1]}
    seen = shown.read_schedule(request, one.pk)
    if operation is RUN and seen is None:
        raise NotDone(_("The page did not say what it showed. Nothing was changed; try again."))
    revision, last_run_at = seen or (None, None)
    try:
        changed = one.pk in found and operation.do(
            connection, found[one.pk] if revision is None else found[one.pk]._replace(revision=revision), last_run_at
        )
    except JobLocked:
        return False
    if changed:
        user_id = cast(int, request.user.pk)  # anonymous users have no permission
        LogEntry.objects.log_actions(user_id, Schedule.objects.filter(pk=one.pk), CHANGE, f"{operation.label}.")
    return changed
