"""From a task to the row of its job: where it goes, what is in it, and who is told."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from django.db import connections, router

from . import lifecycle, middleware, registry, signals
from .arguments import encode_headers
from .conf import get_settings
from .db import open_transaction_elsewhere, wake_workers_after_commit
from .exceptions import InvalidTask
from .validation import due

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from .models import Job
    from .task import Task


def connection_for(task: Task[Any, Any], callers_level: int = 3) -> BaseDatabaseWrapper:
    """Return the connection that a task's jobs are inserted on; raises `InvalidTask` if none would do.

    Warns, at the line `callers_level` above, where a transaction is open elsewhere that the job is not part of.
    """
    from .models import Job  # tasks load before the apps are ready

    if not registry.is_found_by_workers(task.func.__module__):
        raise InvalidTask(registry.not_found(task))
    alias = task.database or router.db_for_write(Job)
    if alias not in connections:
        raise InvalidTask(f"{task.name} would be enqueued on database {alias!r}, which DATABASES does not have")
    if connections[alias].vendor != "postgresql":
        raise InvalidTask(
            f"{task.name} would be enqueued on database {alias!r}, which is not PostgreSQL: "
            "name another with using(database=…), or route pgqueue's models to one"
        )
    if elsewhere := open_transaction_elsewhere(alias):
        warnings.warn(
            f"{task.name} is enqueued on database {alias!r} while a transaction is open on {elsewhere!r}: "
            "the job does not commit or roll back with it",
            RuntimeWarning,
            stacklevel=callers_level,
        )
    return connections[alias]


def row_of(task: Task[Any, Any], connection: BaseDatabaseWrapper) -> dict[str, Any]:
    """Return what all jobs of one call of `enqueue()` or `enqueue_many()` have in common."""
    run_at, delay_seconds = due(task.run_after)
    expires_at, expires_seconds = (None, None) if task.expires is None else due(task.expires)
    return {
        "task_name": task.name,
        "queue_name": task.queue_name,
        "priority": task.priority,
        "max_attempts": task.max_attempts or get_settings().MAX_ATTEMPTS,
        "run_after": run_at,
        "delay_seconds": delay_seconds,
        "expires_at": expires_at,
        "expires_seconds": expires_seconds,
        "headers": encode_headers(middleware.headers_of(task, connection.alias)),
    }


def as_job(task: Task[Any, Any], alias: str, enqueued: lifecycle.Enqueued, arguments: str, headers: str | None) -> Job:
    """Return the model of a row that was just inserted, without a query."""
    from .models import Job  # as above

    job = Job(
        id=enqueued.job_id,
        task_name=task.name,
        queue_name=task.queue_name,
        priority=task.priority,
        arguments=json.loads(arguments),
        state="ready",
        run_after=enqueued.run_after,
        attempt=0,
        max_attempts=task.max_attempts or get_settings().MAX_ATTEMPTS,
        crashes=0,
        isolated=False,
        enqueued_at=enqueued.enqueued_at,
        expires_at=enqueued.expires_at,
        headers=None if headers is None else json.loads(headers),
    )
    job._state.db = job.enqueued_on = alias
    job._state.adding = False
    return job


def as_it_is(job: Job) -> Job:
    """Return a job that may have run already: as its row is now, or as it was if that is gone."""
    found = type(job).objects.using(job._state.db).filter(pk=job.pk).first()
    if found is None:
        return job
    found.enqueued_on = job.enqueued_on
    return found


def tell(task: Task[Any, Any], connection: BaseDatabaseWrapper, job_ids: Sequence[int]) -> None:
    """Wake the workers after the commit, and send `job_enqueued` for each job."""
    wake_workers_after_commit(connection)
    if signals.job_enqueued.receivers:
        told = {"database": connection.alias, "queue_name": task.queue_name}
        for job_id in job_ids:
            signals.job_enqueued.send_robust(sender=task.name, job_id=job_id, **told)
