"""The limit of a call: the limit key, the weight and the order of its job.

`new_job()` calls this module for tasks with a limit or with `chunk`. It refuses an invalid key, and a weight that the
limit does not admit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from django_pgqueue.declared.chunks import chunk_key
from django_pgqueue.declared.limits import CallLimit, Limit, key_problems, weight_problems
from django_pgqueue.tasks import registry
from django_pgqueue.tasks.redaction import BY_POSITION

if TYPE_CHECKING:
    from django_pgqueue.arguments.plan import CallArguments
    from django_pgqueue.tasks.definition import TaskDefinition

T = TypeVar("T", bound="TaskDefinition")


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
    key = _key_of(task, limit, args, kwargs)
    if key is None:
        return None
    weight = _weight_of(task, limit, args, kwargs)
    return CallLimit(key, None if weight == 1 else weight, limit.order)


def with_known_limit(changed: T, former: Limit | None) -> T:
    """Return the copy of a task. Raise `InvalidTask` if it has another limit, and no registered task declares it."""
    if changed.limit is not None and changed.limit is not former:
        registry.check_limit(changed.limit)
    return changed


def _key_of(task: TaskDefinition, limit: Limit, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    if limit.key is None:
        return limit.name
    if isinstance(limit.key, str):
        value: object = _formatted(task, limit, limit.key, args, kwargs)
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


def _formatted(
    task: TaskDefinition, limit: Limit, template: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> str:
    """Return the template of a key with the arguments of a call, or the defaults of the function."""
    parameters = list(task.signature.parameters.values())[task.takes_context :]
    positions = [parameter.name for parameter in parameters if parameter.kind in BY_POSITION]
    defaults = {each.name: each.default for each in parameters if each.default is not each.empty}
    values = {**defaults, **kwargs, **dict(zip(positions, args, strict=False))}
    for name in limit.argument_names:
        if name not in values:
            raise ValueError(
                f"{task.name}: the call has no argument {name!r} for the key {template!r} of limit {limit.name!r}: "
                "pass it, or use a function as key"
            )
    try:
        return template.format_map(values)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{task.name}: the key {template!r} of limit {limit.name!r} does not fit: {error}") from error


def _weight_of(task: TaskDefinition, limit: Limit, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    if not callable(limit.weight):
        return limit.weight
    weight = limit.weight(*args, **kwargs)
    for problem in weight_problems(limit, weight):
        raise ValueError(f"{task.name}: limit {limit.name!r}: {problem}")
    return weight
