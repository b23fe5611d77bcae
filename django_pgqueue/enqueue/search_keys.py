"""The search keys of a call: the values of the arguments that the task's option `search` names.

`Task.prepare_insert()`, `enqueue_many()` and schedules call this module for such tasks only. The keys are computed and
checked before the job is inserted, and written in the transaction of the insert.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from django_pgqueue import lifecycle
from django_pgqueue.db.transactions import atomic_unless_open
from django_pgqueue.redaction import BY_POSITION
from django_pgqueue.search_text import as_search_text
from django_pgqueue.serialization import normalise

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_pgqueue.definition import TaskDefinition
    from django_pgqueue.models import Job

SearchKeys = Mapping[str, str]
"""Texts by the names of the arguments."""


def search_keys_of(task: TaskDefinition, args: Sequence[Any], kwargs: Mapping[str, Any]) -> SearchKeys:
    """Return the search keys of a call. The arguments are as they are stored: `task.encoded_call()` has converted them.

    An argument that the call does not pass, or that is None, has no key.

    Raises `TypeError` if an argument is a list or an object, and the errors of `encode_arguments()`.
    """
    if not task.search:
        return {}
    parameters = list(task.signature.parameters.values())[task.takes_context :]
    positions = [parameter.name for parameter in parameters if parameter.kind in BY_POSITION]
    passed = {**kwargs, **dict(zip(positions, args, strict=False))}
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


def with_search_keys(
    task: TaskDefinition, connection: BaseDatabaseWrapper, insert: Callable[[], Job], keys: SearchKeys
) -> Callable[[], Job]:
    """Return the insert of a job together with its search keys, all or none of both. For other tasks, `insert` itself.

    Without an open transaction, the insert opens one. It opens no savepoint in an open one, as an insert without keys.
    """
    return partial(_insert, task, connection, insert, keys) if task.search else insert


def _insert(task: TaskDefinition, connection: BaseDatabaseWrapper, insert: Callable[[], Job], keys: SearchKeys) -> Job:
    with atomic_unless_open(connection):
        job = insert()
        if not job.is_duplicate:
            write_search_keys(connection, [(task, job.pk, keys)])
    return job


def write_search_keys(connection: BaseDatabaseWrapper, jobs: Sequence[tuple[TaskDefinition, int, SearchKeys]]) -> None:
    """Write the search keys of jobs that were added or replaced, in the caller's transaction.

    Each job has its task and its id. The keys of a replaced call are removed first.
    """
    lifecycle.remove_search_keys(
        connection, [job_id for task, job_id, _ in jobs if task.search and task.on_conflict == "replace"]
    )
    lifecycle.add_search_keys(connection, {job_id: keys for _, job_id, keys in jobs if keys})
