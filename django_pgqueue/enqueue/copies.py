"""Insert a job like an existing one, with other arguments. The admin calls it for *Edit and retry*.

The copy has the queue, the priority, the attempts, the headers and the span until the expiry of the existing job. It is
due now. It never changes another job: if another job has its unique key, no job is added.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from django_pgqueue.declared.chunks import is_chunk_key
from django_pgqueue.declared.key_templates import escaped, reads_arguments
from django_pgqueue.declared.limits import CallLimit, name_of
from django_pgqueue.encoding.headers import encode_headers

from . import inserting
from .new_job import check_fit, connection_for, new_job, row_of

if TYPE_CHECKING:
    from django_pgqueue.models import Job
    from django_pgqueue.tasks.definition import TaskDefinition

T = TypeVar("T", bound="TaskDefinition")


def task_like(task: T, job: Job, headers: Mapping[str, Any] | None, database: str) -> T:
    """Return a task with the options and the headers of a job. Raise `InvalidTask` if the task refuses an option."""
    span = None if job.expires_at is None else job.expires_at - job.enqueued_at
    options: dict[str, Any] = {
        "queue_name": job.queue_name,
        "priority": job.priority,
        "max_attempts": job.max_attempts,
        "expires": span or None,
        "headers": headers,
        "database": database,
    }
    return replace(task, **options, **_uniqueness(task, job))


def _uniqueness(task: TaskDefinition, job: Job) -> dict[str, Any]:
    """Return the options of the copy's key: the key of the job, unless the task makes keys from the arguments."""
    if reads_arguments(task.unique_key) or (job.unique_key is None and task.unique_key is not None):
        return {"on_conflict": "skip"}
    if job.unique_key is None:
        return {}
    unique_while = "ready" if job.unique_ready_only else "ready+running"
    return {"unique_key": escaped(job.unique_key), "unique_while": unique_while, "on_conflict": "skip"}


def _keeps_limit(task: TaskDefinition, job: Job) -> bool:
    """Return whether the copy has the limit of the job, because the task does not compute it from the arguments."""
    return (
        task.chunk is None
        and job.limit_key is not None
        and not is_chunk_key(job.limit_key)
        and (task.limit is None or task.limit.name != name_of(job.limit_key))
    )


def insert_copy(task: TaskDefinition, job: Job, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Job:
    """Insert a copy of a job with its `task_like()`, without announcing it.

    Return the existing job if another job has the unique key.

    Middleware can refuse the call and add headers, but cannot change those of the job that is copied: for example, the
    tenant is that of the job, and not that of the operator's request.

    Raises as `Task.enqueue()`.
    """
    check_fit(task, args, kwargs)
    connection = connection_for(task, args, kwargs, callers_level=None)
    row = row_of(task, connection.alias)
    row["headers"] = encode_headers({**json.loads(row["headers"] or "{}"), **(task.headers or {})})
    keeps_limit = _keeps_limit(task, job)
    new = new_job(replace(task, limit=None) if keeps_limit else task, task.encoded_call(args, kwargs), row)
    if keeps_limit:
        new = new._replace(limit=CallLimit(*(getattr(job, name) for name in CallLimit._fields)))
    return inserting.insert(connection, new)
