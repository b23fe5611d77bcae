"""The reason of an act: the page that asks for it before dead jobs are acknowledged, and the optional field.

`job.actions` shows the page, for one job and for selected ones. The preview of a bulk act asks in its own form, and
shows the same notes. The forms for a stop and for *Edit and retry* have the optional field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from django import forms
from django.contrib.admin import AdminSite
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgqueue.admin import shown
from django_pgqueue.states import Seen

from . import confirmation
from .form_page import form_page

REASON_LENGTH: Final = 1000
ACKNOWLEDGE_NOTES: Final = [
    gettext_lazy("An acknowledged job stays dead, and leaves the dead letters, the incidents and the counts of them."),
    gettext_lazy("If it blocks its limit key, the later jobs of the key may start. You can still retry it."),
    gettext_lazy("Its batch still counts it as failed, and jobs that depend on it stay as they are."),
]
"""Sentences about the effects of an acknowledgement."""


class OptionalReasonForm(forms.Form):
    """Takes a reason, or none."""

    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        required=False,
        max_length=REASON_LENGTH,
        help_text=gettext_lazy("Optional. The history of each job shows it."),
    )


class ReasonForm(forms.Form):
    """Asks why nobody has to deal with the jobs any more."""

    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        max_length=REASON_LENGTH,
        help_text=gettext_lazy("The page of each job shows it with your name."),
    )


def ask_reason(
    request: HttpRequest,
    seen: Mapping[int, Seen],
    site: AdminSite,
    *more: SafeString,
    title: str,
    back: str,
) -> HttpResponse | None:
    """Return the page that asks for the reason, or None if the form has given one. `more` are further hidden inputs."""
    form = ReasonForm(request.POST if confirmation.is_given(request) else None)
    if form.is_bound and form.is_valid():
        return None
    hidden, notes = hidden_inputs(seen, more), list(ACKNOWLEDGE_NOTES)
    return form_page(request, site, form, title=title, submit=_("Acknowledge"), back=back, notes=notes, hidden=hidden)


def hidden_inputs(seen: Mapping[int, Seen], more: Sequence[SafeString]) -> SafeString:
    """Return the hidden inputs of a page that asks about jobs: what was shown, that it was asked, and further ones."""
    hidden = shown.hidden(seen) + shown.hidden_input(confirmation.FIELD, 1)
    for each in more:  # a sum with an empty text would not be safe, and the page would show the inputs as text
        hidden += each
    return hidden


def reason_of(request: HttpRequest) -> str:
    """Return the reason that the form has given, after `ask_reason()` has checked it."""
    return request.POST["reason"].strip()
