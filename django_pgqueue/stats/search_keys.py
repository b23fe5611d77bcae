"""Find jobs by the values of their search keys. The lists of jobs in the admin call it.

The cost is bounded: one index lookup for each name, which reads a limited number of keys, and one probe for each of
these keys at most. The caller decides who may search. The statement leaves out the jobs that this user may not find
before it counts. Otherwise the count would reveal hidden jobs, and hidden jobs would take the places of others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from django_pgqueue.db.statements import Connection, execute

KEYS_SEARCHED: Final = 10_000
"""Keys of each name that are read at most if some jobs are left out: those may be the newest."""

# Return the newest jobs that have a value under one of these names. Jobs of a hidden pair of name and task are left
# out, and with `task_names` those of all other tasks.
#
# Index: pgqueue_search_key_value, one lookup per name; pgqueue_job_pkey
# Cost:  at most `searched` keys of each name, and one probe for each key until `limit` jobs are found
#
# One condition on all names would sort every job with the value: the index has an order within one name only. DISTINCT
# ON keeps the order of the keys, so the probes end with the last job that is returned.
JOBS_BY_SEARCH_KEYS: Final = """/* pgqueue:jobs_by_search_keys */
SELECT DISTINCT ON (found.job_id) found.job_id
FROM (
    SELECT wanted.name, key.job_id
    FROM unnest(%(names)s::varchar[]) AS wanted (name)
    CROSS JOIN LATERAL (
        SELECT job_id
        FROM pgqueue_search_key
        WHERE name = wanted.name AND value = %(text)s
        ORDER BY job_id DESC
        LIMIT %(searched)s
    ) AS key
    ORDER BY key.job_id DESC
) AS found
CROSS JOIN LATERAL (
    SELECT task_name FROM pgqueue_job WHERE id = found.job_id LIMIT 1
) AS job
WHERE found.name || ' ' || job.task_name <> ALL (%(hidden)s::varchar[])
  AND (%(task_names)s::varchar[] IS NULL OR job.task_name = ANY (%(task_names)s::varchar[]))
ORDER BY found.job_id DESC
LIMIT %(limit)s
"""

# Return the first values under a name that begin with a text, in their order, each once. Of these, leave out those
# whose newest job is of a task that is not in `task_names`: nobody knows what is sensitive in it.
#
# Index: pgqueue_search_key_value, two lookups per value; pgqueue_job_pkey
SEARCH_VALUES: Final = """/* pgqueue:search_values */
WITH RECURSIVE found AS (
    (
        SELECT value, 1 AS place
        FROM pgqueue_search_key
        WHERE name = %(name)s AND value >= %(first)s AND value < %(end)s
        ORDER BY value
        LIMIT 1
    )
    UNION ALL
    SELECT following.value, found.place + 1
    FROM found
    CROSS JOIN LATERAL (
        SELECT key.value
        FROM pgqueue_search_key AS key
        WHERE key.name = %(name)s AND key.value > found.value AND key.value < %(end)s
        ORDER BY key.value
        LIMIT 1
    ) AS following
    WHERE found.place < %(limit)s
)
SELECT found.value
FROM found
CROSS JOIN LATERAL (
    SELECT job_id
    FROM pgqueue_search_key
    WHERE name = %(name)s AND value = found.value
    ORDER BY job_id DESC
    LIMIT 1
) AS newest
CROSS JOIN LATERAL (
    SELECT task_name FROM pgqueue_job WHERE id = newest.job_id LIMIT 1
) AS job
WHERE job.task_name = ANY (%(task_names)s::varchar[])
ORDER BY found.value
"""
LAST: Final = "\U0010ffff"
"""A character behind all others in the order of the index."""


def jobs_by_search_keys(
    connection: Connection,
    names: Sequence[str],
    text: str,
    limit: int,
    *,
    hidden: Iterable[tuple[str, str]] = (),
    task_names: Collection[str] | None = None,
) -> list[int]:
    """Return the newest jobs that have a search key with one of these names and exactly this text, newest first.

    Runs one read-only statement.

    Args:
        connection: A Django connection or an engine connection to the database of the jobs.
        names: The names of search keys.
        text: The value as `as_search_text()` returns it.
        limit: Jobs that are returned at most.
        hidden: Pairs of the name of a search key and the name of a task. They find no job.
        task_names: The tasks whose jobs may be found. None: all.

    If `hidden` or `task_names` are given, jobs beyond the newest `KEYS_SEARCHED` with the text are not found.
    """
    pairs = [f"{name} {task_name}" for name, task_name in hidden]
    allowed = None if task_names is None else list(task_names)
    searched = limit if not pairs and allowed is None else KEYS_SEARCHED
    params = {
        "names": list(names), "text": text, "limit": limit, "searched": searched, "hidden": pairs, "task_names": allowed
    }  # fmt: skip
    return [job_id for (job_id,) in execute(connection, JOBS_BY_SEARCH_KEYS, params)]


def search_values(
    connection: Connection, name: str, beginning: str, limit: int, *, task_names: Collection[str]
) -> list[str]:
    """Return the first values of a search key that begin with a text, sorted. Runs one read-only statement.

    Args:
        connection: A Django connection or an engine connection to the database of the jobs.
        name: The name of the search key.
        beginning: The text.
        limit: Values that are read at most.
        task_names: The tasks whose values may be returned.
    """
    params = {"name": name, "first": beginning, "end": beginning + LAST, "limit": limit, "task_names": [*task_names]}
    return [value for (value,) in execute(connection, SEARCH_VALUES, params)]
