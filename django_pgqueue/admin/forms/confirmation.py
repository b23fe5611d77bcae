"""The page that asks for confirmation before succeeded jobs run again, or one that was edited and retried as a new job.

Called by `job_actions`. The page carries the id, the state and `finished_at` of every job that it counted, so the
confirmed operation changes these jobs and no others. It works without JavaScript.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from django.contrib import messages
from django.contrib.admin import AdminSite
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from django_pgqueue.admin import shown
from django_pgqueue.admin.navigation import page_url, rendered
from django_pgqueue.display import number
from django_pgqueue.states import Seen, State, TransitionName

FIELD: Final = "confirmed"
COPIES: Final = "shown_copies"
"""The field with the new jobs of an edited job that the page has named."""


def is_given(request: HttpRequest) -> bool:
    """Return whether the form was posted by the confirmation page."""
    return FIELD in request.POST


def say_left_out(request: HttpRequest, count: int) -> None:
    """Say on the page of a question that some of the selected jobs will not be changed."""
    if count:
        text = ngettext(
            "%(count)s of the selected jobs is left out: its state does not allow this.",
            "%(count)s of the selected jobs are left out: their states do not allow this.",
            count,
        )
        messages.warning(request, text % {"count": number(count)})


def ask(
    request: HttpRequest,
    transition: TransitionName,
    seen: Mapping[int, Seen],
    site: AdminSite,
    edited: Mapping[int, int | None],
    *,
    leaves_edited: bool = False,
) -> HttpResponse | None:
    """Return the confirmation page if succeeded jobs would run again, or a job that was edited and retried as another.

    `edited` has such jobs, with the new job of each. If `leaves_edited`, the act leaves them out, and the page only
    counts them. Return None if there is no question, or if the form has answered it. A page that named other new jobs,
    or none, has not asked about these.
    """
    copies = "" if leaves_edited else " ".join(f"{job_id}:{new_id or ''}" for job_id, new_id in sorted(edited.items()))
    is_answered = is_given(request) and request.POST.get(COPIES, "") == copies
    left_out = edited if leaves_edited else {}
    counts = Counter(each.state for job_id, each in seen.items() if job_id not in left_out)
    has_question = counts[State.SUCCEEDED] or (edited and not leaves_edited)
    if transition is not TransitionName.RETRY or not has_question or is_answered:
        return None
    others = sum(counts.values()) - counts[State.SUCCEEDED]
    context: dict[str, Any] = {
        "succeeded": counts[State.SUCCEEDED],
        "others": others if counts[State.SUCCEEDED] else 0,
        "left_out": len(left_out),
        "copies": [] if leaves_edited else [_copy(request, new_id) for new_id in edited.values()],
        "action": request.POST.get("action", ""),
        "copies_input": shown.hidden_input(COPIES, copies),
        "selected": next(iter(seen)),
        "checkbox": ACTION_CHECKBOX_NAME,
        "field": shown.FIELD,
        "shown": " ".join(shown.token(job_id, each) for job_id, each in seen.items()),
        "back": reverse("admin:pgqueue_job_changelist", current_app=site.name),
    }
    title = _("Run succeeded jobs again?") if counts[State.SUCCEEDED] else _("Run the job with its old arguments?")
    return rendered(request, site, "retry_succeeded.html", title, context)


def _copy(request: HttpRequest, job_id: int | None) -> tuple[str, str]:
    """Return the number and the URL of the new job of an edited one; two empty texts if it no longer exists."""
    return ("", "") if job_id is None else (f"#{job_id}", page_url(request, "job_change", job_id))
