"""Retry a finished job with other arguments: a form made from its task, and a new job that is linked to the old one.

`jobs` gives it a URL, and the page of a job links it if the form can show the arguments, or says why it cannot. The old
job stays as it is. Everything is written in one transaction, and only if the old job is still as the form showed it:
the new job, and an entry of the audit with both jobs and the differences of their arguments.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from django import forms
from django.contrib import messages
from django.contrib.admin import AdminSite
from django.contrib.admin.models import ADDITION
from django.db import connections, transaction
from django.db.models import TextField
from django.db.models.functions import Cast, Left
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.debug import sensitive_post_parameters

from django_pgqueue import display
from django_pgqueue.acts import EDIT_AND_RETRY
from django_pgqueue.admin import databases, shown
from django_pgqueue.admin.act_view import log_change
from django_pgqueue.admin.call_values import StoredArguments, differences
from django_pgqueue.admin.formatting import visible, word_text
from django_pgqueue.admin.forms.argument_form import ArgumentForm
from django_pgqueue.admin.forms.form_page import form_page
from django_pgqueue.admin.forms.new_jobs import (
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
from django_pgqueue.admin.forms.reason_form import OptionalReasonForm
from django_pgqueue.admin.navigation import page_url, redirect_to
from django_pgqueue.admin.pause_admin import pauses_of
from django_pgqueue.admin.private import TEXT_LIMIT
from django_pgqueue.db.fields import statement_time
from django_pgqueue.encoding import codecs
from django_pgqueue.encoding.headers import decode_headers
from django_pgqueue.enqueue.copies import insert_copy, task_like
from django_pgqueue.ground.placeholders import markers_in
from django_pgqueue.lifecycle import audit, operator
from django_pgqueue.models import Job
from django_pgqueue.states import FINISHED, Seen, State
from django_pgqueue.task import Task
from django_pgqueue.tasks import registry
from django_pgqueue.tasks.redaction import has_sensitive, redacted_call

_STAYS: Final = gettext_lazy("Job %(job)s stays as it is. You can delete it afterwards, or leave it.")
_STAYS_DEAD: Final = gettext_lazy(
    "Job %(job)s stays dead, and counts as a dead letter until somebody acknowledges or deletes it."
)


class NotEditable(Exception):
    """The arguments of a job cannot be edited. The message gives the operator the reason."""


class EditForm(ArgumentForm, OptionalReasonForm):
    """The arguments of a finished job, and a reason. If the job has succeeded, the form asks for confirmation."""

    confirmed = forms.BooleanField()

    def __init__(self, *args: Any, job: Job, **options: Any) -> None:
        super().__init__(*args, **options)
        if job.state != State.SUCCEEDED:
            del self.fields["confirmed"]
        else:
            text = _("This job has succeeded already. Run its task again, with all its effects.")
            self.fields["confirmed"].label = text


class Offer(NamedTuple):
    """The URL of the form, or why the job has no form. Both are "" if its state or the permissions forbid the edit."""

    url: str = ""
    note: str = ""


def offer(request: HttpRequest, job: Job) -> Offer:
    """Return what the page of a job offers. The job has its arguments as text."""
    if job.state not in FINISHED or not EDIT_AND_RETRY.is_allowed(request.user):
        return Offer()
    try:
        editable(job)
    except NotEditable as error:
        return Offer(note=str(error))
    return Offer(page_url(request, "job_edit", job.pk))


@sensitive_post_parameters()
def edit_view(request: HttpRequest, object_id: int, site: AdminSite) -> HttpResponse:
    """Show the form, or make the new job and show its page."""
    job = _read(databases.chosen(request), object_id)
    try:
        if job is None:
            raise NotEditable(_("Job #%s does not exist. It may have been pruned.") % object_id)
        task, stored = editable(job)
    except NotEditable as error:
        messages.error(request, str(error))
        return redirect_to(request, "job_change", object_id)
    form = EditForm(request.POST or None, job=job, task=task, database=str(job._state.db), stored=stored)
    if form.is_bound and form.is_valid():
        try:
            return redirect_to(request, "job_change", _retry(request, job, task, stored, form))
        except NotEnqueued as error:
            form.add_error(None, str(error))
    return form_page(
        request,
        site,
        form,
        title=_("Edit and retry %(job)s") % {"job": visible(str(job))},
        submit=_("Enqueue as a new job"),
        back=page_url(request, "job_change", object_id),
        notes=_notes(request, job, form),
        hidden=token_field(request) + shown.hidden(_seen(request, job)),
    )


def _seen(request: HttpRequest, job: Job) -> dict[int, Seen]:
    """Return what the form shows of the job. A form that is shown again, with errors, stays bound to the first time."""
    if request.method != "POST":
        return {job.pk: shown.as_seen(job)}
    return {job_id: seen for job_id, seen in shown.read(request).items() if job_id == job.pk}


def _read(alias: str, job_id: int) -> Job | None:
    """Return a job with its arguments and headers as text, because Python cannot decode every JSON value."""
    texts = {f"{name}_text": Left(Cast(name, TextField()), TEXT_LIMIT) for name in ("arguments", "headers")}
    jobs = Job.objects.using(alias).defer("arguments", "headers", "result")
    return jobs.annotate(**texts, seen_at=statement_time()).filter(pk=job_id).first()


def editable(job: Job) -> tuple[Task[..., Any], StoredArguments]:
    """Return the task of a job and its call. Raise `NotEditable` if they cannot be shown in a form."""
    task, text = registry.get(job.task_name), vars(job)["arguments_text"]
    if job.state not in FINISHED:
        raise NotEditable(_("Only a finished job can be edited and retried. This one is %s.") % word_text(job.state))
    if not isinstance(task, Task):
        raise NotEditable(_("No task is registered under the name %s.") % visible(job.task_name))
    if len(text) >= TEXT_LIMIT:  # it may be cut
        raise NotEditable(_("The arguments of this job are too long for a form."))
    try:
        found = json.loads(text)
        args, kwargs = found["args"], found["kwargs"]
        if not isinstance(args, list) or not isinstance(kwargs, dict):
            raise TypeError("args must be a list and kwargs an object")
        is_hidden = has_sensitive(task, args, kwargs)
        # The new job is in no workflow, so its worker would not replace the markers by results.
        has_results = job.in_graph and next(markers_in([args, kwargs]), None) is not None
    except (ValueError, LookupError, TypeError, RecursionError):
        note = display.shown_arguments(job.task_name, text).note  # encoded, or erased
        raise NotEditable(_("The arguments of this job cannot be edited. %s") % note) from None
    if is_hidden:
        raise NotEditable(_("The arguments of this job cannot be edited, because it has sensitive ones."))
    if has_results:
        raise NotEditable(
            _("The arguments of this job cannot be edited, because they contain results of other jobs. Retry it.")
        )
    return task, StoredArguments(args, kwargs)


def _notes(request: HttpRequest, job: Job, form: EditForm) -> list[Any]:
    values = {"job": f"#{job.pk}", "queue": visible(job.queue_name), "priority": job.priority}
    notes: list[Any] = [
        _(
            "This makes a new job in the queue %(queue)s, with the priority %(priority)s, the headers and the other "
            "options of job %(job)s. It is due now."
        )
        % values,
        (_STAYS_DEAD if job.state == State.DEAD else _STAYS) % values,
    ]
    if job.in_graph:
        notes.append(
            _("The new job is not part of the workflow of job %(job)s: no other job waits for it or gets its result.")
            % values
        )
    elif job.batch_id is not None:
        notes.append(_("The new job is not part of the batch of job %(job)s, and does not repair it.") % values)
    notes += pause_notes(pauses_of(request, job))
    if form.stored.unfit:
        text = display.pretty_json(json.dumps(form.stored.unfit, ensure_ascii=False))
        note = _("The task does not take these arguments of the job. The new job is made without them:")
        notes.append(display.Shown(text, note))
    return notes


def _retry(request: HttpRequest, job: Job, task: Task[..., Any], stored: StoredArguments, form: EditForm) -> int:
    """Make the new job and the records in one transaction; return the new job's id. Raise `NotEnqueued` with a reason.

    If the form was sent before, return the job that it made then.
    """
    seen, token = shown.read(request).get(job.pk), read_token(request)
    call, reason = form.cleaned_call, form.cleaned_data["reason"]
    if seen is None or token is None:
        raise NotEnqueued(_("Nothing was changed: the form did not say which state the page showed. Open it again."))
    connection = connections[str(job._state.db)]
    changes = _changes(task, stored, call)
    with refusals(), transaction.atomic(using=connection.alias):
        chosen = {"jobs": [job.pk], "changed": sorted(changes)}
        by = request.user.get_username()
        audit_id = audit.begin_audit_once(connection, token, EDIT_AND_RETRY.name, chosen, done_by=by, reason=reason)
        if audit_id is None:
            return sent_before(request, connection, token)
        if not operator.touch(connection, job.pk, seen):
            raise NotEnqueued(_("Nothing was changed: the job has changed since the page showed it, or it is locked."))
        like = task_like(task, job, decode_headers(vars(job)["headers_text"]), connection.alias)
        new = insert_copy(like, job, *decoded(like, call, connection.alias))
        details = {
            job.pk: {"retried_as": new.pk, "changes": changes},
            new.pk: {"made_from": job.pk, "changes": changes},
        }
        finish(connection, audit_id, like, new, details)
        changed = f"Changed arguments: {', '.join(sorted(changes)) or 'none'}."
        changed += f" Reason: {reason}" if reason else ""
        log_change(request, job, f"Edited and retried as job #{new.pk}. {changed}")
        log_change(request, new, f"Made from job #{job.pk}. {changed}", ADDITION)
    values = {"new": new.pk, "old": job.pk, "state": word_text(job.state)}
    messages.success(request, _("This is the new job #%(new)s. Job #%(old)s stays %(state)s.") % values)
    say_paused(request, new)
    return int(new.pk)


def _changes(
    task: Task[..., Any], before: StoredArguments, after: StoredArguments
) -> dict[str, list[str | None] | None]:
    """Return the differences to record: without sensitive values, and only the names if the project encodes values."""
    found = differences(
        task, StoredArguments(*redacted_call(task, *before)), StoredArguments(*redacted_call(task, *after))
    )
    return dict.fromkeys(found) if codecs.project_codecs().encoder is not None else {**found}
