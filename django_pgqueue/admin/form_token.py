"""A token in a form that makes a job or requests a bulk act, so that a second click on its button does nothing again.

`edit_and_retry`, `enqueue_form` and `console.bulk_preview` use it. The token is stored with the audit entry of the act,
in the transaction that makes the job. A second request with the token waits for that transaction, and then finds the
job or the act.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final
from uuid import UUID, uuid4

from django.contrib import messages
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from django_pgqueue import lifecycle
from django_pgqueue.models import AuditEntry

from .new_jobs import NotEnqueued

FIELD: Final = "form_token"


def field(request: HttpRequest) -> SafeString:
    """Return the hidden input: a new token, or that of the form that was posted with errors."""
    return format_html('<input type="hidden" name="{}" value="{}">', FIELD, read(request) or uuid4())


def read(request: HttpRequest) -> UUID | None:
    """Return the token of the posted form, or None if it has no valid one."""
    with suppress(ValueError):
        return UUID(request.POST.get(FIELD, ""))
    return None


def begin(connection: Any, token: UUID, action: str, chosen: dict[str, Any], *, by: str) -> int | None:
    """Begin the audit entry of an act; return its id, or None if the form was sent before."""
    return lifecycle.begin_audit_once(connection, token, action, chosen, done_by=by)


def sent_before(request: HttpRequest, connection: Any, token: UUID) -> int:
    """Show a message that the form was sent before; return the job that it made. Raise `NotEnqueued` without one."""
    entry = AuditEntry.objects.using(connection.alias).get(form_token=token)
    newest = entry.jobs.using(connection.alias).order_by("-job_id").values_list("job_id", flat=True).first()
    if newest is None:
        raise NotEnqueued(_("No job was added: this form was sent before."))
    messages.warning(request, _("This form was sent before and has made this job. No second one was added."))
    return int(newest)
