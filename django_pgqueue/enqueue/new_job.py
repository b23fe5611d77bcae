"""The one place where the call of a task becomes rows: `new_job()` returns everything that is written for its job.

Every way to enqueue uses it: `Task.enqueue()`, `enqueue_many()`, workflows, callbacks of batches, compensations,
schedules, and *Edit and retry*. It also chooses the database of a job. Everything that a call can have wrong is raised
here, before anything is written.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from django.db import connections, router
from django.utils.connection import ConnectionDoesNotExist

from django_pgqueue import middleware
from django_pgqueue.db.transactions import open_transaction_elsewhere
from django_pgqueue.declared.chunks import chunk_key
from django_pgqueue.declared.key_templates import filled, names_in
from django_pgqueue.declared.limits import CallLimit, Limit, key_problems, weight_problems
from django_pgqueue.durations import seconds
from django_pgqueue.encoding.headers import encode_headers
from django_pgqueue.encoding.serialization import encode_arguments, normalise
from django_pgqueue.exceptions import InvalidTask
from django_pgqueue.ground.lazy_strings import lazy_problems
from django_pgqueue.ground.search_text import as_search_text
from django_pgqueue.ground.signatures import signature_of
from django_pgqueue.lifecycle.enqueueing import NewJob, Row, SearchKeys, Uniqueness
from django_pgqueue.options import task_options as options
from django_pgqueue.options.task_options import MEANT, OPTIONS, UniqueWhile
from django_pgqueue.options.validation import check_call, wrong_key
from django_pgqueue.tasks import registry
from django_pgqueue.tasks.redaction import BY_POSITION, unknown_names

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_pgqueue.arguments.plan import CallArguments
    from django_pgqueue.lifecycle.schedules import Scheduled
    from django_pgqueue.models import Job
    from django_pgqueue.tasks.definition import Shape, TaskDefinition

T = TypeVar("T")
MOST_SHAPES: Final = 100
"""Shapes of calls that a task remembers. Most tasks have one; a task that takes any keywords can have many."""


@cache
def job_model() -> type[Job]:
    """Return the model of jobs. Task modules, which import this one, are imported before models can be."""
    from django_pgqueue.models import Job

    return Job


def search_keys_of(task: TaskDefinition, args: Sequence[Any], kwargs: Mapping[str, Any]) -> SearchKeys:
    """Return the search keys of a call. The arguments are as they are stored: `task.encoded_call()` has converted them.

    An argument that the call does not pass, or that is None, has no key.

    Raises `TypeError` if an argument is a list or an object, and the errors of `encode_arguments()`.
    """
    passed = _by_name(task, args, kwargs)
    keys = {}
    for name in task.search:
        value = normalise(passed.get(name), f"argument {name!r}", 1)
        if isinstance(value, list | dict):
            kind = "a list" if isinstance(value, list) else "an object"
            raise TypeError(
                f"{task.name}: argument {name!r} is {kind} in JSON, and cannot be a search key: "
                "pass a string, a number or a boolean, or remove it from the option search"
            )
        if value is not None:
            keys[name] = as_search_text(value)
    return keys


def _by_name(task: TaskDefinition, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by the names of their parameters, without those of `*args`."""
    parameters = list(task.func_signature.parameters.values())[task.takes_context :]
    positions = [parameter.name for parameter in parameters if parameter.kind in BY_POSITION]
    return {**kwargs, **dict(zip(positions, args, strict=False))}


class CallProject(Protocol):
    """Calls a function of the project. `source` names it, for messages."""

    def __call__(self, source: str, function: Callable[..., T], /, *args: Any) -> T: ...


def _call_directly(source: str, function: Callable[..., T], /, *args: Any) -> T:
    return function(*args)


def new_job(
    task: TaskDefinition,
    call: CallArguments,
    row: Row,
    *,
    arguments: str | None = None,
    decode: Callable[[], CallArguments] | None = None,
    call_project: CallProject = _call_directly,
) -> NewJob:
    """Return everything to write for the job of a call.

    Args:
        task: The task, with the options of `using()`.
        call: The call as it is stored: what `task.encoded_call()` returns.
        row: What `row_of()` returns. Jobs of one `enqueue_many()` share it.
        arguments: The text of the call, if it is stored already. By default the call is encoded.
        decode: Returns the call as the functions of the task's options get it, if these get another call than the task.
        call_project: Calls these functions.

    Raises:
        TypeError: JSON cannot represent the arguments, or a function of an option returned a value of a wrong type.
        ValueError: The arguments, the unique key or the limit of the call cannot be stored.
        Exception: The errors of the functions pass through.
    """
    if arguments is None:
        arguments = encode_arguments(*call)
    if not task.has_keys:
        return NewJob(row, arguments)
    search_keys = call_project("the search key", search_keys_of, task, *call) if task.search else None
    decode = decode or partial(task.decoded_call, *call)
    limit = call_project("the limit", limit_of_call, task, decode) if task.has_limit_key else None
    if task.unique_key is None:
        return NewJob(row, arguments, search_keys, limit)
    key = call_project("the unique key", key_of, task, decode)
    return NewJob(row, arguments, search_keys, limit, uniqueness_of(task), key)


def row_of(task: TaskDefinition, alias: str, schedule: Scheduled | None = None) -> Row:
    """Return the values that all jobs of one `enqueue()` or `enqueue_many()` share. The caller may change them.

    Calls the middleware for the headers; its errors pass through. Options in the headers cannot be changed by it.
    """
    row = task.columns()
    if not (task.headers or middleware.chain().enqueue or options.IN_HEADERS):
        return row.copy()
    headers = dict(task.headers or {})
    if middleware.chain().enqueue:
        headers = middleware.changed_headers(headers, task, alias, schedule)
    if options.IN_HEADERS:
        headers |= options.headers_of_options(task)
    return {**row, "headers": encode_headers(headers)}


def key_of(task: TaskDefinition, decode: Callable[[], CallArguments]) -> str | None:
    """Return the unique key of a call, or None if the call is not unique.

    The task's function gets the arguments as the task would get them, with primary keys instead of rows: `decode`
    returns them.

    Raises `TypeError` or `ValueError` if the task's function returns an invalid key, or if the call does not fit the
    template of the key. Errors of that function pass through.
    """
    if task.unique_key is None:
        return None
    if isinstance(task.unique_key, str):
        key: str | None = _filled(task, task.unique_key, "the unique key", decode)
    else:
        args, kwargs = decode()
        key = task.unique_key(*args, **kwargs)
    for problem in lazy_problems("the value of unique_key", key):
        raise TypeError(f"{task.name}: {problem}")
    if key is not None and not isinstance(key, str):
        raise TypeError(f"{task.name}: unique_key must return a string or None, not {type(key).__name__}")
    for problem in wrong_key(key):
        raise ValueError(f"{task.name}: {problem}")
    return key


def uniqueness_of(task: TaskDefinition) -> Uniqueness:
    """Return how the jobs of a task with a unique key keep it."""
    return _uniqueness(task.unique_while, task.on_conflict, task.takes_context)


@lru_cache(maxsize=100)  # it is needed for each call of `enqueue_many()`
def _uniqueness(unique_while: UniqueWhile, on_conflict: str, has_steps: bool) -> Uniqueness:  # noqa: FBT001
    period_seconds = None if isinstance(unique_while, str) else seconds(unique_while)
    return Uniqueness(unique_while == "ready", period_seconds, on_conflict, has_steps)


def limit_of_call(task: TaskDefinition, decode: Callable[[], CallArguments]) -> CallLimit | None:
    """Return the limit of a call, or None if its job has no limit. A task with `chunk` has a chunk key instead.

    The functions of the limit get the arguments as the task would get them, with primary keys instead of rows: `decode`
    returns them.

    Raises `TypeError` or `ValueError` if a function of the limit returns an invalid key or weight, or if the call does
    not fit the template of the key. Errors of these functions pass through.
    """
    limit = task.limit
    if limit is None:
        return None if task.chunk is None else CallLimit(chunk_key(task.name), None, None)
    args, kwargs = decode() if limit.reads_arguments else ((), {})
    key = _limit_key_of(task, limit, args, kwargs)
    if key is None:
        return None
    weight = _weight_of(task, limit, args, kwargs)
    return CallLimit(key, None if weight == 1 else weight, limit.order)


def _limit_key_of(task: TaskDefinition, limit: Limit, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    if limit.key is None:
        return limit.name
    if isinstance(limit.key, str):
        value: object = _filled(
            task, limit.key, f"the key {limit.key!r} of limit {limit.name!r}", lambda: (args, kwargs)
        )
    else:
        value = limit.key(*args, **kwargs)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, str | int):
            kind = type(value).__name__
            raise TypeError(
                f"{task.name}: the key of limit {limit.name!r} must be a string, a whole number or None, not {kind}"
            )
    key = f"{limit.name}:{value!s}"
    for problem in key_problems(key):
        raise ValueError(f"{task.name}: {problem}")
    return key


def _filled(task: TaskDefinition, template: str, what: str, decode: Callable[[], CallArguments]) -> str:
    """Return the template of a key with the arguments of a call, or the defaults of the function.

    An error does not quote a unique key, which `using()` can have made of arguments.
    """
    if not names_in(template):
        return template.format()
    parameters = list(task.func_signature.parameters.values())[task.takes_context :]
    defaults = {each.name: each.default for each in parameters if each.default is not each.empty}
    try:
        return filled(template, {**defaults, **_by_name(task, *decode())}, what)
    except ValueError as error:
        raise ValueError(f"{task.name}: {error}") from error.__cause__


def _weight_of(task: TaskDefinition, limit: Limit, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    if not callable(limit.weight):
        return limit.weight
    weight = limit.weight(*args, **kwargs)
    for problem in weight_problems(limit, weight):
        raise ValueError(f"{task.name}: limit {limit.name!r}: {problem}")
    return weight


def checked_call(task: TaskDefinition, args: Sequence[Any], kwargs: Mapping[str, Any]) -> CallArguments:
    """Return a call as it is stored: checked against the function, and encoded as its annotations say.

    Most calls of a task have the same few shapes. If all calls of a shape fit and are stored as they are, the task
    remembers it, and this function looks into a set instead of checking each argument.

    Raises:
        TypeError: The arguments do not fit the function or its annotations.
        ValueError: An argument fits, but cannot be stored.
        InvalidTask: An annotation cannot be used.
    """
    shape: Shape = tuple(map(type, args))
    if kwargs:
        shape += (*kwargs, *map(type, kwargs.values()))
    if shape in task.fitting_shapes:
        return args, kwargs
    check_fit(task, args, kwargs)
    call = task.encoded_call(args, kwargs)
    checks = task.checks
    if len(task.fitting_shapes) < MOST_SHAPES and (checks is None or checks.fits_by_types(args, kwargs)):
        task.fitting_shapes.add(shape)
    return call


def check_fit(task: TaskDefinition, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise `TypeError` if the task's function does not accept these arguments."""
    try:
        check_call(task.func, len(args) + task.takes_context, tuple(kwargs))
    except TypeError as error:
        problem, parameters = str(error), task.func_signature.parameters
        expects_context = not task.takes_context and next(iter(signature_of(task.func).parameters), "") == "context"
        hint = ". If 'context' is the TaskContext, write @task(takes_context=True)" if expects_context else ""
        for unknown, meant in unknown_names(kwargs, parameters, takes_context=task.takes_context):
            problem, hint = f"got an unexpected keyword argument {unknown!r}", _hint(task, unknown, meant)
            break
        raise TypeError(f"{task.name}() cannot be called with these arguments: {problem}{hint}") from None


def _hint(task: TaskDefinition, name: str, meant: str) -> str:
    """Return what to write instead of a keyword argument that the function of a task does not have."""
    if meant:
        return f": did you mean {meant!r}?"
    option = MEANT.get(name, name)
    is_option = option == "run_after" or option in OPTIONS
    return (
        f": options stand before the call, as in {task.func.__name__}.using({option}=…).enqueue(…)" if is_option else ""
    )


def alias_of(task: TaskDefinition, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return the alias of the database for the job of a call. Raises as `connection_for()`."""
    return connection_for(task, args, kwargs, callers_level=None).alias


def connection_for(
    task: TaskDefinition, args: Sequence[Any], kwargs: Mapping[str, Any], callers_level: int | None = 3
) -> BaseDatabaseWrapper:
    """Return the Django connection on which to insert the job of a call. The call must fit the task.

    Raises `InvalidTask` if no worker would find the task, or if its database is not a PostgreSQL database in DATABASES.
    Raises as `_database_of_call()`. Warns if a transaction is open on another database only, because the job is not
    part of it. `callers_level` is the `stacklevel` of that warning; None for no warning.
    """
    module = task.func.__module__
    if module not in registry.imported_at_setup and not registry.is_found_by_workers(module):
        job_model()  # raises if the app is not installed, so that no task is found
        raise InvalidTask(registry.not_found(task))
    batch = task.batch
    alias = None if task.database is None else _database_of_call(task, args, kwargs)
    if not alias:
        alias = router.db_for_write(job_model()) if batch is None else batch.database
    try:
        connection = connections[alias]
    except ConnectionDoesNotExist:
        raise InvalidTask(f"{task.name} cannot be enqueued: DATABASES has no alias {alias!r}") from None
    if connection.vendor != "postgresql":
        raise InvalidTask(
            f"{task.name} cannot be enqueued on database {alias!r}, because it is not PostgreSQL: "
            "choose another with using(database=…), or route pgqueue's models to a PostgreSQL database"
        )
    if batch is not None and alias != batch.database:
        raise InvalidTask(
            f"{task.name} cannot be enqueued on database {alias!r}, because batch {batch.id} is on {batch.database!r}: "
            "the jobs of a batch are in its database"
        )
    if callers_level is not None and (elsewhere := open_transaction_elsewhere(connection)):
        warnings.warn(
            f"{task.name} is enqueued on database {alias!r} while a transaction is open on {elsewhere!r}: "
            "the job does not commit or roll back with that transaction",
            RuntimeWarning,
            stacklevel=callers_level,
        )
    return connection


def _database_of_call(task: TaskDefinition, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Return the alias for a call, or None if the database routers choose it.

    The task's function gets the arguments as the task would get them, with primary keys instead of rows.

    Raises `TypeError` if the function returns neither a string nor None. Errors of that function pass through.
    """
    if task.database is None or isinstance(task.database, str):
        return task.database
    args, kwargs = task.converted_call(args, kwargs)
    alias = task.database(*args, **kwargs)
    if alias is not None and not isinstance(alias, str):
        raise TypeError(f"{task.name}: database must return an alias in DATABASES or None, not {alias!r}")
    return alias
