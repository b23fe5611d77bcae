"""Names of queues and tasks, and the range of job ids: what the filters of the admin need.

The cost of each statement is bounded, however many jobs there are. The rules of `sql` apply here too: static text,
named parameters with units, the database's clock. Names are read with a loose index scan, which jumps from one name to
the next: on a million rows it takes 0.3 ms, `SELECT DISTINCT` at least 60 ms.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from django_pgqueue.db.statements import Connection, execute

NAMES_LIMIT: Final = 200
"""Maximum number of names to read per kind. A longer list is of no use to choose from."""

RECENT_JOBS: Final = 1000
"""Number of newest jobs whose names are read in any state, because the indexes used do not cover every state."""

# Queue names of ready jobs, task names of finished jobs, and both names of the newest jobs in any state.
#
# Index: pgqueue_job_ready and pgqueue_job_limited for queues and pgqueue_job_task for tasks (loose scans), the primary
#        key for the newest jobs
# Cost:  one probe per name, and `recent_jobs` rows
NAMES: Final = """/* pgqueue:names */
WITH RECURSIVE queue AS (
    (
        SELECT queue_name AS name, 1 AS place
        FROM pgqueue_job
        WHERE state = 'ready' AND limit_key IS NULL
        ORDER BY queue_name
        LIMIT 1
    )
    UNION ALL
    SELECT following.queue_name, queue.place + 1
    FROM queue
    CROSS JOIN LATERAL (
        SELECT job.queue_name
        FROM pgqueue_job AS job
        WHERE job.state = 'ready' AND job.limit_key IS NULL AND job.queue_name > queue.name
        ORDER BY job.queue_name
        LIMIT 1
    ) AS following
    WHERE queue.place < %(names_limit)s
),
limited_queue AS (
    (
        SELECT queue_name AS name, 1 AS place
        FROM pgqueue_job
        WHERE state = 'ready' AND limit_key IS NOT NULL
        ORDER BY queue_name
        LIMIT 1
    )
    UNION ALL
    SELECT following.queue_name, limited_queue.place + 1
    FROM limited_queue
    CROSS JOIN LATERAL (
        SELECT job.queue_name
        FROM pgqueue_job AS job
        WHERE job.state = 'ready' AND job.limit_key IS NOT NULL AND job.queue_name > limited_queue.name
        ORDER BY job.queue_name
        LIMIT 1
    ) AS following
    WHERE limited_queue.place < %(names_limit)s
),
task AS (
    (
        SELECT task_name AS name, 1 AS place
        FROM pgqueue_job
        WHERE finished_at IS NOT NULL
        ORDER BY task_name
        LIMIT 1
    )
    UNION ALL
    SELECT following.task_name, task.place + 1
    FROM task
    CROSS JOIN LATERAL (
        SELECT job.task_name
        FROM pgqueue_job AS job
        WHERE job.finished_at IS NOT NULL AND job.task_name > task.name
        ORDER BY job.task_name
        LIMIT 1
    ) AS following
    WHERE task.place < %(names_limit)s
),
recent AS MATERIALIZED (
    SELECT queue_name, task_name
    FROM pgqueue_job
    ORDER BY id DESC
    LIMIT %(recent_jobs)s
)
SELECT 'queue', name FROM queue
UNION
SELECT 'queue', name FROM limited_queue
UNION
SELECT 'queue', queue_name FROM recent
UNION
SELECT 'task', name FROM task
UNION
SELECT 'task', task_name FROM recent
"""

# The id that separates the jobs enqueued within the last seconds from older ones. Ids rise with time, so a binary
# search finds it.
#
# Index: the primary key, one probe per step
# Cost:  about log2 of the highest id, 20 steps for a million jobs. An index on enqueued_at costs more than it saves: it
#        reduced the drain to 0.80 of its speed.
FIRST_ID_SINCE: Final = """/* pgqueue:first_id_since */
WITH RECURSIVE halving AS (
    SELECT min(id) AS low, max(id) + 1 AS high
    FROM pgqueue_job
    UNION ALL
    SELECT
        CASE WHEN probe.is_older THEN probe.id + 1 ELSE halving.low END,
        CASE WHEN probe.is_older THEN halving.high ELSE halving.low + (halving.high - halving.low) / 2 END
    FROM halving
    CROSS JOIN LATERAL (
        SELECT job.id, job.enqueued_at < statement_timestamp() + %(time_shift)s::interval
            - make_interval(secs => %(seconds)s::float8) AS is_older
        FROM pgqueue_job AS job
        WHERE job.id >= halving.low + (halving.high - halving.low) / 2
        ORDER BY job.id
        LIMIT 1
    ) AS probe
    WHERE halving.low < halving.high
)
SELECT low FROM halving WHERE low >= high
"""

# The highest job id.
#
# Index: the primary key
LAST_ID: Final = """/* pgqueue:last_id */
SELECT max(id) FROM pgqueue_job
"""

# The lowest job id.
#
# Index: the primary key
FIRST_ID: Final = """/* pgqueue:first_id */
SELECT min(id) FROM pgqueue_job
"""


class Names(NamedTuple):
    """Sorted names of queues and tasks that jobs have; incomplete if there are very many."""

    queues: list[str]
    tasks: list[str]


def names(connection: Connection) -> Names:
    """Return the names of queues and tasks that jobs have, to choose from.

    Runs one read-only statement.

    Args:
        connection: A Django connection or an engine connection to the database of the jobs.

    Returns:
        At most `NAMES_LIMIT` names of queues with ready jobs, and as many of tasks with finished jobs. The names of the
        `RECENT_JOBS` newest jobs are added to both lists.
    """
    rows = execute(connection, NAMES, {"names_limit": NAMES_LIMIT, "recent_jobs": RECENT_JOBS})
    return Names(
        queues=sorted(name for kind, name in rows if kind == "queue"),
        tasks=sorted(name for kind, name in rows if kind == "task"),
    )


def first_id_since(connection: Connection, seconds: float) -> int | None:
    """Return an id that separates the jobs enqueued within the last `seconds` from older ones.

    Runs one read-only statement. It assumes that `enqueued_at` rises with the id. A row whose `enqueued_at` was changed
    by hand may be counted on the wrong side.

    Args:
        connection: A Django connection or an engine connection to the database of the jobs.
        seconds: Age of the oldest job to include, in seconds, by the database's clock.

    Returns:
        An id to compare with `>=`. It is higher than every job's id if no job is that new, and None if there are no
        jobs.
    """
    rows = execute(connection, FIRST_ID_SINCE, {"seconds": seconds})
    return rows[0][0] if rows else None


def last_id(connection: Connection) -> int:
    """Return the highest job id, 0 if there are no jobs. Runs one read-only statement."""
    return execute(connection, LAST_ID, {})[0][0] or 0


def first_id(connection: Connection) -> int:
    """Return the lowest job id, 0 if there are no jobs. Runs one read-only statement."""
    return execute(connection, FIRST_ID, {})[0][0] or 0
