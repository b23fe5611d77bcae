"""The database of a call: that of its task, or what the function in `@task(database=…)` returns for the arguments.

`plain.alias_of()` asks it, before anything is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django_pgqueue.definition import TaskDefinition


def database_of_call(task: TaskDefinition, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Return the alias for a call, or None if the database routers choose it.

    The task's function gets the arguments as the task would get them, with primary keys instead of rows.

    Raises `TypeError` if the function returns neither a string nor None. Errors of that function pass through.
    """
    if task.database is None or isinstance(task.database, str):
        return task.database
    args, kwargs = task.decoded_call(*task.encoded_call(args, kwargs))
    alias = task.database(*args, **kwargs)
    if alias is not None and not isinstance(alias, str):
        raise TypeError(f"{task.name}: database must return an alias in DATABASES or None, not {alias!r}")
    return alias
