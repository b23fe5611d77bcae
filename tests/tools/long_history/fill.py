"""Make a long history: finished jobs with their executions, spread over the last 12 months.

The jobs are inserted in steps, without the indexes, which are built at the end. `fill()` may be stopped between two
steps or two indexes, and continues where it was.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Final

from tests.tools.long_history.place import run, scalar

STEP: Final = 1_000_000
PENDING: Final = 200
TABLES: Final = ("pgqueue_job", "pgqueue_execution")
CHECKS: Final = "long_history_checks"
INDEXES: Final = "long_history_indexes"

# Of each 1,000 jobs, 10 are dead and 10 cancelled. A job waits for a second and runs for one.
JOBS: Final = """
INSERT INTO pgqueue_job (id, task_name, queue_name, priority, arguments, state, attempt, enqueued_at, run_after,
                         finished_at)
SELECT n, CASE WHEN n %% 10 = 0 THEN 'tests.app.tasks.noop' ELSE 'shop.tasks.task' || n %% 50 END, 'queue' || n %% 20,
       (n %% 3 - 1) * 10, ('{"args": [' || n || '], "kwargs": {}}')::json,
       CASE n / 7 %% 100 WHEN 1 THEN 'dead' WHEN 2 THEN 'cancelled' ELSE 'succeeded' END, 1,
       ended_at - interval '2 s', ended_at - interval '2 s', ended_at
FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n
CROSS JOIN LATERAL (
    SELECT now() - interval '1 h' - interval '365 days' * (1 - n / %(jobs)s::float8)
) AS given (ended_at)
"""
EXECUTIONS: Final = """
INSERT INTO pgqueue_execution (id, job_id, attempt, worker_id, outcome, claimed_at, started_at, finished_at,
                               lease_expires_at, exception_class, error)
SELECT n, n, 1, 1 + n %% 20, CASE n / 7 %% 100 WHEN 1 THEN 'failed' WHEN 2 THEN 'cancelled' ELSE 'succeeded' END,
       ended_at - interval '1 s', ended_at - interval '1 s', ended_at, ended_at + interval '1 min',
       CASE n / 7 %% 100 WHEN 1 THEN 'builtins.ValueError' ELSE '' END,
       CASE n / 7 %% 100 WHEN 1 THEN 'invalid value ' || n ELSE '' END
FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n
CROSS JOIN LATERAL (
    SELECT now() - interval '1 h' - interval '365 days' * (1 - n / %(jobs)s::float8)
) AS given (ended_at)
"""
PENDING_JOBS: Final = """
INSERT INTO pgqueue_job (task_name, queue_name, arguments, run_after)
SELECT 'shop.tasks.task1', 'later', '{"args": [], "kwargs": {}}', statement_timestamp() + interval '1 day'
FROM generate_series(1, %(jobs)s)
"""
SAVE: Final = (
    (
        f"CREATE TABLE {INDEXES} AS SELECT indexrelid::regclass::text AS name, pg_get_indexdef(indexrelid) AS made_by, "
        "NULL::text AS of_key FROM pg_index WHERE indrelid = ANY (%(tables)s::regclass[]) AND NOT indisprimary"
    ),
    (
        f"INSERT INTO {INDEXES} SELECT conrelid::regclass::text, NULL, conname FROM pg_constraint "
        "WHERE conrelid = ANY (%(tables)s::regclass[]) AND contype = 'p'"
    ),
    (
        f"CREATE TABLE {CHECKS} AS SELECT conrelid::regclass::text AS of_table, conname, pg_get_constraintdef(oid) AS "
        "made_by FROM pg_constraint WHERE conrelid = ANY (%(tables)s::regclass[]) AND contype = 'c'"
    ),
)


def fill(jobs: int, until: float) -> bool:
    """Make the history. Return False if it is not complete at `until`, by the monotonic clock."""
    if scalar("SELECT to_regclass(%s) IS NULL", [INDEXES]):
        if scalar("SELECT count(*) FROM pgqueue_job WHERE id = %s", [jobs]):
            return True
        _drop_indexes()
    for done in _steps(jobs):
        sys.stderr.write(f"{time.strftime('%H:%M:%S')} {done}\n")
        if time.monotonic() > until:
            return False
    return True


def _drop_indexes() -> None:
    """Drop the indexes and the checks, and remember how to make them."""
    tables = {"tables": list(TABLES)}
    for statement in SAVE:
        run(statement, tables)
    for name, made_by, of_key in run(f"SELECT name, made_by, of_key FROM {INDEXES}"):
        run(f"DROP INDEX {name}" if made_by else f"ALTER TABLE {name} DROP CONSTRAINT {of_key}")
    for table, name in run(f"SELECT of_table, conname FROM {CHECKS}"):
        run(f"ALTER TABLE {table} DROP CONSTRAINT {name}")


def _steps(jobs: int) -> Iterator[str]:
    """Insert the rows, make the indexes and vacuum, as far as this is still to be done. Yield after each step."""
    run("CREATE TABLE IF NOT EXISTS long_history_steps (last bigint)")
    began = scalar("SELECT coalesce(max(last), 0) FROM long_history_steps")
    for first in range(began + 1, jobs + 1, STEP):
        step = {"first": first, "last": min(first + STEP - 1, jobs), "jobs": jobs}
        run("BEGIN")
        run(JOBS, step)
        run(EXECUTIONS, step)
        run("INSERT INTO long_history_steps VALUES (%(last)s)", step)
        run("COMMIT")
        yield f"{step['last']:,} jobs"
    for name, made_by, of_key in run(f"SELECT name, made_by, of_key FROM {INDEXES} ORDER BY of_key"):
        run("BEGIN")
        run(made_by or f"ALTER TABLE {name} ADD CONSTRAINT {of_key} PRIMARY KEY (id)")
        run(f"DELETE FROM {INDEXES} WHERE name = %s AND of_key IS NOT DISTINCT FROM %s", [name, of_key])
        run("COMMIT")
        yield f"index {of_key or name}"
    for table, name, made_by in run(f"SELECT of_table, conname, made_by FROM {CHECKS}"):
        run(f"ALTER TABLE {table} ADD CONSTRAINT {name} {made_by} NOT VALID")
        run(f"DELETE FROM {CHECKS} WHERE conname = %s", [name])
    for table in TABLES:
        began_at = time.monotonic()
        run(f"VACUUM (FREEZE, ANALYZE) {table}")
        yield f"vacuum of {table}: {time.monotonic() - began_at:.0f} s"
    run("SELECT setval(pg_get_serial_sequence('pgqueue_job', 'id'), %s)", [jobs])
    run("SELECT setval(pg_get_serial_sequence('pgqueue_execution', 'id'), %s)", [jobs])
    run(PENDING_JOBS, {"jobs": PENDING})
    run(f"DROP TABLE {INDEXES}, {CHECKS}, long_history_steps")
    run("ANALYZE")
    run("CHECKPOINT")
    yield "complete"
