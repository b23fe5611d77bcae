"""Find jobs by the values of their search keys, for the lists of jobs in the admin.

The cost is bounded: one index lookup for each name, which reads a limited number of keys, and one probe for each job
that was found. The caller decides who may search, and leaves out the jobs of tasks that hide a name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from django_pgqueue.db.statements import Connection, execute

# Return the newest jobs that have a value under one of these names, each with the name and the job's task.
#
# Index: pgqueue_search_key_value, one lookup per name; pgqueue_job_pkey
# Cost:  at most `limit` keys of each name, and `limit` jobs
#
# One condition on all names would sort every job with the value: the index has an order within one name only.
JOBS_BY_SEARCH_KEYS: Final = """/* pgqueue:jobs_by_search_keys */
SELECT found.job_id, found.name, job.task_name
FROM (
    SELECT wanted.name, key.job_id
    FROM unnest(%(names)s::varchar[]) AS wanted (name)
    CROSS JOIN LATERAL (
        SELECT job_id
        FROM pgqueue_search_key
        WHERE name = wanted.name AND value = %(text)s
        ORDER BY job_id DESC
        LIMIT %(limit)s
    ) AS key
    ORDER BY key.job_id DESC
    LIMIT %(limit)s
) AS found
CROSS JOIN LATERAL (
    SELECT task_name FROM pgqueue_job WHERE id = found.job_id LIMIT 1
) AS job
ORDER BY found.job_id DESC
"""


class KeyMatch(NamedTuple):
    """A job that has the value, the name of the search key, and the task of the job."""

    job_id: int
    name: str
    task_name: str


def jobs_by_search_keys(connection: Connection, names: Sequence[str], text: str, limit: int) -> list[KeyMatch]:
    """Return the newest jobs that have a search key with one of these names and exactly this text.

    Runs one read-only statement.

    Args:
        connection: A Django connection or an engine connection to the database of the jobs.
        names: The names of search keys. A job that has the text under two of them is returned twice.
        text: The value as `as_search_text()` returns it.
        limit: Keys that are returned at most.
    """
    params = {"names": list(names), "text": text, "limit": limit}
    return [KeyMatch(*row) for row in execute(connection, JOBS_BY_SEARCH_KEYS, params)]
