"""The filters of a search: states, names, a limit key, a time span and an exception class."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from django.db.models import Q

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
    def limit_ranges(self) -> list[tuple[str, str]]:
        """The ranges of limit keys that `limit` means, each with its end, which is not in it."""
        if self.limit is None:
            return []
        own = (self.limit, f"{self.limit}\x01")  # no other key is between them
        return [own] if ":" in self.limit else [own, (f"{self.limit}:", f"{self.limit};")]

    @property
    def limit_condition(self) -> Q:
        """The condition on a job that `limit` means."""
        condition = Q()
        for first_key, end_key in self.limit_ranges:
            condition |= Q(limit_key__gte=first_key, limit_key__lt=end_key)
        return condition
