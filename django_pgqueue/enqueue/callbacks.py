"""Store the call of a task as the columns of a job that is added later: a callback of a batch, or a compensation.

`batches` calls it when it creates a batch, and the worker when it stores a step. The call is checked, encoded and
passed to the middleware now, so the statement that adds the job needs no code of the application.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from django_pgqueue.exceptions import InvalidTask

from .calls import TaskCall
from .new_job import alias_of, check_fit, new_job, row_of

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper


def stored_call(name: str, call: TaskCall[Any] | None, connection: BaseDatabaseWrapper) -> str | None:
    """Return a call as JSON text, with its task, arguments and options. `name` is the name of the callback.

    Raises:
        TypeError: It was not made by `task.s(…)`, or another error of `Task.enqueue()`.
        InvalidTask: The call has a unique key or a batch, belongs to another database, or another error of
            `Task.enqueue()`.
    """
    if call is None:
        return None
    if not isinstance(call, TaskCall):
        raise TypeError(f"{name} must be made by task.s(…), not {type(call).__name__}")
    check_call(name, call, connection, "the batch")
    options, arguments = parts_of(call, connection)
    # The arguments are stored as they are encoded, so that numbers keep their digits.
    return f'{{"arguments":{arguments},{options[1:]}'


def check_call(name: str, call: TaskCall[Any], connection: BaseDatabaseWrapper, owner: str) -> None:
    """Raise an error if a call cannot be stored, without encoding its arguments. `owner` stores it.

    Raises:
        TypeError: The arguments do not fit the function of the task.
        InvalidTask: As `stored_call()`.
    """
    task, args, kwargs = call.task, call.args, call.kwargs
    if task.unique_key is not None:
        raise InvalidTask(
            f"{name}: {task.name} has a unique key, and another job with it would keep this one away: "
            f"write {task.func.__name__}.using(unique_key=None)"
        )
    if task.batch is not None:
        raise InvalidTask(f"{name}: a callback belongs to no batch: remove using(batch=…) from {task.name}")
    try:
        check_fit(task, args, kwargs)
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from None
    alias = alias_of(task, args, kwargs)
    if alias != connection.alias:
        raise InvalidTask(
            f"{name}: a job of {task.name} belongs to database {alias!r}, and {owner} to {connection.alias!r}"
        )


def parts_of(
    call: TaskCall[Any], connection: BaseDatabaseWrapper, headers: Mapping[str, Any] | None = None
) -> tuple[str, str]:
    """Return the options of the job of a checked call, and its arguments, as JSON texts. `headers` are added."""
    task = call.task
    job = new_job(task, task.encoded_call(call.args, call.kwargs), row_of(task, connection.alias))
    return job.stored(headers or {}), job.arguments
