"""The pages that ask for new values of one unfinished job: where to move it, and how many attempts may count.

`job.actions` shows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django import forms
from django.contrib.admin import AdminSite
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_pgqueue.admin import shown
from django_pgqueue.admin.formatting import visible
from django_pgqueue.admin.navigation import page_url
from django_pgqueue.models import Job
from django_pgqueue.states import Seen, State, least_attempts

from .form_page import PlaceForm, form_page
from .reason_form import REASON_LENGTH

MOST: Final = 1000
"""The highest number that the option of a task can have."""


class MoveForm(PlaceForm):
    """Where to move a job. At least one of the two fields has a value."""

    def clean(self) -> dict[str, Any]:
        given = super().clean()
        if not self.errors and given.get("queue_name") is None and given.get("priority") is None:
            raise ValidationError(_("Enter a queue, a priority, or both."))
        return given


def move_form(request: HttpRequest, job: Job) -> MoveForm:
    """Return the form, with the posted values unless the button on the job's page was pressed."""
    return MoveForm(request.POST if "queue_name" in request.POST else None, database=str(job._state.db))


def ask_where(request: HttpRequest, job: Job, seen: Mapping[int, Seen], site: AdminSite) -> HttpResponse | None:
    """Return the page with the form, or None if a valid one was sent."""
    form = move_form(request, job)
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


class AttemptsForm(forms.Form):
    """How many attempts of a job may count. The job keeps at least one."""

    max_attempts = forms.IntegerField(label=gettext_lazy("Attempts at most"), min_value=1, max_value=MOST)
    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        max_length=REASON_LENGTH,
        help_text=gettext_lazy("The page of each job shows it with your name."),
    )

    def __init__(self, *args: Any, job: Job, **options: Any) -> None:
        super().__init__(*args, **options)
        self._job = job

    def clean_max_attempts(self) -> int:
        """Refuse a number that would leave the job no attempt, and the number that it has."""
        given: int = self.cleaned_data["max_attempts"]
        least = least_attempts(self._job.state, self._job.attempt)
        if given < least:
            least_text = _("Enter %(least)s or more.") % {"least": least}
            raise ValidationError(f"{made_text(self._job)} {least_text}")
        if given == self._job.max_attempts:
            raise ValidationError(_("The job has this number already."))
        return given


def made_text(job: Job) -> str:
    """Return how many attempts a job has made, as a sentence."""
    if job.state == State.RUNNING:
        return _("The job is running attempt %(attempt)s.") % {"attempt": job.attempt}
    text = ngettext("The job has made %(count)s attempt.", "The job has made %(count)s attempts.", job.attempt)
    return text % {"count": job.attempt}


def attempts_form(request: HttpRequest, job: Job) -> AttemptsForm:
    """Return the form, with the posted values unless the button on the job's page was pressed."""
    return AttemptsForm(request.POST if "max_attempts" in request.POST else None, job=job)


def ask_attempts(request: HttpRequest, job: Job, seen: Mapping[int, Seen], site: AdminSite) -> HttpResponse | None:
    """Return the page with the form, or None if a valid one was sent."""
    form = attempts_form(request, job)
    if form.is_bound and form.is_valid():
        return None
    most = _("At most %(most)s attempts may count now.") % {"most": job.max_attempts}
    is_running = job.state == State.RUNNING
    return form_page(
        request,
        site,
        form,
        title=_("Change the attempts of %(job)s") % {"job": visible(str(job))},
        submit=_("Change"),
        back=page_url(request, "job_change", job.pk),
        notes=[f"{made_text(job)} {most}", is_running and _("The new number counts when this attempt ends.")],
        hidden=shown.hidden(seen),
    )
