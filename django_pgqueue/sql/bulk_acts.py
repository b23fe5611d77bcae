"""Statements of the bulk acts that workers execute.

The statements whose names begin with BULK_PAGE return a page of jobs in the order of an index. Each row has the id, the
task, the state, `finished_at` and `run_after` of a job; whether the act's filter chooses the job; whether the job has
not changed since the preview; whether a retry leaves it, because *Edit and retry* has made a new job of it; how many
jobs of the page are like it, which means in the same state, chosen and unchanged or not, and edited or not; and then
the position of the row, behind which the next page begins. Of the jobs that are like each other, at most `shown` are
returned: a preview counts many and shows few.
"""

from typing import Final

from django_pgqueue.ground.error_messages import MEETS_MESSAGE

from .clauses import EDITS, RUNNING_PAGE

# Return the time of the database.
#
# Caller: lifecycle.bulk_acts.preview(), before it reads the jobs
BULK_TIME: Final = """/* pgqueue:bulk_time */
SELECT statement_timestamp() + %(time_shift)s::interval
"""

# Add an act that workers will execute, unless an entry has the token of the form. Then return no row.
#
# Caller: lifecycle.bulk_acts.request_act()
# Locks:  waits for another transaction that has just requested an act with the same form
# Index:  pgqueue_audit_form, if the act comes from a form
REQUEST_ACT: Final = """/* pgqueue:request_act */
INSERT INTO pgqueue_audit (
    action, done_by, reason, began_at, next_batch_at, filter, job_count, total, rate, stops_on_repeat, previewed_at,
    form_token
)
SELECT
    %(action)s, %(done_by)s, %(reason)s, instant, instant, %(filter)s::json, 0,
    %(total)s::bigint, %(rate)s::float8, %(stops_on_repeat)s, least(%(previewed_at)s::timestamptz, instant),
    %(form_token)s::uuid
FROM (SELECT statement_timestamp() + %(time_shift)s::interval AS instant) AS clock
ON CONFLICT (form_token) WHERE form_token IS NOT NULL DO NOTHING
RETURNING id
"""

# Return the next acts that workers execute except some, and in how many seconds the next batch of each is due.
#
# Caller: lifecycle.bulk_acts.waiting_acts(), every few seconds from each worker. It locks nothing
# Index:  pgqueue_audit_next, which is empty while there is no act
WAITING_ACTS: Final = """/* pgqueue:waiting_acts */
SELECT id, extract(epoch FROM next_batch_at - (statement_timestamp() + %(time_shift)s::interval))::float8
FROM pgqueue_audit
WHERE next_batch_at IS NOT NULL AND id <> ALL (%(skipped_ids)s::bigint[])
ORDER BY next_batch_at
LIMIT %(limit)s
"""

# Lock an act whose next batch is due, until the end of the transaction. No row: another worker executes a batch of it,
# or it has ended.
#
# Caller: lifecycle.bulk_acts.execute_batch()
# Locks:  SKIP LOCKED. If the worker dies, its transaction ends, and another worker continues from the same cursor
# Index:  the primary key
LOCK_ACT: Final = """/* pgqueue:lock_act */
SELECT action, filter::text, cursor::text, previewed_at, began_at, rate, stops_on_repeat, job_count > 0
FROM pgqueue_audit
WHERE id = %(audit_id)s::bigint AND next_batch_at <= statement_timestamp() + %(time_shift)s::interval
FOR NO KEY UPDATE SKIP LOCKED
"""

# Store where the next batch of an act begins, and when it is due: so many seconds after this one was due, but never
# more than a second of delay is made up for. Return in how many seconds that is.
#
# Caller: lifecycle.bulk_acts.execute_batch(), in the transaction of the batch
# Index:  the primary key
ADVANCE_ACT: Final = """/* pgqueue:advance_act */
UPDATE pgqueue_audit
SET cursor = %(cursor)s::json,
    next_batch_at = greatest(
        next_batch_at, statement_timestamp() + %(time_shift)s::interval - interval '1 s'
    ) + make_interval(secs => %(seconds)s::float8)
WHERE id = %(audit_id)s::bigint
RETURNING extract(epoch FROM next_batch_at - (statement_timestamp() + %(time_shift)s::interval))::float8
"""

# Return a job that an act has retried and that failed again with the error that it had died of, and that error. Only
# the latest retried jobs are watched, and of each only the latest attempts.
#
# Caller: lifecycle.bulk_acts.execute_batch(), before each batch of an act that stops at the first repeat
# Index:  pgqueue_audit_job_entry, pgqueue_execution_job
FIRST_REPEAT: Final = """/* pgqueue:first_repeat */
WITH retried AS MATERIALIZED (
    SELECT job_id FROM pgqueue_audit_job WHERE audit_id = %(audit_id)s::bigint ORDER BY id DESC LIMIT %(limit)s
)
SELECT retried.job_id, again.exception_class
FROM retried
CROSS JOIN LATERAL (
    SELECT attempts.exception_class
    FROM (
        SELECT claimed_at, outcome, exception_class
        FROM pgqueue_execution
        WHERE job_id = retried.job_id
        ORDER BY job_id DESC, id DESC
        LIMIT 20
    ) AS attempts
    WHERE attempts.claimed_at >= %(began_at)s::timestamptz AND attempts.outcome IN ('failed', 'crashed')
) AS again
WHERE again.exception_class = (
    SELECT exception_class
    FROM pgqueue_execution
    WHERE job_id = retried.job_id AND claimed_at < %(began_at)s::timestamptz
    ORDER BY job_id DESC, id DESC
    LIMIT 1
)
LIMIT 1
"""

# ---------------------------------------------------------------------------- clauses

# The queue, the task and the limit key of a filter. NULL filters nothing.
MEETS: Final = """(%(queue_name)s::text IS NULL OR queue_name = %(queue_name)s::text)
      AND (%(task_name)s::text IS NULL OR task_name = %(task_name)s::text)
      AND (%(limit_key)s::varchar IS NULL OR limit_key IS DISTINCT FROM NULL AND (
          limit_key = %(limit_key)s::varchar
          OR limit_key >= %(first_key)s::varchar AND limit_key < %(end_key)s::varchar
      ))"""

# Whether the latest attempt at a job has raised the exception class of a filter, "" for none, with a message that meets
# the filter. NULL filters nothing. The id of the job comes between the two parts.
HAS_ERROR_OF: Final = """(%(exception_class)s::text IS NULL AND %(message)s::text IS NULL OR coalesce((
          SELECT (%(exception_class)s::text IS NULL OR exception_class = %(exception_class)s::text)
            AND """ + MEETS_MESSAGE + """
          FROM pgqueue_execution
          WHERE job_id = """  # fmt: skip
OR_NONE: Final = """
          ORDER BY job_id DESC, id DESC
          LIMIT 1
      ), %(exception_class)s::text = '' AND %(message)s::text IS NULL))"""
HAS_ERROR: Final = HAS_ERROR_OF + "job.id" + OR_NONE

# Whether the act has not changed a job already. A subquery of one row returns a value: with NOT EXISTS, the planner
# read all rows into a hash table.
IS_NEW_TO_ACT: Final = """(
            SELECT true FROM pgqueue_audit_job WHERE job_id = job.id AND audit_id = %(audit_id)s::bigint LIMIT 1
        ) IS NULL"""

# Whether a ready job has not changed since the preview. A job that was retried, has failed, or was made due since the
# preview has a `run_after` after the preview, and has become due or has an attempt that ended since. A job that became
# due since is left alone too, because a retried job looks the same.
IS_READY_UNCHANGED: Final = """(
            run_after <= %(previewed_at)s::timestamptz
            OR run_after > statement_timestamp() + %(time_shift)s::interval AND coalesce((
                SELECT finished_at FROM pgqueue_execution WHERE job_id = job.id ORDER BY job_id DESC, id DESC LIMIT 1
            ) <= %(previewed_at)s::timestamptz, true)
        )"""

# Whether a retry leaves a job, because *Edit and retry* has made a new job of it. It costs one index search.
IS_EDITED: Final = """CASE WHEN %(is_retry)s::boolean THEN (
        SELECT true
        """ + EDITS + """
        LIMIT 1
        ) IS NOT NULL ELSE false END AS is_edited"""  # fmt: skip

# Jobs in a finished state, and dead letters. The planner proves only by the second condition that it may read
# pgqueue_job_dead, which is small however many dead jobs were acknowledged.
IN_STATE: Final = """state = %(state)s
      AND finished_at IS NOT NULL"""
DEAD_LETTER: Final = """state = 'dead'
      AND finished_at IS NOT NULL
      AND acknowledged_at IS NULL"""

# The end of each page, in three parts: the order of the rows follows the first and the third one, and the columns of
# the position follow the second one.
ALIKE: Final = """
), numbered AS (
    SELECT page.*, count(*) OVER alike_jobs AS alike, row_number() OVER (alike_jobs ORDER BY """
SHOWN: Final = """) AS place
    FROM page
    WINDOW alike_jobs AS (PARTITION BY state, is_chosen AND is_unchanged, is_edited)
)
SELECT id, task_name, state, finished_at, run_after, is_chosen, is_unchanged, is_edited, alike, """
IN_ORDER: Final = """
FROM numbered
WHERE place <= %(shown)s::bigint
ORDER BY """

# The parts of a page of ready jobs: three ranges of an index, which are the rest of a lane, the lower priorities of its
# queue, and the later queues. `last_queue` and `last_priority` end the page. The inner limits are subqueries, whose
# values the planner does not know. Otherwise it may read and sort all jobs of a range, because it expects few.
READY_PAGE: Final = """
WITH page AS (
    SELECT
        id, task_name, 'ready' AS state, NULL AS finished_at, run_after,
        """ + IS_NEW_TO_ACT + """ AS is_chosen,
        """ + IS_READY_UNCHANGED + """ AS is_unchanged,
        false AS is_edited,
        queue_name, priority, limit_key
    FROM (
        (
            """  # fmt: skip
READY: Final = """SELECT id, task_name, run_after, queue_name, priority, limit_key
            FROM pgqueue_job
            WHERE state = 'ready' AND limit_key IS """
PLAIN: Final = READY + "NULL"
LIMITED: Final = READY + "NOT NULL"
IN_LANE: Final = """
              AND queue_name = %(after_queue)s AND priority = %(after_priority)s::smallint"""
IN_SPAN: Final = """
              AND run_after > %(due_from)s::timestamptz AND run_after <= %(due_until)s::timestamptz
              AND enqueued_at >= %(since_at)s::timestamptz AND enqueued_at <= %(until_at)s::timestamptz
              AND (%(task_name)s::text IS NULL OR task_name = %(task_name)s::text)
            ORDER BY """
LOWER_PRIORITIES: Final = """
              AND queue_name = %(after_queue)s AND priority < %(after_priority)s::smallint
              AND priority >= %(last_priority)s::smallint""" + IN_SPAN + "priority DESC, "  # fmt: skip
LATER_QUEUES: Final = """
              AND queue_name > %(after_queue)s
              AND queue_name <= %(last_queue)s""" + IN_SPAN + "queue_name, priority DESC, "  # fmt: skip
NEXT_RANGE: Final = """
            LIMIT (SELECT %(limit)s::bigint)
        )
        UNION ALL
        (
            """
END_OF_RANGES: Final = """
            LIMIT (SELECT %(limit)s::bigint)
        )
    ) AS job
    ORDER BY queue_name, priority DESC, """
LIMIT: Final = """
    LIMIT %(limit)s::bigint"""

# ---------------------------------------------------------------------------- statements

# The parts of a page of finished jobs, without the condition of its first jobs and of a later job with a unique key.
FINISHED_PAGE: Final = """
WITH oldest AS MATERIALIZED (
    SELECT id, task_name, unique_key, state, finished_at, run_after
    FROM pgqueue_job
    WHERE """
FROM_OLDEST: Final = """
      AND finished_at >= %(after_at)s::timestamptz
      AND (finished_at, id) > (%(after_at)s::timestamptz, %(after_id)s::bigint)
      AND finished_at <= %(until_at)s::timestamptz
      AND """ + MEETS + """
    ORDER BY finished_at
    FETCH FIRST (%(limit)s::bigint) ROWS WITH TIES
), page AS (
    SELECT
        id, task_name, state, finished_at, run_after,
        """ + HAS_ERROR + """ AS is_chosen,
        CASE WHEN %(is_retry)s::boolean AND unique_key IS DISTINCT FROM NULL THEN
            (
                SELECT true
                FROM pgqueue_job AS later
                WHERE task_name = job.task_name AND unique_key = job.unique_key
                  AND """  # fmt: skip
WITHOUT_LATER: Final = """
                  AND finished_at >= %(since_at)s::timestamptz AND finished_at <= %(until_at)s::timestamptz
                  AND id > job.id
                  AND """ + MEETS + """
                  AND """ + HAS_ERROR_OF + "later.id" + OR_NONE + """
                ORDER BY finished_at DESC, id DESC
                LIMIT 1
            ) IS NULL
            AND (
                SELECT true
                FROM pgqueue_job
                WHERE task_name = job.task_name AND unique_key = job.unique_key
                  AND state IN ('succeeded', 'dead', 'cancelled')
                  AND finished_at > %(previewed_at)s::timestamptz
                  AND id > job.id AND enqueued_at <= %(previewed_at)s::timestamptz
                LIMIT 1
            ) IS NULL
        ELSE true END AS is_unchanged,
        """ + IS_EDITED + """
    FROM oldest AS job
    ORDER BY finished_at, id""" + LIMIT + ALIKE + "finished_at, id" + SHOWN + "finished_at, id" \
    + IN_ORDER + "finished_at, id"  # fmt: skip

# Return the next jobs in a finished state, the oldest first. A job that was retried and has ended again has a
# `finished_at` after the preview, so it is not among them.
#
# Caller: lifecycle.bulk_acts.preview(), lifecycle.bulk_acts.execute_batch()
# Index:  pgqueue_job_finished; pgqueue_execution_job if the filter has an exception class or a message;
#         pgqueue_job_keyed and pgqueue_audit_job_once for a retry
# Cost:   for a retry, up to two index searches for each job with a unique key. A job needs 3 buffers if 500 jobs have
#         its key, and 3 if 5,000 have it
#
# `is_retry`: of several chosen jobs with one unique key, all but the latest are left, because a retry gives it
# the key. The latest one can be on a later page, or on an earlier one, and an earlier batch can have retried it. So a
# job is left if a later one with its key is chosen, or has ended since the preview. While that one has not ended, it
# holds the key, so RETRY leaves the others.
BULK_PAGE_FINISHED: Final = (
    """/* pgqueue:bulk_page_finished */""" + FINISHED_PAGE + IN_STATE + FROM_OLDEST + IN_STATE + WITHOUT_LATER
)  # fmt: skip

# Return the next dead letters, the oldest first. Acknowledged jobs are not among them.
#
# Caller: as BULK_PAGE_FINISHED
# Index:  pgqueue_job_dead; the others as BULK_PAGE_FINISHED
BULK_PAGE_DEAD: Final = (
    """/* pgqueue:bulk_page_dead */""" + FINISHED_PAGE + DEAD_LETTER + FROM_OLDEST + DEAD_LETTER + WITHOUT_LATER
)  # fmt: skip

# Return which of these jobs a filter of finished jobs chooses, whatever their state is now.
#
# Caller: lifecycle.bulk_selection.chosen_of(), for dependents that a batch has restored. A later batch would have
#         visited those that the filter chooses
# Index:  primary key; pgqueue_execution_job if the filter has an exception class or a message
BULK_CHOSEN: Final = """/* pgqueue:bulk_chosen */
SELECT job.id
FROM unnest(%(job_ids)s::bigint[]) AS given (id)
CROSS JOIN LATERAL (
    SELECT id, queue_name, task_name, limit_key FROM pgqueue_job WHERE id = given.id OFFSET 0
) AS job
WHERE """ + MEETS + " AND " + HAS_ERROR  # fmt: skip

# Return the next ready jobs, in claim order of one lane after the other.
#
# Caller: as BULK_PAGE_FINISHED
# Index:  pgqueue_job_ready, three ranges of it: the rest of the lane, the queue's lower priorities, and later queues
BULK_PAGE_READY: Final = (
    """/* pgqueue:bulk_page_ready */""" + READY_PAGE + PLAIN + IN_LANE + """
              AND (run_after, id) > (%(after_at)s::timestamptz, %(after_id)s::bigint)""" + IN_SPAN + "run_after, id"
    + NEXT_RANGE + PLAIN + LOWER_PRIORITIES + "run_after, id"
    + NEXT_RANGE + PLAIN + LATER_QUEUES + "run_after, id"
    + END_OF_RANGES + "run_after, id" + LIMIT
    + ALIKE + "queue_name, -priority::integer, run_after, id"
    + SHOWN + "queue_name, priority, run_after, id"
    + IN_ORDER + "queue_name, -priority::integer, run_after, id"
)  # fmt: skip

# Return the next ready jobs with a limit, one lane after the other, in the order of their keys.
#
# Caller: as BULK_PAGE_FINISHED, behind the last job of BULK_PAGE_READY
# Index:  pgqueue_job_limited, three ranges of it as in BULK_PAGE_READY
#
# For a filter by limit key, `end_key`, `last_priority` and `last_queue` end the page with a range of BULK_LIMIT_RANGES.
BULK_PAGE_READY_LIMITED: Final = (
    """/* pgqueue:bulk_page_ready_limited */""" + READY_PAGE + LIMITED + IN_LANE + """
              AND (limit_key, run_after, id)
                  > (%(after_key)s::varchar, %(after_at)s::timestamptz, %(after_id)s::bigint)
              AND limit_key < %(end_key)s""" + IN_SPAN + "limit_key, run_after, id"
    + NEXT_RANGE + LIMITED + LOWER_PRIORITIES + "limit_key, run_after, id"
    + NEXT_RANGE + LIMITED + LATER_QUEUES + "limit_key, run_after, id"
    + END_OF_RANGES + "limit_key, run_after, id" + LIMIT
    + ALIKE + "queue_name, -priority::integer, limit_key, run_after, id"
    + SHOWN + "queue_name, priority, limit_key, run_after, id"
    + IN_ORDER + "queue_name, -priority::integer, limit_key, run_after, id"
)  # fmt: skip

# Return the given ranges of limit keys that contain ready jobs. Each range is in one lane.
#
# Caller: that of BULK_PAGE_FINISHED, if the filter has a limit key
# Index:  pgqueue_job_limited, one index search for each range
BULK_LIMIT_RANGES: Final = """/* pgqueue:bulk_limit_ranges */
SELECT range.queue_name, range.priority, range.first_key, range.end_key
FROM unnest(
    %(queue_names)s::varchar[], %(priorities)s::smallint[], %(first_keys)s::varchar[], %(end_keys)s::varchar[]
) WITH ORDINALITY AS range (queue_name, priority, first_key, end_key, place)
CROSS JOIN LATERAL (
    SELECT id
    FROM pgqueue_job
    WHERE state = 'ready' AND limit_key IS NOT NULL
      AND queue_name = range.queue_name AND priority = range.priority
      AND limit_key >= range.first_key AND limit_key < range.end_key
    ORDER BY limit_key, run_after, id
    LIMIT 1
) AS first
ORDER BY range.place
"""

# Return the next running jobs, worker by worker. A job whose attempt began after the preview was not seen running.
#
# Caller: as BULK_PAGE_FINISHED
# Index:  pgqueue_job_running, the primary key. Without the inner LIMIT, the planner may join by reading all executions
BULK_PAGE_RUNNING: Final = (
    """/* pgqueue:bulk_page_running */
WITH page AS (
    SELECT
        job.id, job.task_name, 'running' AS state, NULL AS finished_at, job.run_after,
        coalesce(
            """ + MEETS + """
                AND job.enqueued_at >= %(since_at)s::timestamptz AND job.enqueued_at <= %(until_at)s::timestamptz
                AND job.cancel_requested_at IS NULL,
            false
        ) AS is_chosen,
        opened.claimed_at <= %(previewed_at)s::timestamptz AS is_unchanged,
        false AS is_edited,
        job.worker_id, job.execution_id
    FROM (
        SELECT id, task_name, run_after, queue_name, enqueued_at, cancel_requested_at, limit_key, worker_id,
               execution_id
""" + RUNNING_PAGE + """
    ) AS job
    LEFT JOIN LATERAL (
        SELECT claimed_at FROM pgqueue_execution WHERE id = job.execution_id LIMIT 1
    ) AS opened ON true"""
    + ALIKE + "worker_id, execution_id" + SHOWN + "worker_id, execution_id" + IN_ORDER + "worker_id, execution_id"
)  # fmt: skip

# Return the next jobs of a list of ids. A job that the act has changed is not chosen again. A later job with the same
# unique key counts as chosen too if it was retried since the preview.
#
# Caller: as BULK_PAGE_FINISHED
# Index:  primary key, pgqueue_execution_job; pgqueue_audit_job_once for a retry
BULK_PAGE_LISTED: Final = (
    """/* pgqueue:bulk_page_listed */
WITH latest AS MATERIALIZED (
    SELECT task_name, unique_key, max(id) AS id
    FROM pgqueue_job
    WHERE %(is_retry)s::boolean
      AND id = ANY (%(job_ids)s::bigint[])
      AND unique_key IS DISTINCT FROM NULL
      AND id > %(after_id)s::bigint
      AND (state = ANY (%(states)s::text[]) OR run_after > %(previewed_at)s::timestamptz)
    GROUP BY task_name, unique_key
), page AS (
    SELECT
        job.id, job.task_name, state, finished_at, run_after,
        state = ANY (%(states)s::text[]) AND (state <> 'running' OR cancel_requested_at IS NULL)
            AND (acknowledged_at IS NULL OR NOT %(acknowledges)s::boolean)
            AND """ + IS_NEW_TO_ACT + """ AS is_chosen,
        CASE
            WHEN latest.id > job.id THEN false
            WHEN acknowledged_at > %(previewed_at)s::timestamptz THEN false
            WHEN finished_at IS NOT NULL THEN finished_at <= %(previewed_at)s::timestamptz
            WHEN state = 'ready' THEN enqueued_at <= %(previewed_at)s::timestamptz AND """ + IS_READY_UNCHANGED + """
            ELSE coalesce((
                SELECT claimed_at FROM pgqueue_execution WHERE job_id = job.id ORDER BY job_id DESC, id DESC LIMIT 1
            ) <= %(previewed_at)s::timestamptz, true)
        END AS is_unchanged,
        """ + IS_EDITED + """
    FROM (
        SELECT id, task_name, unique_key, state, finished_at, run_after, enqueued_at, cancel_requested_at,
               acknowledged_at
        FROM pgqueue_job
        WHERE id = ANY (%(job_ids)s::bigint[]) AND id > %(after_id)s::bigint
        ORDER BY id
        LIMIT %(limit)s::bigint
    ) AS job
    LEFT JOIN latest ON latest.task_name = job.task_name AND latest.unique_key = job.unique_key"""
    + ALIKE + "id" + SHOWN + "id" + IN_ORDER + "id"
)  # fmt: skip
