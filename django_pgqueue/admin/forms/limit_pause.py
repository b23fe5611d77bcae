"""The page that asks before a whole limit is paused, because the jobs of all its keys then wait.

`buttons` shows it. The pause of one key needs no question. The page takes the reason and the end of the pause.
"""

from __future__ import annotations

from typing import Final

from django import forms
from django.contrib.admin import AdminSite
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_pgqueue.admin import shown
from django_pgqueue.admin.formatting import shortened
from django_pgqueue.states import Pausable
from django_pgqueue.stats import Count
from django_pgqueue.stats.paused_jobs import jobs_behind

from . import confirmation
from .form_page import form_page
from .reason_form import REASON_LENGTH

LENGTHS: Final = (
    ("", gettext_lazy("until resumed")),
    ("600", gettext_lazy("for 10 minutes")),
    ("3600", gettext_lazy("for 1 hour")),
    ("14400", gettext_lazy("for 4 hours")),
    ("86400", gettext_lazy("for 1 day")),
    ("604800", gettext_lazy("for 7 days")),
)
"""How long a pause lasts, in seconds: the choices of the buttons. The form of *Pauses* takes any time."""


class LimitPauseForm(forms.Form):
    """The reason and the length of a pause."""

    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        required=False,
        max_length=REASON_LENGTH,
        help_text=gettext_lazy("The page of the limit and the audit show it."),
    )
    length = forms.ChoiceField(label=gettext_lazy("Paused"), required=False, choices=LENGTHS)


def ask_to_pause(
    request: HttpRequest, site: AdminSite, name: str, alias: str, *, back: str, hidden: SafeString
) -> HttpResponse | None:
    """Return the page with the question, or None if a valid form has answered it.

    Args:
        request: The request.
        site: The admin site.
        name: The name of the limit.
        alias: The database.
        back: The URL of the page with the button.
        hidden: The inputs that the button has posted.
    """
    form = LimitPauseForm(request.POST if confirmation.is_given(request) else None)
    if form.is_bound and form.is_valid():
        return None
    behind = jobs_behind([(Pausable.LIMIT, name)], alias)[Pausable.LIMIT, name]
    return form_page(
        request,
        site,
        form,
        title=_("Pause the whole limit %(name)s?") % {"name": shortened(name)},
        submit=_("Pause"),
        back=back,
        notes=[_waiting_text(behind.waiting or Count()), _running_text(behind.running)],
        hidden=hidden + shown.hidden_input(confirmation.FIELD, 1),
        place="limits",
    )


def _waiting_text(count: Count) -> str:
    text = ngettext(
        "%(count)s job of all keys of this limit waits now. It does not start before the limit is resumed.",
        "%(count)s jobs of all keys of this limit wait now. They do not start before the limit is resumed.",
        _number(count),
    )
    return text % {"count": count}


def _running_text(count: Count) -> str:
    text = ngettext(
        "%(count)s job is running, and continues.", "%(count)s jobs are running, and continue.", _number(count)
    )
    return text % {"count": count}


def _number(count: Count) -> int:
    """Return the number for the choice of a plural. There can be more than an inexact one."""
    return count.value if count.is_exact else max(count.value, 2)
