"""Statements on the log lines that executions keep."""

from typing import Final

from .clauses import OF_CLAIM

# Write the log lines of executions. The lines replace those that were written before.
#
# Caller: lifecycle.logs.keep_logs(), at most once a second from each completer, and before the end of an attempt is
#         written
# Fence:  The id and the time of the claim. The execution may be closed, because the lines describe this attempt only.
# Locks:  FOR KEY SHARE on the execution, so that its deletion leaves no lines. It blocks no transition. SKIP LOCKED: an
#         execution that is being deleted needs no lines.
# Index:  primary keys
KEEP_LOGS: Final = """/* pgqueue:keep_logs */
WITH mine AS MATERIALIZED (
    SELECT locked.id, given.first_lines, given.last_lines, given.cut_lines
    FROM unnest(
        %(execution_ids)s::bigint[], %(claimed_ms)s::float8[], %(first_lines)s::text[], %(last_lines)s::text[],
        %(cut_lines)s::bigint[]
    ) AS given (id, claimed_ms, first_lines, last_lines, cut_lines)
    CROSS JOIN LATERAL (
        SELECT execution.id
        FROM pgqueue_execution AS execution
""" + OF_CLAIM + """
        FOR KEY SHARE OF execution SKIP LOCKED
    ) AS locked
)
INSERT INTO pgqueue_execution_log (execution_id, first_lines, last_lines, cut_lines)
SELECT id, first_lines::json, last_lines::json, cut_lines FROM mine
ON CONFLICT (execution_id) DO UPDATE
SET first_lines = excluded.first_lines, last_lines = excluded.last_lines, cut_lines = excluded.cut_lines
RETURNING execution_id
"""  # fmt: skip

# Remove the log lines of executions that no longer exist, from one page of the table. Return how many rows the page
# had, how many of them were removed, and the last id of the page.
#
# Caller: lifecycle.orphans.prune_orphans(), page by page. A prune itself does not touch the lines, so that it costs
#         nothing more for jobs that have none.
# Locks:  SKIP LOCKED: another worker may be removing the same rows
# Index:  primary keys
# Cost:   Measured with 100,000 executions, of which 1,000 have 20 lines each, on a busy machine with two cores: a page
#         of 1,000 rows takes 0.9 ms (median of 50; at most 5 ms) if all executions exist. It takes 3.9 ms (median of
#         15; at most 12 ms) if all rows are removed.
PRUNE_LOGS: Final = """/* pgqueue:prune_logs */
WITH page AS MATERIALIZED (
    SELECT execution_id
    FROM pgqueue_execution_log
    WHERE execution_id > %(after_id)s::bigint
    ORDER BY execution_id
    LIMIT %(limit)s
),
left_over AS MATERIALIZED (
    SELECT execution_id
    FROM page
    WHERE (SELECT true FROM pgqueue_execution AS execution WHERE execution.id = page.execution_id) IS NULL
      AND execution_id BETWEEN %(first_id)s::bigint AND %(last_id)s::bigint
),
mine AS MATERIALIZED (
    SELECT execution_id
    FROM pgqueue_execution_log
    WHERE execution_id = ANY (ARRAY (SELECT execution_id FROM left_over))
    ORDER BY execution_id
    FOR UPDATE SKIP LOCKED
),
gone AS (
    DELETE FROM pgqueue_execution_log WHERE execution_id = ANY (ARRAY (SELECT execution_id FROM mine))
)
SELECT count(*), (SELECT count(*) FROM mine), max(execution_id) FROM page
"""
