"""The values of a stored call by the names of the task's parameters, and the differences between two calls.

`argument_form` turns a call into one field for each parameter and back. `edit_and_retry` records the differences. All
values are those that a job stores: plain JSON types.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from inspect import Parameter
from itertools import takewhile
from typing import Any, Final, NamedTuple

from django_pgqueue.tasks.definition import TaskDefinition
from django_pgqueue.tasks.redaction import BY_NAME, BY_POSITION

DIFFERENCE_LIMIT: Final = 1000
"""Characters of each value that a difference keeps."""


class StoredArguments(NamedTuple):
    """The arguments of a call as a job stores them, without the context."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]


class CallDoesNotFit(ValueError):
    """The values do not make a call. The message gives the operator the reason."""


@dataclass
class CallValues:
    """The values of a call by parameter. A parameter that takes any further arguments has a list or a dict."""

    by_name: dict[str, Any] = field(default_factory=dict)
    by_position: int = 0
    """Number of parameters that the call passes by position."""
    unfit: dict[str, Any] = field(default_factory=dict)
    """Arguments that the function does not take, for example because its signature has changed."""


def parameters_of(task: TaskDefinition) -> list[Parameter]:
    """Return the parameters of a task's function, without the context."""
    return list(task.func_signature.parameters.values())[task.takes_context :]


def values_of(task: TaskDefinition, call: StoredArguments) -> CallValues:
    """Return the values of a call by parameter."""
    parameters = parameters_of(task)
    positions = [each.name for each in parameters if each.kind in BY_POSITION]
    names = {each.name for each in parameters if each.kind in BY_NAME}
    more_args = next((each.name for each in parameters if each.kind is Parameter.VAR_POSITIONAL), None)
    more_kwargs = next((each.name for each in parameters if each.kind is Parameter.VAR_KEYWORD), None)
    values = CallValues(dict(zip(positions, call.args, strict=False)), min(len(positions), len(call.args)))
    if rest := list(call.args[len(positions) :]):
        if more_args is None:
            values.unfit = {f"argument {number}": each for number, each in enumerate(rest, len(positions) + 1)}
        else:
            values.by_name[more_args] = rest
    for name, value in call.kwargs.items():
        if name in names and name not in values.by_name:
            values.by_name[name] = value
        elif more_kwargs is None or name in names:
            values.unfit[name] = value
        else:
            values.by_name.setdefault(more_kwargs, {})[name] = value
    return values


def call_of(task: TaskDefinition, values: CallValues) -> StoredArguments:
    """Return the call with these values. Parameters are passed by position if `by_position` or the function says so.

    Raises:
        DoesNotFit: An argument can only be passed by position, and one before it is missing. Or the further named
            arguments repeat a parameter.
    """
    parameters, given = parameters_of(task), values.by_name
    positions = [each for each in parameters if each.kind in BY_POSITION]
    more = next(
        (each.name for each in parameters if each.kind is Parameter.VAR_POSITIONAL and given.get(each.name)), ""
    )
    only = [index for index, each in enumerate(positions) if each.name in given and _is_only_by_position(each)]
    leading = positions[: len(positions) if more else max([values.by_position, *(index + 1 for index in only)])]
    passed = list(takewhile(lambda each: each.name in given, leading))
    missing = leading[len(passed) :]
    if missing and (more or any(positions[index] in missing for index in only)):
        later = f"*{more}" if more else positions[only[-1]].name
        raise CallDoesNotFit(f"{later} can be passed only together with {missing[0].name}")
    kwargs = {each.name: given[each.name] for each in parameters if each.kind in BY_NAME and each.name in given}
    for each in passed:
        kwargs.pop(each.name, None)
    for each in parameters:
        if each.kind is Parameter.VAR_KEYWORD:
            kwargs |= _more_kwargs(each.name, given.get(each.name, {}), parameters)
    return StoredArguments([*(given[each.name] for each in passed), *given.get(more, [])], kwargs)


def _more_kwargs(name: str, more: Mapping[str, Any], parameters: Sequence[Parameter]) -> Mapping[str, Any]:
    for repeated in (each.name for each in parameters if each.kind in BY_NAME and each.name in more):
        raise CallDoesNotFit(f"**{name} contains {repeated}, which has a field of its own")
    return more


def _is_only_by_position(parameter: Parameter) -> bool:
    return parameter.kind is Parameter.POSITIONAL_ONLY


def differences(task: TaskDefinition, before: StoredArguments, after: StoredArguments) -> dict[str, list[str | None]]:
    """Return by argument the value before and the value after, as JSON text. None: the argument was not passed."""
    old, new = _flat(task, before), _flat(task, after)
    names = [*old, *(name for name in new if name not in old)]
    changes = {name: [old.get(name), new.get(name)] for name in names}
    return {name: [_cut(each) for each in pair] for name, pair in changes.items() if pair[0] != pair[1]}


def _flat(task: TaskDefinition, call: StoredArguments) -> dict[str, str | None]:
    values = values_of(task, call)
    kinds = {each.name: each.kind for each in parameters_of(task)}
    flat: dict[str, Any] = {}
    for name, value in {**values.by_name, **values.unfit}.items():
        flat |= value if kinds.get(name) is Parameter.VAR_KEYWORD else {name: value}
    return {name: json.dumps(value, ensure_ascii=False) for name, value in flat.items()}


def _cut(text: str | None) -> str | None:
    return text if text is None or len(text) <= DIFFERENCE_LIMIT else f"{text[:DIFFERENCE_LIMIT]}…"
