"""The page of one job: its state and reason, its columns, its arguments and result, and its latest attempts.

Called by `jobs`. The page always renders, whatever a row contains: values of unlimited size are cut in SQL, and
arguments, headers and result are read as text, because Python cannot decode every JSON value.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import OuterRef, QuerySet, Subquery, TextField
from django.db.models.functions import Cast, Left
from django.http import HttpRequest, HttpResponse
from django.utils.functional import Promise
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgqueue.acts.job_retries import IS_RETRIED, retries_of
from django_pgqueue.admin import live_stack, private, shown
from django_pgqueue.admin.formatting import (
    badge,
    breakable,
    dated,
    moment,
    progress_line,
    seen_at,
    situation,
    visible,
    word_badge,
)
from django_pgqueue.admin.forms.argument_changes import IS_EDITED, related_jobs
from django_pgqueue.admin.navigation import allowed_url, key_link, page_url, rendered
from django_pgqueue.admin.pause_admin import pauses_of
from django_pgqueue.admin.private import TEXT_LIMIT
from django_pgqueue.admin.readonly import ReadOnlyAdmin
from django_pgqueue.admin.search_keys import search_links
from django_pgqueue.declared.chunks import is_chunk_key
from django_pgqueue.declared.steps import is_endless
from django_pgqueue.models import Job, ScheduleRun, UniquenessWindow
from django_pgqueue.states import FailurePolicy, State
from django_pgqueue.stats.graphs.figures import Related, dependencies_of, dependents_of
from django_pgqueue.tasks import registry

from . import edit_and_retry
from .actions import ON_ONE_JOB, offered
from .attempts import EXECUTIONS_SHOWN, link_workers, read_attempts, still_runs
from .blocked_keys import BLOCKS, UNBLOCKED, blocked_by, blocker_of
from .columns import is_suspended
from .links import queue_link, task_link, worker_link
from .named_call import named_call
from .steps import HAS_STEPS, compensation_note, read_steps, shown_step, step_timeline
from .story import story

SHOWN: Final = 20
"""Dependencies, and dependents, that the page shows."""
POLICIES: Final[dict[str, Promise | str]] = {
    FailurePolicy.CANCEL: gettext_lazy("cancels the dependent if it fails"),
    FailurePolicy.IGNORE: gettext_lazy("the dependent runs even if it fails"),
    FailurePolicy.BLOCK: gettext_lazy("blocks the dependent if it fails"),
}


def job_page(
    admin: ReadOnlyAdmin, request: HttpRequest, object_id: str, extra_context: dict[str, Any]
) -> HttpResponse | None:
    """Return the page of a job or a dead letter; None if there is no such job."""
    if not admin.has_view_permission(request):
        raise PermissionDenied
    job = read_job(admin.get_queryset(request), unquote(object_id))
    if job is None:
        return None
    request.current_app = admin.admin_site.name
    retries = retries_of(str(job._state.db), job.pk) if vars(job)["is_retried"] else []
    attempts = read_attempts(job, retries)
    link_workers(request, attempts)
    steps = read_steps(job) if vars(job)["has_steps"] else []
    pauses = pauses_of(request, job) if job.state == State.READY else []
    edit = edit_and_retry.offer(request, job)
    context = {
        "job": job,
        **story(request, job, attempts, retries),
        "situation": situation(
            job,
            attempts[0]["execution"] if attempts else None,
            lost=attempts[0]["loss_text"] if attempts else "",
            is_paused=bool(pauses),
            is_suspended=is_suspended(job),
        ),
        "still_runs": still_runs(job, attempts),
        "facts": facts(request, job, pauses, attempts),
        **_call(job),
        "headers": private.shown_headers(job, vars(job)["headers_text"]),
        "result": private.shown_result(job, vars(job)["result_text"]),
        "steps": [shown_step(request, job, step) for step in steps],
        "compensation_note": compensation_note(request, job, steps),
        "related": related_of(request, job),
        "step_timeline": step_timeline(job, steps, attempts),
        "attempts": attempts[:EXECUTIONS_SHOWN],
        "errors_note": "" if private.is_visible(job) else private.LIST_NOTE,
        "more_attempts": len(attempts) > EXECUTIONS_SHOWN,
        "operations": offered(request, job, ON_ONE_JOB),
        "live_stack": live_stack.of_job(request, job, [each["execution"] for each in attempts]),
        "shown": shown.fields(job),
        "blocker": blocker_of(request, job),
        "blocked": blocked_by(job),
        "back": request.get_full_path(),
        "edit_url": edit.url,
        "edit_note": edit.note,
        "related_jobs": related_jobs(request, job),
        **extra_context,
    }
    return rendered(request, admin.admin_site, "job.html", visible(str(job)), context, opts=admin.opts)


def _call(job: Job) -> dict[str, Any]:
    """Return the arguments as they are stored, and by the names of the parameters if they have names."""
    shown_call = private.shown_arguments(job, vars(job)["arguments_text"])
    return {"arguments": shown_call, "named_arguments": named_call(job.task_name, shown_call)}


def read_job(queryset: QuerySet[Any], object_id: str) -> Job | None:
    """Return a job with its arguments, headers, result, uniqueness window and schedule; None if it does not exist.

    The JSON columns are read as text, because Python cannot decode every value that a row can contain.
    """
    columns = ("arguments", "headers", "result")
    texts = {f"{column}_text": Left(Cast(column, TextField()), TEXT_LIMIT) for column in columns}
    window = UniquenessWindow.objects.filter(pk=OuterRef("pk"))
    columns_of_window = {
        "window_key": Subquery(window.values("unique_key")),
        "window_until": Subquery(window.values("ends_at")),
    }
    run = ScheduleRun.objects.filter(job_id=OuterRef("pk")).order_by("pk")
    columns_of_run = {
        "schedule_id": Subquery(run.values("schedule_id")[:1]),
        "schedule_name": Subquery(run.values("schedule__name")[:1]),
        "tick_at": Subquery(run.values("tick_at")[:1]),
    }
    job: Job | None = None
    with suppress(ValueError, ValidationError):
        job = (
            queryset.prefetch_related(None)
            .annotate(**texts, **columns_of_window, **columns_of_run)
            .annotate(is_edited=IS_EDITED, is_retried=IS_RETRIED, has_steps=HAS_STEPS)
            .filter(pk=object_id)
            .first()
        )
    return job


def facts(
    request: HttpRequest, job: Job, pauses: list[str], attempts: Sequence[dict[str, Any]]
) -> list[tuple[str, Any]]:
    """Return the facts about a job as pairs of label and value. `pauses` describes the pauses that stop it."""
    found = [
        (_("Task"), task_link(request, job.task_name)),
        (_("Runs as"), _runs_as(job.task_name)),
        (_("Queue"), queue_link(request, job.queue_name)),
        (_("Worker"), worker_link(job, attempts)),
        (_("Priority"), job.priority),
        (_("Attempt"), _("%(attempt)s of %(most)s") % {"attempt": job.attempt, "most": job.max_attempts}),
        (_("Progress"), progress_line(job.progress, seen_at(job), with_message=private.is_visible(job))),
        (_("Crashes"), job.crashes or None),
        (_("Runs"), _("in an isolated process") if job.isolated else None),
        (_("Enqueued"), dated(job.enqueued_at, job)),
        (_("Due"), _due(job)),
        (_("Expires"), dated(job.expires_at, job)),
        (_("Finished"), dated(job.finished_at, job)),
        (_("Cancel requested"), dated(job.cancel_requested_at, job)),
        (_("Task unknown since"), dated(job.unknown_since, job)),
        (_("Paused by"), format_html_join("; ", "{}", ((pause,) for pause in pauses))),
        (_("Unique key"), _unique_key(job)),
        (_("Search keys"), search_links(request, job)),
        (_("Unique until"), dated(vars(job)["window_until"], job)),
        *_limited(request, job),
        (_("Weight in the limit"), job.limit_weight),
        (_("Order in the limit"), _order_of(job)),
        (_("Batch"), _batch(request, job)),
        (_("Enqueued by schedule"), _enqueued_by(request, job)),
    ]
    return [(label, value) for label, value in found if value is not None and value != ""]


def _due(job: Job) -> Any:
    """Return when the job is or was due. None for a job of a workflow that is not delayed."""
    if is_suspended(job) and is_endless(job.run_after, seen_at(job)):
        return _("when its event comes")
    return dated(job.run_after, job) if job.state != State.WAITING or job.run_after > seen_at(job) else None


def _batch(request: HttpRequest, job: Job) -> Any:
    """Return the batch of the job, with a link if the user may see it; None without one."""
    if job.batch_id is None:
        return None
    url = allowed_url(request, "jobbatch_change", job.batch_id)
    return format_html('<a href="{}">#{}</a>', url, job.batch_id) if url else f"#{job.batch_id}"


def _limited(request: HttpRequest, job: Job) -> list[tuple[str, Any]]:
    """Return the field of the limit key, or of the chunks in which the job runs."""
    if job.limit_key and is_chunk_key(job.limit_key):
        return [(_("Chunks"), _("It runs together with other jobs of its task."))]
    return [(_("Limited by"), job.limit_key and key_link(request, job.limit_key))]


def _order_of(job: Job) -> str | None:
    """Return how the job's order in its limit key matters; None if jobs of the key run in any order."""
    if job.limit_order is None:
        return None
    if job.limit_order == BLOCKS:
        return str(_("one after the other; a dead job blocks the key"))
    if job.limit_order == UNBLOCKED:
        return str(_("one after the other; this dead job does not block the key, because it is acknowledged"))
    return str(_("one after the other"))


def _unique_key(job: Job) -> str:
    """Return the unique key. It can contain arguments."""
    key = job.unique_key or vars(job)["window_key"] or ""
    return visible(key) if private.is_visible(job) else key and str(private.NO_PERMISSION)


def _enqueued_by(request: HttpRequest, job: Job) -> Any:
    """Return the schedule that enqueued the job, with a link if the user may see it, and the tick; None without one."""
    columns = vars(job)
    if columns["schedule_id"] is None:
        return None
    name, at = visible(columns["schedule_name"]), moment(columns["tick_at"])
    url = allowed_url(request, "schedule_change", columns["schedule_id"])
    return format_html('<a href="{}">{}</a>, {}', url, name, at) if url else format_html("{}, {}", name, at)


def _runs_as(task_name: str) -> str | None:
    """Return the current name of the job's task if the job has one of its aliases; None otherwise."""
    task = registry.get(task_name)
    return task.name if task is not None and task.name != task_name else None


def related_of(request: HttpRequest, job: Job) -> list[tuple[Promise | str, list[dict[str, Any]], bool]]:
    """Return two lists, each with its title and whether there are more. Empty for a job of no workflow."""
    if not job.in_graph:
        return []
    found = [
        (_("Depends on"), dependencies_of(job.pk, SHOWN + 1, job._state.db)),
        (_("Dependents: they wait for it"), dependents_of(job.pk, SHOWN + 1, job._state.db)),
    ]
    return [
        (title, [_related(request, each) for each in jobs[:SHOWN]], len(jobs) > SHOWN) for title, jobs in found if jobs
    ]


def _related(request: HttpRequest, job: Related) -> dict[str, Any]:
    """Return a dependency or a dependent, as the page shows it."""
    return {
        "number": f"#{job.job_id}",
        "url": page_url(request, "job_change", job.job_id) if job.state is not None else "",
        "task": breakable(job.task_name) if job.task_name is not None else "",
        "badge": word_badge(job.state) if job.state is not None else badge("unknown", _("removed")),
        "policy": POLICIES.get(job.policy, job.policy),
    }
