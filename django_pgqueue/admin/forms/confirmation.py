"""The page that asks for confirmation before succeeded jobs run again.

Called by `job_actions`. The page carries the id, the state and `finished_at` of every job that it counted, so the
confirmed operation changes these jobs and no others. It works without JavaScript.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from django.contrib.admin import AdminSite
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.translation import gettext_lazy as _

from django_pgqueue.admin import shown
from django_pgqueue.admin.navigation import rendered
from django_pgqueue.states import Seen, State, TransitionName

FIELD: Final = "confirmed"


def is_given(request: HttpRequest) -> bool:
    """Return whether the form was posted by the confirmation page."""
    return FIELD in request.POST


def ask(
    request: HttpRequest, transition: TransitionName, seen: Mapping[int, Seen], site: AdminSite
) -> HttpResponse | None:
    """Return the confirmation page, with counts, if succeeded jobs would run again; None otherwise."""
    counts = Counter(each.state for each in seen.values())
    if transition is not TransitionName.RETRY or not counts[State.SUCCEEDED] or is_given(request):
        return None
    context: dict[str, Any] = {
        "succeeded": counts[State.SUCCEEDED],
        "others": sum(counts.values()) - counts[State.SUCCEEDED],
        "action": request.POST.get("action", ""),
        "selected": next(iter(seen)),
        "checkbox": ACTION_CHECKBOX_NAME,
        "field": shown.FIELD,
        "shown": " ".join(shown.token(job_id, each) for job_id, each in seen.items()),
        "back": reverse("admin:pgqueue_job_changelist", current_app=site.name),
    }
    return rendered(request, site, "retry_succeeded.html", _("Run succeeded jobs again?"), context)
