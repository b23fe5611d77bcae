"""Find the ids of jobs that meet the filters of `pgqueue jobs` and `pgqueue dead`, in a useful order.

Each search begins with a range of an index, such as the dead jobs by the time of their death, or one lane of the ready
jobs. Filters that this index does not have are applied to the first `SEARCHED` jobs of the range, so a search stays
fast with any number of jobs. `Found.scope` says so if jobs were not searched.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from django.db import connections
from django.db.models import OuterRef, Q, QuerySet, Subquery

from django_pgqueue import lifecycle, registry, stats
from django_pgqueue.models import Execution, Job, SearchKey
from django_pgqueue.models.operations import BATCH_SIZE, database_now
from django_pgqueue.states import FINISHED, State

from .filter_options import RUNNING_WORDS, STATE_OF, Filters

SEARCHED: Final = 100_000
"""Jobs of one range that are searched with filters that its index does not have."""
CONDITIONS: Final[dict[str, Q]] = {
    "scheduled": Q(attempt=0),
    "retrying": Q(attempt__gt=0),
    "cancelling": Q(cancel_requested_at__isnull=False),
}
"""The condition that a word adds to its range of an index."""


class Found(NamedTuple):
    """The ids of the jobs that were found, in order, and what was not searched ("" if everything was)."""

    ids: list[int]
    has_more: bool
    scope: str


class Range(NamedTuple):
    """A range of an index in its order: a query, its column with the id of the job, and a name for `Found.scope`."""

    query: QuerySet[Any]
    column: str
    label: str
    condition: Q = Q()


def find(filters: Filters, limit: int) -> Found:
    """Return the ids of at most `limit` jobs that meet the filters. Runs read-only statements."""
    ids: list[int] = []
    scopes: list[str] = []
    for each in ranges(filters):
        wanted = limit + 1 - len(ids)
        if wanted <= 0:
            break
        ids += _matching(filters, each, wanted)
        if each.condition and len(ids) <= limit and is_cut(each):
            scopes.append(each.label)
    scope = f"among {' and '.join(dict.fromkeys(scopes))}" if scopes else ""
    return Found(ids[:limit], len(ids) > limit, scope)


def _matching(filters: Filters, found: Range, limit: int) -> list[int]:
    """Return the ids of the first jobs of a range that meet its further conditions, in the order of the range."""
    if not found.condition:
        return list(found.query.values_list(found.column, flat=True)[:limit])
    if found.query.model is Job:
        ordered = meeting(filters, found).order_by(*found.query.query.order_by)
        return list(ordered.values_list("pk", flat=True)[:limit])
    # In one query, the planner may read all jobs of the time span instead of those with an open execution.
    in_order = list(found.query.values_list(found.column, flat=True)[:SEARCHED])
    matching: set[int] = set()
    for start in range(0, len(in_order), BATCH_SIZE):
        jobs = _annotated(filters).filter(found.condition, pk__in=in_order[start : start + BATCH_SIZE])
        matching.update(jobs.values_list("pk", flat=True))
    return [job_id for job_id in in_order if job_id in matching][:limit]


def meeting(filters: Filters, found: Range) -> QuerySet[Any]:
    """Return the jobs among the first `SEARCHED` of a range that meet its further conditions, in no order."""
    return _annotated(filters).filter(found.condition, pk__in=found.query.values(found.column)[:SEARCHED])


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
        return
    if filters.search is not None:
        yield _with_search_key(filters, *filters.search)
        return
    if not filters.words:
        yield Range(_enqueued(filters), "pk", f"the newest {SEARCHED:,} jobs", _names(filters) & _error(filters))
    for word in filters.words:
        if STATE_OF[word] in FINISHED:
            yield from _finished(filters, word)
        elif word in RUNNING_WORDS:
            yield _running(filters, word)
        else:
            yield from _ready(filters, word)


def _enqueued(filters: Filters) -> QuerySet[Job]:
    """Return jobs in any state, newest first."""
    return Job.objects.using(filters.alias).filter(_ids_between(filters)).order_by("-pk")


def _with_search_key(filters: Filters, name: str, text: str) -> Range:
    """Return the jobs with a search key, newest first. Times are those of the end only for finished states."""
    states = Q() if filters.words else Q(state__in=list(State)) & _ids_between(filters)
    for word in filters.words:
        condition = Q(state=STATE_OF[word]) & CONDITIONS.get(word, Q()) & _is_due(word)
        states |= condition & (_ended_between(filters) if STATE_OF[word] in FINISHED else _ids_between(filters))
    keys = SearchKey.objects.using(filters.alias).filter(name=name, value=text).order_by("-job_id")
    label = f"the newest {SEARCHED:,} jobs with this search key"
    return Range(keys, "job_id", label, states & _names(filters) & _error(filters))


def _is_due(word: str) -> Q:
    """Return the condition by which the time of a ready job concerns a word."""
    if word in ("due", "paused"):
        return Q(run_after__lte=database_now())
    return Q(run_after__gt=database_now()) if word in ("scheduled", "retrying") else Q()


def _ended_between(filters: Filters) -> Q:
    """Return the times at which a job has ended."""
    condition = Q(finished_at__isnull=False)
    if filters.since is not None:
        condition &= Q(finished_at__gte=filters.since.expression)
    if filters.until is not None:
        condition &= Q(finished_at__lt=filters.until.expression)
    return condition


def _finished(filters: Filters, word: str) -> Iterator[Range]:
    """Yield the jobs that ended in a state, latest first.

    Succeeded jobs of a task are searched by the index of tasks, because they are the most. The others are searched by
    the index of states, because a task can have few of them among many that succeeded.
    """
    jobs = Job.objects.using(filters.alias).filter(_ended_between(filters))
    more = _error(filters) & (Q(queue_name=filters.queue_name) if filters.queue_name else Q())
    if word == State.SUCCEEDED and filters.task_names:
        for name in filters.task_names:
            label = f"the latest {SEARCHED:,} finished jobs of {name}"
            yield Range(jobs.filter(task_name=name).order_by("-finished_at"), "pk", label, more & Q(state=word))
        return
    of_task = Q(task_name__in=filters.task_names) if filters.task_names else Q()
    ordered = jobs.filter(state=word).order_by("-finished_at")
    yield Range(ordered, "pk", f"the latest {SEARCHED:,} {word} jobs", more & of_task)


def _running(filters: Filters, word: str) -> Range:
    """Return the running jobs, those that run for longest first. The index of open executions finds them."""
    executions = Execution.objects.using(filters.alias).filter(finished_at__isnull=True)
    if word == "lost":
        executions = executions.filter(lease_expires_at__lt=database_now())
    condition = Q(state=State.RUNNING) & CONDITIONS.get(word, Q())
    more = _names(filters) & _error(filters) & _ids_between(filters)
    return Range(executions.order_by("claimed_at"), "job_id", f"{SEARCHED:,} running jobs", condition & more)


def _ready(filters: Filters, word: str) -> Iterator[Range]:
    """Yield the lanes of the ready jobs, in the order in which a worker claims them."""
    scan = lifecycle.scan_lanes(connections[filters.alias])
    more = CONDITIONS.get(word, Q()) & _error(filters) & _ids_between(filters)
    if filters.task_names:
        more &= Q(task_name__in=filters.task_names)
    paused_tasks = {name for paused in scan.paused_tasks for name in registry.names_of(paused)}
    for lane in sorted(scan.due_in, key=lambda lane: (-lane.priority, lane.queue_name)):
        if filters.queue_name not in (None, lane.queue_name):
            continue
        is_paused = lane.queue_name in scan.paused_queues
        held = _held(word, is_queue_paused=is_paused, paused_tasks=paused_tasks)
        if held is None:
            continue
        jobs = Job.objects.using(filters.alias).filter(state=State.READY, limit_key__isnull=True)
        jobs = jobs.filter(_is_due(word), queue_name=lane.queue_name, priority=lane.priority)
        yield Range(
            jobs.order_by("run_after", "pk"),
            "pk",
            f"the first {SEARCHED:,} jobs of each queue and priority",
            more & held,
        )


def _held(word: str, *, is_queue_paused: bool, paused_tasks: set[str]) -> Q | None:
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


def _error(filters: Filters) -> Q:
    """Return the condition on the exception class of the latest attempt: the whole path, or its last part."""
    if not filters.error:
        return Q()
    if "." in filters.error:
        return Q(latest_error=filters.error)
    return Q(latest_error__regex=rf"(^|\.){re.escape(filters.error)}$")


def latest(column: str) -> QuerySet[Any]:
    """Return a query for a column of a job's latest execution. Both columns of the order use one index."""
    executions: QuerySet[Any] = Execution.objects.filter(job_id=OuterRef("pk")).order_by("-job_id", "-id")
    return executions.values(column)[:1]


LATEST_ERROR: Final = {"latest_error": Subquery(latest("exception_class"))}
"""The exception class of a job's latest attempt. PostgreSQL reads it only for a query that uses it."""
