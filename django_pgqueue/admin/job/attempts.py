"""The attempts on the page of a job: how each ended, how long it ran, its error and its log.

`job_page` reads them, and its parts use what `read_attempts()` returns. Values of unlimited size are cut in SQL. An
attempt that was lost has no run time, because nobody knows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models.functions import Left, Right
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgqueue.acts.job_retries import JobRetry, retries_before
from django_pgqueue.admin import private
from django_pgqueue.admin.formatting import badge, duration, full_date, moment, seen_at, shortened, visible, word_text
from django_pgqueue.admin.navigation import allowed_url
from django_pgqueue.db.fields import statement_time
from django_pgqueue.ground.attempt_ends import STACK_START, Loss, end_of, is_numbered_anew
from django_pgqueue.models import Execution, Job, Worker
from django_pgqueue.models.operations_link import lease_end
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.states import Outcome, State

from .columns import FAILURES
from .kept_logs import HAS_LOG, ShownLine, read_logs

CUT: Final = gettext_lazy("(cut)")
ERROR_LIMIT: Final = 2_000
TRACEBACK_LIMIT: Final = 20_000
"""Characters shown of each attempt's error (its start) and traceback (its end).

Without the limits, 50 attempts with 5 MB each made a page of 244 MB.
"""

EXECUTIONS_SHOWN: Final = 50
"""Latest executions shown. A job that snoozes every minute has 10,000 executions a week."""

COLOURS: Final[dict[str, str]] = {Outcome.SUCCEEDED: "succeeded", **dict.fromkeys(FAILURES, "dead")}
"""The state whose colour an outcome has. Other outcomes are grey."""


def read_attempts(job: Job, retries: Sequence[JobRetry] = ()) -> list[dict[str, Any]]:
    """Return the latest executions of a job, latest first: at most one more than the page shows.

    The extra one shows that there are more. A second query reads the workers, because an execution can outlive
    the row of its worker.
    """
    executions = Execution.objects.using(job._state.db).filter(job_id=job.pk).defer("error", "traceback")
    cut = {
        "short_error": Left("error", ERROR_LIMIT + 1),
        "stack_start": Left("traceback", STACK_START),
        "end": Right("traceback", TRACEBACK_LIMIT + 1),
    }
    annotated = executions.annotate(seen_at=statement_time(), lease_end=lease_end(), has_log=HAS_LOG, **cut)
    found = list(annotated.order_by("-job_id", "-id")[: EXECUTIONS_SHOWN + 1])
    workers = Worker.objects.using(job._state.db).in_bulk({execution.worker_id for execution in found})
    with_texts = private.is_visible(job)
    with_log = [execution.pk for execution in found if vars(execution)["has_log"]]
    logs = read_logs(job, with_log) if with_texts else {}
    before = retries_before(found, retries)
    return [
        {
            **_attempt(each, workers.get(each.worker_id), logs.get(each.pk, []), with_texts=with_texts),
            "after": retry_name(retry) if retry else "",
            "is_first_after": retry is not None and is_first,
        }
        for each, retry, is_first in zip(found, before, _are_first(found, before), strict=True)
    ]


def _are_first(found: Sequence[Execution], retries: Sequence[JobRetry | None]) -> list[bool]:
    """Return whether each attempt is the first one after its retry. Several retries by code are one value."""
    earlier = zip([*found[1:], None], [*retries[1:], None], strict=False)
    return [
        before is None or retry is not other or is_numbered_anew(each, before)
        for each, retry, (before, other) in zip(found, retries, earlier, strict=False)
    ]


def _attempt(execution: Execution, worker: Worker | None, log: list[ShownLine], *, with_texts: bool) -> dict[str, Any]:
    """Return one execution, formatted for the template."""
    error, read_at = vars(execution)["short_error"], seen_at(execution)
    is_expired, loss, is_running_on = end_of(
        execution,
        error,
        vars(execution)["stack_start"],
        lease_end=vars(execution)["lease_end"],
        heartbeat_at=worker.last_heartbeat_at if worker else None,
        stopped_at=worker.stopped_at if worker else None,
        seen_at=read_at,
        lease_seconds=get_settings().LEASE,
    )
    started_at = loss.started_at if loss else execution.started_at
    return {
        "execution": execution,
        "worker": _worker_text(worker) if worker else f"#{execution.worker_id}",
        "outcome": _outcome(execution, is_expired=is_expired),
        "waited": _span(execution.claimed_at, started_at),
        "ran": "" if loss else _span(started_at, execution.finished_at or read_at),
        "loss": loss,
        "loss_text": loss_text(execution, loss) if loss else "",
        "may_still_run": is_running_on,
        "claimed": moment(execution.claimed_at),
        "started": moment(started_at),
        "finished": moment(execution.finished_at),
        "is_failure": execution.outcome in FAILURES,
        "exception_class": visible(execution.exception_class),
        "error": visible(_cut(error)) if with_texts else "",
        "traceback": visible(_cut_to_end(vars(execution)["end"])) if with_texts else "",
        "log": log,
    }


def _worker_text(worker: Worker) -> str:
    """Return the name of a worker, with its release: a deploy may be why an attempt fails."""
    name = visible(str(worker))
    words = {"worker": name, "release": visible(worker.release)}
    return _("%(worker)s, release %(release)s") % words if worker.release else name


def _cut(text: str) -> str:
    return text if len(text) <= ERROR_LIMIT else f"{text[:ERROR_LIMIT]}… {CUT}"


def _cut_to_end(text: str) -> str:
    """Return the end of a traceback. Its last lines show what went wrong."""
    return text if len(text) <= TRACEBACK_LIMIT else f"{CUT} …{text[-TRACEBACK_LIMIT:]}"


def _outcome(execution: Execution, *, is_expired: bool) -> SafeString:
    if execution.outcome is None:
        return badge("dead", _("lost")) if is_expired else badge("running", _("running"))
    return badge(COLOURS.get(execution.outcome, "cancelled"), word_text(execution.outcome))


def _span(start: datetime | None, end: datetime | None) -> str:
    if start is None or end is None:
        return ""
    return duration(max(end - start, timedelta()))


def loss_text(execution: Execution, loss: Loss) -> str:
    """Return what is known of a lost attempt: its start, its last heartbeat, and when the loss was found."""
    if loss.started_at is None:
        parts = [_("claimed at %(at)s") % {"at": full_date(execution.claimed_at)}]
    else:
        parts = [_("started at %(at)s") % {"at": full_date(loss.started_at)}]
    if loss.last_seen_at is not None:
        parts.append(_("last seen %(at)s") % {"at": full_date(loss.last_seen_at)})
    if loss.found_at is not None:
        parts.append(_("found lost at %(at)s") % {"at": full_date(loss.found_at)})
    return ", ".join(parts)


def link_workers(request: HttpRequest, attempts: Sequence[dict[str, Any]]) -> None:
    """Let the worker of each attempt be a link to its page, if the user may see it. A removed row has a page too."""
    for attempt in attempts:
        worker_id = attempt["execution"].worker_id
        url = allowed_url(request, "worker_change", worker_id) if worker_id > 0 else ""
        attempt["worker_link"] = format_html('<a href="{}">{}</a>', url, attempt["worker"]) if url else ""


def still_runs(job: Job, attempts: Sequence[dict[str, Any]]) -> str:
    """Return a sentence if the code of the latest attempt may still run although the job does not; otherwise ""."""
    if job.state == State.RUNNING or not attempts or not attempts[0]["may_still_run"]:
        return ""
    words = {"number": attempts[0]["execution"].attempt, "worker": attempts[0]["worker"]}
    return _("The code of attempt %(number)s may still run on %(worker)s.") % words


def retry_name(retry: JobRetry) -> str:
    """Return a retry as the end of a sentence about the attempts that follow it."""
    if not retry.is_read:
        return _("after an earlier retry")
    if retry.at is None:
        return _("after a retry that the audit does not have")
    return _("after the retry of %(who)s") % {"who": _operator(retry)}


def retry_event(retry: JobRetry) -> str:
    """Return a retry as an entry of the timeline."""
    text = _("%(who)s began to retry several jobs, this one included") if retry.is_bulk else _("retried by %(who)s")
    text %= {"who": _operator(retry)}
    return f"{text}: {shortened(retry.reason)}" if retry.reason else text


def _operator(retry: JobRetry) -> str:
    return shortened(retry.by) if retry.by else _("an operator")
