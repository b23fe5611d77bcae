"""Statements on the register of workers."""

from typing import Final

# Add a worker to the register, and return its id.
#
# Caller: lifecycle.register_worker()
#
# A new id is the time in microseconds. Ids of the column's sequence would recur after TRUNCATE ... RESTART IDENTITY:
# two live workers with the same id would extend and release each other's executions. If two workers register in the
# same microsecond, this statement fails for one of them, and its supervisor tries again.
REGISTER_WORKER: Final = """/* pgqueue:register_worker */
INSERT INTO pgqueue_worker (id, hostname, pid, supervisor_pid, version, queue_names, concurrency, started_at,
                            last_heartbeat_at)
VALUES (coalesce(
            %(worker_id)s::bigint,
            floor(1000000 * date_part('epoch', statement_timestamp() + %(time_shift)s::interval))::bigint
        ),
        %(hostname)s, %(pid)s, %(supervisor_pid)s, %(version)s, %(queue_names)s, %(concurrency)s,
        statement_timestamp() + %(time_shift)s::interval,
        statement_timestamp() + %(time_shift)s::interval)
RETURNING id
"""

# Record a heartbeat and the memory of these workers. Return the ids that have a record, even if the record is locked,
# and whether the worker has a request that it has not answered.
#
# Caller: lifecycle.record_heartbeats()
# Index:  primary key; pgqueue_worker_request_open, which has entries for unanswered requests only
RECORD_HEARTBEATS: Final = """/* pgqueue:record_heartbeats */
WITH mine AS MATERIALIZED (
    SELECT id FROM pgqueue_worker WHERE id = ANY (%(worker_ids)s::bigint[]) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
),
updated AS (
    UPDATE pgqueue_worker
    SET last_heartbeat_at = statement_timestamp() + %(time_shift)s::interval,
        resident_mib = (%(resident_mib)s::integer[])[array_position(%(worker_ids)s::bigint[], id)]
    WHERE id = ANY (ARRAY (SELECT id FROM mine))
)
SELECT worker.id,
       EXISTS (
           SELECT FROM pgqueue_worker_request AS request
           WHERE request.worker_id = worker.id AND request.answered_at IS NULL
       )
FROM pgqueue_worker AS worker
WHERE worker.id = ANY (%(worker_ids)s::bigint[])
"""

# Record that a worker has stopped, and when it was first found out. Return whether that is recorded, or the worker has
# no record. Otherwise the record is locked.
#
# Caller: lifecycle.unregister_worker()
UNREGISTER_WORKER: Final = """/* pgqueue:unregister_worker */
WITH mine AS MATERIALIZED (
    SELECT id FROM pgqueue_worker WHERE id = %(worker_id)s FOR NO KEY UPDATE SKIP LOCKED
),
stopped AS (
    UPDATE pgqueue_worker
    SET stopped_at = statement_timestamp() + %(time_shift)s::interval
    WHERE id = ANY (ARRAY (SELECT id FROM mine)) AND stopped_at IS NULL
)
SELECT EXISTS (SELECT FROM mine) OR NOT EXISTS (SELECT FROM pgqueue_worker WHERE id = %(worker_id)s)
"""

# Remove the records of workers whose last heartbeat is older than the retention (a week).
#
# Caller: lifecycle.prune_workers()
PRUNE_WORKERS: Final = """/* pgqueue:prune_workers */
WITH old AS MATERIALIZED (
    SELECT id
    FROM pgqueue_worker
    WHERE last_heartbeat_at < statement_timestamp() + %(time_shift)s::interval
        - make_interval(secs => %(retention_seconds)s::float8)
      AND (id BETWEEN %(first_id)s::bigint AND %(last_id)s::bigint) IS TRUE
    ORDER BY id
    FOR UPDATE SKIP LOCKED
)
DELETE FROM pgqueue_worker WHERE id = ANY (ARRAY (SELECT id FROM old))
"""
