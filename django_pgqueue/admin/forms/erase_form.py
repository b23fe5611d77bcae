"""The page that asks which values of finished jobs to erase, and the erasure of those that have not changed since.

`job.actions` shows it, for one job and for selected ones. `history.erase()` erases the values and writes the audit. The
preview of a bulk act has a form of its own, with the same kinds of values and the same notes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from django import forms
from django.contrib import messages
from django.contrib.admin import AdminSite
from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.utils.functional import Promise
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_pgqueue import history
from django_pgqueue.acts import ERASE
from django_pgqueue.admin import databases, shown
from django_pgqueue.display import number
from django_pgqueue.lifecycle.bulk_filters import ERASED_KINDS
from django_pgqueue.models import AuditedJob, Job
from django_pgqueue.states import Seen

from . import confirmation
from .form_page import form_page
from .reason_form import REASON_LENGTH, hidden_inputs

NOTES: Final = (
    gettext_lazy("Erased values cannot be restored. The jobs stay, with their task, times, states and attempts."),
    gettext_lazy("If somebody retries a job without its arguments, its task is not called, and the job is dead again."),
)

CALLBACKS_NOTE: Final = gettext_lazy(
    "If a callback of a batch has added one of these jobs, the batch has a copy of its arguments. The copy is erased "
    "too."
)


class EraseForm(forms.Form):
    """Asks which values to erase, and why. Each kind of `ERASED_KINDS` has a field whose name begins with `erase_`."""

    erase_arguments = forms.BooleanField(
        label=gettext_lazy("Arguments, headers, and the keys that are made of them"), required=False, initial=True
    )
    erase_results = forms.BooleanField(
        label=gettext_lazy("Results and messages of progress"), required=False, initial=True
    )
    erase_errors = forms.BooleanField(label=gettext_lazy("Error messages and tracebacks"), required=False, initial=True)
    erase_logs = forms.BooleanField(label=gettext_lazy("Log lines"), required=False, initial=True)
    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        max_length=REASON_LENGTH,
        help_text=gettext_lazy("The audit shows it. Do not write the erased value here."),
    )

    def clean(self) -> dict[str, Any]:
        given = super().clean() or self.cleaned_data
        if not any(given.get(f"erase_{kind}") for kind in ERASED_KINDS):
            raise ValidationError(_("Choose at least one kind of values."))
        return given


def kinds_asked() -> list[tuple[str, Promise | str]]:
    """Return the name and the label of the field of each kind of values."""
    names = [f"erase_{kind}" for kind in ERASED_KINDS]
    return [(name, EraseForm.base_fields[name].label or "") for name in names]


def ask_what(
    request: HttpRequest, seen: Mapping[int, Seen], site: AdminSite, *more: SafeString, title: str, back: str
) -> HttpResponse | None:
    """Return the page with the form, or None if a valid one was sent. `more` are further hidden inputs."""
    form = EraseForm(request.POST if confirmation.is_given(request) else None)
    if form.is_bound and form.is_valid():
        return None
    at = shown.hidden_input(shown.TIME_FIELD, shown.number(shown.page_at(request)))
    hidden, submit, notes = hidden_inputs(seen, (*more, at)), _("Erase these values"), list(NOTES)
    return form_page(
        request, site, form, title=title, submit=submit, back=back, notes=notes, hidden=hidden, is_dangerous=True
    )


def erase(request: HttpRequest, seen: Mapping[int, Seen]) -> Sequence[Job]:
    """Erase the values that the form names, of jobs that are still as the page showed them. Return the changed ones.

    A job that another session has locked is left: a second click on the button, or an archive, may have it. After its
    commit, a second click finds that the job was erased since the page was shown.
    """
    form = EraseForm(request.POST)
    form.is_valid()  # `ask_what()` has seen that it is
    alias = databases.chosen(request)
    jobs, audited = Job.objects.using(alias), AuditedJob.objects.using(alias)
    since = {"entry__action": ERASE.name, "entry__began_at__gte": shown.page_at(request)}
    kinds = {kind: form.cleaned_data[f"erase_{kind}"] for kind in ERASED_KINDS}
    by, reason = request.user.get_username(), form.cleaned_data["reason"]
    with transaction.atomic(using=alias):
        finished = jobs.filter(pk__in=seen, finished_at__isnull=False).order_by("pk")
        locked = finished.select_for_update(no_key=True, skip_locked=True)
        now = {job.pk: job for job in locked.only("id", "task_name", "state", "finished_at")}
        again = set(audited.filter(job_id__in=seen, **since).values_list("job_id", flat=True))
        same = [
            pk
            for pk, job in now.items()
            if pk not in again and (job.state, job.finished_at) == (seen[pk].state, seen[pk].finished_at)
        ]
        if not same:
            return []
        done = history.erase(jobs=same, by=by, reason=reason, database=alias, **kinds)
    if done.needed:
        text = ngettext(
            "%(count)s job was left: another job of its workflow is unfinished, and can need its result. Erase the "
            "other values without the result.",
            "%(count)s jobs were left: other jobs of their workflows are unfinished, and can need their results. Erase "
            "the other values without the results.",
            done.needed,
        )
        messages.warning(request, text % {"count": number(done.needed)})
    return [now[pk] for pk in audited.filter(entry_id=done.audit_id).values_list("job_id", flat=True)]
