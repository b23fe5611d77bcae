"""What a task's function returned: whether its work has run at all, and the result as it is stored.

Called by the executor. It protects one rule: what fails after the function has succeeded does not repeat the function.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

from django_pgqueue.arguments import encode_result
from django_pgqueue.exceptions import Dead, ResultNotStored

from . import describe

if TYPE_CHECKING:
    from django_pgqueue.task import Task

PLAIN: Final = frozenset({type(None), bool, int, float, str, list, dict})
"""Types of results that cannot be something still to be run."""


def encoded(task: Task[Any, Any], value: Any) -> str | None:
    """Return a result as JSON text, None if it is not kept; raises `ResultNotStored` if it cannot be."""
    try:
        if task.adapter is not None:
            value = task.adapter.result(value)
        return encode_result(value) if task.store_result and value is not None else None
    except Exception as error:
        reason = describe.message(error) or type(error).__name__
        raise ResultNotStored(f"the task succeeded, but its result cannot be kept: {reason}") from error


def class_on_record(task: Task[Any, Any] | None, exception: BaseException) -> str:
    """Return the class that an execution records.

    For a result that cannot be kept of a task of Django's framework this is the class of the cause, as that promises.
    """
    is_of_result = type(exception) is ResultNotStored and task is not None and task.adapter is not None
    return describe.class_path(exception.__cause__ or exception if is_of_result else exception)


def refuse_what_has_not_run(value: Any) -> None:
    """Raise `Dead` if a function returned its work instead of doing it: a coroutine, an awaitable or a generator."""
    is_generator = inspect.isgenerator(value) or inspect.isasyncgen(value)
    if not is_generator and not inspect.isawaitable(value):
        return
    if inspect.iscoroutine(value):
        value.close()  # otherwise Python warns that it was never awaited
    advice = "do the work in the function itself" if is_generator else "write the task with `async def` and await it"
    raise Dead(f"the task returned a {type(value).__name__}, which nothing runs: {advice}")


def binds(task: Task[Any, Any], args: list[Any], kwargs: dict[str, Any]) -> bool:
    """Return whether a task's function can be called with these arguments."""
    try:
        task.signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True
