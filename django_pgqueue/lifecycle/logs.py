"""Write the log lines that executions keep.

The completer calls `keep_logs()` for tasks with `keep_logs`. No state of a job depends on these rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from django_pgqueue import sql
from django_pgqueue.db.statements import Connection
from django_pgqueue.ground.job_log import LogContent

from .completions import key_params
from .execute import execute_with_retry
from .types import ExecutionKey


class KeptLog(NamedTuple):
    """The log lines of an execution, as they are stored."""

    key: ExecutionKey
    content: LogContent


def keep_logs(connection: Connection, logs: Sequence[KeptLog]) -> dict[int, bool]:
    """Write the lines of executions, in place of what was written before.

    Return the executions with lines in the database now. If an execution no longer exists, nothing is written for it.
    """
    rows = sorted(logs, key=lambda row: row.key)
    written = execute_with_retry(
        connection,
        sql.logs.KEEP_LOGS,
        {
            **key_params([row.key for row in rows]),
            "first_lines": [row.content.first_lines for row in rows],
            "last_lines": [row.content.last_lines for row in rows],
            "cut_lines": [row.content.cut_lines for row in rows],
        },
    )
    return {row[0]: True for row in written}
