"""The filters of a search: states, names, a time span and an exception class."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

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
