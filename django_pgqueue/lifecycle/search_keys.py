"""Write and remove the search keys of jobs, on the caller's connection and in the caller's transaction.

`enqueue` calls `add_search_keys()` for tasks with the option `search`. No state of a job depends on these rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from django_pgqueue import sql
from django_pgqueue.db.statements import Connection, execute, numbers, texts


def add_search_keys(connection: Connection, keys: Mapping[int, Mapping[str, str]]) -> None:
    """Add search keys: for each job's id, texts by name. Without any, send no statement."""
    rows = [(job_id, name, text) for job_id, of_job in sorted(keys.items()) for name, text in sorted(of_job.items())]
    if rows:
        job_ids, names, found = zip(*rows, strict=True)
        params = {"job_ids": numbers(job_ids), "names": texts(names), "texts": texts(found)}
        execute(connection, sql.search_keys.ADD_SEARCH_KEYS, params)


def remove_search_keys(connection: Connection, job_ids: Collection[int]) -> None:
    """Remove all search keys of jobs. Without jobs, send no statement."""
    if job_ids:
        execute(connection, sql.search_keys.REMOVE_SEARCH_KEYS, {"job_ids": numbers(job_ids)})
