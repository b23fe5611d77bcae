"""Explain why the chunk of a due job has not started. `explanation` calls this module for jobs with a chunk key.

A chunk is due when it has enough due jobs, or when the first of them has waited long enough. After that, its jobs wait
as others do.
"""

from __future__ import annotations

from datetime import timedelta

from django.utils.translation import gettext as _

from django_pgqueue.db.statements import execute
from django_pgqueue.declared.chunks import is_chunk_key, task_of_key
from django_pgqueue.tasks import registry
from django_pgqueue.tasks.registry import in_words

from .answers import NONE, Reason
from .explained_job import ExplainedJob, FoundReason
from .limits import queries as limit_queries
from .limits.key_ranges import LaneRange, columns, range_of_key


def reason_of_chunk(job: ExplainedJob) -> FoundReason | None:
    """Return why a due job waits for its chunk. None: it has no chunk, or it waits as others do."""
    row, connection = job.row, job.connection
    if row.limit_key is None or not is_chunk_key(row.limit_key):
        return None
    task = registry.chunk_keys().get(row.limit_key)
    if task is None or task.chunk is None:
        return FoundReason(Reason.LIMIT_UNDECLARED, _undeclared(task_of_key(row.limit_key)), {"ahead": NONE})
    lane = columns([LaneRange(row.queue_name, row.priority, *range_of_key(row.limit_key))])
    due = sum(each[1] for each in execute(connection, limit_queries.JOBS_OF_LIMITS, {**lane, "limit": task.chunk}))
    ages = [each[4] for each in execute(connection, limit_queries.KEYS_WITH_JOBS, {**lane, "limit": 1})]
    left_seconds = task.chunk_wait_seconds - max(ages, default=0.0)
    if due >= task.chunk or left_seconds <= 0:
        return None
    starts_at = row.seen_at + timedelta(seconds=left_seconds)
    text = _(
        "It waits for more jobs of its chunk: %(due)d of %(size)d are due. The chunk starts at %(time)s at the latest."
    )
    sentence = text % {"due": due, "size": task.chunk, "time": job.time_text(starts_at)}
    return FoundReason(Reason.CHUNK, sentence, {"ahead": NONE, "admitted_at": starts_at})


def _undeclared(task_name: str) -> str:
    text = _(
        "The task %(task)s had the option chunk when it was added, and has none in this process, so workers with the "
        "same code do not start it: deploy the task with chunk=1."
    )
    return text % {"task": in_words(task_name)}
