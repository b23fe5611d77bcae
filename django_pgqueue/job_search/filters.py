"""The filters of a search: states, names, a limit key, a time span and an exception class."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from django.db.models import Q

from django_pgqueue.control_targets import in_limit
from django_pgqueue.models.operations import database_now


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


class Part(NamedTuple):
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
    search: tuple[str, str] | None = None
    """The name of a search key and its text."""
    ids: tuple[int, ...] = ()
    limit: str | None = None
    """A limit key, or the name of a limit for the jobs of all its keys."""
    batch: int | None = None
    """The id of a batch, for its jobs and those of the batches nested in it."""

    @property
    def limit_condition(self) -> Q:
        """The condition on the limit key."""
        return Q() if self.limit is None else in_limit(self.limit)

    @property
    def names_condition(self) -> Q:
        """The condition on the queue, the task and the limit key."""
        condition = (Q(queue_name=self.queue_name) if self.queue_name else Q()) & self.limit_condition
        return condition & Q(task_name__in=self.task_names) if self.task_names else condition
