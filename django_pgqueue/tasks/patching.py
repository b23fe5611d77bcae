"""Let tests replace a method of a task, as `mock.patch.object(task, "enqueue")` does.

The classes of tasks use it. A task stays immutable: its options cannot be set, and a copy has no replaced method.
"""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from typing import Any, TypeVar

C = TypeVar("C", bound=type)


class Patchable:
    """The base class of tasks: an instance can have methods of its own."""

    __slots__ = ("__dict__",)


def patchable(task_class: C) -> C:
    """Let methods of the instances of a frozen class be replaced. The class must derive from `Patchable`.

    The methods that `dataclass` makes raise an unrelated `TypeError` here, because a class with slots is a copy.
    """
    task_class.__setattr__ = _set  # type: ignore[assignment]  # those of `dataclass`
    task_class.__delattr__ = _delete  # type: ignore[assignment]
    return task_class


def _set(task: Any, name: str, value: Any) -> None:
    if name in {each.name for each in fields(task)}:
        raise FrozenInstanceError(f"{name} of {task!r} cannot be set: a task does not change. Make a copy by using()")
    if not callable(getattr(type(task), name, None)):
        raise AttributeError(f"{task!r} has no method {name!r} that a test could replace", name=name, obj=task)
    object.__setattr__(task, name, value)


def _delete(task: Any, name: str) -> None:
    if name not in vars(task):
        raise FrozenInstanceError(f"{name} of {task!r} cannot be deleted: a task does not change")
    object.__delattr__(task, name)
