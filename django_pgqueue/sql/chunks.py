"""The statement that claims the jobs of tasks with `chunk`, many jobs of one task at a time.

Such jobs have a chunk key in the column `limit_key`. Their executions have none, because nothing counts them.
"""

from typing import Final

from .clauses import CLAIMED_JOBS, LIMITED_IN_LANE, NOT_EXCLUDED, SIZE, STARTED

# The due jobs of one chunk lane behind its cursor.
OF_CHUNK: Final = LIMITED_IN_LANE + """
          AND limit_key = %(chunk_key)s
          AND run_after <= statement_timestamp() + %(time_shift)s::interval
          AND (run_after, id) > (%(after_at)s::timestamptz, %(after_id)s::bigint)
""" + NOT_EXCLUDED + """
        ORDER BY run_after, id"""  # fmt: skip

# Claim the first jobs of one chunk key in a lane, all or none, and open an execution for each.
#
# Moves:  ready → running
# Caller: lifecycle.chunks.claim_chunk(), from the fetcher
# Locks:  the job rows it returns, and until it ends the rows that `due` leaves unclaimed
# Index:  pgqueue_job_limited: one range of it, starting at the cursor
# Cost:   0.6 ms, 1.8 ms for 100 jobs
#
# The jobs are claimed if there are `size` due jobs, or if the first one has been due for `wait_seconds`. `head` decides
# this without locks, so that workers do not lock the rows of a chunk that still waits. Another session may claim or
# lock these rows meanwhile; `due` therefore decides again, from the rows that this statement has locked.
#
# A job that has crashed a process is claimed alone, as a chunk of one. So is a row of another task than `task_name`,
# which a program has added by SQL with this chunk key: the function of one task must not get the jobs of another. The
# chunk ends before such a job, and where the arguments reach `max_bytes`.
#
# The first rows are the claimed jobs, in order. The last row has the time until the chunk is due, as `head` saw it; it
# is NULL if no job is due.
CLAIM_CHUNK: Final = """/* pgqueue:claim_chunk */
WITH head AS MATERIALIZED (
    SELECT count(*) AS count, min(run_after) + make_interval(secs => %(wait_seconds)s::float8) AS due_at
    FROM (
        SELECT run_after
        FROM pgqueue_job
""" + OF_CHUNK + """
        LIMIT %(size)s
    ) AS job
),
picked AS MATERIALIZED (
    SELECT id, attempt, task_name, run_after, isolated, """ + SIZE + """
    FROM pgqueue_job
""" + OF_CHUNK + """
    LIMIT (
        SELECT CASE WHEN count >= %(size)s OR due_at <= statement_timestamp() + %(time_shift)s::interval
                    THEN %(size)s ELSE 0 END
        FROM head
    )
    FOR NO KEY UPDATE SKIP LOCKED
),
ranked AS MATERIALIZED (
    SELECT id, attempt, row_number() OVER in_line AS place, sum(size) OVER in_line AS size,
           bool_or(isolated) OVER in_line AS follows_isolated,
           bool_or(task_name <> %(task_name)s) OVER in_line AS follows_odd, count(*) OVER () AS count,
           min(run_after) OVER () + make_interval(secs => %(wait_seconds)s::float8) AS due_at
    FROM picked
    WINDOW in_line AS (ORDER BY run_after, id ROWS UNBOUNDED PRECEDING)
),
due AS MATERIALIZED (
    SELECT id, attempt, nextval('pgqueue_execution_id_seq') AS execution_id
    FROM ranked
    WHERE (count >= %(size)s OR due_at <= statement_timestamp() + %(time_shift)s::interval)
      AND (place = 1 OR NOT follows_isolated AND size <= %(max_bytes)s AND NOT follows_odd)
),
""" + STARTED + """,
claimed AS (
""" + CLAIMED_JOBS + """
)
SELECT claimed.*, NULL::float8
FROM claimed
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       date_part('epoch', due_at - statement_timestamp() - %(time_shift)s::interval)
FROM head
"""  # fmt: skip
