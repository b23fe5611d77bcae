"""Write and remove the log lines that executions keep.

The completer calls `keep_logs()` for tasks with `keep_logs`, and the maintenance service calls `prune_logs()`. No state
of a job depends on these rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from django_pgqueue import sql
from django_pgqueue.db.statements import Connection
from django_pgqueue.job_log import LogContent

from .completions import key_params
from .execute import execute_with_retry
from .pruning import PRUNE_LIMIT
from .ranges import page_in_ranges
from .types import ExecutionKey


class KeptLog(NamedTuple):
    """The log lines of an execution, as they are stored."""

    key: ExecutionKey
    content: LogContent


class PrunedLogs(NamedTuple):
    """The result of one call of `prune_logs()`. `last_id` is the end of its page, or None after the last page."""

    removed: int
    last_id: int | None


def keep_logs(connection: Connection, logs: Sequence[KeptLog]) -> dict[int, bool]:
    """Write the lines of executions, in place of what was written before.

    Return the executions with lines in the database now. If an execution no longer exists, nothing is written for it.
    """
    rows = sorted(logs, key=lambda row: row.key)
    written = execute_with_retry(
        connection,
        sql.logs.KEEP_LOGS,
        {
            **key_params(row.key for row in rows),
            "first_lines": [row.content.first_lines for row in rows],
            "last_lines": [row.content.last_lines for row in rows],
            "cut_lines": [row.content.cut_lines for row in rows],
        },
    )
    return {row[0]: True for row in written}


def prune_logs(connection: Connection, after_id: int = 0, limit: int = PRUNE_LIMIT) -> PrunedLogs:
    """Remove the lines of executions that no longer exist, from the page of `limit` rows behind `after_id`."""
    params = {"after_id": after_id, "limit": limit}
    found, removed, last_id = page_in_ranges(
        connection, "the removal of the log lines of execution", sql.logs.PRUNE_LOGS, params
    )
    return PrunedLogs(removed, last_id if found == limit else None)
