"""Compare a call with the signature of a task, by the number of positional arguments and the names of the others.

`stored` and `signature_lock` use it. It does no I/O. Its problems contain names and types, never an argument.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from django_pgqueue.exceptions import InvalidTask
from django_pgqueue.ground.placeholders import markers_in
from django_pgqueue.tasks import registry

if TYPE_CHECKING:
    from django_pgqueue.tasks.definition import TaskDefinition

Kind = inspect._ParameterKind
POSITIONAL: Final = (Kind.POSITIONAL_ONLY, Kind.POSITIONAL_OR_KEYWORD)
NAMED: Final = (Kind.POSITIONAL_OR_KEYWORD, Kind.KEYWORD_ONLY)


class CallProblem(NamedTuple):
    """Why a call does not fit: the rest of a sentence that begins with the jobs.

    Attributes:
        code: A stable word for programs.
        verb: The verb for one job and for several.
        rest: What comes after the verb.
    """

    code: str
    verb: tuple[str, str]
    rest: str


LACK: Final = ("lacks", "lack")
PASS: Final = ("passes", "pass")
NAME: Final = ("names", "name")
HAVE: Final = ("has", "have")
UNKNOWN_TASK: Final = CallProblem("unknown_task", NAME, "a task that is gone")


SIMILAR: Final = 0.8
"""How similar the name of a task must be to that of a task that is gone, so that it may be its new name."""


def unknown_task(task_name: str, names: Collection[str] = ()) -> CallProblem:
    """Return the problem of calls of a task that is gone. It proposes an alias if the task seems to have a new name.

    Args:
        task_name: The name in the calls.
        names: The arguments that they pass by name.
    """
    renamed = _renamed(task_name, names)
    if renamed is None:
        return UNKNOWN_TASK
    proposal = f"if it is {renamed.name} now, add @task(aliases=[{_shown(task_name)!r}]) there"
    return CallProblem(UNKNOWN_TASK.code, NAME, f"{UNKNOWN_TASK.rest}: {proposal}")


def _renamed(task_name: str, names: Collection[str]) -> TaskDefinition | None:
    """Return the task that may be the one with this name: moved, with a similar name, or alone with these arguments."""
    tasks = {task.name: task for task in registry.all_tasks()}
    moved = [name for name in tasks if name.rpartition(".")[2] == task_name.rpartition(".")[2]]
    if close := get_close_matches(task_name, moved or tasks, n=1, cutoff=0.0 if moved else SIMILAR):
        return tasks[close[0]]
    alike = [task for task in tasks.values() if names and {each.name for each in parameters_of(task)} == set(names)]
    return alike[0] if len(alike) == 1 else None


def parameters_of(task: TaskDefinition) -> list[inspect.Parameter]:
    """Return the parameters that a call can pass: all of the function's, except the context."""
    return list(task.func_signature.parameters.values())[int(task.takes_context) :]


def call_problems(task: TaskDefinition, positional: int, names: Collection[str]) -> list[CallProblem]:
    """Return why a worker could not call the task in this way; an empty list if it could."""
    return list(binding_problems(parameters_of(task), positional, names))


def binding_problems(
    parameters: list[inspect.Parameter], positional: int, names: Collection[str]
) -> Iterator[CallProblem]:
    """Yield why a call does not fit these parameters. Python's own error names only the first reason."""
    by_position = [each for each in parameters if each.kind in POSITIONAL]
    by_name = {each.name for each in parameters if each.kind in NAMED}
    kinds = {each.kind for each in parameters}
    if positional > len(by_position) and Kind.VAR_POSITIONAL not in kinds:
        passed = f"{positional} positional argument{'' if positional == 1 else 's'}"
        yield CallProblem("too_many_arguments", PASS, f"{passed}, but the task takes {len(by_position)}")
    if Kind.VAR_KEYWORD not in kinds:
        for name in sorted(set(names) - by_name):
            yield CallProblem("unexpected_argument", PASS, f"`{_shown(name)}`, which the task does not take")
    passed_by_position = {each.name for each in by_position[:positional]}
    for parameter in parameters:
        is_named = parameter.name in names and parameter.name in by_name
        if is_named and parameter.name in passed_by_position:
            yield CallProblem("repeated_argument", PASS, f"`{parameter.name}` twice: by its place and by its name")
        elif not is_named and parameter.name not in passed_by_position and is_required(parameter):
            yield CallProblem("missing_argument", LACK, f"`{parameter.name}`")


def is_required(parameter: inspect.Parameter) -> bool:
    """Return whether each call has to pass a parameter."""
    is_variable = parameter.kind in (Kind.VAR_POSITIONAL, Kind.VAR_KEYWORD)
    return parameter.default is parameter.empty and not is_variable


def value_problem(task: TaskDefinition, args: list[Any], kwargs: dict[str, Any]) -> CallProblem | None:
    """Return why the annotations of the task cannot read the stored arguments; None if they can. No row is loaded."""
    if next(markers_in([args, kwargs]), None) is not None:  # the results of other jobs are not known yet
        return None
    try:
        task.decoded_call(args, kwargs)
    except InvalidTask:  # the system check reports it
        return None
    except ValueError as error:
        return CallProblem("unreadable_value", HAVE, f"stored arguments that the annotations cannot read: {error}")
    except Exception as error:  # noqa: BLE001 -- a class in an annotation can be the project's; its text can be a value
        return CallProblem(
            "unreadable_value",
            HAVE,
            f"stored arguments that the annotations cannot read: {type(error).__name__} was raised",
        )
    return None


def _shown(name: str) -> str:
    """Return the name of an argument as it can be printed. A row can contain any name."""
    text = name if name.isprintable() else ascii(name)
    return text if len(text) <= 50 else f"{text[:50]}…"
