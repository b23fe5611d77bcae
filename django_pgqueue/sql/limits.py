"""Statements that claim jobs with a limit: find their keys, lock them, count, claim.

A claim of limited jobs takes two statements in one transaction, LOCK_KEYS and CLAIM_KEYS. The first one
locks keys, the second one counts their open executions. They must not be one statement: its snapshot would be older
than the lock, so it would not see the claim that the previous holder of the lock has just committed.

A process can be frozen between the two, or its host can be lost without a word. So the first statement lets the server
end the session, and free the keys, if it has been idle in this transaction for 5 s. A transaction of the application
has only the limit of its own session.
"""

from typing import Final

from .clauses import HEADERS, IDLE_WAIT, LIMITED_IN_LANE, NOT_EXCLUDED, RUN, SIZE

# The first job of a range of the index, or of the next range if it is empty.
OTHERWISE: Final = """            ORDER BY queue_name, priority DESC, limit_key, run_after, id
            LIMIT 1
        )
        UNION ALL
        ("""

# Return the keys that have ready jobs, lane by lane from a place on: chunk keys and keys of limits.
#
# Caller: lifecycle.limits.scan_keys(), page by page, in workers that have tasks with a limit or a chunk
# Index:  pgqueue_job_limited: one index search for each key, up to two more for each lane; two for each chunk key
# Cost:   0.2 ms, and 10 to 20 µs for each key
#
# The first job of a key is due in `due_seconds`; 0 or less if it is due now. Of the given chunk keys, `full_seconds` is
# the time until the chunk is due: when its last job is due, or when its first one has been due for `wait_seconds`. The
# recursion makes no more steps than `limit` needs. The last column is whether claims must read KEY_CONTROLS: whether
# there is an override or a pause of a limit, even if it has ended.
KEYS: Final = """/* pgqueue:keys */
WITH RECURSIVE visited AS (
    SELECT %(after_queue)s::varchar COLLATE "C" AS queue_name, %(after_priority)s::integer AS priority,
           %(after_key)s::varchar COLLATE "C" AS limit_key, NULL::timestamptz AS run_after, 0 AS number
    UNION ALL
    SELECT next.queue_name, next.priority::integer, next.limit_key, next.run_after, visited.number + 1
    FROM visited
    CROSS JOIN LATERAL (
        (
            SELECT queue_name, priority, limit_key, run_after FROM pgqueue_job
            WHERE state = 'ready' AND limit_key IS NOT NULL
              AND queue_name = visited.queue_name AND priority = visited.priority AND limit_key > visited.limit_key
""" + OTHERWISE + """
            SELECT queue_name, priority, limit_key, run_after FROM pgqueue_job
            WHERE state = 'ready' AND limit_key IS NOT NULL
              AND queue_name = visited.queue_name AND priority < visited.priority
""" + OTHERWISE + """
            SELECT queue_name, priority, limit_key, run_after FROM pgqueue_job
            WHERE state = 'ready' AND limit_key IS NOT NULL AND queue_name > visited.queue_name
            ORDER BY queue_name, priority DESC, limit_key, run_after, id
            LIMIT 1
        )
        LIMIT 1
    ) AS next
    WHERE visited.number < %(limit)s
)
SELECT visited.queue_name, visited.priority, visited.limit_key, visited.run_after,
       date_part('epoch', visited.run_after - statement_timestamp() - %(time_shift)s::interval),
       date_part('epoch', least(
           visited.run_after + make_interval(secs => given.wait_seconds),
           (
               SELECT run_after
               FROM pgqueue_job
               WHERE state = 'ready'
                 AND limit_key IS NOT NULL
                 AND queue_name = visited.queue_name
                 AND priority = visited.priority
                 AND limit_key = given.chunk_key
               ORDER BY run_after, id
               OFFSET given.size - 1
               LIMIT 1
           )
       ) - statement_timestamp() - %(time_shift)s::interval),
       EXISTS (SELECT FROM pgqueue_limit_override) OR EXISTS (SELECT FROM pgqueue_pause WHERE kind = 'limit')
FROM visited
LEFT JOIN unnest(%(chunk_keys)s::varchar[], %(sizes)s::bigint[], %(waits_seconds)s::float8[])
    AS given (chunk_key, size, wait_seconds) ON given.chunk_key = visited.limit_key
WHERE visited.number > 0
ORDER BY visited.number
"""  # fmt: skip

# Return the lane, the limit key and the weight of a ready job, and the seconds until it is due.
#
# Caller: lifecycle.limits.limited_job(), before a claim of this job alone
# Index:  primary key
#
# A condition on `limit_key` would let the planner choose the index of all limited jobs.
LIMITED_JOB: Final = """/* pgqueue:limited_job */
SELECT queue_name, priority, limit_key, coalesce(limit_weight, 1),
       date_part('epoch', run_after - statement_timestamp() - %(time_shift)s::interval)
FROM pgqueue_job
WHERE id = %(job_id)s AND state = 'ready'
"""

# Lock the given keys, and return those that no other session has locked.
#
# Caller: lifecycle.limits.lock_keys(), in the transaction of CLAIM_KEYS
# Locks:  an advisory lock for each returned key, until the transaction ends; SKIP LOCKED
LOCK_KEYS: Final = """/* pgqueue:lock_keys */
SELECT given.limit_key
FROM unnest(%(limit_keys)s::varchar[]) WITH ORDINALITY AS given (limit_key, place)
""" + IDLE_WAIT + """
WHERE pg_try_advisory_xact_lock(hashtextextended('pgqueue:' || given.limit_key, 0))
ORDER BY given.place
"""  # fmt: skip

# The jobs of an ordered key that have not ended, in their order. A dead job is among them if it blocks the key.
FIRST_IN_ORDER: Final = """          AND limit_order IS NOT NULL
          AND (state IN ('ready', 'running') OR state = 'dead' AND limit_order = 2)
        ORDER BY id"""

# Claim due jobs of keys in one lane, as many as the limit of each key admits, and open an execution for each.
#
# Moves:  ready → running
# Caller: lifecycle.limits.claim_keys(). The caller's transaction holds the advisory locks of all keys
# Locks:  the job rows it returns, and until it ends the rows that `due` leaves unclaimed
# Index:  pgqueue_job_running_key for the count, pgqueue_limit_state_key for the rate, pgqueue_limit_state_held for
#         holds, pgqueue_job_limited for the jobs; pgqueue_job_ordered for the next job of an ordered key
# Cost:   0.7 ms for one key; 3 ms for 100 keys
#
# A key admits jobs up to the slots that its open executions leave, and up to the tokens of its rate. The rate is a
# token bucket of `burst` tokens: `interval_us` is the time in which a token comes back, and `full_at` the time at which
# all have. All of it is in whole microseconds, because rounding would add up. A concurrency, an interval or a burst of
# 0 means that there is none. A job takes as many slots as tokens: its weight. If that is more than the concurrency or
# the burst, it takes all of them: an ordered key has one slot for any weight, and an operator can lower limits. A
# clock that goes back leaves `full_at` too late, and so does an operator who raises the rate. It is never later than an
# empty bucket needs. The statement then replaces the row, otherwise the bucket would not fill until the old time.
#
# Keys take turns: `round` is the number of the turn in which a job is claimed, with `share` jobs of its key. Of an
# ordered key, only the job with the lowest id is claimed. Jobs without an order were added before its limit became
# ordered. They are claimed when no job with an order waits. With `job_id`, only that job is claimed, also if it is not
# due (`is_early`), but of an ordered key only if it is the first one.
#
# `due` limits prefetching as in CLAIM. In addition, jobs with a rate are not prefetched, because they would start later
# than they were counted. `picked` has one of them more than free slots: no job behind it is prefetched.
#
# `claimed_at` is the time at which the statement counts. statement_timestamp() can be earlier than the end of an
# execution that the count has seen to have ended, so that the history would show one execution more than the limit.
#
# The first rows are the claimed jobs. Then comes a row for each key: whether it got a job, whether its limit admits
# more, and the seconds until the limit admits the next job, or until the next job of an ordered key is due. They are
# NULL if nothing but the end of a job can help, or nothing waits. Then the execution after which open executions of the
# key are to be counted: those up to it have ended. It is ignored if the sequence is behind it, because the tables were
# emptied. The last column is whether the key is held.
CLAIM_KEYS: Final = """/* pgqueue:claim_keys */
WITH given AS (
    SELECT each.limit_key, nullif(each.concurrency, 0) AS concurrency, nullif(each.interval_us, 0) AS interval_us,
           nullif(each.burst, 0) AS burst, each.share, each.is_ordered,
           each.after_at, each.after_id, each.turn, clock.at + %(time_shift)s::interval AS claimed_at,
           CASE WHEN each.open_after <= pg_sequence_last_value('pgqueue_execution_id_seq')
                THEN each.open_after ELSE 0 END AS open_after
    FROM unnest(
        %(limit_keys)s::varchar[], %(concurrencies)s::bigint[], %(intervals_us)s::bigint[], %(bursts)s::bigint[],
        %(shares)s::bigint[], %(are_ordered)s::boolean[],
        %(after_ats)s::timestamptz[], %(after_ids)s::bigint[], %(open_after_ids)s::bigint[]
    ) WITH ORDINALITY AS each (
        limit_key, concurrency, interval_us, burst, share, is_ordered, after_at, after_id, open_after, turn
    )
    CROSS JOIN clock_timestamp() AS clock (at)
),
used AS MATERIALIZED (
    SELECT given.*, open.weight, open.first_id, state.id AS state_id,
           head.id AS head_id, head.state AS head_state, head.run_after AS head_run_after,
           coalesce(ceil(1e6 * date_part('epoch', hold.held_until - given.claimed_at)), 0)::bigint AS held_us,
           least(
               greatest(ceil(1e6 * date_part('epoch', state.full_at - given.claimed_at)), 0),
               given.burst * given.interval_us
           )::bigint AS used_us
    FROM given
    LEFT JOIN LATERAL (
        SELECT coalesce(sum(least(coalesce(limit_weight, 1), given.concurrency)), 0) AS weight,
               min(execution_id) AS first_id
        FROM pgqueue_job
        WHERE given.concurrency IS NOT NULL
          AND state = 'running' AND limit_key = given.limit_key AND execution_id > given.open_after
    ) AS open ON true
    LEFT JOIN LATERAL (
        SELECT id, full_at
        FROM pgqueue_limit_state
        WHERE limit_key = given.limit_key AND held_until IS NULL
        ORDER BY id DESC
        LIMIT 1
    ) AS state ON true
    LEFT JOIN LATERAL (
        SELECT held_until
        FROM pgqueue_limit_state
        WHERE limit_key = given.limit_key AND held_until IS NOT NULL
        ORDER BY held_until DESC
        LIMIT 1
    ) AS hold ON true
    LEFT JOIN LATERAL (
        SELECT id, state, run_after
        FROM pgqueue_job
        WHERE given.is_ordered
          AND limit_key = given.limit_key
""" + FIRST_IN_ORDER + """
        LIMIT 1
    ) AS head ON true
),
key AS MATERIALIZED (
    SELECT used.*,
           CASE WHEN held_us > 0 THEN 0 ELSE least(concurrency - weight, 1000000000) END AS slots_left,
           least((burst * interval_us - used_us) / interval_us, 1000000000) AS tokens_left
    FROM used
),
picked AS MATERIALIZED (
    SELECT key.claimed_at,
           job.id, job.run_after, job.attempt, job.is_last, job.size, job.limit_weight,
           least(coalesce(job.limit_weight, 1), key.concurrency, 1000000000) AS slots,
           least(coalesce(job.limit_weight, 1), key.burst, 1000000000) AS tokens,
           key.limit_key, key.turn, key.slots_left, key.tokens_left, key.share, key.interval_us, key.burst, key.used_us,
           key.held_us, key.state_id, key.first_id, key.head_state, key.head_run_after
    FROM key
    CROSS JOIN LATERAL (
        SELECT first.id, first.run_after, first.attempt, first.is_last, first.size, first.limit_weight
        FROM (
            SELECT id, run_after, attempt, attempt + 1 >= max_attempts AS is_last, limit_weight,
                   """ + SIZE + """
            FROM pgqueue_job
""" + LIMITED_IN_LANE + """
              AND limit_key = key.limit_key
              AND run_after <= statement_timestamp() + %(time_shift)s::interval
              AND (run_after, id) > (key.after_at, key.after_id)
""" + NOT_EXCLUDED + """
            ORDER BY run_after, id
            LIMIT CASE WHEN key.head_id IS NULL AND %(job_id)s::bigint IS NULL
                       THEN least(key.slots_left, key.tokens_left, greatest(key.share, %(limit_of_key)s),
                                  CASE WHEN key.interval_us IS NOT NULL THEN %(free_slots)s + 1 END)
                       ELSE 0 END
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS first
        UNION ALL
        SELECT next.id, next.run_after, next.attempt, next.is_last, next.size, next.limit_weight
        FROM (
            SELECT id, run_after, attempt, attempt + 1 >= max_attempts AS is_last, limit_weight,
                   """ + SIZE + """
            FROM pgqueue_job
            WHERE id = coalesce(%(job_id)s::bigint, key.head_id)
              AND id = coalesce(key.head_id, id)
              AND state = 'ready'
              AND limit_key = key.limit_key
              AND queue_name = %(queue_name)s
              AND priority = %(priority)s
              AND (%(is_early)s::boolean OR run_after <= statement_timestamp() + %(time_shift)s::interval)
""" + NOT_EXCLUDED + """
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS next
    ) AS job
    WHERE key.slots_left > 0 AND key.tokens_left > 0
),
counted AS MATERIALIZED (
    SELECT picked.*, row_number() OVER of_key AS number,
           sum(slots) OVER of_key AS slots_so_far, sum(tokens) OVER of_key AS tokens_so_far
    FROM picked
    WINDOW of_key AS (PARTITION BY turn ORDER BY run_after, id ROWS UNBOUNDED PRECEDING)
),
ranked AS MATERIALIZED (
    SELECT counted.*,
           row_number() OVER in_turns AS place, sum(size) OVER in_turns AS total_size
    FROM counted
    WHERE slots_so_far <= slots_left AND tokens_so_far <= tokens_left
    WINDOW in_turns AS (ORDER BY (number - 1) / share, turn, number ROWS UNBOUNDED PRECEDING)
),
due AS MATERIALIZED (
    SELECT ranked.*, nextval('pgqueue_execution_id_seq') AS execution_id
    FROM ranked
    WHERE place <= %(limit)s
      AND (
          place <= %(free_slots)s
          OR total_size <= %(ahead_bytes)s AND place < coalesce(
              (
                  SELECT min(place)
                  FROM ranked
                  WHERE place > %(free_slots)s AND (interval_us IS NOT NULL OR is_last)
              ),
              1000000000
          )
      )
),
claimed AS (
""" + RUN + """
        CASE WHEN isfinite(job.unknown_since)
             THEN date_part('epoch', due.claimed_at - job.unknown_since) END AS unknown_seconds,
        floor(1000 * date_part('epoch', due.claimed_at))::bigint AS claimed_ms,
        """ + HEADERS + """,
        CASE WHEN isfinite(job.expires_at) THEN date_part('epoch', job.expires_at - due.claimed_at) END AS expires_in,
        job.batch_id, job.in_graph, job.limit_key
),
opened AS (
    INSERT INTO pgqueue_execution
        (id, job_id, attempt, worker_id, claimed_at, started_at, lease_expires_at, limit_key, limit_weight)
    SELECT execution_id, id, attempt + 1, %(worker_id)s,
           claimed_at,
           CASE WHEN place <= %(free_slots)s THEN claimed_at END,
           claimed_at + make_interval(secs => %(lease_seconds)s::float8),
           limit_key, coalesce(limit_weight, 1)
    FROM due
),
result AS MATERIALIZED (
    SELECT claimed_at, turn, limit_key, interval_us, burst, state_id, first_id, head_state, head_run_after, held_us,
           least(slots_left - sum(slots), tokens_left - sum(tokens)) AS free,
           used_us + sum(tokens)::bigint * interval_us AS used_us,
           sum(slots) > 0 AS is_taken, min(next_tokens) AS next_tokens, min(execution_id) AS execution_id
    FROM (
        SELECT claimed_at, turn, limit_key, interval_us, burst, state_id, first_id, head_state, head_run_after, held_us,
               slots_left, tokens_left, used_us, 0 AS slots, 0 AS tokens,
               NULL::bigint AS next_tokens, NULL::bigint AS execution_id
        FROM key
        UNION ALL
        SELECT claimed_at, turn, limit_key, interval_us, burst, state_id, first_id, head_state, head_run_after, held_us,
               slots_left, tokens_left, used_us, slots, tokens, NULL, execution_id
        FROM due
        UNION ALL
        SELECT claimed_at, turn, limit_key, interval_us, burst, state_id, first_id, head_state, head_run_after, held_us,
               slots_left, tokens_left, used_us, 0, 0, tokens, NULL
        FROM counted
        WHERE (slots_so_far > slots_left OR tokens_so_far > tokens_left)
          AND slots_so_far - slots <= slots_left AND tokens_so_far - tokens <= tokens_left
    ) AS each
    GROUP BY claimed_at, turn, limit_key, interval_us, burst, state_id, first_id, head_state, head_run_after, held_us,
             slots_left, tokens_left, used_us
),
spent AS (
    INSERT INTO pgqueue_limit_state (limit_key, full_at)
    SELECT limit_key, claimed_at + used_us * interval '1 microsecond'
    FROM result
    WHERE interval_us IS NOT NULL AND (is_taken OR used_us >= burst * interval_us)
),
replaced AS (
    DELETE FROM pgqueue_limit_state
    WHERE id = ANY (ARRAY (
        SELECT state_id FROM result WHERE interval_us IS NOT NULL AND (is_taken OR used_us >= burst * interval_us)
    ))
)
SELECT claimed.*, NULL::boolean, NULL::boolean, NULL::float8, NULL::bigint, NULL::boolean
FROM claimed
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       limit_key, is_taken, free > 0,
       CASE
           WHEN held_us > 0 THEN held_us / 1e6
           WHEN used_us + (coalesce(next_tokens, 1) - burst) * interval_us > 0
           THEN (used_us + (coalesce(next_tokens, 1) - burst) * interval_us) / 1e6
           WHEN head_state = 'ready' AND NOT is_taken
           THEN date_part('epoch', head_run_after - claimed_at)
       END,
       coalesce(first_id, execution_id, pg_sequence_last_value('pgqueue_execution_id_seq') + 1) - 1, held_us > 0
FROM result
"""  # fmt: skip

# Return the job that a claim of one key would take first. The claimer uses this to find the row that makes a claim
# fail.
#
# Caller: lifecycle.limits.next_of_key(), from the fetcher's claimer
# Index:  pgqueue_job_limited; pgqueue_job_ordered for an ordered key
NEXT_OF_KEY: Final = """/* pgqueue:next_of_key */
SELECT head.id
FROM (
    SELECT id
    FROM pgqueue_job
    WHERE limit_key = %(limit_key)s
""" + FIRST_IN_ORDER + """
    LIMIT CASE WHEN %(is_ordered)s::boolean THEN 1 ELSE 0 END
) AS head
UNION ALL
SELECT any_order.id
FROM (
    SELECT id
    FROM pgqueue_job
""" + LIMITED_IN_LANE + """
      AND limit_key = %(limit_key)s
      AND run_after <= statement_timestamp() + %(time_shift)s::interval
""" + NOT_EXCLUDED + """
    ORDER BY run_after, id
    LIMIT 1
    FOR NO KEY UPDATE SKIP LOCKED
) AS any_order
LIMIT 1
"""  # fmt: skip

# Return the lanes that have ready jobs with a limit key.
#
# Caller: lifecycle.limits.scan_limited_lanes(), for bulk acts on the jobs of a limit
# Index:  pgqueue_job_limited: one index search per lane finds the first entry of the next lane
LIMITED_LANES: Final = """/* pgqueue:limited_lanes */
WITH RECURSIVE lane AS (
    (
        SELECT queue_name, priority FROM pgqueue_job
        WHERE state = 'ready' AND limit_key IS NOT NULL
        ORDER BY queue_name, priority DESC, limit_key, run_after, id
        LIMIT 1
    )
    UNION ALL
    SELECT next.queue_name, next.priority
    FROM lane
    CROSS JOIN LATERAL (
        (
            SELECT queue_name, priority FROM pgqueue_job
            WHERE state = 'ready' AND limit_key IS NOT NULL
              AND queue_name = lane.queue_name AND priority < lane.priority
""" + OTHERWISE + """
            SELECT queue_name, priority FROM pgqueue_job
            WHERE state = 'ready' AND limit_key IS NOT NULL AND queue_name > lane.queue_name
            ORDER BY queue_name, priority DESC, limit_key, run_after, id
            LIMIT 1
        )
        LIMIT 1
    ) AS next
)
SELECT queue_name, priority FROM lane
"""  # fmt: skip

# Remove the states of keys that are full again and not held, from one page of the table. Return how many rows the page
# had, how many of them were removed, and the last id of the page.
#
# Caller: lifecycle.limits.prune_limit_states(), page by page. Otherwise each key that ever had a rate would keep a row.
# Locks:  SKIP LOCKED: a claim may be replacing the row. The statement needs no advisory lock: rows never change, and to
#         a claim such a row means the same as none
# Index:  primary key
#
# A claim can read the time, and then wait before it reads the rows. The hour keeps it from missing a row that had not
# yet passed at its own time.
PRUNE_LIMIT_STATES: Final = """/* pgqueue:prune_limit_states */
WITH page AS MATERIALIZED (
    SELECT id, greatest(full_at, held_until) AS passes_at
    FROM pgqueue_limit_state
    WHERE id > %(after_id)s::bigint
    ORDER BY id
    LIMIT %(limit)s
),
passed AS MATERIALIZED (
    SELECT id
    FROM pgqueue_limit_state
    WHERE id = ANY (ARRAY (
        SELECT id
        FROM page
        WHERE passes_at < statement_timestamp() + %(time_shift)s::interval - interval '1 hour'
          AND id BETWEEN %(first_id)s::bigint AND %(last_id)s::bigint
    ))
    ORDER BY id
    FOR UPDATE SKIP LOCKED
),
gone AS (
    DELETE FROM pgqueue_limit_state WHERE id = ANY (ARRAY (SELECT id FROM passed))
)
SELECT count(*), (SELECT count(*) FROM passed), max(id) FROM page
"""
