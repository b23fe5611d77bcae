"""Open and close the circuit breakers of limit keys, and count the attempts on which they depend.

The completer of each worker process calls these functions through `worker.completion.breaker_counter`. They protect
three invariants:

- A claim runs either before a breaker opens or closes, or after it: both hold the lock of the key.
- Only an execution that was claimed after the breaker opened can close it or open it again. If a probe has opened it
  again, that is an execution that was claimed after this probe.
- The pause of an operator stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from django_pgqueue import sql
from django_pgqueue.db.statements import Connection, execute, numbers, texts
from django_pgqueue.declared.breakers import MAX_WINDOW_SECONDS, PAUSED_BY, Breaker

from .ranges import Written, removed_in_ranges, rows_in_ranges, written

LOCK_TIMEOUT: Final = "50ms"
"""How long a statement waits for a pause that an operator's transaction has locked. The completer waits meanwhile, and
writes no completions."""
COUNTS_PRUNED: Final = 10_000
"""Rows of counts that one call removes at most."""


class Ended(NamedTuple):
    """How many attempts of a limit key ended, and how those ended that may have probed the key."""

    succeeded: int = 0
    failed: int = 0
    succeeded_probe_id: int = 0
    """The highest execution that succeeded as a probe, or 0."""
    failed_probe_id: int = 0


class Suspect(NamedTuple):
    """The breaker of a key that may have to open."""

    breaker: Breaker
    probe_id: int = 0
    """The highest execution that failed as a probe, or 0."""


class Opened(NamedTuple):
    """A breaker that has opened, or opened again after a probe. `ended` and `failed` attempts are in its window."""

    limit_key: str
    is_again: bool
    ended: int
    failed: int


def add_counts(connection: Connection, ended: Mapping[str, Ended]) -> list[str]:
    """Count attempts that ended, by limit key. Return the keys that are left to a later call, because time was up."""

    def add(keys: Sequence[str]) -> list[str]:
        params = {
            "limit_keys": texts(keys),
            "succeeded": numbers(ended[key].succeeded for key in keys),
            "failed": numbers(ended[key].failed for key in keys),
        }
        execute(connection, sql.breakers.ADD_BREAKER_COUNTS, params)
        return []

    return written(connection, "the count of limit key", list(ended), add, is_retried=False).left


def failing_keys(connection: Connection, breakers: Mapping[str, Breaker]) -> list[str]:
    """Return the keys in whose windows enough attempts failed. `breakers` has the breaker of each key to examine."""
    return [key for (key,) in execute(connection, sql.breakers.FAILING_KEYS, _windows(breakers))]


def limit_waits(connection: Connection) -> None:
    """Let the statements of this transaction wait for a lock no longer than `LOCK_TIMEOUT`."""
    execute(connection, sql.breakers.LIMIT_WAITS, {"lock_timeout": LOCK_TIMEOUT})


def open_breakers(connection: Connection, suspects: Mapping[str, Suspect]) -> tuple[list[Opened], list[str]]:
    """Open the breakers of these keys, if enough attempts failed or if the probe was claimed after they opened.

    Return the opened ones, and the keys that are left to a later call, because time was up.

    The caller's transaction must have locked the keys with an earlier statement.
    """
    opened: dict[str, Opened] = {}

    def open_some(keys: Sequence[str]) -> list[str]:
        params = {
            **_windows({key: suspects[key].breaker for key in keys}),
            "pauses_seconds": numbers(suspects[key].breaker.pause for key in keys),
            "probe_ids": numbers(suspects[key].probe_id for key in keys),
            "paused_by": PAUSED_BY,
        }
        rows = execute(connection, sql.breakers.OPEN_BREAKERS, params)
        opened.update({row[0]: Opened(row[0], row[1], int(row[2]), int(row[3])) for row in rows})
        return list(opened)

    left = written(connection, "the opening of the breaker of limit key", list(suspects), open_some).left
    return list(opened.values()), left


def close_breakers(connection: Connection, probe_ids: Mapping[str, int]) -> Written[str]:
    """Close the breakers of keys that an execution has probed with success. Return the keys whose breakers were open.

    `probe_ids` has the execution of each key. The caller's transaction must have locked the keys.
    """

    def close(keys: Sequence[str]) -> list[str]:
        given = {"limit_keys": texts(keys), "probe_ids": numbers(probe_ids[key] for key in keys)}
        rows = execute(connection, sql.breakers.CLOSE_BREAKERS, {**given, "paused_by": PAUSED_BY})
        return [key for (key,) in rows]

    return written(connection, "the closing of the breaker of limit key", list(probe_ids), close)


def prune_counts(connection: Connection, limit: int = COUNTS_PRUNED) -> int:
    """Remove up to `limit` counts that are in no window any more, the oldest first. Return how many."""
    params = {"seconds": MAX_WINDOW_SECONDS, "limit": limit}
    return removed_in_ranges(connection, "the removal of breaker count", sql.breakers.PRUNE_BREAKER_COUNTS, params)


def prune_breakers(connection: Connection, older_than_seconds: float) -> None:
    """Remove breakers that opened, or opened again, longer ago than this: the code has no such breaker any more."""
    params = {"older_than_seconds": older_than_seconds}
    rows_in_ranges(connection, "the removal of breaker", sql.breakers.PRUNE_OPEN_BREAKERS, params)


def _windows(breakers: Mapping[str, Breaker]) -> dict[str, Any]:
    """Return the parameters that describe windows and thresholds. PostgreSQL reads a share as an exact decimal."""
    return {
        "limit_keys": texts(breakers),
        "shares": numbers(breaker.failures for breaker in breakers.values()),
        "attempts": numbers(breaker.attempts for breaker in breakers.values()),
        "windows_seconds": numbers(breaker.seconds for breaker in breakers.values()),
    }
