"""The filter of a bulk act: which jobs it chooses, as the audit stores it.

`bulk_acts` and the admin use it. A filter is immutable and always valid, so that no act is requested that no worker can
execute.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

import psycopg

from django_pgqueue.db.errors import message_without_detail
from django_pgqueue.db.fields import FIRST_INSTANT, LAST_INSTANT
from django_pgqueue.states import FINISHED

MOST_IDS: Final = 10_000
"""Ids in one filter."""
PRIORITIES: Final = range(-100, 101)
HIGHEST_ID: Final = 2**63 - 1
NAMES: Final = ("queue_name", "task_name", "exception_class", "to_queue", "limit_key", "message", "search")
ERASED_KINDS: Final = ("arguments", "results", "errors", "logs")
"""The kinds of values that an erasure can erase."""
WORDS: Final = ("ready", "due", "scheduled", "running", *sorted(FINISHED))


@dataclass(frozen=True)
class Selection:
    """The jobs of a bulk act. None does not filter.

    Attributes:
        word: A state, or "due" or "scheduled" for the ready jobs that are due, or due later. "dead" means the dead jobs
            that nobody has acknowledged.
        queue_name: The queue.
        task_name: The task.
        exception_class: The path of the class that the latest attempt raised; "" if it raised none, as after a crash.
            Only for jobs in a finished state.
        since: Jobs from this time on: finished jobs by their end, others by their enqueueing.
        until: Jobs up to this time.
        job_ids: Ids of jobs, instead of all the values above.
        to_queue: The queue to which the jobs are moved.
        to_priority: The priority that moved jobs get.
        limit_key: The limit key, or the name of a limit for the jobs of all its keys.
        message: A part of the error message of the latest attempt; or, after "=", its whole first line with `#` for
            each number (see `ground.error_messages`). Only for jobs in a finished state.
        edited: How many further jobs the preview of a retry counted, which are left because *Edit and retry* has made
            new jobs of them. The audit shows it; it chooses no jobs.
        search: The search key whose jobs `job_ids` are, as "customer:4711", or ":4711" for the value of any key. The
            audit shows it; it chooses no jobs.
        erased: The kinds of values that an erasure erases, of `ERASED_KINDS`.
    """

    word: str = ""
    queue_name: str | None = None
    task_name: str | None = None
    exception_class: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    job_ids: tuple[int, ...] = ()
    to_queue: str | None = None
    limit_key: str | None = None
    edited: int | None = None
    to_priority: int | None = None
    message: str | None = None
    erased: tuple[str, ...] = ()
    search: str | None = None

    def __post_init__(self) -> None:
        """Raise `ValueError` for values that do not fit together."""
        errors = (self.exception_class, self.message)
        names = (self.word or None, self.queue_name, self.task_name, self.limit_key, *errors)
        if self.job_ids and any(value is not None for value in (*names, self.since, self.until)):
            raise ValueError("Pass either ids of jobs, or a state and filters.")
        if not self.job_ids and self.word not in WORDS:
            raise ValueError(f"Invalid state {self.word!r}: use one of {', '.join(WORDS)}.")
        if len(self.job_ids) > MOST_IDS:
            raise ValueError(f"Too many ids: {len(self.job_ids):,}. Pass at most {MOST_IDS:,}, or a filter.")
        if any(value is not None for value in errors) and self.word not in FINISHED:
            raise ValueError(f"Only finished jobs can be filtered by their error, not {self.word} ones.")
        self._check_values()

    @property
    def has_target(self) -> bool:
        """Whether it says where jobs are moved."""
        return self.to_queue is not None or self.to_priority is not None

    def _check_values(self) -> None:
        """Raise `ValueError` for values that the database cannot compare or that nobody could read later."""
        if any("\0" in (getattr(self, name) or "") for name in NAMES):
            raise ValueError("A name contains the character NUL, which no stored name can contain.")
        if self.to_priority is not None and self.to_priority not in PRIORITIES:
            raise ValueError(f"Invalid priority {self.to_priority!r}: use a whole number from -100 to 100.")
        if wrong := [kind for kind in self.erased if kind not in ERASED_KINDS]:
            raise ValueError(f"Invalid values to erase {wrong!r}: use {', '.join(ERASED_KINDS)}.")
        for job_id in self.job_ids:
            if not 0 < job_id <= HIGHEST_ID:
                raise ValueError(f"Invalid id {job_id}: use the ids of jobs, from 1 to {HIGHEST_ID}.")
        self._check_times()

    def _check_times(self) -> None:
        for at in filter(None, (self.since, self.until)):
            if at.tzinfo is None:
                raise ValueError("Pass times with a time zone.")
            if not FIRST_INSTANT <= at < LAST_INSTANT:
                raise ValueError(f"Invalid time {at.isoformat()}: use one from 0001-01-03 to 9999-12-28.")

    def as_json(self) -> dict[str, Any]:
        """Return the values that are not None, as the audit stores them."""
        given = {name: value for name, value in asdict(self).items() if value not in (None, "", ())}
        if self.exception_class is not None:
            given["exception_class"] = self.exception_class
        for name in ("since", "until"):
            if name in given:
                given[name] = given[name].isoformat()
        return given

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Selection:
        """Return the filter that `as_json()` has described. Raise `ValueError` for anything else.

        An unknown key is an error too. A newer version can have written it to narrow the filter: without it, the act
        would change jobs that nobody has chosen.
        """
        try:
            times = {name: datetime.fromisoformat(stored[name]) for name in ("since", "until") if name in stored}
            lists = {name: tuple(stored.get(name, ())) for name in ("job_ids", "erased")}
            return cls(**{**stored, **times, **lists})
        except (TypeError, AttributeError) as error:
            raise ValueError(f"Invalid filter of a bulk act: {error}.") from error


@contextmanager
def invalid_if_unreadable() -> Iterator[None]:
    """Raise `ValueError` for values of the entry that only somebody who changed it by hand can have stored."""
    try:
        yield
    except psycopg.DataError as error:
        raise ValueError(message_without_detail(error)) from error
