"""Every statement of the package, as static text: what to read to know what runs.

Rules, each held by a test:

* One plain literal a statement, named parameters only, units in their names. Two shapes are two statements.
* Each begins with `/* pgqueue:<name> */`, to be found in `pg_stat_activity` and in the server's log.
* Time is `statement_timestamp()` plus `time_shift_seconds` (0 but in tests), never `now()`, which is the
  start of the transaction: it put an atomic finish before its own claim.
* No act waits for a row lock: rows are picked FOR NO KEY UPDATE SKIP LOCKED, in id order, execution and job
  together, and written afterwards. One row locked in a forgotten shell would else hold up a whole worker,
  and a user's bulk UPDATE makes deadlocks. What was skipped stays for the next try.
* The fence of every act of a worker is `outcome IS NULL` on its own execution: rescue closes the execution,
  so a worker that was only slow matches nothing. Neither `attempt` (given back by a release) nor the state
  (running again, elsewhere) is a fence. An execution is named by its id and the time of its claim, because ids
  start anew after TRUNCATE ... RESTART IDENTITY or a restored dump. The time is compared in whole milliseconds,
  `floor(1000 * date_part('epoch', claimed_at))`: a double of 13 digits passes through any `extra_float_digits`.
* Rows are found from the parameters by LATERAL look-ups, and CTEs meet tables by primary key only: a queue is
  analysed while it is idle, so the planner expects one row everywhere, and a join it may choose goes wrong.

The comment above a statement: Moves, Caller, Fence, Locks, Index, Cost, where they say something.
"""

from typing import Final

# Add one job.
#
# Moves:  → ready
# Caller: Task.enqueue(), on the application's own connection, in whatever transaction is open
# Cost:   one insert into three indexes (a ready job is in two of them)
ENQUEUE: Final = """/* pgqueue:enqueue */
INSERT INTO pgqueue_job
    (task_name, queue_name, priority, arguments, max_attempts, enqueued_at, run_after, headers, expires_at)
VALUES (
    %(task_name)s, %(queue_name)s, %(priority)s, %(arguments)s::json, %(max_attempts)s,
    statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8),
    coalesce(
        %(run_after)s::timestamptz,
        statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8 + %(delay_seconds)s::float8)
    ),
    %(headers)s::json,
    coalesce(
        %(expires_at)s::timestamptz,
        statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8 + %(expires_seconds)s::float8)
    )
)
RETURNING id, run_after, enqueued_at, expires_at
"""

# Add many jobs of one task; ids come back in the order given.
#
# Moves:  → ready
# Caller: Task.enqueue_many(), a chunk at a time
# Cost:   5 us a job. One JSON array comes in, whose elements are kept as they are written: an array of texts took the
#         client 5 us a job to put together.
ENQUEUE_MANY: Final = """/* pgqueue:enqueue_many */
INSERT INTO pgqueue_job
    (task_name, queue_name, priority, arguments, max_attempts, enqueued_at, run_after, headers, expires_at)
SELECT
    %(task_name)s, %(queue_name)s, %(priority)s, given.arguments, %(max_attempts)s,
    statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8),
    coalesce(
        %(run_after)s::timestamptz,
        statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8 + %(delay_seconds)s::float8)
    ),
    %(headers)s::json,
    coalesce(
        %(expires_at)s::timestamptz,
        statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8 + %(expires_seconds)s::float8)
    )
FROM json_array_elements(%(arguments)s::json) WITH ORDINALITY AS given (arguments, place)
ORDER BY given.place
RETURNING id
"""

# Add one job, unless one with its key waits (or runs: `unique_ready_only` is NULL) already.
#
# Moves:  → ready, or nothing: then another session has just made, or has, the job of that key
# Caller: lifecycle.enqueue_unique()
# Locks:  waits for a transaction that has enqueued the same key and has not ended: only its end tells who is first
# Index:  pgqueue_job_unique, whose predicate is repeated here, or it would not be found
ENQUEUE_UNIQUE: Final = """/* pgqueue:enqueue_unique */
INSERT INTO pgqueue_job
    (task_name, queue_name, priority, arguments, max_attempts, enqueued_at, run_after, headers, expires_at,
     unique_key, unique_ready_only)
VALUES (
    %(task_name)s, %(queue_name)s, %(priority)s, %(arguments)s::json, %(max_attempts)s,
    statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8),
    coalesce(
        %(run_after)s::timestamptz,
        statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8 + %(delay_seconds)s::float8)
    ),
    %(headers)s::json,
    coalesce(
        %(expires_at)s::timestamptz,
        statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8 + %(expires_seconds)s::float8)
    ),
    %(unique_key)s, %(unique_ready_only)s
)
ON CONFLICT (task_name, unique_key)
    WHERE unique_key IS NOT NULL AND (state = 'ready' OR (state = 'running' AND unique_ready_only IS NULL))
DO NOTHING
RETURNING id, run_after, enqueued_at, expires_at
"""

# Add one job, or put its call in the place of the one that waits with its key. One that runs is left alone, and if it
# is seen to run not even tried: ON CONFLICT DO UPDATE locks its row also where it changes nothing, and its worker could
# not write its end before the caller's transaction ends.
#
# Moves:  → ready; ready, stays
# Caller: lifecycle.replace()
# Locks, Index: as ENQUEUE_UNIQUE; and it waits for whoever has the waiting job's row, such as a claim that commits
ENQUEUE_OR_REPLACE: Final = """/* pgqueue:enqueue_or_replace */
INSERT INTO pgqueue_job
    (task_name, queue_name, priority, arguments, max_attempts, enqueued_at, run_after, headers, expires_at,
     unique_key, unique_ready_only)
SELECT
    %(task_name)s::varchar, %(queue_name)s, %(priority)s, %(arguments)s::json, %(max_attempts)s,
    statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8),
    coalesce(
        %(run_after)s::timestamptz,
        statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8 + %(delay_seconds)s::float8)
    ),
    %(headers)s::json,
    coalesce(
        %(expires_at)s::timestamptz,
        statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8 + %(expires_seconds)s::float8)
    ),
    %(unique_key)s::varchar, %(unique_ready_only)s::boolean
WHERE (
    SELECT state
    FROM pgqueue_job
    WHERE task_name = %(task_name)s::varchar AND unique_key = %(unique_key)s::varchar
      AND unique_key IS NOT NULL AND (state = 'ready' OR (state = 'running' AND unique_ready_only IS NULL))
) IS DISTINCT FROM 'running'
ON CONFLICT (task_name, unique_key)
    WHERE unique_key IS NOT NULL AND (state = 'ready' OR (state = 'running' AND unique_ready_only IS NULL))
DO UPDATE
SET arguments = excluded.arguments, run_after = excluded.run_after, expires_at = excluded.expires_at,
    headers = excluded.headers, priority = excluded.priority, max_attempts = excluded.max_attempts,
    attempt = 0, crashes = 0, unknown_since = NULL
WHERE pgqueue_job.state = 'ready'
RETURNING id, run_after, enqueued_at, expires_at
"""

# ENQUEUE_UNIQUE for many calls, each an object of its `call` and its `key`, which may be null.
# Ids are drawn in the order of the calls, because workers claim in the order of ids.
#
# Caller: lifecycle.enqueue_many_unique()
# Locks:  keys are taken in their order. In the order of the calls two such statements could wait for each other
ENQUEUE_MANY_UNIQUE: Final = """/* pgqueue:enqueue_many_unique */
WITH given AS MATERIALIZED (
    SELECT call, place, nextval('pgqueue_job_id_seq') AS id
    FROM json_array_elements(%(arguments)s::json) WITH ORDINALITY AS each (call, place)
)
INSERT INTO pgqueue_job
    (id, task_name, queue_name, priority, arguments, max_attempts, enqueued_at, run_after, headers, expires_at,
     unique_key, unique_ready_only)
SELECT
    given.id, %(task_name)s, %(queue_name)s, %(priority)s, given.call -> 'call', %(max_attempts)s,
    statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8),
    coalesce(
        %(run_after)s::timestamptz,
        statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8 + %(delay_seconds)s::float8)
    ),
    %(headers)s::json,
    coalesce(
        %(expires_at)s::timestamptz,
        statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8 + %(expires_seconds)s::float8)
    ),
    given.call ->> 'key', CASE WHEN given.call ->> 'key' IS NOT NULL THEN %(unique_ready_only)s::boolean END
FROM given
ORDER BY given.call ->> 'key' COLLATE "C", given.place
ON CONFLICT (task_name, unique_key)
    WHERE unique_key IS NOT NULL AND (state = 'ready' OR (state = 'running' AND unique_ready_only IS NULL))
DO NOTHING
RETURNING id, unique_key
"""

# ENQUEUE_OR_REPLACE for many: of calls with one key the last counts, for no statement may write a row twice.
#
# Caller: lifecycle.enqueue_many_unique()
# Locks:  keys are taken in their order, as by ENQUEUE_MANY_UNIQUE
ENQUEUE_MANY_OR_REPLACE: Final = """/* pgqueue:enqueue_many_or_replace */
WITH drawn AS MATERIALIZED (
    SELECT call, place, nextval('pgqueue_job_id_seq') AS id
    FROM json_array_elements(%(arguments)s::json) WITH ORDINALITY AS each (call, place)
),
given AS MATERIALIZED (
    SELECT call, place, id, row_number() OVER (PARTITION BY call ->> 'key' ORDER BY place DESC) AS rank
    FROM drawn
)
INSERT INTO pgqueue_job
    (id, task_name, queue_name, priority, arguments, max_attempts, enqueued_at, run_after, headers, expires_at,
     unique_key, unique_ready_only)
SELECT
    given.id, %(task_name)s::varchar, %(queue_name)s, %(priority)s, given.call -> 'call', %(max_attempts)s,
    statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8),
    coalesce(
        %(run_after)s::timestamptz,
        statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8 + %(delay_seconds)s::float8)
    ),
    %(headers)s::json,
    coalesce(
        %(expires_at)s::timestamptz,
        statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8 + %(expires_seconds)s::float8)
    ),
    given.call ->> 'key', CASE WHEN given.call ->> 'key' IS NOT NULL THEN %(unique_ready_only)s::boolean END
FROM given
WHERE (given.rank = 1 OR given.call ->> 'key' IS NULL)
  AND (
      SELECT state
      FROM pgqueue_job
      WHERE task_name = %(task_name)s::varchar AND unique_key = given.call ->> 'key'
        AND unique_key IS NOT NULL AND (state = 'ready' OR (state = 'running' AND unique_ready_only IS NULL))
  ) IS DISTINCT FROM 'running'
ORDER BY given.call ->> 'key' COLLATE "C", given.place
ON CONFLICT (task_name, unique_key)
    WHERE unique_key IS NOT NULL AND (state = 'ready' OR (state = 'running' AND unique_ready_only IS NULL))
DO UPDATE
SET arguments = excluded.arguments, run_after = excluded.run_after, expires_at = excluded.expires_at,
    headers = excluded.headers, priority = excluded.priority, max_attempts = excluded.max_attempts,
    attempt = 0, crashes = 0, unknown_since = NULL
WHERE pgqueue_job.state = 'ready'
RETURNING id, unique_key
"""

# The jobs that have these keys of a task now.
#
# Caller: lifecycle.holders()
# Index:  pgqueue_job_unique
HOLDERS: Final = """/* pgqueue:holders */
SELECT wanted.key, held.id
FROM unnest(%(unique_keys)s::varchar[]) AS wanted (key)
CROSS JOIN LATERAL (
    SELECT id
    FROM pgqueue_job
    WHERE task_name = %(task_name)s
      AND unique_key = wanted.key
      AND unique_key IS NOT NULL AND (state = 'ready' OR (state = 'running' AND unique_ready_only IS NULL))
    OFFSET 0
) AS held
"""

# Add jobs whose keys nobody holds, and hold these keys for a period from now; and those of `calls` whose key is null.
# No key may come twice. The hold is written first: who has it inserts the job, under the id drawn for both.
# A key that is seen to be held is not even tried: ON CONFLICT DO UPDATE locks the row also where it changes nothing,
# and then whoever was left out would hold up all others until the end of its transaction.
#
# Moves:  → ready, or nothing for a key that is held
# Caller: lifecycle.enqueue_for_period()
# Locks:  waits for a transaction that has just taken the same key; keys are taken in their order
# Index:  pgqueue_hold_of
ENQUEUE_FOR_PERIOD: Final = """/* pgqueue:enqueue_for_period */
WITH given AS MATERIALIZED (
    SELECT call -> 'call' AS arguments, call ->> 'key' AS key, place, nextval('pgqueue_job_id_seq') AS id
    FROM json_array_elements(%(calls)s::json) WITH ORDINALITY AS each (call, place)
),
held AS (
    INSERT INTO pgqueue_hold (job_id, task_name, unique_key, held_until)
    SELECT
        id, %(task_name)s::varchar, key,
        statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8 + %(period_seconds)s::float8)
    FROM given
    WHERE key IS NOT NULL
      AND (
          SELECT held_until FROM pgqueue_hold WHERE task_name = %(task_name)s::varchar AND unique_key = given.key
      ) > statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8) IS NOT TRUE
    ORDER BY key
    ON CONFLICT (task_name, unique_key) DO UPDATE
    SET job_id = excluded.job_id, held_until = excluded.held_until
    WHERE pgqueue_hold.held_until
        <= statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8)
    RETURNING job_id
)
INSERT INTO pgqueue_job
    (id, task_name, queue_name, priority, arguments, max_attempts, enqueued_at, run_after, headers, expires_at)
SELECT
    id, %(task_name)s::varchar, %(queue_name)s, %(priority)s, arguments, %(max_attempts)s,
    statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8),
    coalesce(
        %(run_after)s::timestamptz,
        statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8 + %(delay_seconds)s::float8)
    ),
    %(headers)s::json,
    coalesce(
        %(expires_at)s::timestamptz,
        statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8 + %(expires_seconds)s::float8)
    )
FROM given
WHERE key IS NULL OR id IN (SELECT job_id FROM held)
ORDER BY place
RETURNING id, run_after, enqueued_at, expires_at
"""

# Put calls in the place of the jobs that wait and hold their keys; what runs or has ended is left alone. No key may
# come twice, and none may be null. The period stays as it was.
#
# Moves:  ready, stays
# Caller: lifecycle.replace_for_period()
# Locks:  waits for a session that has locked such a job's row, as ENQUEUE_OR_REPLACE does; writes rows in id order
# Index:  pgqueue_hold_of, then by id
REPLACE_FOR_PERIOD: Final = """/* pgqueue:replace_for_period */
WITH given AS MATERIALIZED (
    SELECT each.call, held.job_id
    FROM json_array_elements(%(calls)s::json) AS each (call)
    CROSS JOIN LATERAL (
        SELECT job_id FROM pgqueue_hold WHERE task_name = %(task_name)s AND unique_key = each.call ->> 'key' OFFSET 0
    ) AS held
    ORDER BY held.job_id
)
UPDATE pgqueue_job AS job
SET arguments = given.call -> 'call', priority = %(priority)s, max_attempts = %(max_attempts)s,
    attempt = 0, crashes = 0, unknown_since = NULL, headers = %(headers)s::json,
    run_after = coalesce(
        %(run_after)s::timestamptz,
        statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8 + %(delay_seconds)s::float8)
    ),
    expires_at = coalesce(
        %(expires_at)s::timestamptz,
        statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8 + %(expires_seconds)s::float8)
    )
FROM given
WHERE job.id = given.job_id AND job.state = 'ready'
RETURNING job.id, job.run_after, job.enqueued_at, job.expires_at, given.call ->> 'key'
"""

# The jobs that these keys of a task are held for; they may have ended, and be gone. Of `job_ids` also those whose
# period is over: the caller has just made them, and may have waited for longer than that.
#
# Caller: lifecycle.holds()
# Index:  pgqueue_hold_of
HOLDS: Final = """/* pgqueue:holds */
SELECT wanted.key, held.job_id
FROM unnest(%(unique_keys)s::varchar[]) AS wanted (key)
CROSS JOIN LATERAL (
    SELECT job_id
    FROM pgqueue_hold
    WHERE task_name = %(task_name)s
      AND unique_key = wanted.key
      AND (
          held_until > statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8)
          OR job_id = ANY (%(job_ids)s::bigint[])
      )
    OFFSET 0
) AS held
"""

# Remove holds whose period is over.
#
# Caller: lifecycle.prune_holds()
# Locks:  one that is just being taken anew is skipped
# Index:  pgqueue_hold_over
PRUNE_HOLDS: Final = """/* pgqueue:prune_holds */
WITH over AS MATERIALIZED (
    SELECT job_id
    FROM pgqueue_hold
    WHERE held_until <= statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8)
    ORDER BY held_until
    LIMIT %(limit)s
    FOR NO KEY UPDATE SKIP LOCKED
)
DELETE FROM pgqueue_hold WHERE job_id IN (SELECT job_id FROM over)
RETURNING job_id
"""

# Take up to `limit` due jobs of the lanes given, in their order, and open an execution for each.
#
# Moves:  ready → running
# Caller: lifecycle.claim(), from the fetcher
# Locks:  exactly the job rows it returns, and those a `free_slots` cut gives back at once
# Index:  pgqueue_job_ready: each lane is a range of it, from its cursor on
# Cost:   0.4 ms idle, 1.5 ms for 100 jobs
#
# The limit binds in the CTE, before the UPDATE: as `IN (SELECT … LIMIT 10 …)`, 501 rows came for a limit of 10. Every
# column is taken from the locking CTE: a second look at the table would see the row as it was before the lock. Ids are
# drawn here by nextval, so that no two CTEs are joined.
# `ranked` and `due`: behind the free slots the batch ends before the first job that is on its last attempt.
# A claim counts as an attempt, and a host lost before such a job had started would end it unrun. It ends where the
# arguments come to `ahead_bytes` too, whatever large jobs follow small ones: 500 would be 128 MB. That is 0.2 µs a job.
CLAIM: Final = """/* pgqueue:claim */
WITH lane AS (
    SELECT given.queue_name, given.priority, given.after_at, given.after_id
    FROM unnest(
        %(queue_names)s::varchar[], %(priorities)s::smallint[], %(after_ats)s::timestamptz[], %(after_ids)s::bigint[]
    ) AS given (queue_name, priority, after_at, after_id)
),
picked AS MATERIALIZED (
    SELECT job.id, job.task_name, job.queue_name, job.priority, job.run_after, job.arguments,
           job.attempt, job.max_attempts, job.crashes, job.isolated, job.unknown_since, job.headers, job.expires_at
    FROM lane
    CROSS JOIN LATERAL (
        SELECT id, task_name, queue_name, priority, run_after, arguments,
               attempt, max_attempts, crashes, isolated, unknown_since, headers, expires_at
        FROM pgqueue_job
        WHERE state = 'ready'
          AND limit_key IS NULL
          AND queue_name = lane.queue_name
          AND priority = lane.priority
          AND run_after <= statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8)
          AND (run_after, id) > (lane.after_at, lane.after_id)
          AND id <> ALL (%(skipped_ids)s::bigint[])
          AND task_name <> ALL (%(paused_task_names)s::varchar[])
        ORDER BY run_after, id
        LIMIT %(limit)s
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS job
    LIMIT %(limit)s
),
ranked AS MATERIALIZED (
    SELECT picked.*, row_number() OVER in_line AS place, sum(octet_length(arguments::text)) OVER in_line AS size
    FROM picked
    WINDOW in_line AS (ROWS UNBOUNDED PRECEDING)
),
due AS MATERIALIZED (
    SELECT ranked.*, nextval('pgqueue_execution_id_seq') AS execution_id
    FROM ranked
    WHERE place <= %(free_slots)s
       OR size <= %(ahead_bytes)s AND place < coalesce(
           (SELECT min(place) FROM ranked WHERE place > %(free_slots)s AND attempt + 1 >= max_attempts), 1000000000
       )
),
claimed AS (
    UPDATE pgqueue_job AS job
    SET state = 'running', attempt = due.attempt + 1
    FROM due
    WHERE job.id = due.id
),
opened AS (
    INSERT INTO pgqueue_execution (id, job_id, attempt, worker_id, claimed_at, started_at, lease_expires_at)
    SELECT execution_id, id, attempt + 1, %(worker_id)s,
           statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8),
           CASE WHEN place <= %(free_slots)s
                THEN statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8) END,
           statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8 + %(lease_seconds)s::float8)
    FROM due
)
SELECT id, execution_id, task_name, queue_name, priority, run_after, arguments::text,
       attempt + 1, max_attempts, crashes, isolated,
       CASE WHEN isfinite(unknown_since)
            THEN date_part('epoch', statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8)
                                    - unknown_since) END,
       floor(1000 * date_part(
           'epoch', statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8)
       )),
       headers::text,
       CASE WHEN isfinite(expires_at)
            THEN date_part('epoch', expires_at - statement_timestamp()
                                    - make_interval(secs => %(time_shift_seconds)s::float8)) END
FROM due
"""

# Take one job that is ready, if that is asked for only if it is due, and open an execution for it.
#
# Moves:  ready → running
# Caller: lifecycle.claim_one()
# Locks:  its row, if nobody else has it
CLAIM_ONE: Final = """/* pgqueue:claim_one */
WITH picked AS MATERIALIZED (
    SELECT id, task_name, queue_name, priority, run_after, arguments,
           attempt, max_attempts, crashes, isolated, unknown_since, headers, expires_at
    FROM pgqueue_job
    WHERE id = %(job_id)s
      AND state = 'ready'
      AND limit_key IS NULL
      AND (NOT %(only_due)s
           OR run_after <= statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8))
    FOR NO KEY UPDATE SKIP LOCKED
),
due AS MATERIALIZED (
    SELECT picked.*, nextval('pgqueue_execution_id_seq') AS execution_id
    FROM picked
),
claimed AS (
    UPDATE pgqueue_job AS job
    SET state = 'running', attempt = due.attempt + 1
    FROM due
    WHERE job.id = due.id
),
opened AS (
    INSERT INTO pgqueue_execution (id, job_id, attempt, worker_id, claimed_at, started_at, lease_expires_at)
    SELECT execution_id, id, attempt + 1, %(worker_id)s,
           statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8),
           statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8),
           statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8 + %(lease_seconds)s::float8)
    FROM due
)
SELECT id, execution_id, task_name, queue_name, priority, run_after, arguments::text,
       attempt + 1, max_attempts, crashes, isolated,
       CASE WHEN isfinite(unknown_since)
            THEN date_part('epoch', statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8)
                                    - unknown_since) END,
       floor(1000 * date_part(
           'epoch', statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8)
       )),
       headers::text,
       CASE WHEN isfinite(expires_at)
            THEN date_part('epoch', expires_at - statement_timestamp()
                                    - make_interval(secs => %(time_shift_seconds)s::float8)) END
FROM due
"""

# The first job that a claim of the lanes given would take: found where a claim fails on its data.
#
# Caller: lifecycle.claim_one_by_one()
NEXT_IN_LINE: Final = """/* pgqueue:next_in_line */
SELECT job.id
FROM unnest(
    %(queue_names)s::varchar[], %(priorities)s::smallint[], %(after_ats)s::timestamptz[], %(after_ids)s::bigint[]
) AS lane (queue_name, priority, after_at, after_id)
CROSS JOIN LATERAL (
    SELECT id
    FROM pgqueue_job
    WHERE state = 'ready'
      AND limit_key IS NULL
      AND queue_name = lane.queue_name
      AND priority = lane.priority
      AND run_after <= statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8)
      AND (run_after, id) > (lane.after_at, lane.after_id)
      AND id <> ALL (%(skipped_ids)s::bigint[])
      AND task_name <> ALL (%(paused_task_names)s::varchar[])
    ORDER BY run_after, id
    LIMIT 1
    FOR NO KEY UPDATE SKIP LOCKED
) AS job
LIMIT 1
"""

# End a job that no claim can take, because its row makes the claim itself fail, and say why.
#
# Moves:  ready → dead
# Caller: lifecycle.set_aside()
# The execution that carries the reason opens and closes here: nothing ran, so no attempt is counted.
SET_ASIDE: Final = """/* pgqueue:set_aside */
WITH culprit AS MATERIALIZED (
    SELECT id, attempt FROM pgqueue_job WHERE id = %(job_id)s AND state = 'ready' FOR NO KEY UPDATE SKIP LOCKED
),
ended AS (
    UPDATE pgqueue_job AS job
    SET state = 'dead', finished_at = statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8)
    FROM culprit
    WHERE job.id = culprit.id
),
recorded AS (
    INSERT INTO pgqueue_execution
        (job_id, attempt, worker_id, outcome, claimed_at, finished_at, lease_expires_at, exception_class, error)
    SELECT id, attempt, %(worker_id)s, 'released',
           statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8),
           statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8),
           statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8),
           %(exception_class)s, %(error)s
    FROM culprit
)
SELECT id FROM culprit
"""

# End jobs that were to start by a time that is past, and have not, and say why.
#
# Moves:  ready → cancelled
# Caller: lifecycle.expire(), for those that no worker claims; one that is claimed too late ends at its start
# Locks:  SKIP LOCKED: whoever has the row may be starting it
# Index:  pgqueue_job_expiring
# The execution that carries the reason opens and closes here, as in SET_ASIDE: nothing ran.
EXPIRE: Final = """/* pgqueue:expire */
WITH late AS MATERIALIZED (
    SELECT id, task_name, attempt
    FROM pgqueue_job
    WHERE state = 'ready'
      AND expires_at IS NOT NULL
      AND expires_at <= statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8)
      AND id <> ALL (%(skipped_ids)s::bigint[])
    ORDER BY expires_at
    LIMIT %(limit)s
    FOR NO KEY UPDATE SKIP LOCKED
),
ended AS (
    UPDATE pgqueue_job AS job
    SET state = 'cancelled',
        finished_at = statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8)
    FROM late
    WHERE job.id = late.id
),
recorded AS (
    INSERT INTO pgqueue_execution
        (job_id, attempt, worker_id, outcome, claimed_at, finished_at, lease_expires_at, error)
    SELECT id, attempt, %(worker_id)s, 'cancelled',
           statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8),
           statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8),
           statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8),
           %(error)s
    FROM late
)
SELECT id, task_name FROM late
"""

# The jobs that EXPIRE would end, where it failed on one of them: EXPIRE_JOBS then ends them in parts.
#
# Caller: lifecycle.expire()
# Index:  pgqueue_job_expiring
LATE_JOBS: Final = """/* pgqueue:late_jobs */
SELECT id
FROM pgqueue_job
WHERE state = 'ready'
  AND expires_at IS NOT NULL
  AND expires_at <= statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8)
  AND id <> ALL (%(skipped_ids)s::bigint[])
ORDER BY expires_at
LIMIT %(limit)s
"""

# End these jobs if they are still ready and past the time to start by.
#
# Moves:  ready → cancelled
# Caller: lifecycle.expire(), where EXPIRE failed on one of them
# Locks:  as EXPIRE
# Index:  primary keys
EXPIRE_JOBS: Final = """/* pgqueue:expire_jobs */
WITH late AS MATERIALIZED (
    SELECT id, task_name, attempt
    FROM pgqueue_job
    WHERE id = ANY (%(job_ids)s::bigint[])
      AND state = 'ready'
      AND expires_at <= statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8)
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
),
ended AS (
    UPDATE pgqueue_job AS job
    SET state = 'cancelled',
        finished_at = statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8)
    FROM late
    WHERE job.id = late.id
),
recorded AS (
    INSERT INTO pgqueue_execution
        (job_id, attempt, worker_id, outcome, claimed_at, finished_at, lease_expires_at, error)
    SELECT id, attempt, %(worker_id)s, 'cancelled',
           statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8),
           statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8),
           statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8),
           %(error)s
    FROM late
)
SELECT id, task_name FROM late
"""

# The lanes that hold ready jobs, and in how many seconds the first job of each is due (not above 0: it is), by a loose
# index scan. With each, in how many its queue's pause ends (infinity: not by itself; NULL: there is none), and which
# tasks are paused: in a row without a lane too, where no job waits, for the next may be claimed before the next look.
# That row also has the database's clock, because a claim that finds nothing moves the cursors of its lanes up to it.
#
# Caller: lifecycle.look(), at most once a second, and before a worker sleeps
# Index:  pgqueue_job_ready: one look-up a lane finds the first entry of the next
# Cost:   0.2 ms; 4 ms for 600 lanes. `extract()`, which goes by way of numeric, cost a quarter more than `date_part()`.
LANES: Final = """/* pgqueue:lanes */
WITH RECURSIVE lane AS (
    (
        SELECT queue_name, priority, run_after FROM pgqueue_job
        WHERE state = 'ready' AND limit_key IS NULL
        ORDER BY queue_name, priority DESC, run_after, id
        LIMIT 1
    )
    UNION ALL
    SELECT next.queue_name, next.priority, next.run_after
    FROM lane
    CROSS JOIN LATERAL (
        (
            SELECT queue_name, priority, run_after FROM pgqueue_job
            WHERE state = 'ready' AND limit_key IS NULL
              AND queue_name = lane.queue_name AND priority < lane.priority
            ORDER BY queue_name, priority DESC, run_after, id
            LIMIT 1
        )
        UNION ALL
        (
            SELECT queue_name, priority, run_after FROM pgqueue_job
            WHERE state = 'ready' AND limit_key IS NULL AND queue_name > lane.queue_name
            ORDER BY queue_name, priority DESC, run_after, id
            LIMIT 1
        )
        LIMIT 1
    ) AS next
),
paused AS MATERIALIZED (
    SELECT kind, name, paused_until
    FROM pgqueue_pause
    WHERE paused_until IS NULL
       OR paused_until > statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8)
)
SELECT lane.queue_name, lane.priority,
       date_part('epoch', lane.run_after - statement_timestamp()) - %(time_shift_seconds)s::float8,
       (
           SELECT CASE
               WHEN isfinite(paused_until)
               THEN date_part('epoch', paused_until - statement_timestamp()) - %(time_shift_seconds)s::float8
               ELSE 'infinity'
           END
           FROM paused
           WHERE kind = 'queue' AND name = lane.queue_name
       ),
       NULL, NULL, NULL
FROM lane
UNION ALL
SELECT NULL, NULL, NULL, NULL,
       ARRAY (SELECT name FROM paused WHERE kind = 'queue'), ARRAY (SELECT name FROM paused WHERE kind = 'task'),
       statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8)
"""

# Pause a queue or a task, or pause it anew: until then, by whom and why are those of the last time.
#
# Caller: lifecycle.pause(), in the transaction that an operator has open
# Locks:  the pause's own row. No job is touched: a worker leaves alone what it finds paused at its next look.
PAUSE: Final = """/* pgqueue:pause */
INSERT INTO pgqueue_pause (kind, name, paused_at, paused_until, paused_by, reason)
VALUES (
    %(kind)s, %(name)s, statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8),
    coalesce(
        %(until)s::timestamptz,
        statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8 + %(for_seconds)s::float8)
    ),
    %(paused_by)s, %(reason)s
)
ON CONFLICT (kind, name) DO UPDATE
SET paused_until = excluded.paused_until, paused_by = excluded.paused_by, reason = excluded.reason,
    paused_at = CASE
        WHEN pgqueue_pause.paused_until <= excluded.paused_at THEN excluded.paused_at ELSE pgqueue_pause.paused_at
    END
"""

# End a pause; one that has ended by itself counts as none.
#
# Caller: lifecycle.resume()
RESUME: Final = """/* pgqueue:resume */
WITH ended AS (
    DELETE FROM pgqueue_pause WHERE kind = %(kind)s AND name = %(name)s RETURNING paused_until
)
SELECT paused_until IS NULL
    OR paused_until > statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8)
FROM ended
"""

# Remove pauses that ended by themselves long ago.
#
# Caller: lifecycle.prune_pauses()
PRUNE_PAUSES: Final = """/* pgqueue:prune_pauses */
DELETE FROM pgqueue_pause
WHERE paused_until < statement_timestamp()
    + make_interval(secs => %(time_shift_seconds)s::float8 - %(older_than_seconds)s::float8)
"""

# Extend the leases of the open executions of these workers, and tell which are open at all.
#
# Moves:  running, stays
# Caller: lifecycle.extend(), from the supervisor's beat
# Fence:  outcome IS NULL
# Locks:  what is locked is being finished: it is skipped, and answered as "open, not extended"
# Index:  pgqueue_execution_open, from the oldest id that was open at the last beat
# `started_ids` have started by now: a lost worker is charged a crash for those only. The finish writes the exact time.
EXTEND: Final = """/* pgqueue:extend */
WITH mine AS MATERIALIZED (
    SELECT held.id
    FROM unnest(%(worker_ids)s::bigint[]) AS worker (id)
    CROSS JOIN LATERAL (
        SELECT id
        FROM pgqueue_execution
        WHERE worker_id = worker.id
          AND id >= %(first_id)s
          AND finished_at IS NULL
          AND outcome IS NULL
        ORDER BY worker_id, id
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS held
),
beat AS (
    UPDATE pgqueue_execution AS execution
    SET lease_expires_at =
            statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8 + %(lease_seconds)s::float8),
        started_at = CASE
            WHEN execution.started_at IS NULL AND execution.id = ANY (%(started_ids)s::bigint[])
            THEN statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8)
            ELSE execution.started_at
        END
    FROM mine
    WHERE execution.id = mine.id
    RETURNING execution.id
)
SELECT held.worker_id, held.id, held.id IN (SELECT id FROM beat)
FROM unnest(%(worker_ids)s::bigint[]) AS worker (id)
CROSS JOIN LATERAL (
    SELECT worker_id, id
    FROM pgqueue_execution
    WHERE worker_id = worker.id
      AND id >= %(first_id)s
      AND finished_at IS NULL
    ORDER BY worker_id, id
    OFFSET 0
) AS held
"""

# Extend the leases of single executions, where EXTEND has failed because of one row.
#
# Moves:  running, stays
# Caller: lifecycle.extend()
# Fence, Locks: as EXTEND
# Index:  primary key
EXTEND_EACH: Final = """/* pgqueue:extend_each */
WITH mine AS MATERIALIZED (
    SELECT held.id
    FROM unnest(%(execution_ids)s::bigint[]) AS given (id)
    CROSS JOIN LATERAL (
        SELECT id
        FROM pgqueue_execution
        WHERE id = given.id AND outcome IS NULL
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS held
)
UPDATE pgqueue_execution AS execution
SET lease_expires_at =
        statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8 + %(lease_seconds)s::float8),
    started_at = CASE
        WHEN execution.started_at IS NULL AND execution.id = ANY (%(started_ids)s::bigint[])
        THEN statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8)
        ELSE execution.started_at
    END
FROM mine
WHERE execution.id = mine.id
RETURNING execution.id
"""

# The open executions of these workers whose jobs somebody asked to cancel.
#
# Caller: lifecycle.cancel_requests(), after a look that found any open execution
# OFFSET 0 keeps the look-ups apart: joined freely, an analysed table of jobs, none asked to stop, is walked whole.
CANCEL_REQUESTS: Final = """/* pgqueue:cancel_requests */
SELECT mine.worker_id, mine.id
FROM unnest(%(worker_ids)s::bigint[]) AS worker (id)
CROSS JOIN LATERAL (
    SELECT worker_id, id, job_id
    FROM pgqueue_execution
    WHERE worker_id = worker.id AND id >= %(first_id)s AND finished_at IS NULL
    ORDER BY worker_id, id
    OFFSET 0
) AS mine
CROSS JOIN LATERAL (
    SELECT FROM pgqueue_job WHERE id = mine.job_id AND cancel_requested_at IS NOT NULL OFFSET 0
) AS asked
"""

# Close executions as succeeded, and their jobs with them.
#
# Moves:  running → succeeded
# Caller: lifecycle.succeed(), from the completer, or from an atomic task's own transaction
# Fence:  id and claim time, outcome IS NULL
# Locks:  execution and job, SKIP LOCKED, in the order of `execution_ids`, which is ascending
# Index:  primary keys
# Ages are seconds before now, so that a worker's clock does not matter.
SUCCEED: Final = """/* pgqueue:succeed */
WITH mine AS MATERIALIZED (
    SELECT held.id, held.job_id, given.result, given.started_seconds_ago, given.finished_seconds_ago
    FROM unnest(
        %(execution_ids)s::bigint[], %(claimed_ms)s::float8[], %(results)s::text[],
        %(started_seconds_ago)s::float8[], %(finished_seconds_ago)s::float8[]
    ) AS given (id, claimed_ms, result, started_seconds_ago, finished_seconds_ago)
    CROSS JOIN LATERAL (
        SELECT execution.id, execution.job_id
        FROM pgqueue_execution AS execution
        JOIN pgqueue_job AS job ON job.id = execution.job_id
        WHERE execution.id = given.id
          AND floor(1000 * date_part('epoch', execution.claimed_at)) = given.claimed_ms
          AND execution.outcome IS NULL
        FOR NO KEY UPDATE OF execution, job SKIP LOCKED
    ) AS held
),
closed AS (
    UPDATE pgqueue_execution AS execution
    SET outcome = 'succeeded',
        started_at = statement_timestamp()
            + make_interval(secs => %(time_shift_seconds)s::float8 - mine.started_seconds_ago),
        finished_at = statement_timestamp()
            + make_interval(secs => %(time_shift_seconds)s::float8 - mine.finished_seconds_ago)
    FROM mine
    WHERE execution.id = mine.id
),
done AS (
    UPDATE pgqueue_job AS job
    SET state = 'succeeded',
        result = mine.result::json,
        finished_at = statement_timestamp()
            + make_interval(secs => %(time_shift_seconds)s::float8 - mine.finished_seconds_ago)
    FROM mine
    WHERE job.id = mine.job_id
)
SELECT id FROM mine
"""

# The same for jobs whose task keeps nothing: they are gone with the finish.
#
# Moves:  running → gone
# Caller: lifecycle.succeed_and_discard()
# Fence, Locks, Index: as SUCCEED
SUCCEED_AND_DISCARD: Final = """/* pgqueue:succeed_and_discard */
WITH mine AS MATERIALIZED (
    SELECT held.id, held.job_id
    FROM unnest(%(execution_ids)s::bigint[], %(claimed_ms)s::float8[]) AS given (id, claimed_ms)
    CROSS JOIN LATERAL (
        SELECT execution.id, execution.job_id
        FROM pgqueue_execution AS execution
        JOIN pgqueue_job AS job ON job.id = execution.job_id
        WHERE execution.id = given.id
          AND floor(1000 * date_part('epoch', execution.claimed_at)) = given.claimed_ms
          AND execution.outcome IS NULL
        FOR NO KEY UPDATE OF execution, job SKIP LOCKED
    ) AS held
),
gone AS (
    DELETE FROM pgqueue_job WHERE id = ANY (ARRAY (SELECT job_id FROM mine))
),
forgotten AS (
    DELETE FROM pgqueue_execution WHERE job_id = ANY (ARRAY (SELECT job_id FROM mine))
)
SELECT id FROM mine
"""

# Close executions as failed or crashed; their jobs wait for the next attempt, or are dead.
#
# Moves:  running → ready later (a delay given), dead (none), cancelled (asked for meanwhile)
# Caller: lifecycle.fail(), from the completer, and from the supervisor for a child it saw die
# Fence, Locks, Index: as SUCCEED
# A crash is charged only for what had started: where no beat has recorded when, it is recorded as now.
FAIL: Final = """/* pgqueue:fail */
WITH mine AS MATERIALIZED (
    SELECT held.id, held.job_id, held.cancelled, given.outcome, given.delay_seconds,
           given.started_seconds_ago, given.finished_seconds_ago,
           given.exception_class, given.error, given.traceback
    FROM unnest(
        %(execution_ids)s::bigint[], %(claimed_ms)s::float8[], %(outcomes)s::text[], %(delays_seconds)s::float8[],
        %(started_seconds_ago)s::float8[], %(finished_seconds_ago)s::float8[],
        %(exception_classes)s::text[], %(errors)s::text[], %(tracebacks)s::text[]
    ) AS given (
        id, claimed_ms, outcome, delay_seconds, started_seconds_ago, finished_seconds_ago,
        exception_class, error, traceback
    )
    CROSS JOIN LATERAL (
        SELECT execution.id, execution.job_id, job.cancel_requested_at IS NOT NULL AS cancelled
        FROM pgqueue_execution AS execution
        JOIN pgqueue_job AS job ON job.id = execution.job_id
        WHERE execution.id = given.id
          AND floor(1000 * date_part('epoch', execution.claimed_at)) = given.claimed_ms
          AND execution.outcome IS NULL
        FOR NO KEY UPDATE OF execution, job SKIP LOCKED
    ) AS held
),
closed AS (
    UPDATE pgqueue_execution AS execution
    SET outcome = mine.outcome,
        started_at = coalesce(
            statement_timestamp()
                + make_interval(secs => %(time_shift_seconds)s::float8 - mine.started_seconds_ago),
            execution.started_at,
            CASE WHEN mine.outcome = 'crashed'
                 THEN statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8) END
        ),
        finished_at = statement_timestamp()
            + make_interval(secs => %(time_shift_seconds)s::float8 - mine.finished_seconds_ago),
        exception_class = mine.exception_class,
        error = mine.error,
        traceback = mine.traceback
    FROM mine
    WHERE execution.id = mine.id
),
moved AS (
    UPDATE pgqueue_job AS job
    SET state = CASE WHEN mine.cancelled THEN 'cancelled' WHEN mine.delay_seconds IS NULL THEN 'dead' ELSE 'ready' END,
        crashes = least(job.crashes + (mine.outcome = 'crashed')::int, 32767),
        isolated = job.isolated OR mine.outcome = 'crashed',
        unique_key = CASE WHEN job.unique_ready_only IS NULL THEN job.unique_key END,
        unknown_since = NULL,
        run_after = CASE
            WHEN mine.cancelled OR mine.delay_seconds IS NULL THEN job.run_after
            ELSE statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8 + mine.delay_seconds)
        END,
        finished_at = CASE
            WHEN mine.cancelled OR mine.delay_seconds IS NULL
            THEN statement_timestamp()
                + make_interval(secs => %(time_shift_seconds)s::float8 - mine.finished_seconds_ago)
        END
    FROM mine
    WHERE job.id = mine.job_id
)
SELECT id, CASE WHEN cancelled THEN 'cancelled' WHEN delay_seconds IS NULL THEN 'dead' ELSE 'ready' END FROM mine
"""

# Give executions back without counting an attempt.
#
# Moves:  running → ready (at its old time, or a delay from now), cancelled (asked for meanwhile)
# Caller: lifecycle.release() and snooze()
# Fence, Locks, Index: as SUCCEED
# `unknown`: the worker does not know the task; since when is kept until an attempt has started. The claim records that
# for jobs that it puts into free slots.
RELEASE: Final = """/* pgqueue:release */
WITH mine AS MATERIALIZED (
    SELECT held.id, held.job_id, held.started, held.cancelled, given.delay_seconds, given.error
    FROM unnest(
        %(execution_ids)s::bigint[], %(claimed_ms)s::float8[], %(delays_seconds)s::float8[], %(errors)s::text[]
    ) AS given (id, claimed_ms, delay_seconds, error)
    CROSS JOIN LATERAL (
        SELECT execution.id, execution.job_id, execution.started_at IS NOT NULL AS started,
               job.cancel_requested_at IS NOT NULL AS cancelled
        FROM pgqueue_execution AS execution
        JOIN pgqueue_job AS job ON job.id = execution.job_id
        WHERE execution.id = given.id
          AND floor(1000 * date_part('epoch', execution.claimed_at)) = given.claimed_ms
          AND execution.outcome IS NULL
        FOR NO KEY UPDATE OF execution, job SKIP LOCKED
    ) AS held
),
closed AS (
    UPDATE pgqueue_execution AS execution
    SET outcome = %(outcome)s,
        error = mine.error,
        finished_at = statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8)
    FROM mine
    WHERE execution.id = mine.id
),
moved AS (
    UPDATE pgqueue_job AS job
    SET state = CASE WHEN mine.cancelled THEN 'cancelled' ELSE 'ready' END,
        attempt = greatest(job.attempt - 1, 0),
        unique_key = CASE WHEN job.unique_ready_only IS NULL THEN job.unique_key END,
        unknown_since = CASE
            WHEN %(unknown)s THEN
                coalesce(
                    job.unknown_since, statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8)
                )
            WHEN %(outcome)s = 'released' AND NOT mine.started THEN job.unknown_since
        END,
        run_after = CASE
            WHEN mine.cancelled OR mine.delay_seconds IS NULL THEN job.run_after
            ELSE statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8 + mine.delay_seconds)
        END,
        finished_at = CASE
            WHEN mine.cancelled THEN statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8)
        END
    FROM mine
    WHERE job.id = mine.job_id
)
SELECT id, CASE WHEN cancelled THEN 'cancelled' ELSE 'ready' END FROM mine
"""

# Close executions whose task said "cancel", or obeyed a request to.
#
# Moves:  running → cancelled
# Caller: lifecycle.end_cancelled()
# Fence, Locks, Index: as SUCCEED
END_CANCELLED: Final = """/* pgqueue:end_cancelled */
WITH mine AS MATERIALIZED (
    SELECT held.id, held.job_id, given.started_seconds_ago, given.finished_seconds_ago, given.error
    FROM unnest(
        %(execution_ids)s::bigint[], %(claimed_ms)s::float8[], %(started_seconds_ago)s::float8[],
        %(finished_seconds_ago)s::float8[], %(errors)s::text[]
    ) AS given (id, claimed_ms, started_seconds_ago, finished_seconds_ago, error)
    CROSS JOIN LATERAL (
        SELECT execution.id, execution.job_id
        FROM pgqueue_execution AS execution
        JOIN pgqueue_job AS job ON job.id = execution.job_id
        WHERE execution.id = given.id
          AND floor(1000 * date_part('epoch', execution.claimed_at)) = given.claimed_ms
          AND execution.outcome IS NULL
        FOR NO KEY UPDATE OF execution, job SKIP LOCKED
    ) AS held
),
closed AS (
    UPDATE pgqueue_execution AS execution
    SET outcome = 'cancelled',
        error = mine.error,
        started_at = coalesce(
            statement_timestamp()
                + make_interval(secs => %(time_shift_seconds)s::float8 - mine.started_seconds_ago),
            execution.started_at
        ),
        finished_at = statement_timestamp()
            + make_interval(secs => %(time_shift_seconds)s::float8 - mine.finished_seconds_ago)
    FROM mine
    WHERE execution.id = mine.id
),
done AS (
    UPDATE pgqueue_job AS job
    SET state = 'cancelled',
        finished_at = statement_timestamp()
            + make_interval(secs => %(time_shift_seconds)s::float8 - mine.finished_seconds_ago)
    FROM mine
    WHERE job.id = mine.job_id
)
SELECT id FROM mine
"""

# Note how far jobs have come, as their running attempts have told.
#
# Moves:  running, stays
# Caller: lifecycle.note_progress(), at most once a second from each completer, and before an attempt's end is written
# Fence, Locks, Index: as SUCCEED
# Cost:   one HOT update a job: no index has these columns. The job's row, not the execution's: it outlives the attempt.
NOTE_PROGRESS: Final = """/* pgqueue:note_progress */
WITH mine AS MATERIALIZED (
    SELECT held.id, held.job_id, given.done, given.total, given.message, given.noted_seconds_ago
    FROM unnest(
        %(execution_ids)s::bigint[], %(claimed_ms)s::float8[], %(done)s::float8[], %(totals)s::float8[],
        %(messages)s::text[], %(noted_seconds_ago)s::float8[]
    ) AS given (id, claimed_ms, done, total, message, noted_seconds_ago)
    CROSS JOIN LATERAL (
        SELECT execution.id, execution.job_id
        FROM pgqueue_execution AS execution
        JOIN pgqueue_job AS job ON job.id = execution.job_id
        WHERE execution.id = given.id
          AND floor(1000 * date_part('epoch', execution.claimed_at)) = given.claimed_ms
          AND execution.outcome IS NULL
        FOR NO KEY UPDATE OF execution, job SKIP LOCKED
    ) AS held
),
noted AS (
    UPDATE pgqueue_job AS job
    SET progress_done = mine.done,
        progress_total = mine.total,
        progress_message = mine.message,
        progress_at = statement_timestamp()
            + make_interval(secs => %(time_shift_seconds)s::float8 - mine.noted_seconds_ago)
    FROM mine
    WHERE job.id = mine.job_id
)
SELECT id FROM mine
"""

# What became of executions that an act did not find open.
#
# Caller: lifecycle, after an act that answered for fewer executions than were asked
SETTLE: Final = """/* pgqueue:settle */
SELECT asked.id, asked.outcome, asked.has_job
FROM unnest(%(execution_ids)s::bigint[], %(claimed_ms)s::float8[]) AS given (id, claimed_ms)
CROSS JOIN LATERAL (
    SELECT execution.id, execution.outcome, job.id IS NOT NULL AS has_job
    FROM pgqueue_execution AS execution
    LEFT JOIN pgqueue_job AS job ON job.id = execution.job_id
    WHERE execution.id = given.id
      AND floor(1000 * date_part('epoch', execution.claimed_at)) = given.claimed_ms
    OFFSET 0
) AS asked
"""

# Remove open executions whose job was deleted by hand.
#
# Caller: lifecycle, where SETTLE or RESCUABLE found one
REMOVE_ORPHANS: Final = """/* pgqueue:remove_orphans */
WITH orphan AS MATERIALIZED (
    SELECT held.id
    FROM unnest(%(execution_ids)s::bigint[], %(claimed_ms)s::float8[]) AS given (id, claimed_ms)
    CROSS JOIN LATERAL (
        SELECT id
        FROM pgqueue_execution AS execution
        WHERE id = given.id
          AND floor(1000 * date_part('epoch', claimed_at)) = given.claimed_ms
          AND NOT EXISTS (SELECT 1 FROM pgqueue_job AS job WHERE job.id = execution.job_id)
        FOR UPDATE SKIP LOCKED
    ) AS held
)
DELETE FROM pgqueue_execution WHERE id = ANY (ARRAY (SELECT id FROM orphan))
"""

# The open executions of one worker, with what the retry policy asks.
#
# Caller: lifecycle.open_executions(), from the supervisor for a child that died
OPEN_EXECUTIONS: Final = """/* pgqueue:open_executions */
SELECT execution.id, execution.job_id, job.task_name, job.queue_name, job.attempt, job.max_attempts, job.crashes,
       execution.started_at IS NOT NULL, floor(1000 * date_part('epoch', execution.claimed_at))
FROM pgqueue_execution AS execution
LEFT JOIN pgqueue_job AS job ON job.id = execution.job_id
WHERE execution.worker_id = %(worker_id)s AND execution.finished_at IS NULL
ORDER BY execution.id
"""

# The open executions whose lease is over, oldest first, with what the retry policy asks.
#
# Caller: lifecycle.rescue()
# Index:  pgqueue_execution_open, whole: as many entries as jobs are running
# Locks:  execution and job of what it returns, until its end: what RESCUE could not lock does not count in the limit
# The limit, 100 or a fifth of what is open, keeps an outage of the database from looking like the end of every worker.
# `open` is materialized: in one step with the ordering, the planner walks the primary key through all of history.
# A job that is locked and one that was deleted look alike in the outer join: the last condition tells them apart.
RESCUABLE: Final = """/* pgqueue:rescuable */
WITH open AS MATERIALIZED (
    SELECT id,
           lease_expires_at < statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8) AS is_over
    FROM pgqueue_execution
    WHERE finished_at IS NULL
      AND id <> ALL (%(skipped_ids)s::bigint[])
),
stale AS MATERIALIZED (
    SELECT id FROM open WHERE is_over ORDER BY id
)
SELECT execution.id, execution.job_id, job.task_name, job.queue_name, job.attempt, job.max_attempts, job.crashes,
       execution.started_at IS NOT NULL, floor(1000 * date_part('epoch', execution.claimed_at))
FROM stale
CROSS JOIN LATERAL (
    SELECT id, job_id, started_at, claimed_at
    FROM pgqueue_execution
    WHERE id = stale.id AND finished_at IS NULL
    FOR NO KEY UPDATE SKIP LOCKED
) AS execution
LEFT JOIN LATERAL (
    SELECT id, task_name, queue_name, attempt, max_attempts, crashes
    FROM pgqueue_job
    WHERE id = execution.job_id
    FOR NO KEY UPDATE SKIP LOCKED
) AS job ON true
WHERE job.id IS NOT NULL OR NOT EXISTS (SELECT 1 FROM pgqueue_job WHERE id = execution.job_id)
LIMIT greatest(100, (SELECT count(*) / 5 FROM open))
"""

# Close executions whose lease is over; their jobs wait for the next attempt, or are dead.
#
# Moves:  running → ready later (a delay given), dead (none), cancelled (asked for meanwhile)
# Caller: lifecycle.rescue()
# Fence:  id and claim time, outcome IS NULL, and the lease still over: a beat may have come since RESCUABLE looked
# Locks, Index: as SUCCEED
RESCUE: Final = """/* pgqueue:rescue */
WITH mine AS MATERIALIZED (
    SELECT held.id, held.job_id, held.started, held.cancelled, given.delay_seconds
    FROM unnest(%(execution_ids)s::bigint[], %(claimed_ms)s::float8[], %(delays_seconds)s::float8[])
        AS given (id, claimed_ms, delay_seconds)
    CROSS JOIN LATERAL (
        SELECT execution.id, execution.job_id, execution.started_at IS NOT NULL AS started,
               job.cancel_requested_at IS NOT NULL AS cancelled
        FROM pgqueue_execution AS execution
        JOIN pgqueue_job AS job ON job.id = execution.job_id
        WHERE execution.id = given.id
          AND floor(1000 * date_part('epoch', execution.claimed_at)) = given.claimed_ms
          AND execution.outcome IS NULL
          AND execution.lease_expires_at < statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8)
        FOR NO KEY UPDATE OF execution, job SKIP LOCKED
    ) AS held
),
closed AS (
    UPDATE pgqueue_execution AS execution
    SET outcome = 'crashed',
        finished_at = statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8),
        error = %(error)s
    FROM mine
    WHERE execution.id = mine.id
),
moved AS (
    UPDATE pgqueue_job AS job
    SET state = CASE WHEN mine.cancelled THEN 'cancelled' WHEN mine.delay_seconds IS NULL THEN 'dead' ELSE 'ready' END,
        crashes = least(job.crashes + mine.started::int, 32767),
        isolated = job.isolated OR mine.started,
        unique_key = CASE WHEN job.unique_ready_only IS NULL THEN job.unique_key END,
        unknown_since = CASE WHEN NOT mine.started THEN job.unknown_since END,
        run_after = CASE
            WHEN mine.cancelled OR mine.delay_seconds IS NULL THEN job.run_after
            ELSE statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8 + mine.delay_seconds)
        END,
        finished_at = CASE
            WHEN mine.cancelled OR mine.delay_seconds IS NULL
            THEN statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8)
        END
    FROM mine
    WHERE job.id = mine.job_id
)
SELECT id, CASE WHEN cancelled THEN 'cancelled' WHEN delay_seconds IS NULL THEN 'dead' ELSE 'ready' END FROM mine
"""

# A page of all jobs, by id: its last id, and with it each job that runs without an open execution, which nothing would
# ever end. Somebody has deleted that execution, or a trigger has kept half of a statement from being written.
#
# Caller: lifecycle.requeue()
# Index:  primary key; pgqueue_execution_one_open for each job that runs
# No index has the state, because it would cost each claim and each completion.
ABANDONED: Final = """/* pgqueue:abandoned */
WITH page AS MATERIALIZED (
    SELECT id, state, task_name, queue_name, attempt, max_attempts, crashes
    FROM pgqueue_job
    WHERE id > %(after_id)s
    ORDER BY id
    LIMIT %(limit)s
),
lost AS MATERIALIZED (
    SELECT id, task_name, queue_name, attempt, max_attempts, crashes
    FROM page
    WHERE state = 'running'
      AND NOT EXISTS (
          SELECT FROM pgqueue_execution WHERE job_id = page.id AND finished_at IS NULL AND attempt >= 0
      )
)
SELECT last.id, lost.*
FROM (SELECT max(id) AS id FROM page) AS last
LEFT JOIN lost ON true
"""

# Make running jobs without an open execution ready again, and record the attempt that was lost.
#
# Moves:  running → ready later (a delay given), dead (none), cancelled (asked for meanwhile)
# Caller: lifecycle.requeue()
# Fence:  running at the same attempt as ABANDONED has seen it: a claim since then has counted another one
# Locks:  the job, SKIP LOCKED
# Index:  primary key
REQUEUE: Final = """/* pgqueue:requeue */
WITH mine AS MATERIALIZED (
    SELECT held.id, held.attempt, held.cancelled, given.delay_seconds
    FROM unnest(%(job_ids)s::bigint[], %(attempts)s::smallint[], %(delays_seconds)s::float8[])
        AS given (id, attempt, delay_seconds)
    CROSS JOIN LATERAL (
        SELECT job.id, job.attempt, job.cancel_requested_at IS NOT NULL AS cancelled
        FROM pgqueue_job AS job
        WHERE job.id = given.id AND job.state = 'running' AND job.attempt = given.attempt
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS held
    WHERE NOT EXISTS (
        SELECT FROM pgqueue_execution WHERE job_id = given.id AND finished_at IS NULL AND attempt >= 0
    )
),
recorded AS (
    INSERT INTO pgqueue_execution
        (job_id, attempt, worker_id, outcome, claimed_at, finished_at, lease_expires_at, error)
    SELECT id, attempt, %(worker_id)s, 'crashed',
           statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8),
           statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8),
           statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8),
           %(error)s
    FROM mine
),
moved AS (
    UPDATE pgqueue_job AS job
    SET state = CASE WHEN mine.cancelled THEN 'cancelled' WHEN mine.delay_seconds IS NULL THEN 'dead' ELSE 'ready' END,
        unique_key = CASE WHEN job.unique_ready_only IS NULL THEN job.unique_key END,
        run_after = CASE
            WHEN mine.cancelled OR mine.delay_seconds IS NULL THEN job.run_after
            ELSE statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8 + mine.delay_seconds)
        END,
        finished_at = CASE
            WHEN mine.cancelled OR mine.delay_seconds IS NULL
            THEN statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8)
        END
    FROM mine
    WHERE job.id = mine.id
)
SELECT id, CASE WHEN cancelled THEN 'cancelled' WHEN delay_seconds IS NULL THEN 'dead' ELSE 'ready' END FROM mine
"""

# Cancel jobs that wait; ask those that run, unless they are to go on.
#
# Moves:  ready → cancelled; running: cancel_requested_at on the job
# Caller: lifecycle.cancel()
# The rows are found by id alone and judged after the lock: with the state in the predicate that finds them, a
# claim committing just then made this answer "nothing to cancel".
CANCEL: Final = """/* pgqueue:cancel */
WITH asked AS MATERIALIZED (
    SELECT job.id, CASE
               WHEN seen.state <> '' AND (
                   job.state <> seen.state OR job.finished_at IS DISTINCT FROM nullif(seen.instant, '')::timestamptz
               )
               THEN 'changed'
               ELSE job.state
           END AS state, job.cancel_requested_at
    FROM unnest(%(job_ids)s::bigint[], %(seen_states)s::text[], %(seen_instants)s::text[]) AS seen (id, state, instant)
    CROSS JOIN LATERAL (
        SELECT id, state, finished_at, cancel_requested_at
        FROM pgqueue_job
        WHERE id = seen.id
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS job
),
moved AS (
    UPDATE pgqueue_job AS job
    SET state = CASE WHEN asked.state IN ('ready', 'waiting') THEN 'cancelled' ELSE asked.state END,
        cancel_requested_at = coalesce(
            asked.cancel_requested_at, statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8)
        ),
        finished_at = CASE
            WHEN asked.state IN ('ready', 'waiting')
            THEN statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8)
        END
    FROM asked
    WHERE job.id = asked.id
      AND (
          asked.state IN ('ready', 'waiting')
          OR (%(running)s AND asked.state = 'running' AND asked.cancel_requested_at IS NULL)
      )
)
SELECT id, CASE
    WHEN state IN ('ready', 'waiting') THEN 'cancelled'
    WHEN %(running)s AND state = 'running' AND cancel_requested_at IS NULL THEN 'running'
END
FROM asked
"""

# Make finished jobs ready again, as if new; their executions stay, and so does `isolated`: a new beginning makes no
# job that has crashed a worker harmless. What a job has noted of its progress stays too, for its task to go on from;
# but not where it had succeeded: that work is to be done again. A job whose unique key another one has now is left as
# it is, and of several with one key the latest goes.
#
# Moves:  finished → ready
# Caller: lifecycle.retry(), for an operator
# Fence:  what the operator saw, if `seen_states` has it ('' if not): the state and the exact `finished_at`. A job that
#         another operator retried meanwhile, and that has failed again, has another `finished_at`
RETRY: Final = """/* pgqueue:retry */
WITH asked AS MATERIALIZED (
    SELECT job.id, CASE
               WHEN seen.state <> '' AND (
                   job.state <> seen.state OR job.finished_at IS DISTINCT FROM nullif(seen.instant, '')::timestamptz
               )
               THEN 'changed'
               ELSE job.state
           END AS state, job.task_name, job.unique_key
    FROM unnest(%(job_ids)s::bigint[], %(seen_states)s::text[], %(seen_instants)s::text[]) AS seen (id, state, instant)
    CROSS JOIN LATERAL (
        SELECT id, state, finished_at, task_name, unique_key
        FROM pgqueue_job
        WHERE id = seen.id
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS job
),
fit AS MATERIALIZED (
    SELECT id, state
    FROM (
        SELECT asked.*, row_number() OVER (PARTITION BY task_name, unique_key ORDER BY id DESC) AS rank
        FROM asked
        WHERE state IN ('succeeded', 'dead', 'cancelled')
    ) AS finished
    WHERE unique_key IS NULL
       OR rank = 1 AND NOT EXISTS (
           SELECT FROM pgqueue_job AS held
           WHERE held.task_name = finished.task_name
             AND held.unique_key = finished.unique_key
             AND held.unique_key IS NOT NULL
             AND (held.state = 'ready' OR (held.state = 'running' AND held.unique_ready_only IS NULL))
       )
),
moved AS (
    UPDATE pgqueue_job AS job
    SET state = 'ready', attempt = 0, crashes = 0, result = NULL,
        finished_at = NULL, cancel_requested_at = NULL, unknown_since = NULL, expires_at = NULL,
        progress_done = CASE WHEN fit.state <> 'succeeded' THEN job.progress_done END,
        progress_total = CASE WHEN fit.state <> 'succeeded' THEN job.progress_total END,
        progress_message = CASE WHEN fit.state <> 'succeeded' THEN job.progress_message END,
        progress_at = CASE WHEN fit.state <> 'succeeded' THEN job.progress_at END,
        run_after = statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8)
    FROM fit
    WHERE job.id = fit.id
)
SELECT id, CASE WHEN id IN (SELECT id FROM fit) THEN 'ready' END FROM asked
"""

# Make jobs that are due later due at once.
#
# Moves:  ready, stays
# Caller: lifecycle.run_now(), for an operator
# Fence:  what the operator saw, as for RETRY, with `run_after` in place of `finished_at`: each retry sets a new one
RUN_NOW: Final = """/* pgqueue:run_now */
WITH asked AS MATERIALIZED (
    SELECT job.id, job.state = 'ready'
            AND job.run_after > statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8)
            AND (seen.state = '' OR job.state = seen.state AND job.run_after = seen.instant::timestamptz) AS waits
    FROM unnest(%(job_ids)s::bigint[], %(seen_states)s::text[], %(seen_instants)s::text[]) AS seen (id, state, instant)
    CROSS JOIN LATERAL (
        SELECT id, state, run_after FROM pgqueue_job WHERE id = seen.id FOR NO KEY UPDATE SKIP LOCKED
    ) AS job
),
moved AS (
    UPDATE pgqueue_job AS job
    SET run_after = statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8)
    FROM asked
    WHERE job.id = asked.id AND asked.waits
)
SELECT id, CASE WHEN waits THEN 'ready' END FROM asked
"""

# Which of these jobs exist: the ones an operator's act did not see are locked.
#
# Caller: lifecycle
EXISTING: Final = """/* pgqueue:existing */
SELECT id FROM pgqueue_job WHERE id = ANY (%(job_ids)s::bigint[])
"""

# Remove a batch of finished jobs of one state that are past its retention, with their executions.
#
# Moves:  finished → gone
# Caller: lifecycle.prune()
# Locks:  a job whose executions somebody holds locked is left for later: deleting waits for nobody
# Index:  pgqueue_job_finished, from the mark where the last batch ended
# Cost:   5.4 ms for 1,000 jobs of 1,000,000 finished ones, 5 to 8 µs a job from 500 to 5,000 at once; 6.9 ms when each
#         job was looked up in turn for executions that somebody holds, instead of all at once. By ctid: 6.1 ms
PRUNE: Final = """/* pgqueue:prune */
WITH old AS MATERIALIZED (
    SELECT id, finished_at
    FROM pgqueue_job
    WHERE state = %(state)s
      AND finished_at IS NOT NULL
      AND finished_at >= %(mark)s::timestamptz
      AND finished_at < statement_timestamp()
            + make_interval(secs => %(time_shift_seconds)s::float8 - %(retention_seconds)s::float8)
      AND task_name <> ALL (%(other_task_names)s::varchar[])
    ORDER BY finished_at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
),
held AS MATERIALIZED (
    SELECT id FROM pgqueue_execution WHERE job_id = ANY (ARRAY (SELECT id FROM old)) ORDER BY id FOR UPDATE SKIP LOCKED
),
busy AS MATERIALIZED (
    SELECT job_id
    FROM pgqueue_execution
    WHERE job_id = ANY (ARRAY (SELECT id FROM old)) AND id NOT IN (SELECT id FROM held)
),
free AS MATERIALIZED (
    SELECT id FROM old WHERE id NOT IN (SELECT job_id FROM busy)
),
forgotten AS (
    DELETE FROM pgqueue_execution WHERE job_id = ANY (ARRAY (SELECT id FROM free))
),
gone AS (
    DELETE FROM pgqueue_job WHERE id = ANY (ARRAY (SELECT id FROM free))
)
SELECT count(*), (SELECT count(*) FROM free), max(finished_at) FROM old
"""

# The same for one task that has a retention of its own.
#
# Index:  pgqueue_job_task
PRUNE_TASK: Final = """/* pgqueue:prune_task */
WITH old AS MATERIALIZED (
    SELECT id, finished_at
    FROM pgqueue_job
    WHERE task_name = %(task_name)s
      AND state = %(state)s
      AND finished_at IS NOT NULL
      AND finished_at >= %(mark)s::timestamptz
      AND finished_at < statement_timestamp()
            + make_interval(secs => %(time_shift_seconds)s::float8 - %(retention_seconds)s::float8)
    ORDER BY finished_at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
),
held AS MATERIALIZED (
    SELECT id FROM pgqueue_execution WHERE job_id = ANY (ARRAY (SELECT id FROM old)) ORDER BY id FOR UPDATE SKIP LOCKED
),
busy AS MATERIALIZED (
    SELECT job_id
    FROM pgqueue_execution
    WHERE job_id = ANY (ARRAY (SELECT id FROM old)) AND id NOT IN (SELECT id FROM held)
),
free AS MATERIALIZED (
    SELECT id FROM old WHERE id NOT IN (SELECT job_id FROM busy)
),
forgotten AS (
    DELETE FROM pgqueue_execution WHERE job_id = ANY (ARRAY (SELECT id FROM free))
),
gone AS (
    DELETE FROM pgqueue_job WHERE id = ANY (ARRAY (SELECT id FROM free))
)
SELECT count(*), (SELECT count(*) FROM free), max(finished_at) FROM old
"""

# The jobs that PRUNE would look at, where it failed on one of them: they are then removed by PRUNE_JOBS, in parts.
#
# Caller: lifecycle.prune()
# Index:  pgqueue_job_finished
OLD_JOBS: Final = """/* pgqueue:old_jobs */
SELECT id, finished_at
FROM pgqueue_job
WHERE state = %(state)s
  AND finished_at IS NOT NULL
  AND finished_at >= %(mark)s::timestamptz
  AND finished_at < statement_timestamp()
        + make_interval(secs => %(time_shift_seconds)s::float8 - %(retention_seconds)s::float8)
  AND task_name <> ALL (%(other_task_names)s::varchar[])
ORDER BY finished_at
LIMIT %(limit)s
"""

# The same for PRUNE_TASK.
#
# Index:  pgqueue_job_task
OLD_JOBS_OF_TASK: Final = """/* pgqueue:old_jobs_of_task */
SELECT id, finished_at
FROM pgqueue_job
WHERE task_name = %(task_name)s
  AND state = %(state)s
  AND finished_at IS NOT NULL
  AND finished_at >= %(mark)s::timestamptz
  AND finished_at < statement_timestamp()
        + make_interval(secs => %(time_shift_seconds)s::float8 - %(retention_seconds)s::float8)
ORDER BY finished_at
LIMIT %(limit)s
"""

# Remove these jobs if they are still finished and past their retention, with their executions.
#
# Moves:  finished → gone
# Caller: lifecycle.prune(), where PRUNE failed on one of them
# Locks:  as PRUNE
# Index:  primary keys
PRUNE_JOBS: Final = """/* pgqueue:prune_jobs */
WITH old AS MATERIALIZED (
    SELECT id
    FROM pgqueue_job
    WHERE id = ANY (%(job_ids)s::bigint[])
      AND state = %(state)s
      AND finished_at < statement_timestamp()
            + make_interval(secs => %(time_shift_seconds)s::float8 - %(retention_seconds)s::float8)
    ORDER BY id
    FOR UPDATE SKIP LOCKED
),
held AS MATERIALIZED (
    SELECT id FROM pgqueue_execution WHERE job_id = ANY (ARRAY (SELECT id FROM old)) ORDER BY id FOR UPDATE SKIP LOCKED
),
busy AS MATERIALIZED (
    SELECT job_id
    FROM pgqueue_execution
    WHERE job_id = ANY (ARRAY (SELECT id FROM old)) AND id NOT IN (SELECT id FROM held)
),
free AS MATERIALIZED (
    SELECT id FROM old WHERE id NOT IN (SELECT job_id FROM busy)
),
forgotten AS (
    DELETE FROM pgqueue_execution WHERE job_id = ANY (ARRAY (SELECT id FROM free))
),
gone AS (
    DELETE FROM pgqueue_job WHERE id = ANY (ARRAY (SELECT id FROM free))
)
SELECT id FROM free
"""

# How many jobs of one state are past its retention: what PRUNE would remove in the end.
#
# Caller: lifecycle.prune() when asked for a dry run
PRUNABLE: Final = """/* pgqueue:prunable */
SELECT count(*)
FROM pgqueue_job
WHERE state = %(state)s
  AND finished_at IS NOT NULL
  AND finished_at < statement_timestamp()
        + make_interval(secs => %(time_shift_seconds)s::float8 - %(retention_seconds)s::float8)
  AND task_name <> ALL (%(other_task_names)s::varchar[])
"""

# The same for one task.
PRUNABLE_TASK: Final = """/* pgqueue:prunable_task */
SELECT count(*)
FROM pgqueue_job
WHERE task_name = %(task_name)s
  AND state = %(state)s
  AND finished_at IS NOT NULL
  AND finished_at < statement_timestamp()
        + make_interval(secs => %(time_shift_seconds)s::float8 - %(retention_seconds)s::float8)
"""

# The register of workers: for people to look at.
#
# Caller: lifecycle.register_worker(), beat_workers(), unregister_worker()
# A new id is the time in microseconds. Ids of the column's sequence recur after TRUNCATE ... RESTART IDENTITY, and then
# two live workers of one id extend and release each other's executions. Two workers that register in the same
# microsecond make this statement fail for one of them, whose supervisor tries again.
REGISTER_WORKER: Final = """/* pgqueue:register_worker */
INSERT INTO pgqueue_worker (id, hostname, pid, version, queue_names, concurrency, started_at, last_beat_at)
VALUES (coalesce(
            %(worker_id)s::bigint,
            floor(1000000 * date_part(
                'epoch', statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8)
            ))::bigint
        ),
        %(hostname)s, %(pid)s, %(version)s, %(queue_names)s, %(concurrency)s,
        statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8),
        statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8))
RETURNING id
"""

# Returns the ids that have a record: one that is only locked has one too.
BEAT_WORKERS: Final = """/* pgqueue:beat_workers */
WITH mine AS MATERIALIZED (
    SELECT id FROM pgqueue_worker WHERE id = ANY (%(worker_ids)s::bigint[]) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
),
beaten AS (
    UPDATE pgqueue_worker
    SET last_beat_at = statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8)
    WHERE id = ANY (ARRAY (SELECT id FROM mine))
)
SELECT id FROM pgqueue_worker WHERE id = ANY (%(worker_ids)s::bigint[])
"""

UNREGISTER_WORKER: Final = """/* pgqueue:unregister_worker */
WITH mine AS MATERIALIZED (
    SELECT id FROM pgqueue_worker WHERE id = %(worker_id)s FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE pgqueue_worker
SET stopped_at = statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8)
WHERE id = ANY (ARRAY (SELECT id FROM mine))
"""

# Remove the records of workers that stopped, or fell silent, a week ago.
PRUNE_WORKERS: Final = """/* pgqueue:prune_workers */
WITH old AS MATERIALIZED (
    SELECT id
    FROM pgqueue_worker
    WHERE last_beat_at < statement_timestamp()
            + make_interval(secs => %(time_shift_seconds)s::float8 - %(retention_seconds)s::float8)
    ORDER BY id
    FOR UPDATE SKIP LOCKED
)
DELETE FROM pgqueue_worker WHERE id = ANY (ARRAY (SELECT id FROM old))
"""

# All schedules, as a worker has to know them, and the database's clock; a single row of nothing else if there is none.
#
# Caller: lifecycle.schedules(), every few seconds while there are any
# Cost:   0.13 ms for none; 0.6 ms for 100. Not their arguments, which FIRE reads, and who works out a unique key.
# An instant that Python cannot read, such as infinity, comes as the nearest that it can: one would hide all schedules.
SCHEDULES: Final = """/* pgqueue:schedules */
SELECT clock.seen_at, schedule.id, schedule.name, schedule.origin, schedule.task_name, schedule.expression,
       schedule.time_zone, schedule.missed, schedule.jitter_seconds, schedule.queue_name, schedule.priority,
       schedule.max_attempts, schedule.enabled,
       CASE WHEN schedule.id IS NOT NULL
            THEN least(greatest(schedule.next_run_at, '0001-01-03 UTC'), '9999-12-28 UTC') END,
       schedule.revision, schedule.digest, schedule.former_digests,
       CASE WHEN schedule.vouched_at IS NOT NULL
            THEN least(greatest(schedule.vouched_at, '0001-01-03 UTC'), '9999-12-28 UTC') END,
       schedule.expires_seconds, schedule.is_unique
FROM (SELECT statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8) AS seen_at) AS clock
LEFT JOIN pgqueue_schedule AS schedule ON true
ORDER BY schedule.id
"""

# What a schedule's task is called with, for its unique key.
#
# Caller: lifecycle.arguments_of()
# Fence:  the definition as the caller has read it
SCHEDULE_ARGUMENTS: Final = """/* pgqueue:schedule_arguments */
SELECT arguments::text FROM pgqueue_schedule WHERE id = %(schedule_id)s AND revision = %(revision)s
"""

# Make the job of one tick of a schedule, note the tick, and set the next one: all of it or nothing.
#
# Moves:  → ready; or nothing, with the tick noted, where another job has the unique key
# Caller: lifecycle.fire(), from any worker
# Fence:  the definition and the next tick as the caller has read them; the unique (schedule, tick)
# Locks:  the schedule's row, if nobody else has it; with a unique key it waits for a transaction that has enqueued the
#         same and has not ended, as ENQUEUE_UNIQUE does, but for `key_wait` at the most: `drawn` sets that for this
#         transaction, for behind a pooler the session has no `lock_timeout`
# Index:  pgqueue_schedulerun_tick: the tick itself, and the last 20 for a job that is not finished
# Cost:   2 ms on a busy machine, 3 with a look for unfinished jobs; the same with 50,000 ticks on record
# Whether the tick has come is the database's to say. A definition of the code counts while somebody vouches for it.
# A key for a period is held first, as in ENQUEUE_FOR_PERIOD: who has the hold inserts the job, under the id of both.
FIRE: Final = """/* pgqueue:fire */
WITH due AS MATERIALIZED (
    SELECT id, task_name, arguments, if_running
    FROM pgqueue_schedule
    WHERE id = %(schedule_id)s
      AND revision = %(revision)s
      AND next_run_at = %(expected_at)s::timestamptz
      AND enabled
      AND (
          origin = 'admin'
          OR vouched_at > statement_timestamp()
                + make_interval(secs => %(time_shift_seconds)s::float8 - %(vouched_seconds)s::float8)
      )
      AND %(tick_at)s::timestamptz
            <= statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8)
    FOR NO KEY UPDATE SKIP LOCKED
),
judged AS MATERIALIZED (
    SELECT due.id, due.task_name, due.arguments, CASE
        WHEN EXISTS (
            SELECT FROM pgqueue_schedulerun
            WHERE schedule_id = due.id AND tick_at = %(tick_at)s::timestamptz
        ) THEN 'again'
        WHEN due.if_running = 'overlap' OR NOT EXISTS (
            SELECT
            FROM (
                SELECT job_id FROM pgqueue_schedulerun
                WHERE schedule_id = due.id AND job_id IS NOT NULL
                ORDER BY tick_at DESC
                LIMIT 20
            ) AS recent
            CROSS JOIN LATERAL (
                SELECT FROM pgqueue_job WHERE id = recent.job_id AND finished_at IS NULL OFFSET 0
            ) AS unfinished
        ) THEN 'fired'
        WHEN due.if_running = 'queue' THEN 'waits'
        ELSE 'skipped'
    END AS what
    FROM due
),
drawn AS MATERIALIZED (
    SELECT nextval('pgqueue_job_id_seq') AS job_id, coalesce(%(task_name)s::varchar, task_name) AS task_name, arguments,
           CASE WHEN %(key_wait)s::text IS NOT NULL THEN set_config('lock_timeout', %(key_wait)s::text, true) END
    FROM judged
    WHERE what = 'fired'
),
held AS (
    INSERT INTO pgqueue_hold (job_id, task_name, unique_key, held_until)
    SELECT job_id, task_name, %(unique_key)s,
           statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8 + %(period_seconds)s::float8)
    FROM drawn
    WHERE %(period_seconds)s::float8 IS NOT NULL
    ON CONFLICT (task_name, unique_key) DO UPDATE
    SET job_id = excluded.job_id, held_until = excluded.held_until
    WHERE pgqueue_hold.held_until
        <= statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8)
    RETURNING job_id
),
made AS (
    INSERT INTO pgqueue_job
        (id, task_name, queue_name, priority, arguments, max_attempts, enqueued_at, run_after, headers, expires_at,
         unique_key, unique_ready_only)
    SELECT job_id, task_name, %(queue_name)s, %(priority)s, arguments, %(max_attempts)s,
           statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8),
           statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8 + %(delay_seconds)s::float8),
           %(headers)s::json,
           statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8 + %(expires_seconds)s::float8),
           CASE WHEN %(period_seconds)s::float8 IS NULL THEN %(unique_key)s::varchar END, %(unique_ready_only)s::boolean
    FROM drawn
    WHERE %(period_seconds)s::float8 IS NULL OR job_id IN (SELECT job_id FROM held)
    ON CONFLICT (task_name, unique_key)
        WHERE unique_key IS NOT NULL AND (state = 'ready' OR (state = 'running' AND unique_ready_only IS NULL))
    DO NOTHING
    RETURNING id
),
noted AS (
    INSERT INTO pgqueue_schedulerun (schedule_id, tick_at, fired_at, job_id)
    SELECT id, %(tick_at)s::timestamptz,
           statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8), (SELECT id FROM made)
    FROM judged
    WHERE what IN ('fired', 'skipped')
),
moved AS (
    UPDATE pgqueue_schedule AS schedule
    SET next_run_at = %(following_at)s::timestamptz,
        last_run_at = CASE WHEN EXISTS (SELECT FROM made) THEN %(tick_at)s::timestamptz ELSE schedule.last_run_at END,
        last_job_id = coalesce((SELECT id FROM made), schedule.last_job_id),
        problem = ''
    FROM judged
    WHERE schedule.id = judged.id AND judged.what <> 'waits'
)
SELECT CASE WHEN what = 'fired' AND NOT EXISTS (SELECT FROM made) THEN 'duplicate' ELSE what END, (SELECT id FROM made)
FROM judged
"""

# Make a job of a schedule now, besides its ticks.
#
# Moves:  → ready, or nothing, where another job has the unique key
# Caller: lifecycle.run_schedule(), for an operator
# Fence:  the definition as the caller has read it
# Locks:  as FIRE; an operator's connection may have no `lock_timeout`, and waits as an enqueue would
# Answers for the row whether it was there at all: one that was and gave nothing is locked. So do the next ones.
RUN_SCHEDULE: Final = """/* pgqueue:run_schedule */
WITH asked AS MATERIALIZED (
    SELECT id, task_name, arguments
    FROM pgqueue_schedule
    WHERE id = %(schedule_id)s AND revision = %(revision)s
      AND (%(seen_last_run)s = 'any' OR last_run_at IS NOT DISTINCT FROM nullif(%(seen_last_run)s, '')::timestamptz)
    FOR NO KEY UPDATE SKIP LOCKED
),
drawn AS MATERIALIZED (
    SELECT nextval('pgqueue_job_id_seq') AS job_id, coalesce(%(task_name)s::varchar, task_name) AS task_name, arguments
    FROM asked
),
held AS (
    INSERT INTO pgqueue_hold (job_id, task_name, unique_key, held_until)
    SELECT job_id, task_name, %(unique_key)s,
           statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8 + %(period_seconds)s::float8)
    FROM drawn
    WHERE %(period_seconds)s::float8 IS NOT NULL
    ON CONFLICT (task_name, unique_key) DO UPDATE
    SET job_id = excluded.job_id, held_until = excluded.held_until
    WHERE pgqueue_hold.held_until
        <= statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8)
    RETURNING job_id
),
made AS (
    INSERT INTO pgqueue_job
        (id, task_name, queue_name, priority, arguments, max_attempts, enqueued_at, run_after, headers, expires_at,
         unique_key, unique_ready_only)
    SELECT job_id, task_name, %(queue_name)s, %(priority)s, arguments, %(max_attempts)s,
           statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8),
           statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8),
           %(headers)s::json,
           statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8 + %(expires_seconds)s::float8),
           CASE WHEN %(period_seconds)s::float8 IS NULL THEN %(unique_key)s::varchar END, %(unique_ready_only)s::boolean
    FROM drawn
    WHERE %(period_seconds)s::float8 IS NULL OR job_id IN (SELECT job_id FROM held)
    ON CONFLICT (task_name, unique_key)
        WHERE unique_key IS NOT NULL AND (state = 'ready' OR (state = 'running' AND unique_ready_only IS NULL))
    DO NOTHING
    RETURNING id
),
noted AS (
    INSERT INTO pgqueue_schedulerun (schedule_id, tick_at, fired_at, job_id)
    SELECT asked.id, statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8),
           statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8), made.id
    FROM asked
    CROSS JOIN made
),
moved AS (
    UPDATE pgqueue_schedule AS schedule
    SET last_run_at = statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8),
        last_job_id = made.id
    FROM asked
    CROSS JOIN made
    WHERE schedule.id = asked.id
)
SELECT EXISTS (
           SELECT
           FROM pgqueue_schedule
           WHERE id = %(schedule_id)s AND revision = %(revision)s
             AND (
                 %(seen_last_run)s = 'any'
                 OR last_run_at IS NOT DISTINCT FROM nullif(%(seen_last_run)s, '')::timestamptz
             )
       ),
       (SELECT CASE WHEN EXISTS (SELECT FROM made) THEN 'fired' ELSE 'duplicate' END FROM asked),
       (SELECT id FROM made)
"""

# Say why a schedule does not run: until it does, or has another definition.
#
# Caller: lifecycle.note_problem(), from a worker that could not make its job
# Fence:  the definition and the next tick as the caller has read them: another worker may have fired it
NOTE_PROBLEM: Final = """/* pgqueue:note_problem */
WITH mine AS MATERIALIZED (
    SELECT id
    FROM pgqueue_schedule
    WHERE id = %(schedule_id)s
      AND revision = %(revision)s
      AND least(greatest(next_run_at, '0001-01-03 UTC'), '9999-12-28 UTC') = %(expected_at)s::timestamptz
      AND problem <> %(problem)s
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE pgqueue_schedule SET problem = %(problem)s WHERE id = ANY (ARRAY (SELECT id FROM mine))
"""

# Set the next tick of a schedule without a job: ticks that are not made up for, or a clock that was put right.
#
# Caller: lifecycle.plan_schedule(), from any worker
# Fence:  the definition and the next tick as the caller has read them, that is as SCHEDULES shows them
PLAN_SCHEDULE: Final = """/* pgqueue:plan_schedule */
WITH mine AS MATERIALIZED (
    SELECT id
    FROM pgqueue_schedule
    WHERE id = %(schedule_id)s
      AND revision = %(revision)s
      AND least(greatest(next_run_at, '0001-01-03 UTC'), '9999-12-28 UTC') = %(expected_at)s::timestamptz
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE pgqueue_schedule
SET next_run_at = %(following_at)s::timestamptz
WHERE id = ANY (ARRAY (SELECT id FROM mine))
RETURNING id
"""

# Add a schedule, of the code or of the admin, unless there is one of that name.
#
# Caller: lifecycle.add_schedule(), from any worker whose code has it, or for an operator
ADD_SCHEDULE: Final = """/* pgqueue:add_schedule */
INSERT INTO pgqueue_schedule
    (name, origin, task_name, arguments, expression, time_zone, missed, if_running, jitter_seconds, queue_name,
     priority, max_attempts, expires_seconds, is_unique, digest, next_run_at, enabled, vouched_at)
VALUES (
    %(name)s, %(origin)s::varchar, %(task_name)s, %(arguments)s::json, %(expression)s, %(time_zone)s, %(missed)s,
    %(if_running)s, %(jitter_seconds)s, %(queue_name)s, %(priority)s, %(max_attempts)s, %(expires_seconds)s,
    %(is_unique)s, %(digest)s, %(next_run_at)s::timestamptz, %(enabled)s,
    CASE WHEN %(origin)s::varchar = 'code'
         THEN statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8) END
)
ON CONFLICT (origin, name) DO NOTHING
RETURNING id
"""

# Give a schedule another definition.
#
# Caller: lifecycle.change_schedule(), from any worker whose code has it, or for an operator
# Fence:  the definition as the caller has read it
# A tick that is due was the former definition's to give, and stays owed.
CHANGE_SCHEDULE: Final = """/* pgqueue:change_schedule */
WITH mine AS MATERIALIZED (
    SELECT id, enabled AND next_run_at
            <= statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8) AS is_due
    FROM pgqueue_schedule
    WHERE id = %(schedule_id)s AND revision = %(revision)s
    FOR NO KEY UPDATE SKIP LOCKED
),
changed AS (
    UPDATE pgqueue_schedule AS schedule
    SET name = %(name)s, task_name = %(task_name)s, arguments = %(arguments)s::json, expression = %(expression)s,
        time_zone = %(time_zone)s, missed = %(missed)s, if_running = %(if_running)s,
        jitter_seconds = %(jitter_seconds)s, queue_name = %(queue_name)s, priority = %(priority)s,
        max_attempts = %(max_attempts)s, expires_seconds = %(expires_seconds)s, is_unique = %(is_unique)s,
        digest = %(digest)s, former_digests = %(former_digests)s, problem = '',
        revision = schedule.revision + 1,
        next_run_at = CASE WHEN mine.is_due THEN schedule.next_run_at ELSE %(next_run_at)s::timestamptz END,
        vouched_at = CASE WHEN schedule.origin = 'code'
            THEN statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8) END
    FROM mine
    WHERE schedule.id = mine.id
)
SELECT EXISTS (SELECT FROM pgqueue_schedule WHERE id = %(schedule_id)s AND revision = %(revision)s),
       (SELECT id FROM mine)
"""

# Say that a worker lives whose code has these schedules as they are.
#
# Caller: lifecycle.vouch(), once a minute for all workers
VOUCH: Final = """/* pgqueue:vouch */
WITH mine AS MATERIALIZED (
    SELECT id
    FROM pgqueue_schedule
    WHERE id = ANY (%(schedule_ids)s::bigint[])
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE pgqueue_schedule
SET vouched_at = statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8)
WHERE id = ANY (ARRAY (SELECT id FROM mine))
"""

# Stop or go on with a schedule; the ticks of the time between are not owed.
#
# Caller: lifecycle.pause_schedule(), lifecycle.resume_schedule(), for an operator
SWITCH_SCHEDULE: Final = """/* pgqueue:switch_schedule */
WITH mine AS MATERIALIZED (
    SELECT id, enabled FROM pgqueue_schedule WHERE id = %(schedule_id)s FOR NO KEY UPDATE SKIP LOCKED
),
switched AS (
    UPDATE pgqueue_schedule AS schedule
    SET enabled = %(enabled)s,
        revision = schedule.revision + 1,
        problem = '',
        next_run_at = coalesce(%(next_run_at)s::timestamptz, schedule.next_run_at)
    FROM mine
    WHERE schedule.id = mine.id AND mine.enabled <> %(enabled)s
)
SELECT EXISTS (SELECT FROM pgqueue_schedule WHERE id = %(schedule_id)s), (SELECT enabled <> %(enabled)s FROM mine)
"""

# Remove schedules with the record of their ticks: of the admin, or of code that nobody vouches for any more.
#
# Caller: lifecycle.remove_schedules(), for an operator, or from any worker after a week
REMOVE_SCHEDULES: Final = """/* pgqueue:remove_schedules */
WITH old AS MATERIALIZED (
    SELECT id
    FROM pgqueue_schedule
    WHERE id = ANY (%(schedule_ids)s::bigint[])
      AND (
          origin = 'admin'
          OR vouched_at < statement_timestamp()
                + make_interval(secs => %(time_shift_seconds)s::float8 - %(vouched_seconds)s::float8)
      )
    ORDER BY id
    FOR UPDATE SKIP LOCKED
),
forgotten AS (
    DELETE FROM pgqueue_schedulerun WHERE schedule_id = ANY (ARRAY (SELECT id FROM old))
)
DELETE FROM pgqueue_schedule WHERE id = ANY (ARRAY (SELECT id FROM old)) RETURNING id
"""

# Remove the record of old ticks, but of each schedule's last ones: by these a clock that jumps does nothing twice.
#
# Caller: lifecycle.prune_schedule_runs(), once an hour
# Index:  pgqueue_schedulerun_tick
PRUNE_SCHEDULE_RUNS: Final = """/* pgqueue:prune_schedule_runs */
WITH old AS MATERIALIZED (
    SELECT run.id
    FROM pgqueue_schedule AS schedule
    CROSS JOIN LATERAL (
        SELECT tick_at AS until_at
        FROM pgqueue_schedulerun
        WHERE schedule_id = schedule.id
        ORDER BY tick_at DESC
        OFFSET %(kept)s
        LIMIT 1
    ) AS last
    CROSS JOIN LATERAL (
        SELECT id
        FROM pgqueue_schedulerun
        WHERE schedule_id = schedule.id
          AND tick_at <= last.until_at
          AND tick_at < statement_timestamp()
                + make_interval(secs => %(time_shift_seconds)s::float8 - %(retention_seconds)s::float8)
        ORDER BY tick_at
        LIMIT %(limit)s
        FOR UPDATE SKIP LOCKED
    ) AS run
)
DELETE FROM pgqueue_schedulerun WHERE id = ANY (ARRAY (SELECT id FROM old)) RETURNING id
"""

# Make rows fit the checks of their tables: the nearest instant, no end where it was infinite, dead where the state was
# unknown. A schedule without a readable next tick gets one far ahead, which the next worker that looks at it replaces.
#
# Moves:  a state that no release knows → dead
# Caller: lifecycle.repair_rows(), from the migration that adds the checks; it reads each table whole
REPAIR_JOBS: Final = """/* pgqueue:repair_jobs */
UPDATE pgqueue_job
SET attempt = greatest(attempt, 0), crashes = greatest(crashes, 0), max_attempts = greatest(max_attempts, 1),
    unique_ready_only = CASE WHEN unique_ready_only IS NOT NULL THEN true END,
    enqueued_at = least(greatest(enqueued_at, '0001-01-03 UTC'), '9999-12-28 UTC'),
    unknown_since = CASE
        WHEN unknown_since IS NOT NULL THEN least(greatest(unknown_since, '0001-01-03 UTC'), '9999-12-28 UTC')
    END,
    expires_at = CASE WHEN expires_at < '9999-12-29 UTC' THEN greatest(expires_at, '0001-01-03 UTC') END,
    finished_at = CASE
        WHEN state NOT IN ('ready', 'running', 'succeeded', 'dead', 'cancelled', 'waiting')
        THEN statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8)
        WHEN finished_at IS NOT NULL THEN least(greatest(finished_at, '0001-01-03 UTC'), '9999-12-28 UTC')
    END,
    state = CASE
        WHEN state IN ('ready', 'running', 'succeeded', 'dead', 'cancelled', 'waiting') THEN state ELSE 'dead'
    END
WHERE attempt < 0 OR crashes < 0 OR max_attempts < 1 OR NOT unique_ready_only
   OR state NOT IN ('ready', 'running', 'succeeded', 'dead', 'cancelled', 'waiting')
   OR least(enqueued_at, unknown_since, expires_at, finished_at) < '0001-01-03 UTC'
   OR greatest(enqueued_at, unknown_since, expires_at, finished_at) >= '9999-12-29 UTC'
"""

REPAIR_EXECUTIONS: Final = """/* pgqueue:repair_executions */
UPDATE pgqueue_execution
SET outcome = CASE
        WHEN outcome IS NULL OR outcome IN ('succeeded', 'failed', 'crashed', 'cancelled', 'released', 'snoozed')
        THEN outcome ELSE 'failed'
    END,
    claimed_at = least(greatest(claimed_at, '0001-01-03 UTC'), '9999-12-28 UTC'),
    started_at = CASE
        WHEN started_at IS NOT NULL THEN least(greatest(started_at, '0001-01-03 UTC'), '9999-12-28 UTC')
    END,
    finished_at = CASE
        WHEN finished_at IS NOT NULL THEN least(greatest(finished_at, '0001-01-03 UTC'), '9999-12-28 UTC')
    END,
    lease_expires_at = CASE
        WHEN lease_expires_at >= '0001-01-03 UTC' AND lease_expires_at < '9999-12-29 UTC'
        THEN lease_expires_at ELSE statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8)
    END
WHERE outcome NOT IN ('succeeded', 'failed', 'crashed', 'cancelled', 'released', 'snoozed')
   OR least(claimed_at, started_at, finished_at, lease_expires_at) < '0001-01-03 UTC'
   OR greatest(claimed_at, started_at, finished_at, lease_expires_at) >= '9999-12-29 UTC'
"""

REPAIR_SCHEDULES: Final = """/* pgqueue:repair_schedules */
UPDATE pgqueue_schedule
SET next_run_at = CASE
        WHEN next_run_at >= '0001-01-03 UTC' AND next_run_at < '9999-12-29 UTC'
        THEN next_run_at ELSE '9999-12-28 UTC'
    END,
    last_run_at = CASE
        WHEN last_run_at IS NOT NULL THEN least(greatest(last_run_at, '0001-01-03 UTC'), '9999-12-28 UTC')
    END,
    vouched_at = CASE
        WHEN vouched_at IS NOT NULL
        THEN statement_timestamp() + make_interval(secs => %(time_shift_seconds)s::float8)
    END
WHERE least(next_run_at, last_run_at, vouched_at) < '0001-01-03 UTC'
   OR greatest(next_run_at, last_run_at, vouched_at) >= '9999-12-29 UTC'
"""

REPAIR_PAUSES: Final = """/* pgqueue:repair_pauses */
UPDATE pgqueue_pause
SET paused_at = least(greatest(paused_at, '0001-01-03 UTC'), '9999-12-28 UTC'),
    paused_until = CASE WHEN paused_until < '9999-12-29 UTC' THEN greatest(paused_until, '0001-01-03 UTC') END
WHERE least(paused_at, paused_until) < '0001-01-03 UTC' OR greatest(paused_at, paused_until) >= '9999-12-29 UTC'
"""
