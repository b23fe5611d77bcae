"""The acts on jobs in the admin: retry, acknowledge, cancel, run, move, change attempts, erase and delete.

Called by `jobs`, for one job or for a selection. The transitions are those of `lifecycle`. Each one changes a job only
if the job is still as the page showed it (see `shown`), so a double click or a second operator cannot run a job twice.
`operations` has what each operation asks and writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from django.contrib import messages
from django.contrib.admin import AdminSite
from django.db import connections
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext, ngettext_lazy

from django_pgqueue import acts
from django_pgqueue.admin import databases, shown
from django_pgqueue.admin.formatting import seen_at, word_text
from django_pgqueue.admin.forms import confirmation
from django_pgqueue.db.fields import statement_time
from django_pgqueue.declared.steps import CompensationUnfinished
from django_pgqueue.exceptions import JobLocked
from django_pgqueue.lifecycle.pruning import needs_of
from django_pgqueue.models import DeadJob, Job
from django_pgqueue.states import KEPT_BY_DELETE, NEED_TEXTS, Seen, State, TransitionName

from .operations import (
    AcknowledgeOperation,
    AttemptsOperation,
    CancelOperation,
    DeleteOperation,
    EraseOperation,
    JobOperation,
    MoveOperation,
)

SELECTION_LIMIT: Final = 10_000
"""Jobs that one request changes at most, whatever a form contains. A page has 100, and bulk acts change more."""


RETRY: Final = JobOperation(
    "retry", acts.RETRY, ngettext_lazy("%(count)d job is ready again.", "%(count)d jobs are ready again.", "count")
)
ACKNOWLEDGE: Final = AcknowledgeOperation(
    "acknowledge",
    acts.ACKNOWLEDGE,
    ngettext_lazy("%(count)d job is acknowledged.", "%(count)d jobs are acknowledged.", "count"),
)
CANCEL: Final = CancelOperation(
    "cancel",
    acts.CANCEL,
    ngettext_lazy(
        "%(count)d job is cancelled, or is asked to stop if it runs.",
        "%(count)d jobs are cancelled, or are asked to stop if they run.",
        "count",
    ),
)
RUN_NOW: Final = JobOperation(
    "run", acts.RUN_NOW, ngettext_lazy("%(count)d job is due now.", "%(count)d jobs are due now.", "count")
)
MOVE: Final = MoveOperation(
    "move", acts.MOVE, ngettext_lazy("%(count)d job is moved.", "%(count)d jobs are moved.", "count")
)
SET_MAX_ATTEMPTS: Final = AttemptsOperation(
    "attempts",
    acts.SET_MAX_ATTEMPTS,
    ngettext_lazy("The attempts of %(count)d job are changed.", "The attempts of %(count)d jobs are changed.", "count"),
)
DELETE: Final = DeleteOperation(
    "delete", acts.DELETE, ngettext_lazy("%(count)d job is deleted.", "%(count)d jobs are deleted.", "count")
)
ERASE: Final = EraseOperation(
    "erase",
    acts.ERASE,
    ngettext_lazy("Values of %(count)d job are erased.", "Values of %(count)d jobs are erased.", "count"),
)
ON_ONE_JOB: Final = (RETRY, ACKNOWLEDGE, CANCEL, RUN_NOW, MOVE, SET_MAX_ATTEMPTS, ERASE, DELETE)
"""The operations that the page of a job offers."""


def offered(request: HttpRequest, job: Job, operations: Sequence[JobOperation]) -> list[JobOperation]:
    """Return the operations that the user may run on this job in its present state."""
    return [each for each in operations if each.is_allowed(request) and each.fits(job, seen_at(job))]


def act_on_one(request: HttpRequest, operation: JobOperation, job: Job, site: AdminSite) -> HttpResponse | None:
    """Run an operation on one job as the page showed it, log it in the history, and show the user a message.

    Return the confirmation page if the operation needs a confirmation.
    """
    seen = {job_id: each for job_id, each in shown.read(request).items() if job_id == job.pk}
    if not seen:
        messages.warning(
            request, _("Nothing was changed: the form did not say which state the page showed. Try again from here.")
        )
        return None
    if question := operation.ask(request, job, seen, site):
        return question
    operation = operation.as_chosen(request, job)
    try:
        changed = operation.run(request, seen, alone=True)
    except CompensationUnfinished:
        text = _(
            "Nothing was changed: the steps of this job are being undone. Retry it when the last compensation is done."
        )
        messages.error(request, text)
        return None
    except JobLocked:
        messages.error(request, _("Nothing was changed: another session has locked this job. Try again."))
        return None
    if changed:
        messages.success(request, operation.done % {"count": 1})
    elif reason := _why_kept(request, operation, job):
        messages.warning(request, _("Nothing was deleted: unfinished work needs this job, because %s.") % reason)
    else:
        messages.warning(
            request,
            _("Nothing was changed: the job has changed since the page showed it, or its state does not allow this."),
        )
    return None


def _why_kept(request: HttpRequest, operation: JobOperation, job: Job) -> str | None:
    """Return why a job was not deleted, if unfinished work needs it."""
    if operation.act.transition is not TransitionName.DELETE:
        return None
    left = needs_of(connections[databases.chosen(request)], [job.pk]).get(job.pk)
    return word_text(NEED_TEXTS[left.need]) if left and left.need in KEPT_BY_DELETE else None


def act_on_many(
    request: HttpRequest, operation: JobOperation, queryset: QuerySet[Any], site: AdminSite
) -> HttpResponse | None:
    """Run an operation on the selected jobs of a page as the page showed them, and show how many changed.

    Return the confirmation page if the operation needs a confirmation.
    """
    if confirmation.is_given(request):
        fitting = _still_listed(queryset, shown.read(request))
        asked = len(fitting)
        edited = operation.edited(request, fitting)
    else:
        rows = _selected(queryset)
        asked = len(rows)
        fitting = _fitting(request, operation, rows)
        edited = operation.edited(request, fitting)
    if question := operation.ask_many(request, fitting, site, edited):
        confirmation.say_left_out(request, asked - len(fitting))
        return question
    if fitting:
        operation = operation.with_reason(request)
    changed = len(operation.run(request, fitting, edited))
    _show_counts(request, operation, changed, asked - changed - len(edited), len(edited))
    return None


def _still_listed(queryset: QuerySet[Any], seen: dict[int, Seen]) -> dict[int, Seen]:
    """Return the confirmed jobs that this list can show: the list of dead letters shows only dead jobs."""
    is_all = queryset.model is not DeadJob
    kept = {job_id: each for job_id, each in seen.items() if is_all or each.state == State.DEAD}
    return dict(list(kept.items())[:SELECTION_LIMIT])


def _selected(queryset: QuerySet[Any]) -> list[Any]:
    plain = queryset.prefetch_related(None).annotate(seen_at=statement_time())
    columns = ("pk", "state", "finished_at", "run_after", "cancel_requested_at", "enqueued_at", "acknowledged_at")
    return list(plain.values_list(*columns, "seen_at", named=True)[:SELECTION_LIMIT])


def _fitting(request: HttpRequest, operation: JobOperation, rows: Sequence[Any]) -> dict[int, Seen]:
    """Return the jobs that the operation would change, each with the state to compare it with.

    That is the state that the page showed.
    """
    on_page = shown.read(request)
    return {row.pk: on_page[row.pk] for row in rows if row.pk in on_page and operation.fits(row, row.seen_at)}


def _show_counts(request: HttpRequest, operation: JobOperation, changed: int, unchanged: int, edited: int) -> None:
    if changed:
        messages.success(request, operation.done % {"count": changed})
    if edited:
        text = ngettext(
            "%(count)d job was left out: it was edited and retried as a new job. To run it too, retry it on its page.",
            "%(count)d jobs were left out: they were edited and retried as new jobs. To run one of them too, retry it "
            "on its page.",
            edited,
        )
        messages.warning(request, text % {"count": edited})
    if unchanged:
        text = ngettext(
            "%(count)d job was left as it is: it has changed since the page showed it, its state does not allow this, "
            "it is locked, it was edited and retried meanwhile, another job has its key, or unfinished work needs it.",
            "%(count)d jobs were left as they are: they have changed since the page showed them, their state does not "
            "allow this, they are locked, they were edited and retried meanwhile, another job has their key, or "
            "unfinished work needs them.",
            unchanged,
        )
        messages.warning(request, text % {"count": unchanged})
