"""The form of *Run now with other arguments*: what `enqueue_form` shows, filled with the call of a schedule.

The page of a schedule links it with the id of the schedule. The job is like any other that the form enqueues: it is no
run of the schedule. The audit has the schedule and the reason.
"""

from __future__ import annotations

import json
from typing import Any, Final

from django.db.models import TextField
from django.db.models.functions import Cast, Left
from django.http import HttpRequest
from django.utils.translation import gettext as _

from django_pgqueue.acts import ENQUEUE, RUN_SCHEDULE
from django_pgqueue.admin import databases, private
from django_pgqueue.admin.call_values import StoredArguments
from django_pgqueue.admin.formatting import visible
from django_pgqueue.admin.navigation import page_url
from django_pgqueue.models import Schedule
from django_pgqueue.schedules import job_options
from django_pgqueue.task import Task
from django_pgqueue.tasks import registry
from django_pgqueue.tasks.redaction import has_sensitive

PARAMETER: Final = "schedule"
"""The parameter of the URL of the form with the id of the schedule."""


class NoCall(Exception):
    """The form cannot be filled from a schedule. The message gives the operator the reason."""


def is_allowed(request: HttpRequest) -> bool:
    """Return whether the user may run schedules, enqueue jobs and see the arguments, which the form shows."""
    return all(act.is_allowed(request.user) for act in (RUN_SCHEDULE, ENQUEUE)) and private.may_view(request)


def link(request: HttpRequest, schedule: Schedule) -> str:
    """Return the URL of the form for a schedule; "" if the user may not use it, or if its task is not known."""
    task = registry.get(schedule.task_name)
    if not isinstance(task, Task) or not is_allowed(request):
        return ""
    return page_url(request, "enqueue", task.name, **{PARAMETER: schedule.pk})


def chosen_schedule(request: HttpRequest, task: Task[..., Any]) -> Schedule | None:
    """Return the schedule that the URL names, with its arguments as text; None if it names none.

    Raise `NoCall` if the user may not run it, or if it does not exist or calls another task.
    """
    given = request.GET.get(PARAMETER)
    if given is None:
        return None
    if not is_allowed(request):
        raise NoCall(_("You need the permissions to run schedules, to enqueue jobs and to view arguments."))
    text = Left(Cast("arguments", TextField()), private.TEXT_LIMIT)
    found = Schedule.objects.using(databases.chosen(request)).defer("arguments").annotate(arguments_text=text)
    is_id = given.isascii() and given.isdigit() and len(given) < 19
    schedule = found.filter(pk=int(given)).first() if is_id else None
    if schedule is None:
        raise NoCall(_("This schedule does not exist any more."))
    if registry.get(schedule.task_name) is not task:
        raise NoCall(_("The schedule %(name)s calls another task.") % {"name": visible(schedule.name)})
    return schedule


def options_of(task: Task[..., Any], schedule: Schedule) -> dict[str, Any]:
    """Return the call of a schedule, its queue and its priority as options of the form. Raise `NoCall` with a reason.

    A queue and a priority that are those of the task are left out.
    """
    values = {name: job_options.current(schedule, name) for name in ("queue_name", "priority")}
    initial = {name: value for name, value in values.items() if value != getattr(task, name)}
    return {"stored": _call_of(task, vars(schedule)["arguments_text"]), "initial": initial}


def _call_of(task: Task[..., Any], text: str) -> StoredArguments:
    if len(text) >= private.TEXT_LIMIT:  # it may be cut
        raise NoCall(_("The arguments of this schedule are too long for a form."))
    try:
        found = json.loads(text)
        call = StoredArguments(found["args"], found["kwargs"])
        if not isinstance(call.args, list) or not isinstance(call.kwargs, dict):
            raise TypeError("args must be a list and kwargs an object")
        is_hidden = has_sensitive(task, *call)
    except (ValueError, LookupError, TypeError, RecursionError):
        raise NoCall(_("The arguments of this schedule cannot be shown in a form.")) from None
    if is_hidden:
        raise NoCall(_("The arguments of this schedule cannot be shown in a form, because it has sensitive ones."))
    return call
