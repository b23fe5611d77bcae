"""Explain why the chunk of a due job has not started. `explanation` calls this module for jobs with a chunk key.

A chunk is due when it has enough due jobs, or when the first of them has waited long enough. After that, its jobs wait
as others do.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django_pgqueue import registry
from django_pgqueue.chunks import task_of_key
from django_pgqueue.db.statements import Connection, execute
from django_pgqueue.registry import in_words

from . import key_queries, limit_queries
from .answers import NONE, Count
from .depths import COUNT_LIMIT
from .limit_explanation import ReasonOfLimit
from .limit_ranges import LaneRange, columns, range_of_key
from .reasons import Reason
from .sentences import time_text


def reason_of_chunk(connection: Connection, row: Any) -> ReasonOfLimit:
    """Return whether a due job waits for its chunk, and how many due jobs of the task come first in its lane.

    `row` has the columns of JOB_WITH_LAST_EXECUTION.
    """
    task = registry.chunk_keys().get(row.limit_key)
    if task is None or task.chunk is None:
        return ReasonOfLimit(Reason.LIMIT_UNDECLARED, NONE, _undeclared(task_of_key(row.limit_key)))
    lane = columns([LaneRange(row.queue_name, row.priority, *range_of_key(row.limit_key))])
    due = sum(each[1] for each in execute(connection, limit_queries.JOBS_OF_LIMITS, {**lane, "limit": task.chunk}))
    ages = [each[4] for each in execute(connection, limit_queries.KEYS_WITH_JOBS, {**lane, "limit": 1})]
    left_seconds = task.chunk_wait_seconds - max(ages, default=0.0)
    if due >= task.chunk or left_seconds <= 0:
        return ReasonOfLimit(None, _ahead(connection, row))
    starts_at = row.seen_at + timedelta(seconds=left_seconds)
    sentence = (
        f"It waits for more jobs of its chunk: {due} of {task.chunk} are due. The chunk starts at "
        f"{time_text(starts_at)} at the latest."
    )
    return ReasonOfLimit(Reason.CHUNK, NONE, sentence, {"admitted_at": starts_at})


def _ahead(connection: Connection, row: Any) -> Count:
    place = {"queue_name": row.queue_name, "priority": row.priority, "limit_key": row.limit_key}
    params = {**place, "run_after": row.run_after, "job_id": row.job_id, "limit": COUNT_LIMIT}
    found = execute(connection, key_queries.AHEAD_IN_KEY, params)[0][0]
    return Count(min(found, COUNT_LIMIT), found <= COUNT_LIMIT)


def _undeclared(task_name: str) -> str:
    return (
        f"The task {in_words(task_name)} had the option chunk when it was added, and has none in this process, so "
        "workers with the same code do not start it: deploy the task with chunk=1."
    )
