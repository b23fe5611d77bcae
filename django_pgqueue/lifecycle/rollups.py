"""Write the rollup: how many attempts ended in each minute. `stats` reads it.

Worker processes append what they have counted, and the maintenance of each worker merges and removes old rows. A row is
never updated. So no process waits for another, and a merge that is repeated adds nothing twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from django_pgqueue import sql
from django_pgqueue.db.statements import Connection

from .execute import execute_with_retry
from .ranges import removed_in_ranges, written

ROLLUPS_MERGED: Final = 2000
"""Maximum number of rows that one call merges or removes: about 80 ms."""
MINUTES_MERGED_AFTER_SECONDS: Final = 20.0
"""How long after a minute its parts are merged. A process writes the last ones 10 s after the minute."""
HOURS_MERGED_AFTER_SECONDS: Final = 2 * 3600.0
"""How long single minutes are kept."""


def append_rollups(connection: Connection, tallies: Iterable[dict[str, Any]], seconds_ago: float) -> list[int]:
    """Append what one process has counted, as part of the minute that was `seconds_ago`.

    Return the places of those tallies that are left to a later call, because time was up.

    Args:
        connection: An engine connection.
        tallies: One dict per queue, task and exception class, with the columns of the table.
        seconds_ago: How long ago the attempts ended on average.
    """
    rows = list(tallies)

    def append(part: Sequence[int]) -> list[int]:
        given = {"tallies": json.dumps([rows[index] for index in part]), "seconds_ago": seconds_ago}
        execute_with_retry(connection, sql.rollups.APPEND_ROLLUPS, given)
        return []

    return written(connection, "the count of attempts", range(len(rows)), append, is_retried=False).left


def merge_rollups(connection: Connection) -> int:
    """Merge the parts of ended minutes, and the minutes of hours that ended two hours ago.

    Each merge of parts also adds the total of the minute. The totals of minutes become those of hours.

    Return how many rows the largest of the statements has merged: `ROLLUPS_MERGED` if there may be more.
    """
    merged = 0
    for from_span, to_span, total_span, unit, seconds in (
        ("part", "minute", "minute_total", "minute", MINUTES_MERGED_AFTER_SECONDS),
        ("minute", "hour", None, "hour", HOURS_MERGED_AFTER_SECONDS),
        ("minute_total", "hour_total", None, "hour", HOURS_MERGED_AFTER_SECONDS),
    ):
        params = {
            "from_span": from_span,
            "to_span": to_span,
            "total_span": total_span,
            "unit": unit,
            "older_than_seconds": seconds,
            "limit": ROLLUPS_MERGED,
        }
        merged = max(merged, removed_in_ranges(connection, "the merge of rollup", sql.rollups.MERGE_ROLLUPS, params))
    return merged


def prune_rollups(connection: Connection, retention_seconds: float) -> int:
    """Remove rows older than the retention; return how many: `ROLLUPS_MERGED` if there may be more."""
    params = {"retention_seconds": retention_seconds, "limit": ROLLUPS_MERGED}
    return removed_in_ranges(connection, "the removal of rollup", sql.rollups.PRUNE_ROLLUPS, params)
