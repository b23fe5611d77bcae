"""Explain in one sentence, and as data, why a job has not started, or what became of it.

`why()` reads the job and its last execution with one statement. Only for a job that is due now does it read workers,
pauses and the jobs that come first. `EXPLAINERS` lists the functions that find the reason. To add a reason, add it to
`Reason`, and a function that returns `FoundReason`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from django_pgqueue.db.statements import execute
from django_pgqueue.declared.steps import is_endless
from django_pgqueue.states import FINISHED, UNCOUNTED, Outcome, State
from django_pgqueue.tasks.registry import in_words

from . import queries
from .alias import connection_of
from .answers import NONE, Count, FoundReason, PauseStats, Reason, Why, WorkerStats
from .chunk_explanation import reason_of_chunk
from .depths import COUNT_LIMIT, read_ready
from .explained_job import ExplainedJob
from .graphs.explanation import reason_of_graph
from .lane_counts import Ready
from .limits.explanation import ahead_in_key, reason_of_limit
from .ownership import no_worker_text
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
        sentence = "The job has no row: its transaction has not committed, or its row was removed."
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
        sentence = f"It did not start by {time_text(row.expires_at)}, when it expired. A worker will cancel it."
        return FoundReason(Reason.EXPIRED, sentence)
    if row.unknown_since is not None:
        cause = sentence_of(row.error or "they do not know its task")
        sentence = (
            f"Since {time_text(row.unknown_since)}, workers release it: {cause} "
            f"It is due {'again at' if row.is_later else 'since'} {time_text(row.run_after)}."
        )
        return FoundReason(
            Reason.UNKNOWN_TASK, sentence, {"unknown_since": row.unknown_since, "error": row.error or ""}
        )
    if row.is_later and row.outcome == Outcome.SUSPENDED:
        until = "" if is_endless(row.run_after, row.seen_at) else f", until {time_text(row.run_after)}"
        sentence = f"It is suspended since {time_text(row.ended_at)}: {(row.error or '').rstrip('.')}{until}."
        return FoundReason(Reason.SUSPENDED, sentence)
    if row.is_later and row.attempt:
        sentence = (
            f"Attempt {row.attempt} of {row.max_attempts} ended: {_error(row)} "
            f"The next attempt is due at {time_text(row.run_after)}."
        )
        return FoundReason(Reason.RETRYING, sentence, _last_error(row))
    if row.is_later:
        return FoundReason(Reason.SCHEDULED, f"It is scheduled: it is due at {time_text(row.run_after)}.")
    return None


def _finished(job: ExplainedJob) -> FoundReason:
    row, at = job.row, job.time_text(job.row.finished_at)
    if row.state == State.SUCCEEDED:
        return FoundReason(Reason.FINISHED, f"It succeeded at {at}.", {"finished_at": row.finished_at})
    if row.state == State.CANCELLED:
        detail = f": {sentence_of(row.error)}" if row.error and row.outcome not in UNCOUNTED else "."
        sentence = f"It was cancelled at {at}{detail}"
    else:
        sentence = f"It is dead since {at}, after attempt {row.attempt} of {row.max_attempts}: {_error(row)}"
    return FoundReason(Reason.FINISHED, sentence, {"finished_at": row.finished_at, **_last_error(row)})


def _running(job: ExplainedJob) -> FoundReason:
    row, time_text = job.row, job.time_text
    is_open = row.claimed_at is not None and row.outcome is None
    worker = f"{row.hostname}:{row.pid}" if is_open and row.hostname else ""
    where = f"worker {worker}" if worker else f"worker {row.worker_id}" if is_open else "its worker"
    fields = {"worker_id": row.worker_id, "worker": worker, "started_at": row.started_at} if is_open else {}
    if row.is_lost or not is_open:
        detail = f" ended at {time_text(row.lease_expires_at)}" if is_open else " is gone"
        sentence = f"The lease of {where}{detail}. Another worker will rescue the job."
        return FoundReason(Reason.LOST, sentence, {"lease_expires_at": row.lease_expires_at, **fields})
    fields["lease_expires_at"] = row.lease_expires_at
    if row.cancel_requested_at is not None:
        sentence = f"It runs on {where}, and it was asked to stop at {time_text(row.cancel_requested_at)}."
        return FoundReason(Reason.CANCELLING, sentence, fields)
    if row.started_at is None:
        at = time_text(row.claimed_at)
        waits = "waits for a free slot or has started since the last heartbeat"  # which records the start
        sentence = f"It was claimed by {where} at {at}, and {waits}."
        return FoundReason(Reason.PREFETCHED, sentence, fields)
    span = span_text((row.seen_at - row.started_at).total_seconds())
    sentence = f"It has been running on {where} for {span}, since {time_text(row.started_at)}."
    return FoundReason(Reason.RUNNING, sentence, fields)


def _last_error(row: Any) -> dict[str, str]:
    return {"exception_class": row.exception_class or "", "error": row.error or ""}


def _error(row: Any) -> str:
    """Return the error of the last attempt as the end of a sentence."""
    return sentence_of(
        ": ".join(text for text in (row.exception_class, row.error) if text) or "the reason is not known"
    )


# ---------------------------------------------------------------------------- reasons outside of the job


def _of_pauses(job: ExplainedJob) -> FoundReason | None:
    """Return the pause that holds a due job."""
    row, pauses = job.row, job.pauses
    if row.queue_name in pauses.of_queues:
        return _paused(job, Reason.QUEUE_PAUSED, f"queue {row.queue_name}", pauses.of_queues[row.queue_name])
    if row.task_name in pauses.of_tasks:
        return _paused(job, Reason.TASK_PAUSED, f"task {in_words(row.task_name)}", pauses.of_tasks[row.task_name])
    if row.limit_key is not None and (pause := job.controls.pause_of(row.limit_key)) is not None:
        return _paused(job, Reason.LIMIT_PAUSED, f"limit {in_words(pause.name)}", pause)
    return None


def _of_workers(job: ExplainedJob) -> FoundReason | None:
    """Return why no worker can claim a due job."""
    if not job.live_workers:
        return FoundReason(Reason.NO_WORKER, no_worker_text(job.connection), {"workers": 0})
    if job.workers:
        return None
    return FoundReason(Reason.QUEUE_NOT_SERVED, unserved_text(len(job.live_workers), job.row.queue_name))


def _paused(job: ExplainedJob, reason: Reason, what: str, pause: PauseStats) -> FoundReason:
    return FoundReason(reason, paused_text(f"the {what}", pause, job.time_text), {"pause": pause})


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
        of_queue = any(worker.queue_concurrency for worker in job.workers)
        where = f"{'for' if of_queue else 'of the workers that serve'} {row.queue_name}"
        sentence = f"All {total} slots {where} are busy ({shown}){more}."
        return FoundReason(Reason.SLOTS_BUSY, sentence, {"busy_tasks": tasks, **fields})
    if ahead != NONE:
        turns = "" if row.limit_key is None else "limit keys take turns, and "
        return FoundReason(Reason.IN_LINE, f"It is in line: {turns}{first}.", fields)
    return FoundReason(Reason.NEXT, "It is next in line: a worker claims it as soon as it polls.", fields)


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
