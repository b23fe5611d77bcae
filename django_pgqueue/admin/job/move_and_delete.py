"""Move a waiting job to another queue or priority, and delete a finished job, from the job's page.

Both operations ask first, on a page of their own. The page carries what the job's page showed, so the answer applies
to that state only (see `shown`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from django import forms
from django.contrib.admin import AdminSite
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext_lazy

from django_pgqueue import acts
from django_pgqueue.admin import shown
from django_pgqueue.admin.formatting import visible
from django_pgqueue.admin.forms import confirmation
from django_pgqueue.admin.forms.form_page import PlaceForm, form_page
from django_pgqueue.admin.links import page_url
from django_pgqueue.models import Job
from django_pgqueue.states import Seen

from .actions import OPERATIONS, JobOperation


class MoveForm(PlaceForm):
    """Where to move a job. At least one of the two fields has a value."""

    def clean(self) -> dict[str, Any]:
        given = super().clean()
        if not self.errors and given.get("queue_name") is None and given.get("priority") is None:
            raise ValidationError(_("Enter a queue, a priority, or both."))
        return given


@dataclass(frozen=True)
class MoveOperation(JobOperation):
    """Moves a ready job. It asks for the queue and the priority."""

    def ask(self, request: HttpRequest, job: Job, seen: Mapping[int, Seen], site: AdminSite) -> HttpResponse | None:
        form = _move_form(request, job)
        if form.is_bound and form.is_valid():
            return None
        values = {"queue": visible(job.queue_name), "priority": job.priority}
        note = _("The job is in the queue %(queue)s, with the priority %(priority)s. Its due time stays.") % values
        return form_page(
            request,
            site,
            form,
            title=_("Move %(job)s") % {"job": visible(str(job))},
            submit=_("Move"),
            back=page_url(request, "job_change", job.pk),
            notes=[note, _("An empty field changes nothing.")],
            hidden=shown.hidden(seen),
        )

    def as_chosen(self, request: HttpRequest, job: Job) -> JobOperation:
        form = _move_form(request, job)
        form.is_valid()  # `ask()` has seen that it is
        queue_name, priority = form.cleaned_data["queue_name"], form.cleaned_data["priority"]
        texts = [] if queue_name is None else [_("to the queue %s") % queue_name]
        texts += [] if priority is None else [_("to the priority %s") % priority]
        options = {"queue_name": queue_name, "priority": priority}
        return replace(self, text=f"{self.label} {', '.join(texts)}", options=options)


@dataclass(frozen=True)
class DeleteOperation(JobOperation):
    """Deletes a finished job with its executions. It asks for confirmation."""

    is_dangerous: ClassVar[bool] = True

    def ask(self, request: HttpRequest, job: Job, seen: Mapping[int, Seen], site: AdminSite) -> HttpResponse | None:
        if confirmation.is_given(request):
            return None
        return form_page(
            request,
            site,
            forms.Form(),
            title=_("Delete %(job)s?") % {"job": visible(str(job))},
            submit=_("Yes, delete it"),
            back=page_url(request, "job_change", job.pk),
            notes=[_("The job is deleted with its attempts, its arguments and its result. This cannot be undone.")],
            hidden=shown.hidden(seen) + shown.hidden_input(confirmation.FIELD, 1),
            is_dangerous=True,
        )


def _move_form(request: HttpRequest, job: Job) -> MoveForm:
    """Return the form, with the posted values unless the button on the job's page was pressed."""
    return MoveForm(request.POST if "queue_name" in request.POST else None, database=str(job._state.db))


MOVE: Final = MoveOperation(
    "move", acts.MOVE, ngettext_lazy("%(count)d job is moved.", "%(count)d jobs are moved.", "count")
)
DELETE: Final = DeleteOperation(
    "delete", acts.DELETE, ngettext_lazy("%(count)d job is deleted.", "%(count)d jobs are deleted.", "count")
)
ON_ONE_JOB: Final = (*OPERATIONS, MOVE, DELETE)
"""The operations that the page of a job offers."""
