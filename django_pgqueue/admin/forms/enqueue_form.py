"""Enqueue a job of a task from a form made from its signature, with the queue, the priority and the due time.

`jobs` gives it a URL for each task; the page of tasks links it. It enqueues as the code would: middleware runs, and the
task's unique key applies. The act is recorded in the audit, in the transaction of the job.
"""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.admin import AdminSite
from django.contrib.admin.models import ADDITION
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.debug import sensitive_post_parameters

from django_pgqueue.acts import ENQUEUE
from django_pgqueue.admin import databases, private
from django_pgqueue.admin.act_view import log_change
from django_pgqueue.admin.formatting import shortened, visible
from django_pgqueue.admin.navigation import address_for, page_url, redirect_to
from django_pgqueue.admin.pause_admin import pauses_on
from django_pgqueue.db.fields import aware
from django_pgqueue.db.queue_databases import queue_aliases
from django_pgqueue.declared.key_templates import reads_arguments
from django_pgqueue.enqueue.new_job import alias_of
from django_pgqueue.lifecycle import audit
from django_pgqueue.models import Schedule
from django_pgqueue.task import Task
from django_pgqueue.tasks import registry

from . import schedule_run
from .argument_form import ArgumentForm
from .form_page import PlaceForm, form_page, time_field
from .new_jobs import (
    NotEnqueued,
    decoded,
    finish,
    pause_notes,
    read_token,
    refusals,
    say_paused,
    sent_before,
    token_field,
)
from .reason_form import OptionalReasonForm


class EnqueueForm(ArgumentForm, PlaceForm):
    """The arguments of a call, and where and when its job runs."""

    run_after = time_field(
        gettext_lazy("Run after"), gettext_lazy("In the time zone of the admin. If it is empty, the job is due now.")
    )

    def __init__(self, *args: Any, task: Task[..., Any], **options: Any) -> None:
        super().__init__(*args, task=task, **options)
        self.fields["queue_name"].help_text = _("If it is empty, the queue of the task: %s.") % task.queue_name
        self.fields["priority"].help_text = _("From -100 to 100. If it is empty, that of the task: %s.") % task.priority

    def options(self) -> dict[str, Any]:
        """Return the options for `using()` that the valid form sets."""
        given = {name: self.cleaned_data[name] for name in ("queue_name", "priority", "run_after")}
        if given["run_after"] is not None:
            given["run_after"] = aware(given["run_after"])
        return {name: value for name, value in given.items() if value is not None}


class ScheduleRunForm(EnqueueForm, OptionalReasonForm):
    """The same, filled with the call of a schedule, and a reason."""


@sensitive_post_parameters()
def enqueue_view(request: HttpRequest, task_name: str, site: AdminSite) -> HttpResponse:
    """Show the form, or enqueue the job and show its page.

    If a unique key is made from the arguments, the answer shows whether a job with guessed arguments exists. The list
    of jobs shows it too, whatever the form answers. So a user who may not see arguments gets no form for such a task.
    """
    task = registry.get(task_name)
    if not isinstance(task, Task):
        text = _("No task is registered under the name %s.") % shortened(task_name)
        messages.error(request, text)
        return redirect_to(request, "job_changelist")
    if reads_arguments(task.unique_key) and not private.may_view(request):
        text = _("You cannot enqueue %(task)s: the answer would say whether a job with these arguments exists.")
        messages.error(request, f"{text % {'task': shortened(task.name)}} {private.NO_PERMISSION}")
        return redirect_to(request, "job_changelist")
    try:
        schedule = schedule_run.chosen_schedule(request, task)
        filled = {} if schedule is None else schedule_run.options_of(task, schedule)
    except schedule_run.NoCall as error:
        messages.error(request, str(error))
        return redirect_to(request, "job_changelist")
    alias = _database(request, task) if schedule is None else databases.chosen(request)
    form_class = EnqueueForm if schedule is None else ScheduleRunForm
    form = form_class(request.POST or None, task=task, database=alias, **filled)
    if form.is_bound and form.is_valid():
        try:
            job_url = address_for(request, "job_change", _enqueue(request, task, form, alias, schedule))
            return HttpResponseRedirect(databases.link_to(alias, job_url))
        except NotEnqueued as error:
            form.add_error(None, str(error))
    return form_page(
        request,
        site,
        form,
        title=_("Enqueue %(task)s") % {"task": visible(task.name)},
        submit=_("Enqueue"),
        back=page_url(request, "schedule_change", schedule.pk) if schedule else page_url(request, "job_changelist"),
        notes=[*_schedule_notes(schedule), *_notes(request, task, form, alias)],
        hidden=token_field(request),
    )


def _schedule_notes(schedule: Schedule | None) -> list[Any]:
    if schedule is None:
        return []
    text = _("These are the arguments of the schedule %(name)s. The schedule stays as it is, and its next run too.")
    return [text % {"name": visible(schedule.name)}]


def _notes(request: HttpRequest, task: Task[..., Any], form: EnqueueForm, alias: str) -> list[Any]:
    """Return the sentences above the form: the database if there are several, and what keeps the job from starting."""
    notes = [_("The job is added to the database %s.") % alias] if len(queue_aliases()) > 1 else []
    queue_name = form.cleaned_data.get("queue_name") if form.is_bound else None
    limit_name = "" if task.limit is None else task.limit.name
    pauses = pauses_on(request, alias, queue_name or task.queue_name, task.name, limit_name)
    return [*notes, *pause_notes(pauses)]


def _database(request: HttpRequest, task: Task[..., Any]) -> str:
    """Return the alias that the URL names. Otherwise return that of the task, or the routers' choice."""
    of_task = task.fixed_database or (None if task.adapter is None else task.adapter.database)
    named = databases.PARAMETER in request.GET
    return databases.chosen(request) if named or of_task is None else of_task


def _enqueue(
    request: HttpRequest, task: Task[..., Any], form: EnqueueForm, alias: str, schedule: Schedule | None
) -> int:
    """Make the job and its records in one transaction; return its id. Raise `NotEnqueued` with a reason.

    If the form was sent before, return the job that it made then.
    """
    token, options = read_token(request), form.options()
    if token is None:
        raise NotEnqueued(_("No job was added: the form was incomplete. Open it again."))
    connection = connections[alias]
    with refusals(), transaction.atomic(using=alias):
        chosen: dict[str, Any] = {
            "task": task.name,
            **({"queue": options["queue_name"]} if "queue_name" in options else {}),
        }
        if schedule is not None:
            chosen |= {"schedule": schedule.name, "schedule_id": schedule.pk}
        by, reason = request.user.get_username(), form.cleaned_data.get("reason", "")
        audit_id = audit.begin_audit_once(connection, token, ENQUEUE.name, chosen, done_by=by, reason=reason)
        if audit_id is None:
            return sent_before(request, connection, token)
        if task.adapter is not None and "queue_name" in options:
            task.adapter.check_queue(options["queue_name"])
        configured = task.using(**options, database=alias)
        args, kwargs = decoded(configured, form.cleaned_call, alias)
        if callable(task.database) and (of_call := alias_of(task, args, kwargs)) != alias:
            raise NotEnqueued(_("No job was added: these arguments belong to the database %s. Choose it.") % of_call)
        job = configured.insert(args, kwargs)
        finish(connection, audit_id, configured, job)
        log_change(request, job, _("Enqueued."), ADDITION)
        if schedule is not None:
            log_change(request, schedule, f"Run now with other arguments as job #{job.pk}.")
    messages.success(request, _("Job #%s is enqueued.") % job.pk)
    say_paused(request, job)
    return int(job.pk)
