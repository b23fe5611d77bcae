"""Make finished jobs with an execution, for the tests of the archive and of erasure."""

from __future__ import annotations

from typing import Any

from tests import helpers

INSERT = (
    "INSERT INTO pgqueue_job (task_name, queue_name, arguments, headers, result, state, attempt, unique_key, "
    "progress_message, finished_at) "
    "SELECT %(task)s, %(queue)s, %(arguments)s, '{\"customer\": 7}', '\"secret result\"', %(state)s, 1, "
    "'secret key ' || n, 'secret message', statement_timestamp() - make_interval(days => %(days)s) + n * interval '1 s'"
    "FROM generate_series(1, %(count)s) AS n RETURNING id"
)
EXECUTIONS = (
    "INSERT INTO pgqueue_execution (job_id, attempt, worker_id, lease_expires_at, finished_at, outcome, "
    "exception_class, error, traceback) "
    "SELECT id, 1, 1, statement_timestamp(), statement_timestamp(), 'failed', 'ValueError', 'secret error', 'secret' "
    "FROM unnest(%s::bigint[]) AS id"
)


LINES = (
    "INSERT INTO pgqueue_execution_log (execution_id, first_lines, last_lines, cut_lines) "
    'SELECT id, \'[[1e9, "INFO", "shop", "secret line"],\n [1e9, "INFO", "shop", "\\u0000 \\n"]]\', \'[]\', 3 '
    "FROM pgqueue_execution WHERE job_id = ANY (%s)"
)


def make(on: Any, count: int = 1, *, logs: bool = False, **changes: Any) -> list[int]:
    """Insert finished jobs that ended a second apart, `days` ago; return their ids. `logs`: with kept log lines."""
    values = {"task": helpers.NOOP, "queue": "default", "state": "succeeded", "days": 40, "count": count}
    values |= {"arguments": '{"args": ["secret"],\n "kwargs": {}}'}
    with on.cursor() as cursor:
        cursor.execute(INSERT, values | changes)
        job_ids = [row[0] for row in cursor.fetchall()]
        cursor.execute(EXECUTIONS, [job_ids])
        if logs:
            cursor.execute(LINES, [job_ids])
    return job_ids
