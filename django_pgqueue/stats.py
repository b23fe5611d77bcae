"""What there is, for people to look at: read-only statements, each bounded however many jobs there are.

The rules of `sql` hold here too: static text, named parameters with units, the database's clock. On a million rows
`SELECT DISTINCT` takes 60 ms and more; a loose index scan, which jumps from one name to the next, 0.3 ms.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from .db import Connection, execute

NAMES_LIMIT: Final = 200
"""Names of each kind that are read at most: nobody picks from a longer list."""

RECENT_JOBS: Final = 1000
"""Newest jobs whose names are read whatever their state, for the names that no index leads to."""

# Names of queues and of tasks that jobs have: in ready jobs, in finished jobs, and in the newest of all.
#
# Index: pgqueue_job_ready for queues, pgqueue_job_task for tasks, both jumped along; the primary key for the newest
# Cost:  one probe a name, and `recent_jobs` rows
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
SELECT 'queue', queue_name FROM recent
UNION
SELECT 'task', name FROM task
UNION
SELECT 'task', task_name FROM recent
"""

# An id that parts the jobs enqueued within the last seconds from the older ones, by halving: ids rise with time.
#
# Index: the primary key, one probe a step
# Cost:  about log2 of the highest id, 20 steps for a million jobs; no index on enqueued_at pays for itself,
#        it cut the drain to 0.80
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
        SELECT job.id, job.enqueued_at < statement_timestamp()
            + make_interval(secs => %(time_shift_seconds)s::float8 - %(seconds)s::float8) AS is_older
        FROM pgqueue_job AS job
        WHERE job.id >= halving.low + (halving.high - halving.low) / 2
        ORDER BY job.id
        LIMIT 1
    ) AS probe
    WHERE halving.low < halving.high
)
SELECT low FROM halving WHERE low >= high
"""

# The highest id of all jobs.
#
# Index: the primary key
LAST_ID: Final = """/* pgqueue:last_id */
SELECT max(id) FROM pgqueue_job
"""

# The lowest id of all jobs.
#
# Index: the primary key
FIRST_ID: Final = """/* pgqueue:first_id */
SELECT min(id) FROM pgqueue_job
"""


class Names(NamedTuple):
    """Names that jobs have, sorted; not all of them, if there are very many."""

    queues: list[str]
    tasks: list[str]


def names(connection: Connection) -> Names:
    """Return the names of queues and tasks to choose from."""
    rows = execute(connection, NAMES, {"names_limit": NAMES_LIMIT, "recent_jobs": RECENT_JOBS})
    return Names(
        queues=sorted(name for kind, name in rows if kind == "queue"),
        tasks=sorted(name for kind, name in rows if kind == "task"),
    )


def first_id_since(connection: Connection, seconds: float) -> int | None:
    """Return an id from which on jobs were enqueued within the last `seconds`; None if there are no jobs at all.

    An id beyond the last one, if no job is that new. Jobs whose `enqueued_at` somebody wrote by hand, out of the
    order of ids, may end up on the wrong side.
    """
    rows = execute(connection, FIRST_ID_SINCE, {"seconds": seconds})
    return rows[0][0] if rows else None


def last_id(connection: Connection) -> int:
    """Return the highest id of all jobs, 0 if there are none."""
    return execute(connection, LAST_ID, {})[0][0] or 0


def first_id(connection: Connection) -> int:
    """Return the lowest id of all jobs, 0 if there are none."""
    return execute(connection, FIRST_ID, {})[0][0] or 0
