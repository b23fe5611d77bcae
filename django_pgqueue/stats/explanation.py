"""Explain in one sentence, and as data, why a job has not started, or what became of it.

`why()` reads the job and its last execution with one statement. Only for a job that is due now does it read workers,
pauses and the jobs that come first. The functions that find the reason are in the order of `Reason`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from django_pgqueue.breakers import PAUSED_BY
from django_pgqueue.chunks import is_chunk_key
from django_pgqueue.conf import get_settings
from django_pgqueue.db.statements import Connection, execute
from django_pgqueue.registry import in_words
from django_pgqueue.states import FINISHED, UNCOUNTED, Outcome, State
from django_pgqueue.steps import is_endless

from . import queries
from .alias import connection_of
from .answers import Count, PauseStats, WorkerStats
from .chunk_explanation import reason_of_chunk
from .depths import COUNT_LIMIT, Ready, read_ready
from .fleet import OpenGroup, Pauses, SlotsOfQueues, busy_groups, read_open_groups, read_workers
from .graph_explanation import reason_of_graph
from .limit_controls import controls_of
from .limit_explanation import reason_of_limit
from .ownership import read_ownership
from .reasons import BusyTask, Reason, Why
from .sentences import jobs_ahead, number_text, sentence_of, span_text, time_text

if TYPE_CHECKING:
    from django_pgqueue.models import Job

SHOWN_TASKS: Final = 3
COLUMNS: Final = (
    *("job_id", "task_name", "queue_name", "priority", "state", "attempt", "max_attempts", "run_after", "is_later"),
    *("expires_at", "is_expired", "unknown_since", "finished_at", "cancel_requested_at", "outcome", "claimed_at"),
    *("started_at", "is_lost", "lease_expires_at", "exception_class", "error", "worker_id", "hostname", "pid"),
    *("seen_at", "limit_key", "limit_weight", "limit_order", "ended_at", "in_graph"),
)
"""The columns of JOB_WITH_LAST_EXECUTION."""


def why(job: Job | int, database: str | None = None) -> Why:
    """Return why a job has not started, or what became of it.

    The state is read from the database; `job` may be an old instance. Runs one read-only statement, and up to seven
    for a job that is due.

    Args:
        job: The job or its id.
        database: Alias of the database of the job. By default the database that `enqueue()` wrote it to, or the one
            that the routers choose.

    Example:
        >>> stats.why(job).sentence
        'An operator has paused the queue mail: 12,000 mails with a wrong link (by anna, since 2026-11-22 17:40 UTC).'
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
    if row.in_graph and (of_graph := reason_of_graph(connection, row)):
        return _why(row, of_graph.reason, of_graph.sentence, **of_graph.fields)
    return _of_row(row) or _of_queue(connection, row)


def _why(row: Any, reason: Reason, sentence: str, **fields: Any) -> Why:
    return Why(
        job_id=row.job_id,
        reason=reason,
        sentence=sentence,
        state=State(row.state),
        task_name=row.task_name,
        queue_name=row.queue_name,
        due_at=row.run_after,
        attempt=row.attempt,
        max_attempts=row.max_attempts,
        expires_at=row.expires_at,
        limit_key=row.limit_key,
        **fields,
    )


# ---------------------------------------------------------------------------- reasons in the job's own rows


def _of_row(row: Any) -> Why | None:
    """Return the reason if the job and its last execution show it. None: the job is due."""
    if row.state in FINISHED:
        return _finished(row)
    if row.state == State.RUNNING:
        return _running(row)
    if row.is_expired:
        sentence = f"It did not start by {time_text(row.expires_at)}, when it expired. A worker will cancel it."
        return _why(row, Reason.EXPIRED, sentence)
    if row.unknown_since is not None:
        cause = sentence_of(row.error or "they do not know its task")
        sentence = (
            f"Since {time_text(row.unknown_since)}, workers release it: {cause} "
            f"It is due {'again at' if row.is_later else 'since'} {time_text(row.run_after)}."
        )
        return _why(row, Reason.UNKNOWN_TASK, sentence, unknown_since=row.unknown_since, error=row.error or "")
    if row.is_later and row.outcome == Outcome.SUSPENDED:
        until = "" if is_endless(row.run_after, row.seen_at) else f", until {time_text(row.run_after)}"
        sentence = f"It is suspended since {time_text(row.ended_at)}: {(row.error or '').rstrip('.')}{until}."
        return _why(row, Reason.SUSPENDED, sentence)
    if row.is_later and row.attempt:
        sentence = (
            f"Attempt {row.attempt} of {row.max_attempts} ended: {_error(row)} "
            f"The next attempt is due at {time_text(row.run_after)}."
        )
        return _why(row, Reason.RETRYING, sentence, **_last_error(row))
    if row.is_later:
        return _why(row, Reason.SCHEDULED, f"It is scheduled: it is due at {time_text(row.run_after)}.")
    return None


def _finished(row: Any) -> Why:
    at = time_text(row.finished_at)
    if row.state == State.SUCCEEDED:
        return _why(row, Reason.FINISHED, f"It succeeded at {at}.", finished_at=row.finished_at)
    if row.state == State.CANCELLED:
        detail = f": {sentence_of(row.error)}" if row.error and row.outcome not in UNCOUNTED else "."
        sentence = f"It was cancelled at {at}{detail}"
    else:
        sentence = f"It is dead since {at}, after attempt {row.attempt} of {row.max_attempts}: {_error(row)}"
    return _why(row, Reason.FINISHED, sentence, finished_at=row.finished_at, **_last_error(row))


def _running(row: Any) -> Why:
    is_open = row.claimed_at is not None and row.outcome is None
    worker = f"{row.hostname}:{row.pid}" if is_open and row.hostname else ""
    where = f"worker {worker}" if worker else f"worker {row.worker_id}" if is_open else "its worker"
    fields = {"worker_id": row.worker_id, "worker": worker, "started_at": row.started_at} if is_open else {}
    if row.is_lost or not is_open:
        detail = f" ended at {time_text(row.lease_expires_at)}" if is_open else " is gone"
        sentence = f"The lease of {where}{detail}. Another worker will rescue the job."
        return _why(row, Reason.LOST, sentence, lease_expires_at=row.lease_expires_at, **fields)
    fields["lease_expires_at"] = row.lease_expires_at
    if row.cancel_requested_at is not None:
        sentence = f"It runs on {where}, and it was asked to stop at {time_text(row.cancel_requested_at)}."
        return _why(row, Reason.CANCELLING, sentence, **fields)
    if row.started_at is None:
        sentence = f"It was claimed by {where} at {time_text(row.claimed_at)} and waits there for a free slot."
        return _why(row, Reason.PREFETCHED, sentence, **fields)
    span = span_text((row.seen_at - row.started_at).total_seconds())
    sentence = f"It has been running on {where} for {span}, since {time_text(row.started_at)}."
    return _why(row, Reason.RUNNING, sentence, **fields)


def _last_error(row: Any) -> dict[str, str]:
    return {"exception_class": row.exception_class or "", "error": row.error or ""}


def _error(row: Any) -> str:
    """Return the error of the last attempt as the end of a sentence."""
    return sentence_of(
        ": ".join(text for text in (row.exception_class, row.error) if text) or "the reason is not known"
    )


# ---------------------------------------------------------------------------- reasons outside of the job


@dataclass(frozen=True)
class Serving:
    """The live workers that serve the queue of a job."""

    queue_name: str
    workers: Sequence[WorkerStats]
    open_groups: Sequence[OpenGroup]

    def slots(self) -> tuple[int, int]:
        """Return how many slots are busy for the queue, and how many there are."""
        return SlotsOfQueues(self.workers, self.open_groups).sums(self.queue_name, self.workers)

    def busy_tasks(self) -> tuple[BusyTask, ...]:
        """Return the tasks that occupy the slots, the one with the longest attempt first."""
        found: dict[str, BusyTask] = {}
        of_queues = SlotsOfQueues(self.workers, self.open_groups)
        for group in busy_groups(self.open_groups, [worker.id for worker in self.workers]):
            if not of_queues.occupies(group, self.queue_name):
                continue
            slots = group.running + group.lost
            known = found.get(group.task_name, BusyTask(task_name=group.task_name, slots=0, longest_seconds=0.0))
            longest = max(known.longest_seconds, group.longest_seconds)
            found[group.task_name] = replace(known, slots=known.slots + slots, longest_seconds=longest)
        return tuple(found.values())


def _of_queue(connection: Connection, row: Any) -> Why:
    """Return why nobody has claimed a job that is due."""
    pauses = Pauses(connection)
    if row.queue_name in pauses.of_queues:
        return _paused(row, Reason.QUEUE_PAUSED, f"queue {row.queue_name}", pauses.of_queues[row.queue_name])
    if row.task_name in pauses.of_tasks:
        return _paused(row, Reason.TASK_PAUSED, f"task {in_words(row.task_name)}", pauses.of_tasks[row.task_name])
    controls = None if row.limit_key is None else controls_of(connection, [row.limit_key])
    if controls is not None and (pause := controls.pause_of(row.limit_key)) is not None:
        return _paused(row, Reason.LIMIT_PAUSED, f"limit {in_words(pause.name)}", pause)
    open_groups = read_open_groups(connection)
    live = [worker for worker in read_workers(connection, open_groups) if worker.is_live]
    serving = Serving(row.queue_name, [worker for worker in live if worker.serves(row.queue_name)], open_groups)
    if not live:
        return _why(row, Reason.NO_WORKER, _no_worker(connection), workers=0)
    if not serving.workers:
        sentence = (
            f"{number_text(len(live), 'worker process')} run, and none of them serves the queue {row.queue_name}."
        )
        return _why(row, Reason.QUEUE_NOT_SERVED, sentence.replace("1 worker process run,", "1 worker process runs,"))
    if controls is None:
        return _in_line(row, serving, _ahead(connection, row, serving.workers, pauses))
    of_chunk = is_chunk_key(row.limit_key)
    found = reason_of_chunk(connection, row) if of_chunk else reason_of_limit(connection, row, controls)
    if found.reason is None:
        return _in_line(row, serving, found.ahead)
    return _why(row, found.reason, found.sentence, ahead=found.ahead, **found.fields)


def _no_worker(connection: Connection) -> str:
    """Return a sentence. A worker that waits for an adoption is not registered, so it looks like none."""
    differences = read_ownership(connection).differences if get_settings().CLONE_GUARD == "refuse" else ""
    if not differences:
        return "No worker is running: start `manage.py runworker`."
    return (
        f"No worker is running: the database belongs to another installation ({differences}), so workers wait for "
        "`manage.py pgqueue adopt`."
    )


def _paused(row: Any, reason: Reason, what: str, pause: PauseStats) -> Why:
    until = f", until {time_text(pause.until)}" if pause.until else ""
    is_breaker = reason is Reason.LIMIT_PAUSED and pause.by == PAUSED_BY
    who, by = ("A circuit breaker", "") if is_breaker else ("An operator", f"by {pause.by}, " if pause.by else "")
    cause = f": {pause.reason.rstrip('.')}" if pause.reason else ""
    sentence = f"{who} has paused the {what}{cause} ({by}since {time_text(pause.paused_at)}{until})."
    return _why(row, reason, sentence, pause=pause)


def _in_line(row: Any, serving: Serving, ahead: Count) -> Why:
    busy, total = serving.slots()
    fields = {"workers": len(serving.workers), "slots_busy": busy, "slots_total": total, "ahead": ahead}
    first = jobs_ahead(ahead, of_key=row.limit_key is not None)
    if busy >= total:
        tasks = serving.busy_tasks()
        shown = ", ".join(
            f"{task.slots} × {in_words(task.task_name)} for up to {span_text(task.longest_seconds)}"
            for task in tasks[:SHOWN_TASKS]
        )
        more = f"; {first}" if ahead.value else ""
        of_queue = any(worker.queue_concurrency for worker in serving.workers)
        where = f"{'for' if of_queue else 'of the workers that serve'} {row.queue_name}"
        sentence = f"All {total} slots {where} are busy ({shown}){more}."
        return _why(row, Reason.SLOTS_BUSY, sentence, busy_tasks=tasks, **fields)
    if ahead.value:
        turns = "" if row.limit_key is None else "limit keys take turns, and "
        return _why(row, Reason.IN_LINE, f"It is in line: {turns}{first}.", **fields)
    return _why(row, Reason.NEXT, "It is next in line: a worker claims it as soon as it polls.", **fields)


def _ahead(connection: Connection, row: Any, workers: Sequence[WorkerStats], pauses: Pauses) -> Count:
    """Count the due jobs that these workers claim before a job: in its own lane, and in lanes that come first."""
    params = {
        "queue_name": row.queue_name,
        "priority": row.priority,
        "run_after": row.run_after,
        "job_id": row.job_id,
        "paused_task_names": list(pauses.of_tasks),
        "limit": COUNT_LIMIT,
    }
    own = execute(connection, queries.AHEAD_IN_LANE, params)[0][0]
    ahead = Count(min(own, COUNT_LIMIT), own <= COUNT_LIMIT)
    for lane in read_ready(connection, by_task=bool(pauses.of_tasks)):
        is_paused = lane.queue_name in pauses.of_queues or lane.task_name in pauses.of_tasks
        if not is_paused and all(_comes_first(lane, row, worker) for worker in workers):
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
