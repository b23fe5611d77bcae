"""The parts that the forms which make a job have in common: read the call, send once, record the job, name its pauses.

`edit_and_retry` and `enqueue_form` use it, and `console.bulk_preview` the token of a form.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final
from uuid import UUID, uuid4

from django.contrib import messages
from django.core.exceptions import ObjectDoesNotExist
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from django_pgqueue.admin.call_values import StoredArguments
from django_pgqueue.admin.formatting import visible
from django_pgqueue.admin.pause_admin import pauses_of
from django_pgqueue.admin.shown import hidden_input
from django_pgqueue.exceptions import Cancel, Dead, DuplicateJob, InvalidTask
from django_pgqueue.lifecycle import audit
from django_pgqueue.models import AuditEntry, Job
from django_pgqueue.task import Task
from django_pgqueue.worker.execution.stored_values import DoesNotFit
from django_pgqueue.worker.execution.stored_values import decoded as decode

REFUSALS = (TypeError, ValueError, InvalidTask, DoesNotFit, Dead, Cancel, ObjectDoesNotExist, DuplicateJob)
"""The errors by which `enqueue()` and the reading of arguments refuse a call."""
FORM_FIELD: Final = "form_token"


class NotEnqueued(Exception):
    """No job was made. The message gives the operator the reason."""


@contextmanager
def refusals() -> Iterator[None]:
    """Raise `NotEnqueued` for an error that refuses the call. Put it around the transaction, which is rolled back."""
    try:
        yield
    except REFUSALS as error:
        raise NotEnqueued(visible(str(error))) from error


def decoded(task: Task[..., Any], call: StoredArguments, alias: str) -> tuple[Any, Any]:
    """Return the arguments of a stored call as the task gets them."""
    plan = task.plan
    return (call.args, call.kwargs) if plan is None else decode(task, plan, call.args, call.kwargs, alias)


def finish(connection: Any, audit_id: int, task: Task[..., Any], job: Job, details: Any = None) -> None:
    """Write a new job into the audit, wake the workers after the commit and send the signals, as `enqueue()` does.

    Raise `NotEnqueued` if another job has its unique key. `details` are by job, also of others than the new one.
    """
    if job.is_duplicate:
        raise NotEnqueued(_("No job was added: job #%s has the unique key.") % job.pk)
    audit.record_audit(connection, audit_id, list(details or [job.pk]), details=details)
    audit.end_audit(connection, audit_id)
    task.send_enqueued(job)
    if task.adapter is not None:
        task.adapter.enqueued(job.pk, str(job._state.db), job.queue_name)


def pause_notes(pauses: Sequence[str]) -> list[SafeString]:
    """Return the sentence above a form if pauses keep its job from starting; none without a pause."""
    text = _("The job does not start before this is resumed:")
    return [format_html("{} {}.", text, _joined(pauses))] if pauses else []


def say_paused(request: HttpRequest, job: Job) -> None:
    """Show a message if pauses keep a new job from starting."""
    if pauses := pauses_of(request, job):
        text = _("Job #%s does not start before this is resumed:") % job.pk
        messages.warning(request, format_html("{} {}.", text, _joined(pauses)))


def _joined(pauses: Sequence[str]) -> SafeString:
    return format_html_join("; ", "{}", ((pause,) for pause in pauses))


def token_field(request: HttpRequest) -> SafeString:
    """Return the hidden input: a new token, or that of the form that was posted with errors.

    `edit_and_retry`, `enqueue_form` and `console.bulk_preview` use it. The token is stored with the audit entry of the
    act, in the transaction that makes the job. A second request with the token waits for that transaction, and then
    finds the job or the act.
    """
    return hidden_input(FORM_FIELD, read_token(request) or uuid4())


def read_token(request: HttpRequest) -> UUID | None:
    """Return the token of the posted form, or None if it has no valid one."""
    with suppress(ValueError):
        return UUID(request.POST.get(FORM_FIELD, ""))
    return None


def sent_before(request: HttpRequest, connection: Any, token: UUID) -> int:
    """Show a message that the form was sent before; return the job that it made. Raise `NotEnqueued` without one."""
    entry = AuditEntry.objects.using(connection.alias).get(form_token=token)
    newest = entry.jobs.using(connection.alias).order_by("-job_id").values_list("job_id", flat=True).first()
    if newest is None:
        raise NotEnqueued(_("No job was added: this form was sent before."))
    messages.warning(request, _("This form was sent before and has made this job. No second one was added."))
    return int(newest)
