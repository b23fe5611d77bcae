"""Find the ids of jobs that meet filters, in a useful order.

Each search begins with a range of an index, such as the dead jobs by the time of their death, or one lane of the ready
jobs. Filters that this index does not have are applied to the first `SEARCHED` jobs of the range, so a search stays
fast with any number of jobs. `Found.scope` says so if jobs were not searched.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final, NamedTuple

from django.db import connections
from django.db.models import BooleanField, DateTimeField, ExpressionWrapper, F, Q, QuerySet, Window
from django.db.models.functions import RowNumber

from django_pgqueue import lifecycle, stats
from django_pgqueue.models import Execution, Job
from django_pgqueue.models.operations import BATCH_SIZE, database_now
from django_pgqueue.states import FINISHED, State

from .errors import LATEST_ERROR, condition_on_error, error_pattern
from .filters import Filters
from .words import RUNNING_WORDS, STATE_OF, Pauses

SEARCHED: Final = 100_000
"""Jobs of one range that are searched with filters that its index does not have. It takes about 20 ms."""
CLASSES_SEARCHED: Final = 10_000
"""Jobs whose latest execution is read for a filter by exception class. It takes about 15 ms."""
CONDITIONS: Final[dict[str, Q]] = {
    "scheduled": Q(attempt=0),
    "retrying": Q(attempt__gt=0),
    "cancelling": Q(cancel_requested_at__isnull=False),
}
"""The condition that a word adds to its range of an index."""


class Found(NamedTuple):
    """The ids of the jobs that were found, in order, and what was not searched ("" if everything was).

    `since` is the time of the oldest job that was searched, if older ones were not: when it ended, or was enqueued.
    `searched` is how many were, if not all.
    """

    ids: list[int]
    has_more: bool
    scope: str
    searched: int = 0
    since: datetime | None = None


class Range(NamedTuple):
    """A range of an index in its order, and the conditions that the index does not have.

    `column` contains the id of the job, and `time` the time that the order follows, latest first; "" if it follows
    none. `label` names the jobs that are searched.
    """

    query: QuerySet[Any]
    column: str
    label: str
    condition: Q = Q()
    time: str = ""


class _Part(NamedTuple):
    """The matching ids among the first jobs of a range, how many were searched, and the first job that was not."""

    ids: list[int]
    searched: int
    is_cut: bool = False
    since: datetime | None = None
    last_id: int | None = None


def find(filters: Filters, limit: int) -> Found:
    """Return the ids of at most `limit` jobs that meet the filters. Runs read-only statements."""
    ids: list[int] = []
    parts: list[_Part] = []
    labels: list[str] = []
    for each in ranges(filters):
        wanted = limit + 1 - len(ids)
        if wanted <= 0:
            break
        part = _first_matching(filters, each, wanted)
        ids += part.ids[:wanted]
        parts.append(part)
        if part.is_cut and len(ids) <= limit:
            labels.append(each.label)
    if not labels:
        return Found(ids[:limit], len(ids) > limit, "")
    last = parts[-1]
    scope = f"among {' and '.join(dict.fromkeys(labels))}".replace(f"{SEARCHED:,}", f"{last.searched:,}")
    return Found(ids[:limit], len(ids) > limit, scope, last.searched, last.since)


def _first_matching(filters: Filters, found: Range, limit: int) -> _Part:
    """Return the first jobs of a range that meet its further conditions, in the order of the range.

    If the newest jobs have no match, as many older jobs are searched too.
    """
    if not found.condition and not filters.error:
        return _Part(list(found.query.values_list(found.column, flat=True)[:limit]), 0)
    if found.query.model is not Job:
        return _open(filters, found)
    part = _search(filters, found, found.query, limit)
    if part.ids or not part.is_cut or not found.time:
        return part
    older = Q(pk__lte=part.last_id) if found.time == "enqueued_at" else Q(finished_at__lte=part.since)
    more = _search(filters, found, found.query.filter(older), limit)
    return more._replace(searched=part.searched + more.searched)


def _search(filters: Filters, found: Range, query: QuerySet[Any], limit: int) -> _Part:
    """Return the first jobs of a query that meet the conditions of the range, and where the search has ended.

    PostgreSQL stops at `limit` matches, and after `SEARCHED` jobs (the run condition of the window function). The job
    after those is returned too: it shows that the search came that far, and where an older search begins.
    """
    wanted = CLASSES_SEARCHED if filters.error else limit
    order: Any = query.query.order_by
    numbered = query.order_by().annotate(
        # As a plain column: `InstantField` would be read by an expression.
        at=ExpressionWrapper(F(found.time or "enqueued_at"), DateTimeField()),
        fits=ExpressionWrapper(found.condition or Q(pk__isnull=False), BooleanField()),
        place=Window(RowNumber(), order_by=list(order)),
    )
    fitting = numbered.filter(place__lte=SEARCHED + 1).filter(Q(fits=True) | Q(place=SEARCHED + 1))
    rows = list(fitting.values_list("pk", "at", "place")[: wanted + 1])
    beyond = rows.pop() if rows and rows[-1][2] > SEARCHED else None
    part = _Part([row[0] for row in rows], 0)
    if beyond is not None:
        part = _Part(part.ids, SEARCHED, is_cut=True, since=beyond[1], last_id=beyond[0])
    return _with_error(filters, part, rows) if filters.error else part


def _with_error(filters: Filters, part: _Part, rows: list[Any]) -> _Part:
    """Return those of the first `CLASSES_SEARCHED` jobs whose latest execution ended with the exception class."""
    read = part.ids[:CLASSES_SEARCHED]
    matching = stats.jobs_with_exception(connections[filters.alias], read, error_pattern(filters.error or ""))
    kept = [job_id for job_id in read if job_id in matching]
    if len(part.ids) <= CLASSES_SEARCHED:
        return part._replace(ids=kept)
    last_id, since, searched = rows[CLASSES_SEARCHED]
    return _Part(kept, searched - 1, is_cut=True, since=since, last_id=last_id)


def _open(filters: Filters, found: Range) -> _Part:
    """Search the jobs with an open execution."""
    # In one query, the planner may read all jobs of the time span instead of those with an open execution.
    in_order = list(found.query.values_list(found.column, flat=True)[: SEARCHED + 1])
    matching: set[int] = set()
    for start in range(0, len(in_order[:SEARCHED]), BATCH_SIZE):
        jobs = _annotated(filters).filter(found.condition, pk__in=in_order[start : start + BATCH_SIZE])
        matching.update(jobs.filter(condition_on_error(filters)).values_list("pk", flat=True))
    ids = [job_id for job_id in in_order if job_id in matching]
    return _Part(ids, min(len(in_order), SEARCHED), len(in_order) > SEARCHED)


def meeting(filters: Filters, found: Range) -> QuerySet[Any]:
    """Return the jobs among the first `SEARCHED` of a range that meet its further conditions, in no order."""
    first = found.query.values(found.column)[:SEARCHED]
    return _annotated(filters).filter(found.condition & condition_on_error(filters), pk__in=first)


def _annotated(filters: Filters) -> QuerySet[Any]:
    """Return all jobs, with the column of `LATEST_ERROR`."""
    return Job.objects.using(filters.alias).annotate(**LATEST_ERROR)


def is_cut(found: Range) -> bool:
    """Return whether a range has more jobs than are searched."""
    return bool(found.query.values_list("pk", flat=True)[SEARCHED : SEARCHED + 1])


def ranges(filters: Filters) -> Iterator[Range]:
    """Yield the ranges of indexes that contain all jobs that meet the filters, with the conditions to apply."""
    if filters.ids:
        jobs = Job.objects.using(filters.alias).filter(pk__in=filters.ids).order_by("pk")
        yield Range(jobs, "pk", "")
    elif not filters.words:
        yield Range(_enqueued(filters), "pk", f"the newest {SEARCHED:,} jobs", _names(filters), "enqueued_at")
    for word in () if filters.ids else filters.words:
        if STATE_OF[word] in FINISHED:
            yield from _finished(filters, word)
        elif word in RUNNING_WORDS:
            yield _running(filters, word)
        else:
            yield from _ready(filters, word)


def _enqueued(filters: Filters) -> QuerySet[Job]:
    """Return jobs in any state, newest first."""
    return Job.objects.using(filters.alias).filter(_ids_between(filters)).order_by("-pk")


def _finished(filters: Filters, word: str) -> Iterator[Range]:
    """Yield the jobs that ended in a state, latest first.

    Succeeded jobs of a task are searched by the index of tasks, because they are the most: few jobs of other states are
    among them. The others are searched by the index of states, because a task can have few of them among many that
    succeeded.
    """
    jobs = Job.objects.using(filters.alias).filter(finished_at__isnull=False)
    if filters.since is not None:
        jobs = jobs.filter(finished_at__gte=filters.since.expression)
    if filters.until is not None:
        jobs = jobs.filter(finished_at__lt=filters.until.expression)
    of_queue = Q(queue_name=filters.queue_name) if filters.queue_name else Q()
    if word == State.SUCCEEDED and filters.task_names:
        for name in filters.task_names:
            label = f"the latest {SEARCHED:,} finished jobs of {name}"
            ordered = jobs.filter(task_name=name, state=word).order_by("-finished_at")
            yield Range(ordered, "pk", label, of_queue, "finished_at")
        return
    of_task = Q(task_name__in=filters.task_names) if filters.task_names else Q()
    ordered = jobs.filter(state=word).order_by("-finished_at")
    yield Range(ordered, "pk", f"the latest {SEARCHED:,} {word} jobs", of_queue & of_task, "finished_at")


def _running(filters: Filters, word: str) -> Range:
    """Return the running jobs, those that run for longest first. The index of open executions finds them."""
    executions = Execution.objects.using(filters.alias).filter(finished_at__isnull=True)
    if word == "lost":
        executions = executions.filter(lease_expires_at__lt=database_now())
    condition = Q(state=State.RUNNING) & CONDITIONS.get(word, Q())
    more = _names(filters) & _ids_between(filters)
    return Range(executions.order_by("claimed_at"), "job_id", f"{SEARCHED:,} running jobs", condition & more)


def _ready(filters: Filters, word: str) -> Iterator[Range]:
    """Yield the lanes of the ready jobs, in the order in which a worker claims them."""
    scan = lifecycle.scan_lanes(connections[filters.alias])
    more = CONDITIONS.get(word, Q()) & _ids_between(filters)
    if filters.task_names:
        more &= Q(task_name__in=filters.task_names)
    pauses = Pauses(scan.paused_queues, scan.paused_tasks)
    for lane in sorted(scan.due_in, key=lambda lane: (-lane.priority, lane.queue_name)):
        if filters.queue_name not in (None, lane.queue_name):
            continue
        held = _held(word, is_queue_paused=lane.queue_name in pauses.queues, paused_tasks=pauses.tasks)
        if held is None:
            continue
        jobs = Job.objects.using(filters.alias).filter(state=State.READY, limit_key__isnull=True)
        jobs = jobs.filter(queue_name=lane.queue_name, priority=lane.priority)
        if word in ("due", "paused"):
            jobs = jobs.filter(run_after__lte=database_now())
        elif word in ("scheduled", "retrying"):
            jobs = jobs.filter(run_after__gt=database_now())
        yield Range(
            jobs.order_by("run_after", "pk"),
            "pk",
            f"the first {SEARCHED:,} jobs of each queue and priority",
            more & held,
        )


def _held(word: str, *, is_queue_paused: bool, paused_tasks: frozenset[str]) -> Q | None:
    """Return the condition by which a pause concerns a word; None if no job of the lane meets it."""
    if word == "paused":
        if is_queue_paused:
            return Q()
        return Q(task_name__in=paused_tasks) if paused_tasks else None
    if word == "due":
        if is_queue_paused:
            return None
        return ~Q(task_name__in=paused_tasks) if paused_tasks else Q()
    return Q()


def _names(filters: Filters) -> Q:
    condition = Q(queue_name=filters.queue_name) if filters.queue_name else Q()
    return condition & Q(task_name__in=filters.task_names) if filters.task_names else condition


def _ids_between(filters: Filters) -> Q:
    """Return the times of the enqueue as a range of ids, because ids increase with time."""
    condition, connection = Q(), connections[filters.alias]
    for moment, lookup in ((filters.since, "pk__gte"), (filters.until, "pk__lt")):
        if moment is not None:
            condition &= Q(**{lookup: stats.first_id_since(connection, moment.seconds_ago) or 0})
    return condition
