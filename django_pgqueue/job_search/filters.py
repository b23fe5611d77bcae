"""The filters of a search: states, names, a limit key, a time span, an exception class and an error message.

`word_of()` finds the word of a state that people read: `due`, `retrying`, `lost` and so on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from django.db import connections
from django.db.models import CharField, Exists, Func, OuterRef, Q, QuerySet, Subquery, Value

from django_pgqueue import stats
from django_pgqueue.control.targets import in_limit
from django_pgqueue.lifecycle import claims
from django_pgqueue.models import Execution, Job, Pause
from django_pgqueue.models.operations_link import BATCH_SIZE, database_now
from django_pgqueue.states import Pausable, State
from django_pgqueue.tasks import registry

NO_CLASS: Final = "-"
"""The filter by exception class that finds jobs whose latest attempt was lost with its process or worker."""


class PausedNames:
    """The names of the queues and tasks that are paused. A paused task is paused under its former names too.

    The state in a job's row is coarser: a ready job can be due, scheduled, retrying, unknown or paused. `word_of()` is
    the only function that decides. Pauses of limit keys can be thousands, so `is_limit_paused()` looks for those of a
    job.
    """

    def __init__(self, queues: Iterable[str], tasks: Iterable[str]) -> None:
        self.queues = frozenset(queues)
        self.tasks = frozenset(name for paused in tasks for name in registry.names_of(paused))

    @classmethod
    def of(cls, alias: str) -> PausedNames:
        """Read the active pauses of a database."""
        scan = claims.scan_lanes(connections[alias])
        return cls(scan.paused_queues, scan.paused_tasks)

    def stop(self, queue_name: str, task_name: str) -> bool:
        """Return whether a pause keeps a ready job of this queue and task from starting."""
        return queue_name in self.queues or task_name in self.tasks


def word_of(row: Mapping[str, Any], open_until: datetime | None, pauses: PausedNames) -> str:
    """Return the word for the state of a job.

    Args:
        row: The columns `state`, `attempt`, `run_after`, `unknown_since`, `cancel_requested_at`, `acknowledged_at`,
            `queue_name` and `task_name` of the job; `is_limit_paused`, whether its limit or its limit key is paused;
            and `seen_at`, the time of the database when they were read.
        open_until: The end of the lease of the open execution; None without an open execution.
        pauses: The active pauses.
    """
    if row["state"] == State.RUNNING:
        if open_until is not None and open_until < row["seen_at"]:
            return "lost"
        return "cancelling" if row["cancel_requested_at"] is not None else "running"
    if row["state"] == State.DEAD and row["acknowledged_at"] is not None:
        return "acknowledged"
    if row["state"] != State.READY:
        return str(row["state"])
    if row["run_after"] > row["seen_at"]:
        if row["unknown_since"] is not None:
            return "unknown"
        return "retrying" if row["attempt"] else "scheduled"
    return "paused" if row["is_limit_paused"] or pauses.stop(row["queue_name"], row["task_name"]) else "due"


def is_limit_paused() -> Exists:
    """Return the condition that the limit or the limit key of a job is paused. Two probes of an index decide it."""
    name = Func(OuterRef("limit_key"), Value(":"), Value(1), function="split_part", output_field=CharField())
    return Exists(limit_pauses().filter(name__in=[OuterRef("limit_key"), name]))


def limit_pauses() -> QuerySet[Pause]:
    """Return the pauses of limits and limit keys that have not ended."""
    in_force = Q(paused_until__isnull=True) | Q(paused_until__gt=database_now())
    return Pause.objects.filter(in_force, kind=Pausable.LIMIT)


class Moment(NamedTuple):
    """One end of a time span: an instant, or a span before the present time of the database."""

    at: datetime | None
    ago: timedelta

    @property
    def expression(self) -> Any:
        """The time as a value for a query."""
        return database_now(self.ago) if self.at is None else self.at

    @property
    def seconds_ago(self) -> float:
        """How long ago it is."""
        return (self.ago if self.at is None else datetime.now(UTC) - self.at).total_seconds()


class SearchPart(NamedTuple):
    """The matching ids in one source of jobs, how many jobs were searched, and the first job that was not.

    If not all were searched, `label` names those that were. `searched` and `lanes` are as in `Found`.
    """

    ids: list[int]
    searched: int = 0
    is_cut: bool = False
    since: datetime | None = None
    last_id: int | None = None
    label: str = ""
    lanes: int = 0


@dataclass(frozen=True)
class Filters:
    """The filters of one search. None and empty values do not filter."""

    alias: str
    words: tuple[str, ...] = ()
    queue_name: str | None = None
    task_names: tuple[str, ...] = ()
    since: Moment | None = None
    until: Moment | None = None
    error: str | None = None
    message: str | None = None
    """A part of the error message of the latest attempt; or, after "=", its shape (see `ground.error_messages`)."""
    search: tuple[str, str] | None = None
    """The name of a search key and its text."""
    ids: tuple[int, ...] = ()
    limit: str | None = None
    """A limit key, or the name of a limit for the jobs of all its keys."""
    batch: int | None = None
    """The id of a batch, for its jobs and those of the batches nested in it."""

    @property
    def has_error(self) -> bool:
        """Whether a filter needs the latest execution of each job."""
        return bool(self.error or self.message)

    @property
    def limit_condition(self) -> Q:
        """The condition on the limit key."""
        return Q() if self.limit is None else in_limit(self.limit)

    @property
    def names_condition(self) -> Q:
        """The condition on the queue, the task and the limit key."""
        condition = (Q(queue_name=self.queue_name) if self.queue_name else Q()) & self.limit_condition
        return condition & Q(task_name__in=self.task_names) if self.task_names else condition


def matching(filters: Filters, condition: Q, ids: Sequence[int]) -> list[int]:
    """Return those of some jobs that meet a condition and the filters by their error, in the given order."""
    found = set(ids)
    if condition:
        parts = (ids[start : start + BATCH_SIZE] for start in range(0, len(ids), BATCH_SIZE))
        jobs = Job.objects.using(filters.alias).filter(condition)
        found = {job_id for part in parts for job_id in jobs.filter(pk__in=part).values_list("pk", flat=True)}
    if filters.has_error:
        pattern = error_pattern(filters.error) if filters.error else None
        message = filters.message or None
        found &= stats.jobs_with_exception(connections[filters.alias], sorted(found), pattern, message)
    return [job_id for job_id in ids if job_id in found]


def error_pattern(error: str) -> str:
    """Return a regular expression for an exception class: the whole path, or its last part if that was given."""
    if error == NO_CLASS:
        return "^$"
    return rf"^{re.escape(error)}$" if "." in error else rf"(^|\.){re.escape(error)}$"


def latest(column: str) -> QuerySet[Any]:
    """Return a query for a column of a job's latest execution. Both columns of the order use one index."""
    executions: QuerySet[Any] = Execution.objects.filter(job_id=OuterRef("pk")).order_by("-job_id", "-id")
    return executions.values(column)[:1]


LATEST_ERROR: Final = {"latest_error": Subquery(latest("exception_class"))}
"""The exception class of a job's latest attempt. PostgreSQL reads it only for a query that uses it."""
