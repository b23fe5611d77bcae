"""Statements on the register of workers."""

from typing import Final

# Add a worker to the register, and return its id.
#
# Caller: lifecycle.workers.register_worker()
#
# A new id is the time in microseconds. Ids of the column's sequence would recur after TRUNCATE ... RESTART IDENTITY:
# two live workers with the same id would extend and release each other's executions. If two workers register in the
# same microsecond, this statement fails for one of them, and its supervisor tries again.
REGISTER_WORKER: Final = """/* pgqueue:register_worker */
INSERT INTO pgqueue_worker (id, hostname, pid, supervisor_pid, version, release, queue_names, concurrency, started_at,
                            last_heartbeat_at)
VALUES (coalesce(
            %(worker_id)s::bigint,
            floor(1000000 * date_part('epoch', statement_timestamp() + %(time_shift)s::interval))::bigint
        ),
        %(hostname)s, %(pid)s, %(supervisor_pid)s, %(version)s, %(release)s, %(queue_names)s, %(concurrency)s,
        statement_timestamp() + %(time_shift)s::interval,
        statement_timestamp() + %(time_shift)s::interval)
RETURNING id
"""

# Record that a worker has stopped, and when this was first noticed. Return whether that is recorded, or the worker has
# no record. Otherwise the record is locked.
#
# Caller: lifecycle.workers.unregister_worker()
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

# Return whether a worker has stopped.
#
# Caller: lifecycle.workers.has_stopped(), before a claim for a remote machine that has waited
# Index:  the primary key
HAS_STOPPED: Final = """/* pgqueue:has_stopped */
SELECT EXISTS (SELECT FROM pgqueue_worker WHERE id = %(worker_id)s::bigint AND stopped_at IS NOT NULL)
"""

# Remove the records of workers whose last heartbeat is older than the retention (a week).
#
# Caller: lifecycle.workers.prune_workers()
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
