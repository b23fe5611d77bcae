"""The ranges of indexes that contain the jobs that a search wants, in the order of the list."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple

from django.db import connections
from django.db.models import Exists, OuterRef, Q, QuerySet

from django_pgqueue import stats
from django_pgqueue.models import Execution, Job, SearchKey
from django_pgqueue.models.operations_link import database_now, lease_end
from django_pgqueue.states import FINISHED, LATER_WORDS, STATE_OF, State

from .filters import Filters, PausedNames, is_limit_paused

CONDITIONS: Final[dict[str, Q]] = {
    "scheduled": Q(attempt=0, unknown_since__isnull=True),
    "retrying": Q(attempt__gt=0, unknown_since__isnull=True),
    "unknown": Q(unknown_since__isnull=False),
    "cancelling": Q(cancel_requested_at__isnull=False),
    "dead": Q(acknowledged_at__isnull=True),
    "acknowledged": Q(acknowledged_at__isnull=False),
}
"""The condition that a word adds to its range of an index."""


class Range(NamedTuple):
    """A range of an index in its order, and the conditions that the index does not have.

    `column` contains the id of the job, and `time` the time that the order follows, latest first; "" if it follows
    none. `label` names the jobs that are searched, with `{count}` for how many.
    """

    query: QuerySet[Any]
    column: str
    label: str
    condition: Q = Q()
    time: str = ""


def ranges(filters: Filters) -> Iterator[Range]:
    """Yield the ranges of indexes that contain all jobs that meet the filters, with the conditions to apply.

    For ready jobs, see `ready_jobs`.
    """
    if filters.ids:
        jobs = Job.objects.using(filters.alias).filter(pk__in=filters.ids).order_by("pk")
        yield Range(jobs, "pk", "")
        return
    if filters.search is not None:
        yield _with_search_key(filters, *filters.search)
        return
    if not filters.words and filters.limit:
        finished = Q(state__in=list(FINISHED)) & filters.names_condition
        yield Range(_enqueued(filters), "pk", "the newest {count} jobs", finished)
    elif not filters.words:
        yield Range(_enqueued(filters), "pk", "the newest {count} jobs", filters.names_condition, "enqueued_at")
    for word in filters.words:
        if STATE_OF[word] in FINISHED:
            yield from _finished(filters, word)
        elif STATE_OF[word] is State.WAITING:
            yield _waiting(filters)
        else:
            yield _running(filters, word)


def _enqueued(filters: Filters) -> QuerySet[Job]:
    """Return jobs in any state, newest first."""
    return Job.objects.using(filters.alias).filter(ids_between(filters)).order_by("-pk")


def _with_search_key(filters: Filters, name: str, text: str) -> Range:
    """Return the jobs with a search key, newest first."""
    keys = SearchKey.objects.using(filters.alias).filter(name=name, value=text).order_by("-job_id")
    return Range(keys, "job_id", "the newest {count} jobs with this search key", condition_on_few(filters))


def condition_on_few(filters: Filters) -> Q:
    """Return the condition of the states, times and names of the filters. It has no index: use it on few jobs.

    Times are those of the end only for finished states.
    """
    states = Q() if filters.words else Q(state__in=list(State)) & ids_between(filters)
    for word in filters.words:
        states |= condition_of(word, filters.alias) & (
            ended_between(filters) if STATE_OF[word] in FINISHED else ids_between(filters)
        )
    return states & filters.names_condition


def condition_of(word: str, alias: str) -> Q:
    """Return the condition that jobs with a word meet. It has no index: use it on few jobs."""
    condition = Q(state=STATE_OF[word]) & CONDITIONS.get(word, Q())
    if word in LATER_WORDS:
        return condition & Q(run_after__gt=database_now())
    if word in ("due", "paused"):
        pauses = PausedNames.of(alias)
        is_stopped = Q(queue_name__in=pauses.queues) | Q(task_name__in=pauses.tasks) | Q(is_limit_paused())
        return condition & Q(run_after__lte=database_now()) & (is_stopped if word == "paused" else ~is_stopped)
    if word == "lost":
        opened = Execution.objects.using(alias).filter(pk=OuterRef("execution_id"), outcome__isnull=True)
        return condition & Q(Exists(opened.annotate(lease_end=lease_end()).filter(lease_end__lt=database_now())))
    return condition


def ended_between(filters: Filters) -> Q:
    """Return the times at which a job has ended."""
    condition = Q(finished_at__isnull=False)
    if filters.since is not None:
        condition &= Q(finished_at__gte=filters.since.expression)
    if filters.until is not None:
        condition &= Q(finished_at__lt=filters.until.expression)
    return condition


def _finished(filters: Filters, word: str) -> Iterator[Range]:
    """Yield the jobs that ended in a state, latest first.

    Succeeded jobs of a task are searched by the index of tasks, because they are the most: few jobs of other states are
    among them. The others are searched by the index of states, because a task can have few of them among many that
    succeeded. Dead letters have an index of their own, and acknowledged jobs are searched among all dead jobs.
    """
    jobs = Job.objects.using(filters.alias).filter(ended_between(filters))
    if word == State.SUCCEEDED and filters.task_names:
        for name in filters.task_names:
            label = f"the latest {{count}} finished jobs of {name}"
            ordered = jobs.filter(task_name=name, state=word).order_by("-finished_at")
            yield Range(ordered, "pk", label, replace(filters, task_names=()).names_condition, "finished_at")
        return
    ordered = jobs.filter(state=STATE_OF[word]).order_by("-finished_at")
    condition = filters.names_condition
    if word == "dead":
        ordered = ordered.filter(CONDITIONS[word])
    elif word == "acknowledged":
        condition &= CONDITIONS[word]
    yield Range(ordered, "pk", f"the latest {{count}} {STATE_OF[word]} jobs", condition, "finished_at")


def _waiting(filters: Filters) -> Range:
    """Return the jobs that wait for others, the oldest first."""
    jobs = Job.objects.using(filters.alias).waiting().order_by("pk")
    return Range(jobs, "pk", "the first {count} waiting jobs", filters.names_condition & ids_between(filters))


def _running(filters: Filters, word: str) -> Range:
    """Return the running jobs, those that were claimed first at the top."""
    running = Job.objects.using(filters.alias).filter(filters.limit_condition, state=State.RUNNING)
    if filters.limit is None:
        running = running.running()
    condition = condition_of(word, filters.alias) & filters.names_condition & ids_between(filters)
    return Range(running.order_by("execution_id"), "pk", "{count} running jobs", condition)


def ids_between(filters: Filters) -> Q:
    """Return the times of the enqueue as a range of ids, because ids increase with time."""
    condition, connection = Q(), connections[filters.alias]
    for moment, lookup in ((filters.since, "pk__gte"), (filters.until, "pk__lt")):
        if moment is not None:
            condition &= Q(**{lookup: stats.first_id_since(connection, moment.seconds_ago) or 0})
    return condition
