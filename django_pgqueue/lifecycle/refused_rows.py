"""Run a transition on many rows, and divide them if one of them makes the statement fail.

The other modules of `lifecycle` call it, as do workers that write many rows at once. It protects the other rows: an
error that one row causes never stops the transition of the others.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Final, Generic, NamedTuple, TypeVar

import psycopg
from django.db import Error as DjangoDatabaseError

from django_pgqueue.db.engine_connection import EngineConnection, is_lost
from django_pgqueue.db.errors import is_of_rows, message_without_detail
from django_pgqueue.db.statements import Connection
from django_pgqueue.ground.log_events import event
from django_pgqueue.ground.plurals import counted

from .execute import savepoint

logger = logging.getLogger("django_pgqueue.lifecycle")

T = TypeVar("T")
R = TypeVar("R")

FAILURES: Final = (psycopg.Error, DjangoDatabaseError, UnicodeError)
"""Errors that a statement may raise; `may_divide()` decides whether a row can be the cause."""
PIECES: Final = 8
"""Into how many parts the rows of a failed statement are divided. One bad row of 1,000 costs 4 failures; halves would
cost 10, and a trigger can take long to fail."""
MOST_SECONDS: Final = 5.0
"""How long one call divides. A service counts as stuck after 60 s, and its other duties wait."""
LOG_SECONDS: Final = 60.0
_left_logged_at = float("-inf")


class Refused(NamedTuple, Generic[T]):
    """A row that the database refuses to write, and the error that it raised for this row alone."""

    row: T
    error: Exception


class Divided(NamedTuple, Generic[T, R]):
    """The answers of a transition for the rows that it could write, and the rows that the database refused.

    `left` are the rows that the transition was not run on, because time was up. The caller writes them later.
    """

    answers: dict[int, R]
    refused: list[Refused[T]]
    left: list[T]


def divided(
    connection: Connection,
    rows: Sequence[T],
    transition: Callable[[Sequence[T]], Mapping[int, R]],
    *,
    most_seconds: float = MOST_SECONDS,
) -> Divided[T, R]:
    """Run a transition on many rows; if it fails because of a row, run it on parts until only bad rows are left out.

    The division ends after about `most_seconds`, but not before it has written or refused a row, so each call makes
    progress. It tries the parts in a random order. Otherwise a row behind others that are refused slowly would never be
    reached.

    Raises the errors that concern all rows: a lost connection, a deadlock, a server that is shutting down.
    """
    if not rows:
        return Divided({}, [], [])
    try:
        with savepoint(connection):
            return Divided(dict(transition(rows)), [], [])
    except FAILURES as error:
        if not may_divide(connection, error):
            raise
        failure = error
    with connection.unprepared() if isinstance(connection, EngineConnection) else nullcontext():
        parts = _divide(connection, rows, transition, time.monotonic() + most_seconds)
    if parts.left:
        log_left(counted(len(parts.left), "row"), failure)
    return parts


def may_divide(connection: Connection, error: Exception) -> bool:
    """Return whether a statement that failed with this error may succeed for other rows on this connection."""
    return is_of_rows(error) and not (isinstance(connection, EngineConnection) and is_lost(connection))


def _divide(
    connection: Connection, rows: Sequence[T], transition: Callable[[Sequence[T]], Mapping[int, R]], until: float
) -> Divided[T, R]:
    """Run a transition on the parts of all rows, then on the parts of those that failed, and so on.

    So the large parts without a bad row are written first. After `until`, go straight down to single rows.
    """
    parts = Divided[T, R]({}, [], [])
    waiting, has_ended_rows = deque([rows]), False
    while waiting:
        is_late = time.monotonic() >= until
        if is_late and has_ended_rows:
            break
        part = waiting.pop() if is_late else waiting.popleft()
        try:
            with savepoint(connection):
                parts.answers.update(transition(part))
                has_ended_rows = True
        except FAILURES as error:
            if not may_divide(connection, error):
                raise
            if len(part) == 1:
                parts.refused.append(Refused(part[0], error))
                has_ended_rows = True
            else:
                waiting.extend(_pieces(part))
    parts.left.extend(row for part in waiting for row in part)
    return parts


def _pieces(rows: Sequence[T]) -> list[Sequence[T]]:
    """Return up to `PIECES` parts of the rows, in a random order."""
    size = math.ceil(len(rows) / PIECES)
    pieces = [rows[first : first + size] for first in range(0, len(rows), size)]
    random.shuffle(pieces)
    return pieces


def log_left(subject: str, error: Exception) -> None:
    """Log that time was up before a statement was tried for all rows, at most once a minute.

    `error` is the first one of the statement.
    """
    global _left_logged_at
    now = time.monotonic()
    if now - _left_logged_at < LOG_SECONDS:
        return
    _left_logged_at = now
    reason = message_without_detail(error)
    logger.warning(
        "%s: left to a later write, because the database refuses others of the same write slowly: %s",
        subject,
        reason,
        extra=event("rows_left", subject=subject, reason=reason),
    )
