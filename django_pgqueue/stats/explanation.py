"""Explain in one sentence, and as data, why a job has not started, or what became of it.

`why()` reads the job and its last execution with one statement. Only for a job that is due now does it read workers,
pauses and the jobs that come first. `EXPLAINERS` lists the functions that find the reason. To add a reason, add it to
`Reason`, and a function that returns `FoundReason`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_pgqueue.db.statements import execute
from django_pgqueue.declared.breakers import PAUSED_BY
from django_pgqueue.declared.steps import is_endless
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.states import FINISHED, UNCOUNTED, Outcome, State
from django_pgqueue.tasks.registry import in_words

from . import queries
from .alias import connection_of
from .answers import NONE, Count, PauseStats, Reason, Why, WorkerStats
from .chunk_explanation import reason_of_chunk
from .depths import COUNT_LIMIT, read_ready
from .explained_job import ExplainedJob, FoundReason
from .graphs.explanation import reason_of_graph
from .lane_counts import Ready
from .limits.explanation import ahead_in_key, reason_of_limit
from .ownership import no_worker_text, other_installation
from .sentences import (
    busy_text,
    jobs_ahead,
    paused_text,
    sentence_of,
    span_text,
    unserved_text,
    utc_text,
)

if TYPE_CHECKING:
    from django_pgqueue.models import Job

COLUMNS: Final = (
    *("job_id", "task_name", "queue_name", "priority", "state", "attempt", "max_attempts", "run_after", "is_later"),
    *("expires_at", "is_expired", "unknown_since", "finished_at", "cancel_requested_at", "outcome", "claimed_at"),
    *("started_at", "is_lost", "lease_expires_at", "exception_class", "error", "worker_id", "hostname", "pid"),
    *("seen_at", "limit_key", "limit_weight", "limit_order", "ended_at", "in_graph"),
)
"""The columns of JOB_WITH_LAST_EXECUTION."""
SHOWN: Final = ("job_id", "task_name", "queue_name", "attempt", "max_attempts", "expires_at", "limit_key")
"""The columns that every `Why` shows."""


def why(job: Job | int, database: str | None = None, *, time_text: Callable[[datetime], str] | None = None) -> Why:
    """Return why a job has not started, or what became of it.

    The state is read from the database; `job` may be an old instance. Runs one read-only statement, and up to eight
    for a job that is due.

    Args:
        job: The job or its id.
        database: Alias of the database of the job. By default the database that `enqueue()` wrote it to, or the one
            that the routers choose.
        time_text: Returns a time as the sentence shows it. By default times are in UTC.

    The sentence is in the active language. `reason` and the other fields do not depend on it.

    Example:
        >>> stats.why(job).sentence
        'An operator has paused the queue mail: a wrong link in 12,000 mails (by anna, since 2026-11-22 17:40:00 UTC).'
    """
    job_id = job if isinstance(job, int) else job.pk
    if job_id is None:
        raise ValueError("A job that was never enqueued has no state: call enqueue() on its task.")
    connection = connection_of(database or getattr(job, "enqueued_on", None))
    rows = execute(connection, queries.JOB_WITH_LAST_EXECUTION, {"job_id": job_id})
    if not rows:
        sentence = _("The job has no row: its transaction has not committed, or its row was removed.")
        return Why(job_id=job_id, reason=Reason.GONE, sentence=sentence)
    row = SimpleNamespace(**dict(zip(COLUMNS, rows[0], strict=True)))
    explained = ExplainedJob(connection, row, time_text or utc_text)
    return _why(explained.row, next(found for explain in EXPLAINERS if (found := explain(explained))))


def _why(row: Any, found: FoundReason) -> Why:
    of_row: dict[str, Any] = {name: getattr(row, name) for name in SHOWN} | {"state": State(row.state)}
    return Why(reason=found.reason, sentence=found.sentence, due_at=row.run_after, **of_row, **found.fields)


# ---------------------------------------------------------------------------- reasons in the job's own rows


def _of_row(job: ExplainedJob) -> FoundReason | None:
    """Return the reason if the job and its last execution show it. None: the job is due."""
    row, time_text = job.row, job.time_text
    if row.state in FINISHED:
        return _finished(job)
    if row.state == State.RUNNING:
        return _running(job)
    if row.is_expired:
        text = _("It did not start by %(time)s, when it expired. A worker will cancel it.")
        return FoundReason(Reason.EXPIRED, text % {"time": time_text(row.expires_at)})
    if row.unknown_since is not None:
        return _released(job)
    if row.is_later and row.outcome == Outcome.SUSPENDED:
        text = (
            _("It is suspended since %(time)s: %(why)s.")
            if is_endless(row.run_after, row.seen_at)
            else _("It is suspended since %(time)s: %(why)s, until %(until)s.")
        )
        values = {"time": time_text(row.ended_at), "until": time_text(row.run_after)}
        return FoundReason(Reason.SUSPENDED, text % {**values, "why": (row.error or "").rstrip(".")})
    if row.is_later and row.attempt:
        text = _("Attempt %(attempt)d of %(attempts)d ended: %(error)s The next attempt is due at %(time)s.")
        return FoundReason(Reason.RETRYING, text % _ended(row, time_text(row.run_after)), _last_error(row))
    if row.is_later:
        text = _("It is scheduled: it is due at %(time)s.")
        return FoundReason(Reason.SCHEDULED, text % {"time": time_text(row.run_after)})
    return None


def _released(job: ExplainedJob) -> FoundReason:
    """Return why workers release a job: they do not know its task, or its arguments do not fit."""
    row, time_text = job.row, job.time_text
    text = (
        _("Since %(time)s, workers release it: %(cause)s It is due again at %(due)s.")
        if row.is_later
        else _("Since %(time)s, workers release it: %(cause)s It is due since %(due)s.")
    )
    cause = sentence_of(row.error or _("they do not know its task"))
    sentence = text % {"time": time_text(row.unknown_since), "cause": cause, "due": time_text(row.run_after)}
    with suppress(OverflowError):
        dead_at = time_text(row.unknown_since + timedelta(seconds=get_settings().UNKNOWN_TASK_LIMIT))
        until = _("If no worker can run it, the first attempt after %(time)s makes it dead.") % {"time": dead_at}
        sentence = f"{sentence} {until}"
    return FoundReason(Reason.UNKNOWN_TASK, sentence, {"unknown_since": row.unknown_since, "error": row.error or ""})


def _finished(job: ExplainedJob) -> FoundReason:
    row, at = job.row, job.time_text(job.row.finished_at)
    if row.state == State.SUCCEEDED:
        sentence = _("It succeeded at %(time)s.") % {"time": at}
        return FoundReason(Reason.FINISHED, sentence, {"finished_at": row.finished_at})
    if row.state == State.CANCELLED:
        detail = f": {sentence_of(row.error)}" if row.error and row.outcome not in UNCOUNTED else "."
        sentence = _("It was cancelled at %(time)s") % {"time": at} + detail
    else:
        text = _("It is dead since %(time)s, after attempt %(attempt)d of %(attempts)d: %(error)s")
        sentence = text % _ended(row, at)
    return FoundReason(Reason.FINISHED, sentence, {"finished_at": row.finished_at, **_last_error(row)})


def _running(job: ExplainedJob) -> FoundReason:
    row, time_text = job.row, job.time_text
    is_open = row.claimed_at is not None and row.outcome is None
    worker = f"{row.hostname}:{row.pid}" if is_open and row.hostname else ""
    where = _("worker %(name)s") % {"name": worker or row.worker_id} if is_open else _("its worker")
    fields = {"worker_id": row.worker_id, "worker": worker, "started_at": row.started_at} if is_open else {}
    if row.is_lost or not is_open:
        text = (
            _("The lease of %(worker)s ended at %(time)s. Another worker will rescue the job.")
            if is_open
            else _("The lease of %(worker)s is gone. Another worker will rescue the job.")
        )
        sentence = text % {"worker": where, "time": time_text(row.lease_expires_at) if is_open else ""}
        return FoundReason(Reason.LOST, sentence, {"lease_expires_at": row.lease_expires_at, **fields})
    fields["lease_expires_at"] = row.lease_expires_at
    if row.cancel_requested_at is not None:
        text = _("It runs on %(worker)s, and it was asked to stop at %(time)s.")
        sentence = text % {"worker": where, "time": time_text(row.cancel_requested_at)}
        return FoundReason(Reason.CANCELLING, sentence, fields)
    if row.started_at is None:
        text = _(  # a heartbeat records the start
            "It was claimed by %(worker)s at %(time)s, and waits for a free slot or has started since the last "
            "heartbeat."
        )
        return FoundReason(Reason.PREFETCHED, text % {"worker": where, "time": time_text(row.claimed_at)}, fields)
    text = _("It has been running on %(worker)s for %(span)s, since %(time)s.")
    span = span_text((row.seen_at - row.started_at).total_seconds())
    sentence = text % {"worker": where, "span": span, "time": time_text(row.started_at)}
    return FoundReason(Reason.RUNNING, sentence, fields)


def _ended(row: Any, time: str) -> dict[str, Any]:
    """Return the values of a sentence about the last attempt."""
    return {"attempt": row.attempt, "attempts": row.max_attempts, "error": _error(row), "time": time}


def _last_error(row: Any) -> dict[str, str]:
    return {"exception_class": row.exception_class or "", "error": row.error or ""}


def _error(row: Any) -> str:
    """Return the error of the last attempt as the end of a sentence."""
    return sentence_of(
        ": ".join(text for text in (row.exception_class, row.error) if text) or _("the reason is not known")
    )


# ---------------------------------------------------------------------------- reasons outside of the job


def _of_pauses(job: ExplainedJob) -> FoundReason | None:
    """Return the pause that holds a due job."""
    row, pauses = job.row, job.pauses
    if row.queue_name in pauses.of_queues:
        what = _("the queue %(name)s") % {"name": row.queue_name}
        return _paused(job, Reason.QUEUE_PAUSED, what, pauses.of_queues[row.queue_name])
    if row.task_name in pauses.of_tasks:
        what = _("the task %(name)s") % {"name": in_words(row.task_name)}
        return _paused(job, Reason.TASK_PAUSED, what, pauses.of_tasks[row.task_name])
    if row.limit_key is not None and (pause := job.controls.pause_of(row.limit_key)) is not None:
        what = _("the limit %(name)s") % {"name": in_words(pause.name)}
        found = _paused(job, Reason.LIMIT_PAUSED, what, pause)
        opened = job.controls.open_breakers.get(row.limit_key) if pause.by == PAUSED_BY else None
        return found if opened is None else found._replace(sentence=f"{found.sentence} {opened.text(job.time_text)}")
    return None


def _of_workers(job: ExplainedJob) -> FoundReason | None:
    """Return why no worker can claim a due job."""
    if not job.live_workers:
        sentence = no_worker_text(other_installation(job.connection))
        return FoundReason(Reason.NO_WORKER, sentence, {"workers": 0})
    if job.workers:
        return None
    return FoundReason(Reason.QUEUE_NOT_SERVED, unserved_text(len(job.live_workers), job.row.queue_name))


def _paused(job: ExplainedJob, reason: Reason, what: str, pause: PauseStats) -> FoundReason:
    return FoundReason(reason, paused_text(what, pause, job.time_text), {"pause": pause})


def _in_line(job: ExplainedJob) -> FoundReason:
    """Return what comes before a due job that nothing keeps from being claimed."""
    row, (busy, total) = job.row, job.slots()
    ahead = _ahead_in_lanes(job) if row.limit_key is None else ahead_in_key(job)
    fields = {"workers": len(job.workers), "slots_busy": busy, "slots_total": total, "ahead": ahead}
    first = jobs_ahead(ahead, of_key=row.limit_key is not None)
    if busy >= total:
        tasks = job.busy_tasks()
        shown = busy_text(tasks)
        more = "" if ahead == NONE else f"; {first}"
        text = (
            ngettext(
                "The only slot for %(queue)s is busy (%(tasks)s)%(jobs_ahead)s.",
                "All %(slots)d slots for %(queue)s are busy (%(tasks)s)%(jobs_ahead)s.",
                total,
            )
            if any(worker.queue_concurrency for worker in job.workers)
            else ngettext(
                "The only slot of the workers that serve %(queue)s is busy (%(tasks)s)%(jobs_ahead)s.",
                "All %(slots)d slots of the workers that serve %(queue)s are busy (%(tasks)s)%(jobs_ahead)s.",
                total,
            )
        )
        sentence = text % {"slots": total, "queue": row.queue_name, "tasks": shown, "jobs_ahead": more}
        return FoundReason(Reason.SLOTS_BUSY, sentence, {"busy_tasks": tasks, **fields})
    if ahead != NONE:
        text = (
            _("It is in line: %(jobs_ahead)s.")
            if row.limit_key is None
            else _("It is in line: limit keys take turns, and %(jobs_ahead)s.")
        )
        return FoundReason(Reason.IN_LINE, text % {"jobs_ahead": first}, fields)
    return FoundReason(Reason.NEXT, _("It is next in line: a worker claims it as soon as it polls."), fields)


def _ahead_in_lanes(job: ExplainedJob) -> Count:
    """Count the due jobs that its workers claim before a job: in its own lane, and in lanes that come first.

    Jobs that their limit does not admit now are not counted.
    """
    row, pauses, connection = job.row, job.pauses, job.connection
    params = {
        "queue_name": row.queue_name,
        "priority": row.priority,
        "run_after": row.run_after,
        "job_id": row.job_id,
        "paused_task_names": list(pauses.of_tasks),
        "limit": COUNT_LIMIT,
    }
    own = execute(connection, queries.AHEAD_IN_LANE, params)[0][0]
    ahead = Count.up_to(own, COUNT_LIMIT)
    first: dict[tuple[str, int], bool] = {}
    for lane in read_ready(connection, pauses, by_task=bool(pauses.of_tasks)).rows:
        is_paused = lane.queue_name in pauses.of_queues or lane.task_name in pauses.of_tasks
        if is_paused:
            continue
        key = (lane.queue_name, lane.priority)
        if key not in first:
            first[key] = all(_comes_first(lane, row, worker) for worker in job.workers)
        if first[key]:
            ahead += Count(lane.due, not lane.due_is_cut)
    return ahead


def _comes_first(lane: Ready, row: Any, worker: WorkerStats) -> bool:
    """Return whether a worker claims from a lane before it claims from the job's lane (see `worker.claiming.lanes`)."""
    if not worker.serves(lane.queue_name):
        return False
    if not worker.queues or worker.queue_concurrency:
        return bool(lane.priority > row.priority)
    place, own_place = worker.queues.index(lane.queue_name), worker.queues.index(row.queue_name)
    return (place, -lane.priority) < (own_place, -row.priority)


EXPLAINERS: Final[tuple[Callable[[ExplainedJob], FoundReason | None], ...]] = (
    *(reason_of_graph, _of_row, _of_pauses, _of_workers),
    *(reason_of_chunk, reason_of_limit, _in_line),
)
"""The functions that find the reason. The first one that finds any decides; the last one always does."""
