"""Divide a statement that finds its rows itself, by ranges of their ids, if the database refuses one of them.

The functions of `lifecycle` that remove old rows or wake jobs use it, because `divided()` needs the rows. It protects
the other rows: one row that a trigger or a foreign key protects never keeps the rows of its kind from being written.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Final, Generic, NamedTuple, TypeVar

from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.db.errors import message_without_detail
from django_pgqueue.db.statements import Connection, Row
from django_pgqueue.ground.log_events import event

from .execute import execute_with_retry, savepoint
from .refused_rows import FAILURES, LOG_SECONDS, MOST_SECONDS, divided, log_left, may_divide

logger = logging.getLogger("django_pgqueue.lifecycle")

T = TypeVar("T")
K = TypeVar("K", int, str)

HIGHEST_ID: Final = 2**63 - 1
BITS: Final = (10, 15, 20, 25, 30, 40, 52, 63)
"""The ids below 2 to the power of these numbers are the first parts of all ids: most tables have small ids only."""
_logged_at: dict[str, float] = {}


class IdRange(NamedTuple):
    """The ids from `first_id` to `last_id`, both included: the names of the parameters of such a statement."""

    first_id: int = 0
    last_id: int = HIGHEST_ID

    def halves(self) -> list[IdRange]:
        """Return two parts of the range, the lower one first. A range up to the highest id has more parts."""
        ends = [2**bits - 1 for bits in BITS if 2**bits > self.first_id]
        if self.last_id == HIGHEST_ID and len(ends) > 1:
            firsts = [self.first_id, *(end + 1 for end in ends)]
            return [IdRange(first, last) for first, last in zip(firsts, ends, strict=False)]
        middle = (self.first_id + self.last_id) // 2
        return [IdRange(self.first_id, middle), IdRange(middle + 1, self.last_id)]


ALL: Final = IdRange()
NONE: Final = IdRange(1, 0)
"""No ids. If a statement fails for them too, no row is the cause: a table, a column or a privilege is missing."""
MOST_REFUSED: Final = 1000
"""Rows that one call passes by at most. If all rows are refused, it must end."""
_left: dict[str, list[IdRange]] = {}
"""For each subject, the parts that its last call has not tried, the next one at the end."""


def in_ranges(connection: Connection, subject: str, write: Callable[[IdRange], T]) -> list[T]:
    """Run a statement on a range of ids. If a row makes it fail, run it on parts until only bad rows are left out.

    Return the result for each part. `subject` says in the log what the statement does: "the removal of event". After
    `MOST_REFUSED` rows or `MOST_SECONDS`, the other parts are left to the next call, which begins with them.

    Raises the errors that concern all rows, also if only a run on no row shows that.
    """
    try:
        with savepoint(connection):
            results = [write(ALL)]
            _left.pop(subject, None)
            return results
    except FAILURES as error:
        if not may_divide(connection, error):
            raise
        failure = error
    with connection.unprepared() if isinstance(connection, EngineConnection) else nullcontext():
        with savepoint(connection):
            results = [write(NONE)]
        return results + _divide(connection, subject, write, failure)


def _divide(connection: Connection, subject: str, write: Callable[[IdRange], T], failure: Exception) -> list[T]:
    """Run a statement on parts, beginning with those that the last call has left. Divide the parts that fail.

    `failure` is the error of the run on all rows.
    """
    results, refused, until = list[T](), 0, time.monotonic() + MOST_SECONDS
    parts = _left.pop(subject, None) or ALL.halves()[::-1]
    parts = _others(parts) + parts
    while parts and refused < MOST_REFUSED:
        part = parts.pop()
        try:
            with savepoint(connection):
                results.append(write(part))
        except FAILURES as error:
            if not may_divide(connection, error):
                raise
            if part.first_id == part.last_id:
                log_refused(subject, part.first_id, error)
                refused += 1
            else:
                parts += part.halves()[::-1]
        if time.monotonic() >= until:
            break
    if parts:
        _left[subject] = parts
        log_left(f"rows of {subject}", failure)
    return results


def _others(parts: list[IdRange]) -> list[IdRange]:
    """Return the ids that the last call has tried: from the end of these parts, around to the beginning of them."""
    begin, end = parts[0].last_id + 1, parts[-1].first_id - 1
    if begin == end + 1:
        return []
    ranges = [IdRange(begin, end)] if begin <= end else [IdRange(0, end), IdRange(begin, HIGHEST_ID)]
    return [each for each in ranges if each.first_id <= each.last_id]


def rows_in_ranges(connection: Connection, subject: str, statement: str, params: Mapping[str, Any]) -> list[Row]:
    """Run a statement with the parameters of an `IdRange`, as `in_ranges()` does; return the rows of all parts."""

    def write(part: IdRange) -> list[Row]:
        return execute_with_retry(connection, statement, {**params, **part._asdict()})

    return [row for rows in in_ranges(connection, subject, write) for row in rows]


def removed_in_ranges(connection: Connection, subject: str, statement: str, params: Mapping[str, Any]) -> int:
    """Run a statement that returns how many rows it has removed. A part may remove as many as the whole."""
    return sum(count for (count,) in rows_in_ranges(connection, subject, statement, params))


class PrunedPage(NamedTuple):
    """One page of a table: how many of its rows were removed, and the end of the page, or None after the last page."""

    removed: int
    last_id: int | None


def page_in_ranges(connection: Connection, subject: str, statement: str, params: Mapping[str, Any]) -> PrunedPage:
    """Run a statement that removes rows of one page, and returns how many it had and removed, and its last id.

    Each part reads the page anew. It reaches further if parts before it have removed rows, so the next page begins
    behind the nearest end.
    """
    rows = rows_in_ranges(connection, subject, statement, params)
    found, removed, last_ids = zip(*rows, strict=True)
    end = min((last_id for last_id in last_ids if last_id is not None), default=0)
    return PrunedPage(sum(removed), end if max(found) >= params["limit"] else None)


class Written(NamedTuple, Generic[K]):
    """The answer of the write for the rows, and the rows that are `left` to a later write, because time was up."""

    done: list[K]
    left: list[K]


def written(
    connection: Connection,
    subject: str,
    rows: Sequence[K],
    write: Callable[[Sequence[K]], Iterable[K]],
    *,
    is_retried: bool = True,
    most_seconds: float = MOST_SECONDS,
) -> Written[K]:
    """Write given rows as `divided()` does, and log the refused ones."""
    done: list[K] = []

    def collect(part: Sequence[K]) -> dict[int, bool]:
        done.extend(write(part))
        return {}

    parts = divided(connection, rows, collect, most_seconds=most_seconds)
    for row, error in parts.refused:
        log_refused(subject, row, error, is_retried=is_retried)
    return Written(done, parts.left)


def log_refused(subject: str, row_id: object, error: Exception, *, is_retried: bool = True) -> None:
    """Log that the database has refused to write a row, at most once a minute for each subject."""
    now = time.monotonic()
    if now - _logged_at.get(subject, float("-inf")) < LOG_SECONDS:
        return
    _logged_at[subject] = now
    logger.error(
        "%s %s was refused by the database and %s: %s",
        subject,
        row_id,
        "will be retried" if is_retried else "is dropped",
        message_without_detail(error),
        extra=event("row_refused", subject=subject, row_id=row_id, reason=message_without_detail(error)),
    )
