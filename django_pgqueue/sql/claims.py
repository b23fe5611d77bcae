"""Statements that claim due jobs, and that find the lanes and the rows to claim."""

from typing import Final

from .clauses import CLAIMED_JOBS, NOT_EXCLUDED, OPENED, SIZE, STARTED

# The given lanes, each with its cursor.
IN_LANES: Final = """WITH lane AS (
    SELECT given.queue_name, given.priority, given.after_at, given.after_id
    FROM unnest(
        %(queue_names)s::varchar[], %(priorities)s::smallint[], %(after_ats)s::timestamptz[], %(after_ids)s::bigint[]
    ) AS given (queue_name, priority, after_at, after_id)
),
"""

# The due jobs of a lane behind its cursor, in the order of claims.
OF_LANE: Final = """        FROM pgqueue_job
        WHERE state = 'ready'
          AND limit_key IS NULL
          AND queue_name = lane.queue_name
          AND priority = lane.priority
          AND run_after <= statement_timestamp() + %(time_shift)s::interval
          AND (run_after, id) > (lane.after_at, lane.after_id)
""" + NOT_EXCLUDED + """
        ORDER BY run_after, id"""  # fmt: skip

# The first of them with their locks, to the end of the CTE.
FIRST_OF_LANE: Final = OF_LANE + """
        LIMIT %(limit)s
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS job
    LIMIT %(limit)s
),
"""  # fmt: skip

# Claim up to `limit` due jobs of the given lanes, in their order, and open an execution for each. All of them start at
# once.
#
# Moves:  ready → running
# Caller: lifecycle.claims.claim(), from the fetcher, for as many jobs as slots are free
# Locks:  the job rows it returns
# Index:  pgqueue_job_ready: each lane is a range of it, starting at its cursor
# Cost:   0.4 ms idle, 1.5 ms for 100 jobs
#
# The limit is applied in the CTE, before the UPDATE: `IN (SELECT … LIMIT 10 …)` returned 501 rows for a limit of 10.
# `due` has only what the INSERT needs. All other columns come from the row that the UPDATE has written, because each
# column that passes through a CTE costs instructions. The execution ids are drawn here by nextval. They order the
# answer.
CLAIM: Final = """/* pgqueue:claim */
""" + IN_LANES + """due AS MATERIALIZED (
    SELECT job.id, job.attempt, nextval('pgqueue_execution_id_seq') AS execution_id
    FROM lane
    CROSS JOIN LATERAL (
        SELECT id, attempt
""" + FIRST_OF_LANE + STARTED + """
""" + CLAIMED_JOBS  # fmt: skip

# Claim as CLAIM does, for more jobs than slots are free.
#
# Moves:  ready → running
# Caller: lifecycle.claims.claim(), from the fetcher
# Locks:  as CLAIM, and until it ends the rows that `due` leaves unclaimed
# Index:  as CLAIM
#
# `ranked` and `due` limit prefetching: beyond the free slots, the batch ends before the first job that is on its last
# attempt. A claim counts as an attempt, so if the host were lost before such a job had started, the job would end
# without having run. The batch also ends where the arguments reach `ahead_bytes`, because large jobs may follow small
# ones: 500 jobs could be 128 MB.
CLAIM_AHEAD: Final = """/* pgqueue:claim_ahead */
""" + IN_LANES + """picked AS MATERIALIZED (
    SELECT job.id, job.attempt, job.is_last, job.size
    FROM lane
    CROSS JOIN LATERAL (
        SELECT id, attempt, attempt + 1 >= max_attempts AS is_last, """ + SIZE + """
""" + FIRST_OF_LANE + """ranked AS MATERIALIZED (
    SELECT id, attempt, is_last, row_number() OVER in_line AS place, sum(size) OVER in_line AS size
    FROM picked
    WINDOW in_line AS (ROWS UNBOUNDED PRECEDING)
),
due AS MATERIALIZED (
    SELECT id, attempt, place, nextval('pgqueue_execution_id_seq') AS execution_id
    FROM ranked
    WHERE place <= %(free_slots)s
       OR size <= %(ahead_bytes)s AND place < coalesce(
           (SELECT min(place) FROM ranked WHERE place > %(free_slots)s AND is_last), 1000000000
       )
),
""" + OPENED + """
           CASE WHEN place <= %(free_slots)s
                THEN statement_timestamp() + %(time_shift)s::interval END,
           statement_timestamp() + %(time_shift)s::interval + make_interval(secs => %(lease_seconds)s::float8)
    FROM due
)
""" + CLAIMED_JOBS  # fmt: skip

# Claim one job without a limit if it is ready, and open an execution for it. With `only_due`, claim it only if it is
# also due. A job with a chunk key has no limit.
#
# Moves:  ready → running
# Caller: lifecycle.claims.claim_one()
# Locks:  the job's row, SKIP LOCKED
CLAIM_ONE: Final = """/* pgqueue:claim_one */
WITH picked AS MATERIALIZED (
    SELECT id, attempt
    FROM pgqueue_job
    WHERE id = %(job_id)s
      AND state = 'ready'
      AND coalesce(left(limit_key, 1), '+') = '+'
      AND (NOT %(only_due)s
           OR run_after <= statement_timestamp() + %(time_shift)s::interval)
    FOR NO KEY UPDATE SKIP LOCKED
),
due AS MATERIALIZED (
    SELECT id, attempt, nextval('pgqueue_execution_id_seq') AS execution_id
    FROM picked
),
""" + STARTED + """
""" + CLAIMED_JOBS  # fmt: skip

# Return the first job that a claim of the given lanes would take. The claimer uses this
# to find the row that makes a claim fail.
#
# Caller: lifecycle.claims.next_in_line(), from the fetcher's claimer
NEXT_IN_LINE: Final = """/* pgqueue:next_in_line */
SELECT job.id
FROM unnest(
    %(queue_names)s::varchar[], %(priorities)s::smallint[], %(after_ats)s::timestamptz[], %(after_ids)s::bigint[]
) AS lane (queue_name, priority, after_at, after_id)
CROSS JOIN LATERAL (
    SELECT id
""" + OF_LANE + """
    LIMIT 1
    FOR NO KEY UPDATE SKIP LOCKED
) AS job
LIMIT 1
"""  # fmt: skip

# Make a job dead, and record the reason. The claimer uses this for a job whose row makes every claim fail.
#
# Moves:  ready → dead
# Caller: lifecycle.claims.set_aside()
#
# The execution that carries the reason is opened and closed here. Nothing ran, so no attempt is counted.
SET_ASIDE: Final = """/* pgqueue:set_aside */
WITH culprit AS MATERIALIZED (
    SELECT id, task_name, queue_name, attempt
    FROM pgqueue_job
    WHERE id = %(job_id)s AND state = 'ready'
    FOR NO KEY UPDATE SKIP LOCKED
),
ended AS (
    UPDATE pgqueue_job AS job
    SET state = 'dead', finished_at = statement_timestamp() + %(time_shift)s::interval
    FROM culprit
    WHERE job.id = culprit.id
),
recorded AS (
    INSERT INTO pgqueue_execution
        (job_id, attempt, worker_id, outcome, claimed_at, finished_at, lease_expires_at, exception_class, error)
    SELECT id, attempt, %(worker_id)s, 'released',
           statement_timestamp() + %(time_shift)s::interval,
           statement_timestamp() + %(time_shift)s::interval,
           statement_timestamp() + %(time_shift)s::interval,
           %(exception_class)s, %(error)s
    FROM culprit
    RETURNING id
)
SELECT recorded.id, culprit.id, culprit.task_name, culprit.queue_name, culprit.attempt
FROM culprit
CROSS JOIN recorded
"""

# The first job of a range of pgqueue_job_ready, or of the next range if it is empty.
OR_NEXT_LANE: Final = """            ORDER BY queue_name, priority DESC, run_after, id
            LIMIT 1
        )
        UNION ALL
        (
            SELECT queue_name, priority, run_after FROM pgqueue_job
            WHERE state = 'ready' AND limit_key IS NULL"""

# Return the lanes that have ready jobs, and in a last row all pauses and the database's clock.
#
# Caller: lifecycle.claims.scan_lanes(), at most once a second, and before a worker sleeps
# Index:  pgqueue_job_ready: one index search per lane finds the first entry of the next lane
# Cost:   0.2 ms; 4 ms for 600 lanes. `extract()` computes in numeric and cost a quarter more than `date_part()`.
#
# Each lane has two times: the seconds until its first job is due (0 or less: due now), and the seconds until the pause
# of its queue ends (infinity: it does not end by itself; NULL: not paused). The statement finds the lanes by loose
# index scans. Each begins behind a given lane and ends before another one. So the caller can read all lanes, those
# behind the last lane of a page, or those of some queues. The recursion makes no more steps than `limit` needs.
#
# At the start of a lane, a scan walks over the index entries of all jobs that were claimed since the last vacuum, which
# took up to 30 ms. So the caller can also give lanes with their cursors. Each of them is read only behind its cursor,
# and the scans end before it and begin behind it.
#
# The last row has no lane. It has the names of all paused queues and tasks. Queues without ready jobs are included,
# because a job can be enqueued and claimed before the next scan. It has the database's clock, because a claim that
# exhausts a lane moves the lane's cursor to the time of the scan.
LANES: Final = """/* pgqueue:lanes */
WITH RECURSIVE lane AS (
    SELECT walk.queue_name COLLATE "C" AS queue_name, walk.priority, NULL::timestamptz AS run_after,
           walk.end_name COLLATE "C" AS end_name, walk.end_priority
    FROM unnest(
        %(start_names)s::varchar[], %(start_priorities)s::integer[], %(end_names)s::varchar[],
        %(end_priorities)s::integer[]
    ) AS walk (queue_name, priority, end_name, end_priority)
    UNION ALL
    SELECT next.queue_name, next.priority::integer, next.run_after, lane.end_name, lane.end_priority
    FROM lane
    CROSS JOIN LATERAL (
        (
            SELECT queue_name, priority, run_after FROM pgqueue_job
            WHERE state = 'ready' AND limit_key IS NULL
              AND queue_name = lane.queue_name AND priority < lane.priority
              AND priority > CASE WHEN lane.end_name = lane.queue_name THEN lane.end_priority ELSE -32769 END
""" + OR_NEXT_LANE + """
              AND queue_name > lane.queue_name AND queue_name < lane.end_name
""" + OR_NEXT_LANE + """
              AND queue_name = lane.end_name AND priority > lane.end_priority AND lane.queue_name < lane.end_name
            ORDER BY queue_name, priority DESC, run_after, id
            LIMIT 1
        )
        LIMIT 1
    ) AS next
),
found AS (
    (SELECT queue_name, priority, run_after FROM lane WHERE run_after IS NOT NULL LIMIT %(limit)s)
    UNION ALL
    SELECT known.queue_name, known.priority, job.run_after
    FROM unnest(
        %(queue_names)s::varchar[], %(priorities)s::smallint[], %(after_ats)s::timestamptz[], %(after_ids)s::bigint[]
    ) AS known (queue_name, priority, after_at, after_id)
    CROSS JOIN LATERAL (
        SELECT run_after FROM pgqueue_job
        WHERE state = 'ready' AND limit_key IS NULL
          AND queue_name = known.queue_name AND priority = known.priority
          AND (run_after, id) > (known.after_at, known.after_id)
        ORDER BY run_after, id
        LIMIT 1
    ) AS job
),
paused AS MATERIALIZED (
    SELECT kind, name, paused_until
    FROM pgqueue_pause
    WHERE kind IN ('queue', 'task')
      AND (paused_until IS NULL OR paused_until > statement_timestamp() + %(time_shift)s::interval)
)
(
    SELECT found.queue_name, found.priority,
           date_part('epoch', found.run_after - statement_timestamp() - %(time_shift)s::interval),
           (
               SELECT CASE
                   WHEN isfinite(paused_until)
                   THEN date_part('epoch', paused_until - statement_timestamp() - %(time_shift)s::interval)
                   ELSE 'infinity'
               END
               FROM paused
               WHERE kind = 'queue' AND name = found.queue_name
           ),
           NULL, NULL, NULL
    FROM found
)
UNION ALL
SELECT NULL, NULL, NULL, NULL,
       ARRAY (SELECT name FROM paused WHERE kind = 'queue'), ARRAY (SELECT name FROM paused WHERE kind = 'task'),
       statement_timestamp() + %(time_shift)s::interval
"""  # fmt: skip

# Return the lanes and the limit keys of the newest jobs that are ready, with the time at which the first of these jobs
# is due, and the seconds until then.
#
# Caller: lifecycle.claims.newest_lanes() and lifecycle.limits.newest_keys(), after a notification, in workers that read
#         lanes or keys page by page
# Index:  pgqueue_job_pkey, backwards
#
# A notification does not say which queue has a new job. The job is almost always among the newest ones.
NEWEST_READY: Final = """/* pgqueue:newest_ready */
SELECT queue_name, priority, limit_key, min(run_after),
       date_part('epoch', min(run_after) - statement_timestamp() - %(time_shift)s::interval)
FROM (
    SELECT queue_name, priority, run_after, state, limit_key FROM pgqueue_job ORDER BY id DESC LIMIT %(limit)s
) AS newest
WHERE state = 'ready'
GROUP BY queue_name, priority, limit_key
"""
