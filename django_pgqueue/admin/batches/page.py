"""The page of one batch: its progress, its callbacks with their jobs, its nested batches, and its jobs.

Called by `batches`. Failed jobs come first. Counts and lists are bounded, so the page stays fast for a batch of a
million jobs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, Final

from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db import connections
from django.db.models import Func, TextField
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast, Left
from django.http import HttpRequest, HttpResponse
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgqueue import stats
from django_pgqueue.admin import databases, private
from django_pgqueue.admin.formatting import breakable, dated, moment, seen_at, shortened, visible, word_badge
from django_pgqueue.admin.job.columns import attach_executions, last_error, with_latest_execution, word
from django_pgqueue.admin.list_filters import row_id_of
from django_pgqueue.admin.navigation import allowed_url, page_url, rendered
from django_pgqueue.admin.readonly import ReadOnlyAdmin
from django_pgqueue.admin.workflows.graph import drawing
from django_pgqueue.db.fields import statement_time
from django_pgqueue.display import percent
from django_pgqueue.models import Job, JobBatch
from django_pgqueue.states import State
from django_pgqueue.stats import Count
from django_pgqueue.stats.batch_counts import BatchCounts, batch_counts, jobs_of_batch

from . import words as batch_words
from .acts import buttons
from .past_acts import retries_of_workflow
from .words import badges, note_of

COUNTED: Final = 100_000
"""Jobs of each state that the page counts at most. It takes about 10 ms."""
JOBS_SHOWN: Final = 20
UNSUCCESSFUL: Final = (State.DEAD, State.CANCELLED, State.RUNNING, State.READY, State.WAITING)
"""The states of the jobs that the page lists, in this order."""
NESTED_SHOWN: Final = 25
NESTED_COUNTED: Final = 10_000
DESCRIPTION_SHOWN: Final = 2_000
TITLE_LENGTH: Final = 80
ARGUMENTS_SHOWN: Final = 10_000
SECOND: Final = timedelta(seconds=1)
CALLBACKS: Final[dict[str, tuple[Promise | str, str]]] = {
    "on_failure": (gettext_lazy("on failure"), "failed_at"),
    "on_complete": (gettext_lazy("on completion"), "completed_at"),
    "on_success": (gettext_lazy("on success"), "succeeded_at"),
}
"""The label of each callback, and the column with the time at which it was enqueued."""


def batch_page(
    admin: ReadOnlyAdmin, request: HttpRequest, object_id: str, extra_context: dict[str, Any]
) -> HttpResponse | None:
    """Return the page of a batch; None if there is no such batch."""
    if not admin.has_view_permission(request):
        raise PermissionDenied
    alias = databases.chosen(request)
    batch = _read(row_id_of(unquote(object_id)) or 0, alias)
    if batch is None:
        return None
    counts = batch_counts([batch.pk], COUNTED, alias)[batch.pk]
    number = _("Batch #%(number)s") % {"number": batch.pk}
    description = shortened(vars(batch)["description_text"], TITLE_LENGTH)
    title = f"{number}: {description}" if description else number
    may_view_jobs = request.user.has_perm("pgqueue.view_job")
    nested = _nested(request, batch)
    graph = drawing(request, batch.pk, alias)
    retries = retries_of_workflow(request, batch) if graph and may_view_jobs else []
    jobs = _first_jobs(request, batch) if may_view_jobs else []
    are_acknowledged = _are_all_acknowledged(jobs, counts)
    context = {
        "batch": batch,
        "badges": badges(batch),
        "note": note_of(batch, counts, has_nested=bool(nested["nested"])),
        "is_live": batch.completed_at is None or bool(counts.unfinished.value),
        "bar": batch_words.bar(batch.pk, counts),
        "progress": progress(counts),
        "facts": [*_facts(request, batch), *retries],
        "callbacks": list(_callbacks(request, batch)),
        "buttons": buttons(request, batch, counts, has_dead_letters=bool(counts.dead.value) and not are_acknowledged),
        "lists": _lists(request, batch, counts, are_acknowledged=are_acknowledged) if may_view_jobs else [],
        "jobs": [_job_row(request, job) for job in jobs],
        "may_view_jobs": may_view_jobs,
        "jobs_shown": JOBS_SHOWN,
        **nested,
        "graph": graph,
        **extra_context,
    }
    return rendered(request, admin.admin_site, "batch.html", title, context, opts=admin.opts)


def _read(batch_id: int, alias: str) -> Any:
    """Return a batch with the tasks and the arguments of its callbacks as texts, cut by PostgreSQL."""
    texts: dict[str, Any] = {"description_text": Left("description", DESCRIPTION_SHOWN), "seen_at": statement_time()}
    for name in CALLBACKS:
        arguments = KeyTextTransform("arguments", name)
        texts[f"{name}_task"] = KeyTextTransform("task_name", name)
        texts[f"{name}_arguments"] = Left(arguments, ARGUMENTS_SHOWN)
        texts[f"{name}_digest"] = _digest(arguments)
    rows = JobBatch.objects.using(alias).defer("description", *CALLBACKS)
    return rows.annotate(**texts).filter(pk=batch_id).first()


def _digest(text: Any) -> Func:
    return Func(text, function="md5", output_field=TextField())


def progress(counts: BatchCounts) -> str:
    """Return how many of the jobs have ended, and the figures by state."""
    if not counts.total.value:
        return _("The batch has no job.")
    ended = counts.succeeded + counts.failed
    share = f" ({percent(ended.value / counts.total.value)})" if counts.total.is_exact else ""
    words = {"ended": ended, "total": counts.total, "share": share, "figures": batch_words.words(counts)}
    return _("%(ended)s of %(total)s jobs have ended%(share)s: %(figures)s") % words


def _facts(request: HttpRequest, batch: Any) -> list[tuple[str, Any, str]]:
    parent_url = page_url(request, "jobbatch_change", batch.parent_id) if batch.parent_id else ""
    found = [
        (_("Description"), visible(vars(batch)["description_text"]), ""),
        (_("Created"), dated(batch.created_at, batch), ""),
        (_("Closed"), dated(batch.closed_at, batch), ""),
        (_("First failure"), dated(batch.failed_at, batch), ""),
        (_("Complete"), dated(batch.completed_at, batch), ""),
        (_("Succeeded"), dated(batch.succeeded_at, batch), ""),
        (_("Part of"), f"#{batch.parent_id}" if batch.parent_id else "", parent_url),
    ]
    return [(label, value, url) for label, value, url in found if value]


# ---------------------------------------------------------------------------- callbacks


def _callbacks(request: HttpRequest, batch: Any) -> Iterator[dict[str, Any]]:
    for name, (label, column) in CALLBACKS.items():
        task_name, at = vars(batch)[f"{name}_task"], getattr(batch, column)
        if task_name is None:
            continue
        row = SimpleNamespace(task_name=task_name, may_view_arguments=private.may_view(request))
        job_id = None if at is None else _job_of(batch, task_name, vars(batch)[f"{name}_digest"], at)
        yield {
            "label": label,
            "task": breakable(task_name),
            "arguments": private.shown_arguments(row, vars(batch)[f"{name}_arguments"] or ""),
            "enqueued": moment(at),
            "job": f"#{job_id}" if job_id else "",
            "job_url": allowed_url(request, "job_change", job_id) if job_id else "",
        }


def _job_of(batch: Any, task_name: str, digest: str, at: datetime) -> int | None:
    """Return the job of a callback; None if it was removed, or if another job is equal to it.

    The row of the batch does not have its id. The transaction that has recorded the end has added the job just after
    it. The search reads the jobs that were enqueued within a second.
    """
    connection = connections[batch._state.db]
    age = seen_at(batch) - at
    first, end = (stats.first_id_since(connection, (age + margin).total_seconds()) for margin in (SECOND, -SECOND))
    jobs = Job.objects.using(connection.alias).filter(pk__gte=first or 0, task_name=task_name)
    jobs = jobs.filter(enqueued_at__gte=at, enqueued_at__lt=at + SECOND)
    if age > SECOND:
        jobs = jobs.filter(pk__lt=end or 0)
    same = jobs.annotate(digest=_digest(Cast("arguments", TextField()))).filter(digest=digest)
    found = list(same.values_list("pk", flat=True)[:2])
    return found[0] if len(found) == 1 else None


# ---------------------------------------------------------------------------- jobs and nested batches


def _are_all_acknowledged(jobs: Sequence[Job], counts: BatchCounts) -> bool:
    """Return whether the batch has dead jobs, and the first jobs on its page show that all were acknowledged."""
    dead = [job for job in jobs if job.state == State.DEAD]
    return bool(dead) and counts.dead == Count(len(dead)) and all(job.acknowledged_at for job in dead)


def _lists(request: HttpRequest, batch: Any, counts: BatchCounts, *, are_acknowledged: bool) -> list[tuple[str, str]]:
    """Return links to the lists of the batch's jobs, by state, each with its count."""
    found: list[tuple[str, str, str | None]] = [(_("All jobs"), "job", None)]
    if are_acknowledged:  # the list of dead letters does not have them
        found.append((_("Acknowledged dead jobs: %s") % counts.dead, "job", "acknowledged"))
    elif counts.dead.value:
        found.append((_("Dead jobs: %s") % counts.dead, "deadjob", None))
    for state, label in (("cancelled", _("Cancelled jobs: %s")), ("running", _("Running jobs: %s"))):
        count = getattr(counts, state)
        found += [(label % count, "job", state)] if count.value else []
    links = [
        (label, page_url(request, f"{model}_changelist", state=state, batch=batch.pk)) for label, model, state in found
    ]
    return [(label, url) for label, url in links if url]


def _first_jobs(request: HttpRequest, batch: Any) -> list[Job]:
    """Return jobs of the batch and of its nested batches: failed ones, then unfinished ones."""
    alias = databases.chosen(request)
    found = jobs_of_batch(batch.pk, UNSUCCESSFUL, JOBS_SHOWN, alias)
    ids = [job_id for state in UNSUCCESSFUL for job_id in sorted(found[state], reverse=True)][:JOBS_SHOWN]
    rows = private.with_permission(with_latest_execution(Job.objects.using(alias).filter(pk__in=ids)), request)
    by_id = {job.pk: job for job in rows}
    attach_executions(by_id.values())
    return [by_id[job_id] for job_id in ids if job_id in by_id]


def _job_row(request: HttpRequest, job: Job) -> dict[str, Any]:
    return {
        "number": f"#{job.pk}",
        "url": page_url(request, "job_change", job.pk),
        "badge": word_badge(word(job)),
        "task": breakable(job.task_name),
        "error": last_error(job),
        "attempts": f"{job.attempt}/{job.max_attempts}",
        "at": moment(job.finished_at or job.enqueued_at),
    }


def _nested(request: HttpRequest, batch: Any) -> dict[str, Any]:
    """Return the newest batches that are nested in the batch, with their progress."""
    alias = databases.chosen(request)
    rows = JobBatch.objects.using(alias).filter(parent_id=batch.pk).defer("description", *CALLBACKS)
    rows = rows.annotate(short_description=Left("description", 200))
    found = list(rows.order_by("-pk")[: NESTED_SHOWN + 1])
    shown = found[:NESTED_SHOWN]
    counts = batch_counts([each.pk for each in shown], NESTED_COUNTED, alias) if shown else {}
    has_more = len(found) > NESTED_SHOWN
    return {
        "nested": [
            {
                "number": f"#{each.pk}",
                "url": page_url(request, "jobbatch_change", each.pk),
                "description": visible(vars(each)["short_description"]),
                "badges": badges(each),
                "progress": batch_words.with_words(each.pk, counts[each.pk]),
            }
            for each in shown
        ],
        "more_nested_url": page_url(request, "jobbatch_changelist", parent=batch.pk) if has_more else "",
    }
