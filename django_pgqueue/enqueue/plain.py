"""Turn a call of a task into the row of its job, and announce the job.

`Task.enqueue()`, `Task.enqueue_many()` and `unique` use it. It chooses the database connection, collects the values
that the jobs of one call share, builds the `Job` to return, wakes the workers after the commit and sends
`job_enqueued`.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from django.db import connections, router

from django_pgqueue import codecs, lifecycle, middleware, registry
from django_pgqueue.db.transactions import open_transaction_elsewhere
from django_pgqueue.exceptions import InvalidTask
from django_pgqueue.headers import encode_headers
from django_pgqueue.options import columns_of
from django_pgqueue.reactions import after_enqueue

from .call_database import database_of_call

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_pgqueue.definition import TaskDefinition
    from django_pgqueue.models import Job


ONLY_PARAMETERS: Final = ("delay_seconds", "expires_seconds")
"""Values of `row_of()` that are not columns. The database computes `run_after` and `expires_at` from them."""


def connection_for(
    task: TaskDefinition, args: Sequence[Any], kwargs: Mapping[str, Any], callers_level: int | None = 3
) -> BaseDatabaseWrapper:
    """Return the Django connection on which to insert the job of a call. The call must fit the task.

    Raises as `alias_of()`. Warns if a transaction is open on another database only, because the job is not part of it.
    `callers_level` is the `stacklevel` of that warning; None for no warning.
    """
    alias = alias_of(task, args, kwargs)
    if callers_level is not None and (elsewhere := open_transaction_elsewhere(alias)):
        warnings.warn(
            f"{task.name} is enqueued on database {alias!r} while a transaction is open on {elsewhere!r}: "
            "the job does not commit or roll back with that transaction",
            RuntimeWarning,
            stacklevel=callers_level,
        )
    return connections[alias]


def alias_of(task: TaskDefinition, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return the alias of the database for the job of a call.

    Raises `InvalidTask` if no worker would find the task, or if its database is not a PostgreSQL database in DATABASES.
    Raises as `database_of_call()`.
    """
    from django_pgqueue.models import Job  # task modules are imported before models can be

    if not registry.is_found_by_workers(task.func.__module__):
        raise InvalidTask(registry.not_found(task))
    batch = task.batch
    alias = database_of_call(task, args, kwargs) or (batch.database if batch else router.db_for_write(Job))
    if alias not in connections:
        raise InvalidTask(f"{task.name} cannot be enqueued: DATABASES has no alias {alias!r}")
    if connections[alias].vendor != "postgresql":
        raise InvalidTask(
            f"{task.name} cannot be enqueued on database {alias!r}, because it is not PostgreSQL: "
            "choose another with using(database=…), or route pgqueue's models to a PostgreSQL database"
        )
    if batch is not None and alias != batch.database:
        raise InvalidTask(
            f"{task.name} cannot be enqueued on database {alias!r}, because batch {batch.id} is on {batch.database!r}: "
            "the jobs of a batch are in its database"
        )
    return alias


def row_of(task: TaskDefinition, connection: BaseDatabaseWrapper) -> dict[str, Any]:
    """Return the values that all jobs of one `enqueue()` or `enqueue_many()` share.

    Calls the middleware for the headers; its errors pass through.
    """
    headers = encode_headers(middleware.headers_of(task, connection.alias))
    return {"task_name": task.name, "headers": headers, **columns_of(task)}


class PreparedInsert(NamedTuple):
    """The insert of a job whose call has been checked and encoded."""

    alias: str
    run: Callable[[], Job]


def as_job(alias: str, enqueued: lifecycle.Enqueued, arguments: str, row: dict[str, Any]) -> Job:
    """Return a `Job` for a row that was just inserted, without a query."""
    from django_pgqueue.models import Job  # as above

    values = {name: value for name, value in row.items() if name not in ONLY_PARAMETERS}
    values |= {"run_after": enqueued.run_after, "expires_at": enqueued.expires_at}
    values["headers"] = None if row["headers"] is None else json.loads(row["headers"])
    job = Job(
        **values,
        id=enqueued.job_id,
        arguments=codecs.readable(json.loads(arguments)),
        state="ready",
        attempt=0,
        crashes=0,
        isolated=False,
        enqueued_at=enqueued.enqueued_at,
    )
    job._state.db = job.enqueued_on = alias
    job._state.adding = False
    return job


def insert(connection: BaseDatabaseWrapper, arguments: str, row: dict[str, Any]) -> Job:
    """Insert a job without a unique key."""
    enqueued = lifecycle.enqueue(connection, arguments=arguments, **row)
    return as_job(connection.alias, enqueued, arguments, row)


def reload(job: Job) -> Job:
    """Return a job that may have run already as its row is now, or unchanged if the row is gone."""
    current = type(job).objects.using(job._state.db).filter(pk=job.pk).first()
    if current is None:
        return job
    current.enqueued_on = job.enqueued_on
    return current


def job_of(task: TaskDefinition, result_id: str | int) -> Job:
    """Return a job of a task by its id. Raises as `Task.get_result()`."""
    from django_pgqueue.models import Job  # task modules are imported before models can be

    if callable(task.database):
        raise InvalidTask(f"{task.name} has jobs in several databases: call using(database=…).get_result()")
    alias = task.database or router.db_for_write(Job)
    try:
        return Job.objects.using(alias).get(pk=int(result_id), task_name__in=(task.name, *task.aliases))
    except (ValueError, OverflowError, Job.DoesNotExist):
        raise Job.DoesNotExist(f"{task.name} has no job {result_id!r} in the database {alias!r}") from None


def send_enqueued(task: TaskDefinition, connection: BaseDatabaseWrapper, job_ids: Sequence[int]) -> None:
    """Wake the workers after the commit, and send `job_enqueued` for each job now, inside the caller's transaction."""
    after_enqueue(connection, task.name, task.queue_name, job_ids)
