"""The search keys of a call: the values of the arguments that the task's option `search` names.

`new_job()` calls this module for such tasks only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from django_pgqueue.lifecycle.enqueueing import SearchKeys
from django_pgqueue.redaction import BY_POSITION
from django_pgqueue.search_text import as_search_text
from django_pgqueue.serialization import normalise

if TYPE_CHECKING:
    from django_pgqueue.definition import TaskDefinition


def search_keys_of(task: TaskDefinition, args: Sequence[Any], kwargs: Mapping[str, Any]) -> SearchKeys:
    """Return the search keys of a call. The arguments are as they are stored: `task.encoded_call()` has converted them.

    An argument that the call does not pass, or that is None, has no key.

    Raises `TypeError` if an argument is a list or an object, and the errors of `encode_arguments()`.
    """
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
