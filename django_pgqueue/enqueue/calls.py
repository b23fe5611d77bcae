"""The calls that `enqueue_many()` accepts: `TaskCall`, the short forms, and the rule that decides between them.

`Task.s()` makes a `TaskCall`; `bulk` reads the calls with `bind()`. A call that fits no form, that has two meanings, or
that does not fit its function is refused, with its position, before it is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, NoReturn, TypeVar

from django_pgqueue.tasks.definition import TaskDefinition

from .mistaken_calls import missing_attribute_of_call
from .new_job import check_fit

R_co = TypeVar("R_co", covariant=True)

POSITIONAL: Final = (tuple, list)
"""A call of one of these types has positional arguments."""
FORMS: Final = "a tuple or list of positional arguments, a dict of keyword arguments, or task.s(…)"


@dataclass(frozen=True, slots=True, eq=False)
class TaskCall(Generic[R_co]):
    """A task and the arguments of one call, not enqueued yet. Created by `Task.s()`.

    It has the options of the task that made it: `send.using(priority=5).s(1)` is a call with priority 5. The type
    parameter is the type of the task's result.
    """

    task: TaskDefinition
    args: tuple[Any, ...] = field(repr=False)
    kwargs: dict[str, Any] = field(repr=False)

    if not TYPE_CHECKING:  # type checkers would accept any attribute

        def __getattr__(self, name):
            """Say what to call instead of a method of Celery's signatures."""
            raise missing_attribute_of_call(self, name)

        def __or__(self, other: object) -> NoReturn:
            """Say how to write a chain of Celery."""
            raise TypeError("calls are not combined by |: write chain(first.s(…)).then(second)")


Calls = Iterable[TaskCall[Any] | tuple[Any, ...] | list[Any] | Mapping[str, Any]]
"""Calls for `Task.enqueue_many()`, in one of the forms of `FORMS`."""


class BoundCall(NamedTuple):
    """A call that fits its task, with its position among the calls."""

    place: int
    task: TaskDefinition
    args: Sequence[Any]
    kwargs: Mapping[str, Any]


def bind(task: TaskDefinition | None, place: int, call: Any) -> BoundCall:
    """Return a call of `enqueue_many()` with its task, which is `task` if the call does not name one.

    Raises:
        TypeError: The call has no valid form, its meaning is ambiguous, it is a call of another function than that of
            `task`, or its arguments do not fit its function.
    """
    if isinstance(call, TaskCall):
        if task is not None and call.task.func is not task.func:
            raise TypeError(
                f"{task.name}.enqueue_many(): call {place} is a call of {call.task.name}: "
                "for several tasks, use django_pgqueue.enqueue_many()"
            )
        bound = BoundCall(place, call.task, call.args, call.kwargs)
    else:
        args, kwargs = arguments_of(task, place, call)
        assert task is not None, "arguments_of() has checked it"  # noqa: S101 -- for the type checker
        bound = BoundCall(place, task, args, kwargs)
    try:
        check_fit(bound.task, bound.args, bound.kwargs)
    except TypeError as error:
        raise of_call(place, error) from None
    return bound


def arguments_of(task: TaskDefinition | None, place: int, call: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return the arguments of a call in one of the short forms, decided by its types alone.

    A tuple or list is a call with positional arguments, and a mapping is a call with keyword arguments. A pair of a
    tuple and a mapping has both kinds. A pair of a list and a mapping could be either: two positional arguments that
    JSON has, or both kinds. It is refused.

    Raises:
        TypeError: The call has none of these forms, it is such a pair, or it needs a task and `task` is None.
    """
    if task is None:
        raise TypeError(f"enqueue_many(): call {place} must be made by task.s(…), not {_type_of(call)}")
    if isinstance(call, POSITIONAL):
        if len(call) != 2 or not isinstance(call[1], Mapping):
            return call, {}
        if isinstance(call[0], tuple):
            return call[0], call[1]
        if not isinstance(call[0], list):
            return call, {}
        raise TypeError(
            f"enqueue_many(): call {place} is ambiguous, because it is a list and a {type(call[1]).__name__}: "
            "write task.s(…), or ((…), {…}) for positional and keyword arguments"
        )
    if isinstance(call, Mapping):
        return (), call
    raise TypeError(f"enqueue_many(): call {place} must be {FORMS}, not {_type_of(call)}")


def of_call(place: int, error: TypeError | ValueError) -> Exception:
    """Return an error of one call of `enqueue_many()` with the position of the call.

    An error of another class keeps its text, and a traceback shows the position below it.
    """
    if type(error) in (TypeError, ValueError) and "enqueue_many(): call " not in str(error):
        return type(error)(f"enqueue_many(): call {place}: {error}").with_traceback(error.__traceback__)
    error.add_note(f"This is the error of call {place} of enqueue_many().")
    return error


def _type_of(call: Any) -> str:
    # Return the type only: the values may be secret, and the message can end up in logs.
    return type(call).__name__
