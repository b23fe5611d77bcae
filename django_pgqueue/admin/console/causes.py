"""The causes at the top of the overview: what keeps jobs from running, each with a link, and many with a button.

`stats.causes` finds and ranks them. This module adds where to look and what to press, as far as the user may.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from django_pgqueue import acts
from django_pgqueue.admin import bulk_acts, private, shown
from django_pgqueue.admin.buttons import NAME_FIELDS
from django_pgqueue.admin.formatting import breakable, full_date, shortened
from django_pgqueue.admin.navigation import allowed_url, jobs_url, limit_url, page_url
from django_pgqueue.states import Pausable, State, TransitionName
from django_pgqueue.stats import Cause, CauseKind
from django_pgqueue.stats.causes.current import causes_of
from django_pgqueue.stats.causes.facts import Facts
from django_pgqueue.stats.causes.words import Words

CAUSES_SHOWN: Final = 10
"""Causes that the overview shows before the others."""
CAUSES_LISTED: Final = 50
"""Causes that it shows at all. It counts the others."""


class CauseLink(NamedTuple):
    """A link with its label. The URL is "" if the user may not see the page."""

    label: Promise | str
    url: str


class PauseButton(NamedTuple):
    """A button that pauses or resumes, with the values of its form."""

    act: str
    label: Promise | str
    field: str
    target: str
    shown: str


def found_causes(request: HttpRequest, facts: Facts, *, with_keys: bool = True) -> Sequence[Cause]:
    """Return the causes, with limit keys if the user may see them, and with times as all pages show them."""
    return causes_of(facts, Words(_date_text, with_keys and private.may_view(request)))


def _date_text(at: datetime) -> str:
    return str(full_date(at))


def cause_rows(request: HttpRequest, causes: Sequence[Cause]) -> list[dict[str, Any]]:
    """Return what the list shows of each cause."""
    return [
        {
            "cause": cause,
            "sentence": breakable(shortened(cause.sentence, 500)),
            "name": shortened(cause.name),
            "link": LINKS[cause.kind](request, cause),
            "acts": [link for link in _acts(request, cause) if link.url],
            "button": _pause_button(request, cause),
        }
        for cause in causes
    ]


# ---------------------------------------------------------------------------- where to look


def _queue(request: HttpRequest, cause: Cause) -> CauseLink:
    return CauseLink(_("Queue"), allowed_url(request, "queue", queue=cause.name))


def _workers(request: HttpRequest, cause: Cause) -> CauseLink:
    return CauseLink(_("Workers"), allowed_url(request, "worker_changelist"))


def _unknown_jobs(request: HttpRequest, cause: Cause) -> CauseLink:
    return CauseLink(_("Unknown jobs"), jobs_url(request, "unknown", task=cause.name))


def _paused_jobs(request: HttpRequest, cause: Cause) -> CauseLink:
    return CauseLink(_("Paused jobs"), jobs_url(request, "paused", task=cause.name))


def _limit(request: HttpRequest, cause: Cause) -> CauseLink:
    return CauseLink(_("Limit"), limit_url(request, cause.limit_key or cause.name))


def _dead_job(request: HttpRequest, cause: Cause) -> CauseLink:
    return CauseLink(_("Dead job"), page_url(request, "job_change", cause.job_id) if cause.job_id else "")


def _running_jobs(request: HttpRequest, cause: Cause) -> CauseLink:
    of_task = cause.kind is CauseKind.JOB_HANGING
    return CauseLink(_("Running jobs"), jobs_url(request, "running", **{"task" if of_task else "queue": cause.name}))


def _workflow(request: HttpRequest, cause: Cause) -> CauseLink:
    url = allowed_url(request, "jobbatch_change", cause.batch_id) if cause.batch_id else ""
    return CauseLink(_("Workflow"), f"{url}#pgqueue-graph") if url else _dead_job(request, cause)


def _incident(request: HttpRequest, cause: Cause) -> CauseLink:
    return CauseLink(_("Dead letters of the past hour"), jobs_url(request, "dead", task=cause.name, since="hour"))


def _schedule(request: HttpRequest, cause: Cause) -> CauseLink:
    if cause.schedule_id is None:
        return CauseLink(_("Schedules"), allowed_url(request, "schedule_changelist"))
    return CauseLink(_("Schedule"), allowed_url(request, "schedule_change", cause.schedule_id))


LINKS: Final[dict[CauseKind, Callable[[HttpRequest, Cause], CauseLink]]] = {
    CauseKind.NO_WORKER: _workers,
    CauseKind.QUEUE_NOT_SERVED: _queue,
    CauseKind.UNKNOWN_TASK: _unknown_jobs,
    CauseKind.LOST: lambda request, cause: CauseLink(_("Lost jobs"), jobs_url(request, "lost")),
    CauseKind.DEPENDENCY_FAILED: _dead_job,
    CauseKind.DEPENDENCY_ACKNOWLEDGED: _dead_job,
    CauseKind.TASK_FAILING: _incident,
    CauseKind.JOBS_DIED: lambda request, cause: CauseLink(
        _("Incidents"), allowed_url(request, "incidents", since="day")
    ),
    CauseKind.QUEUE_PAUSED: _queue,
    CauseKind.TASK_PAUSED: _paused_jobs,
    CauseKind.SLOTS_BUSY: _running_jobs,
    CauseKind.JOB_HANGING: _running_jobs,
    CauseKind.WORKER_LOST: _workers,
    CauseKind.MIXED_RELEASES: _workers,
    CauseKind.WORKFLOW_FAILED: _workflow,
    **dict.fromkeys((CauseKind.SCHEDULE_FAILED, CauseKind.SCHEDULE_LATE, CauseKind.SCHEDULE_FAILING), _schedule),
    **dict.fromkeys(
        (
            *(CauseKind.LIMIT_UNDECLARED, CauseKind.BLOCKED_BY_DEAD, CauseKind.LIMIT_PAUSED, CauseKind.BREAKER_OPEN),
            *(CauseKind.KEY_HELD, CauseKind.KEY_ORDER, CauseKind.LIMIT_SLOTS, CauseKind.LIMIT_RATE, CauseKind.ONE_KEY),
        ),
        _limit,
    ),
}
"""For each kind, the page that shows more of it."""


# ---------------------------------------------------------------------------- what to press


def _acts(request: HttpRequest, cause: Cause) -> list[CauseLink]:
    """Return the pages of acts that help: previews and forms, which ask before they change anything."""
    if cause.kind in LABELS_OF_JOBS and cause.job_id is not None:
        return [CauseLink(LABELS_OF_JOBS[cause.kind], page_url(request, "job_change", cause.job_id))]
    if cause.kind is CauseKind.BLOCKED_BY_DEAD:
        label = _("Retry the dead job…") if acts.RETRY.is_allowed(request.user) else _("Dead job")
        return [CauseLink(label, _dead_job(request, cause).url)]
    if cause.kind in (CauseKind.DEPENDENCY_FAILED, CauseKind.WORKFLOW_FAILED, CauseKind.TASK_FAILING):
        retry = CauseLink(_("Retry…"), _preview(request, TransitionName.RETRY, state=State.DEAD, task=cause.name))
        return [retry, _schedule(request, cause)] if cause.schedule_id is not None else [retry]
    if cause.kind in (CauseKind.LIMIT_UNDECLARED, CauseKind.UNKNOWN_TASK):
        name = "limit" if cause.kind is CauseKind.LIMIT_UNDECLARED else "task"
        waiting = {"state": State.READY, name: cause.name}
        return [CauseLink(_("Cancel waiting…"), _preview(request, TransitionName.CANCEL, **waiting))]
    if cause.kind in (CauseKind.LIMIT_SLOTS, CauseKind.LIMIT_RATE) and acts.OVERRIDE_LIMIT.is_allowed(request.user):
        return [CauseLink(_("Change the limit…"), page_url(request, "limit_change", key=cause.limit_key or cause.name))]
    return []


LABELS_OF_JOBS: Final = {
    CauseKind.KEY_ORDER: _("First job"),
    CauseKind.JOB_HANGING: _("Longest running job"),
    CauseKind.SCHEDULE_LATE: _("Job of the run before"),
    CauseKind.SCHEDULE_FAILING: _("Latest dead job"),
}
"""The kinds of causes that link a job as an act, and the label of the link."""


def _preview(request: HttpRequest, action: TransitionName, **filters: str) -> str:
    return (
        allowed_url(request, "bulk_preview", action=action, **filters) if bulk_acts.is_allowed(request, action) else ""
    )


PAUSABLE: Final = {
    CauseKind.QUEUE_PAUSED: Pausable.QUEUE,
    CauseKind.TASK_PAUSED: Pausable.TASK,
    CauseKind.TASK_FAILING: Pausable.TASK,
}
"""The kind of the paused target of a cause, if it is not a limit."""


def _pause_button(request: HttpRequest, cause: Cause) -> PauseButton | None:
    """Return the button that ends the pause of a cause, or that pauses the key of nearly all jobs or a failing task."""
    if not acts.PAUSE.is_allowed(request.user):
        return None
    if cause.pause is not None:
        kind = PAUSABLE.get(cause.kind, Pausable.LIMIT)
        seen = str(shown.number(cause.pause.paused_at))
        return PauseButton(f"{kind}_resume", _("Resume"), NAME_FIELDS[kind], cause.pause.name, seen)
    if cause.kind is CauseKind.ONE_KEY and cause.limit_key is not None:
        field = NAME_FIELDS[Pausable.LIMIT]
        return PauseButton("limit_pause", _("Pause this key"), field, cause.limit_key, str(shown.number(None)))
    if cause.kind is CauseKind.TASK_FAILING:
        field = NAME_FIELDS[Pausable.TASK]
        return PauseButton("task_pause", _("Pause this task"), field, cause.name, str(shown.number(None)))
    return None
