"""The lock file of signatures: a text with the parameters of all tasks, and the changes between two of them.

`manage.py pgqueue check-deploy` writes and reads the file. CI compares the file of the release in production with the
code of a change, without a database: which calls that the old code has enqueued would the new code refuse? This module
does no I/O.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from inspect import Parameter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from django_pgqueue.tasks import registry

from .call_shapes import NAMED, POSITIONAL, Kind, is_required, parameters_of

if TYPE_CHECKING:
    from django_pgqueue.tasks.definition import TaskDefinition

VERSION: Final = 1
KINDS: Final = {
    Kind.POSITIONAL_ONLY: "positional",
    Kind.POSITIONAL_OR_KEYWORD: "any",
    Kind.VAR_POSITIONAL: "*",
    Kind.KEYWORD_ONLY: "keyword",
    Kind.VAR_KEYWORD: "**",
}
"""How the file names the kinds of parameters."""
WARNINGS: Final = frozenset({"changed_annotation", "not_locked"})
"""Changes after which stored calls may fit nevertheless."""
ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+")
"""The address in the text of an object, which differs in each process."""


class Locked(NamedTuple):
    """A parameter in the file."""

    name: str
    kind: str
    is_required: bool
    annotation: str


Locks = Mapping[str, tuple[Locked, ...]]
"""The parameters of each task, by its name."""


class SignatureChange(NamedTuple):
    """A difference between the file and the code."""

    task_name: str
    code: str
    text: str

    @property
    def is_warning(self) -> bool:
        """Whether it is not certain that a call fails."""
        return self.code in WARNINGS

    def as_json(self) -> dict[str, Any]:
        """Return the change with stable keys."""
        level = "warning" if self.is_warning else "error"
        return {"level": level, "code": self.code, "task": self.task_name, "text": self.text}


def locks_of(tasks: Iterable[TaskDefinition]) -> Locks:
    """Return the parameters of these tasks."""
    return {task.name: tuple(map(_locked, parameters_of(task))) for task in tasks}


def _locked(parameter: Parameter) -> Locked:
    return Locked(parameter.name, KINDS[parameter.kind], is_required(parameter), _annotation(parameter.annotation))


def _annotation(annotation: Any) -> str:
    """Return an annotation as it is written, or as its type is named."""
    if annotation is Parameter.empty:
        return ""
    if isinstance(annotation, str):
        return annotation
    if isinstance(name := getattr(annotation, "__forward_arg__", None), str):
        return name
    return ADDRESS.sub("", inspect.formatannotation(annotation))


def dump(locks: Locks) -> str:
    """Return the text of a lock file: JSON, sorted by task, with a line for each parameter."""
    lines = ["{", f'  "version": {VERSION},', '  "tasks": {']
    for number, name in enumerate(sorted(locks), 1):
        end = "," if number < len(locks) else ""
        parameters = [f"      {_line(each)}" for each in locks[name]]
        if parameters:
            lines += [f"    {json.dumps(name)}: [", ",\n".join(parameters), f"    ]{end}"]
        else:
            lines.append(f"    {json.dumps(name)}: []{end}")
    return "\n".join([*lines, "  }", "}", ""])


def _line(parameter: Locked) -> str:
    fields: dict[str, Any] = {"name": parameter.name, "annotation": parameter.annotation}
    fields |= {"kind": parameter.kind, "required": parameter.is_required}
    return json.dumps(fields, ensure_ascii=False)


def load(text: str) -> Locks:
    """Return the parameters in the text of a lock file.

    Raises:
        ValueError: The text is not a lock file, or a newer release of this package has written it.
    """
    try:
        data = json.loads(text)
        version, tasks = data["version"], data["tasks"]
        locks = {
            name: tuple(Locked(each["name"], each["kind"], each["required"], each["annotation"]) for each in parameters)
            for name, parameters in tasks.items()
        }
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"it is not a lock file of signatures: {type(error).__name__}: {error}") from None
    if version != VERSION:
        raise ValueError(f"it has version {version!r}, but this release reads version {VERSION}")
    if unknown := {each.kind for parameters in locks.values() for each in parameters} - set(KINDS.values()):
        raise ValueError(f"it has unknown kinds of parameters: {sorted(map(str, unknown))}")
    return locks


def changes(
    old: Locks, new: Locks, current_name: Callable[[str], str | None] = lambda name: registry_name(name)
) -> list[SignatureChange]:
    """Return how calls of the old signatures fare with the new ones: errors first, then by task.

    Args:
        old: The lock file of the code that enqueues jobs now.
        new: The tasks of the code that is to run them.
        current_name: Returns the present name of a task for a name or an alias, None for an unknown one.
    """
    found: list[SignatureChange] = []
    for name, parameters in old.items():
        current = current_name(name)
        if current is None or current not in new:
            text = f"{registry.in_words(name)} is gone: add its name as an alias if it was renamed"
            found.append(SignatureChange(name, "unknown_task", text))
        else:
            found += _changes_of(name, parameters, new[current])
    known = {current_name(name) for name in old}
    found += [
        SignatureChange(name, "not_locked", f"{name} is not in the lock file: write the file again")
        for name in new
        if name not in known
    ]
    return sorted(found, key=lambda each: (each.is_warning, each.task_name, each.text))


def registry_name(name: str) -> str | None:
    """Return the present name of a task of this process."""
    task = registry.get(name)
    return None if task is None else task.name


def _changes_of(task: str, old: tuple[Locked, ...], new: tuple[Locked, ...]) -> Iterator[SignatureChange]:
    before = {each.name: each for each in old}
    after = {each.name: each for each in new}
    kinds = {each.kind for each in new}
    for name, parameter in before.items():
        if name not in after and not _is_absorbed(parameter, kinds):
            yield SignatureChange(task, "removed_parameter", f"{task} has lost `{name}`: a call that passes it fails")
        elif name in after:
            yield from _changes_of_parameter(task, parameter, after[name])
    for name, parameter in after.items():
        if parameter.is_required and name not in before:
            yield SignatureChange(
                task, "new_required_parameter", f"{task} requires the new `{name}`: give it a default"
            )
    places, new_places = _places(old), _places(new)
    for name, place in places.items():
        if new_places.get(name, place) != place:
            text = f"{task} takes `{name}` as positional argument {new_places[name]}, and no longer as {place}"
            yield SignatureChange(task, "changed_place", text)


def _places(parameters: tuple[Locked, ...]) -> dict[str, int]:
    """Return which positional argument each parameter is, counted from 1."""
    names = [each.name for each in parameters if each.kind in ("positional", "any")]
    return {name: place for place, name in enumerate(names, 1)}


def _is_absorbed(parameter: Locked, kinds: set[str]) -> bool:
    """Return whether each call that passes a removed parameter still fits."""
    by_place = parameter.kind in ("positional", "any", "*")
    by_name = parameter.kind in ("keyword", "any", "**")
    return (not by_place or "*" in kinds) and (not by_name or "**" in kinds)


def _changes_of_parameter(task: str, old: Locked, new: Locked) -> Iterator[SignatureChange]:
    if new.is_required and not old.is_required and old.kind not in ("*", "**"):
        text = f"{task} requires `{old.name}`, which had a default: a call that omits it fails"
        yield SignatureChange(task, "required_parameter", text)
    ways = {kind: _ways(kind) for kind in (old.kind, new.kind)}
    if ways[old.kind] - ways[new.kind]:
        lost = " and ".join(sorted(ways[old.kind] - ways[new.kind]))
        yield SignatureChange(task, "changed_kind", f"{task} no longer takes `{old.name}` {lost}")
    if new.annotation != old.annotation:
        was, now = (f"`{each.annotation}`" if each.annotation else "none" for each in (old, new))
        text = f"{task} has another annotation of `{old.name}`: it was {was} and is {now}"
        yield SignatureChange(task, "changed_annotation", text)


def _ways(kind: str) -> set[str]:
    """Return the ways in which a call can pass a parameter of a kind."""
    [parameter_kind] = [each for each, name in KINDS.items() if name == kind]
    ways = {"by its place"} if parameter_kind in POSITIONAL else set()
    if parameter_kind in NAMED:
        ways.add("by its name")
    return ways or {"as often as wanted"}
