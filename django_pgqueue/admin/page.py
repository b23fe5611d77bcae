"""The page of one job: what it is, where it stands, and every attempt at it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import OuterRef, QuerySet, Subquery, TextField
from django.db.models.functions import Cast, Left, Now, Right
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from django_pgqueue import registry
from django_pgqueue.models import Execution, Hold, Job, ScheduleRun, Worker
from django_pgqueue.states import Outcome, State

from . import shown
from .acts import offered
from .bars import told
from .columns import FAILURES
from .pauses import held_back_by
from .words import badge, breakable, dated, duration, moment, pretty_json, seen_at, situation, visible

if TYPE_CHECKING:
    from .jobs import JobAdmin

TEXT_LIMIT: Final = 100_000
"""Characters of arguments or of a result that are shown; the rest does not even leave the database."""

ERROR_LIMIT: Final = 2_000
TRACEBACK_LIMIT: Final = 20_000
"""Characters of each attempt's error, from its start, and of its traceback, from its end. Uncut, 50 of 5 MB made a page
of 244 MB."""

EXECUTIONS_SHOWN: Final = 50
"""A job that snoozes every minute has 10,000 executions a week."""


COLOURS: Final[dict[str, str]] = {Outcome.SUCCEEDED: "succeeded", **dict.fromkeys(FAILURES, "dead")}
"""Outcomes in the colour of a state; the others are grey."""


@dataclass(frozen=True)
class Attempt:
    """One execution, as a row of the page."""

    execution: Execution
    worker: str
    outcome: SafeString
    waited: str
    ran: str
    claimed: SafeString | str
    started: SafeString | str
    finished: SafeString | str
    is_failure: bool
    exception_class: str
    error: str
    traceback: str


def job_page(admin: JobAdmin, request: HttpRequest, object_id: str, extra_context: dict[str, Any]) -> HttpResponse:
    """Return the page of a job, or of a dead letter."""
    if not admin.has_view_permission(request):
        raise PermissionDenied
    job = read_job(admin.get_queryset(request), unquote(object_id))
    if job is None:
        return admin.not_found(request, object_id)
    request.current_app = admin.admin_site.name
    attempts = read_attempts(job)
    pauses = held_back_by(job.queue_name, job.task_name, job._state.db) if job.state == State.READY else []
    context = {
        **admin.admin_site.each_context(request),
        "title": visible(str(job)),
        "original": visible(str(job)),
        "opts": admin.opts,
        "has_view_permission": True,
        "job": job,
        "badge": badge(job.state, job.state),
        "situation": situation(job, attempts[0].execution.started_at if attempts else None, is_paused=bool(pauses)),
        "facts": facts(job, pauses),
        "arguments": pretty_json(vars(job)["arguments_text"]),
        "headers": None if vars(job)["headers_text"] is None else pretty_json(vars(job)["headers_text"]),
        "result": None if vars(job)["result_text"] is None else pretty_json(vars(job)["result_text"]),
        "attempts": attempts[:EXECUTIONS_SHOWN],
        "more_attempts": len(attempts) > EXECUTIONS_SHOWN,
        "operations": offered(request, job),
        "shown": shown.fields(job),
        **extra_context,
    }
    return TemplateResponse(request, "pgqueue/admin/job.html", context)


def read_job(queryset: QuerySet[Any], object_id: str) -> Job | None:
    """Return one job with its arguments, headers and result as text, which can be shown whatever they are.

    And with the key that it has taken for a period, if it has.
    """
    columns = ("arguments", "headers", "result")
    texts = {f"{column}_text": Left(Cast(column, TextField()), TEXT_LIMIT) for column in columns}
    hold = Hold.objects.filter(pk=OuterRef("pk"))
    held = {"held_key": Subquery(hold.values("unique_key")), "held_until": Subquery(hold.values("held_until"))}
    try:
        job: Job | None = queryset.prefetch_related(None).annotate(**texts, **held).filter(pk=object_id).first()
    except (ValueError, ValidationError):
        return None
    return job


def facts(job: Job, pauses: list[str]) -> list[tuple[str, Any]]:
    """Return what there is to say about a job, by label; `pauses` hold it back."""

    def when(at: datetime | None) -> Any:
        return at and dated(at, seen_at(job))

    found = [
        (_("Task"), breakable(job.task_name)),
        (_("Runs as"), _runs_as(job.task_name)),
        (_("Queue"), visible(job.queue_name)),
        (_("Priority"), job.priority),
        (_("Attempt"), _("%(attempt)s of %(most)s") % {"attempt": job.attempt, "most": job.max_attempts}),
        (_("Progress"), told(job.progress, seen_at(job))),
        (_("Crashes"), job.crashes or None),
        (_("Runs"), _("in a process of its own") if job.isolated else None),
        (_("Enqueued"), when(job.enqueued_at)),
        (_("Due"), when(job.run_after)),
        (_("Expires"), when(job.expires_at)),
        (_("Finished"), when(job.finished_at)),
        (_("Cancel requested"), when(job.cancel_requested_at)),
        (_("Task unknown since"), when(job.unknown_since)),
        (_("Held back by"), "; ".join(pauses)),
        (_("Unique key"), visible(job.unique_key or vars(job)["held_key"] or "")),
        (_("Unique until"), when(vars(job)["held_until"])),
        (_("Limited by"), job.limit_key and visible(job.limit_key)),
        (_("Made by the schedule"), _made_by(job)),
    ]
    return [(label, value) for label, value in found if value is not None and value != ""]


def _made_by(job: Job) -> Any:
    """Return the schedule that made a job, which leads to it."""
    run = ScheduleRun.objects.using(job._state.db).filter(job_id=job.pk).select_related("schedule").first()
    if run is None:
        return None
    url = reverse("admin:pgqueue_schedule_change", args=[run.schedule_id])
    return format_html('<a href="{}">{}</a>, {}', url, visible(run.schedule.name), moment(run.tick_at))


def _runs_as(task_name: str) -> str | None:
    """Return the present name of a task that the job knows by an alias."""
    task = registry.get(task_name)
    return task.name if task is not None and task.name != task_name else None


def read_attempts(job: Job) -> list[Attempt]:
    """Return the latest executions of a job, the latest first, and one more than are shown if there are more.

    Workers are looked up apart: the record of one may be gone.
    """
    executions = Execution.objects.using(job._state.db).filter(job_id=job.pk).defer("error", "traceback")
    cut = {"short_error": Left("error", ERROR_LIMIT + 1), "end": Right("traceback", TRACEBACK_LIMIT + 1)}
    found = list(executions.annotate(seen_at=Now(), **cut).order_by("-job_id", "-id")[: EXECUTIONS_SHOWN + 1])
    workers = Worker.objects.using(job._state.db).in_bulk({execution.worker_id for execution in found})
    return [_attempt(execution, workers.get(execution.worker_id)) for execution in found]


def _attempt(execution: Execution, worker: Worker | None) -> Attempt:
    return Attempt(
        execution=execution,
        worker=visible(str(worker)) if worker else f"#{execution.worker_id}",
        outcome=_outcome(execution),
        waited=_span(execution.claimed_at, execution.started_at),
        ran=_span(execution.started_at, execution.finished_at or seen_at(execution)),
        claimed=moment(execution.claimed_at),
        started=moment(execution.started_at),
        finished=moment(execution.finished_at),
        is_failure=execution.outcome in FAILURES,
        exception_class=visible(execution.exception_class),
        error=visible(_cut(vars(execution)["short_error"])),
        traceback=visible(_cut_start(vars(execution)["end"])),
    )


def _cut(text: str) -> str:
    return text if len(text) <= ERROR_LIMIT else f"{text[:ERROR_LIMIT]}… {_('(cut)')}"


def _cut_start(text: str) -> str:
    """Return the end of a traceback: its last lines say what went wrong."""
    return text if len(text) <= TRACEBACK_LIMIT else f"{_('(cut)')} …{text[-TRACEBACK_LIMIT:]}"


def _outcome(execution: Execution) -> SafeString:
    if execution.outcome is None:
        over = execution.lease_expires_at < seen_at(execution)
        return badge("dead", _("silent")) if over else badge("running", _("running"))
    return badge(COLOURS.get(execution.outcome, "cancelled"), execution.outcome)


def _span(start: datetime | None, end: datetime | None) -> str:
    if start is None or end is None:
        return ""
    return duration(max(end - start, timedelta()))
