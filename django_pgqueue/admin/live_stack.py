"""Request the stack of a running job, or of all jobs of a worker, and show the requests with their answers.

Called by `workers` and by the page of a job. A stack shows code and no values of variables. The worker process itself
writes it, within about a second if notifications arrive. The page says it if no answer comes.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final

from django.db.models import QuerySet
from django.db.models.functions import Left
from django.http import HttpRequest
from django.utils.translation import gettext as _

from django_pgqueue import states
from django_pgqueue.admin.formatting import ago, full_date, moment_ago, seen_at, visible
from django_pgqueue.db.fields import statement_time
from django_pgqueue.models import Execution, Job, WorkerRequest

PERMISSION: Final = "pgqueue.view_stack"
SHOWN: Final = 3
"""Latest requests that a page shows."""
TEXT_LIMIT: Final = 60_000
"""Characters of an answer that a page shows."""
WAIT: Final = timedelta(seconds=10)
"""Until then, a page without an answer loads itself again. After that, it says that the worker did not answer."""
EXECUTION: Final = "execution"
"""The field of the form with the execution whose stack is requested."""


def may_view(request: HttpRequest) -> bool:
    """Return whether the user may request and see stacks."""
    return request.user.has_perm(PERMISSION)


def of_worker(request: HttpRequest, worker_id: int, alias: str) -> list[dict[str, Any]]:
    """Return the latest requests to a worker. Stacks are left out if the user may not see them."""
    found = _requests(alias).filter(worker_id=worker_id)
    if not may_view(request):
        found = found.filter(kind=states.RequestKind.STOP)
    return [_answer(each) for each in found[:SHOWN]]


def of_job(request: HttpRequest, job: Job, executions: Iterable[Execution]) -> dict[str, Any]:
    """Return what the page of a job shows: the stacks of its executions, and the one whose stack can be requested."""
    if not may_view(request):
        return {"answers": [], "running": None}
    known = list(executions)
    workers = {execution.worker_id for execution in known}
    by_id = {execution.pk: execution for execution in known}
    found = _requests(job._state.db or "").filter(worker_id__in=workers, execution_id__in=list(by_id))
    answers = [_answer(each, by_id[each.execution_id]) for each in found[:SHOWN]] if known else []
    is_open = job.state == states.State.RUNNING
    running = next((each for each in known if is_open and each.outcome is None and each.worker_id > 0), None)
    return {"answers": answers, "running": running, "is_waiting": any(answer["is_waiting"] for answer in answers)}


def _requests(alias: str) -> QuerySet[WorkerRequest]:
    found = WorkerRequest.objects.using(alias).defer("answer").order_by("-worker_id", "-id")
    return found.annotate(seen_at=statement_time(), text=Left("answer", TEXT_LIMIT))


def _answer(row: WorkerRequest, execution: Execution | None = None) -> dict[str, Any]:
    """Return a request as a page shows it. `text` is the answer, and `note` a sentence in place of one.

    The page of a job passes the execution, because a stack of an earlier attempt says nothing about the present one.
    """
    has_answer = row.answered_at is not None
    is_waiting = not has_answer and seen_at(row) - row.requested_at < WAIT
    note = ""
    if is_waiting:
        note = _("Waiting for the answer of the worker.")
    elif not has_answer:
        since = {"at": full_date(row.requested_at), "ago": ago(row.requested_at, seen_at(row))}
        note = _("No answer since %(at)s (%(ago)s). The worker may be dead, or C code may block it.") % since
    title = _("Stop") if row.kind == states.RequestKind.STOP else _("Stack")
    if row.kind == states.RequestKind.STACK and not row.execution_id:
        title = _("Stacks of all jobs")
    if execution is not None:
        is_over = execution.outcome is not None
        title = _("Stack of attempt %(number)s, which has ended") if is_over else _("Stack of attempt %(number)s")
        title %= {"number": execution.attempt}
    return {
        "title": title,
        "asked": moment_ago(row.requested_at, row),
        "by": visible(row.requested_by),
        "text": visible(vars(row)["text"]),
        "note": note,
        "is_waiting": is_waiting,
    }
