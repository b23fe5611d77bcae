"""Check and encode the value that a task's function returned.

`Attempt` calls this. It protects one rule: an error that occurs after the function has succeeded does not repeat the
function.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

from django_pgqueue.exceptions import Dead, ResultNotStored
from django_pgqueue.serialization import encode_result

from . import error_text
from .report import STOPS

if TYPE_CHECKING:
    from django_pgqueue.definition import TaskDefinition

PLAIN: Final = frozenset({type(None), bool, int, float, str, list, dict})
"""Types of return values that cannot be an unstarted coroutine or generator."""


def encoded(task: TaskDefinition, value: Any) -> str | None:
    """Return a result as JSON text, or None if it is not stored. Raise `ResultNotStored` if it cannot be encoded."""
    try:
        if task.adapter is not None:
            value = task.adapter.result(value)
        elif task.store_result and (plan := task.plan) is not None:
            value = plan.encode_result(value)
        return encode_result(value) if task.store_result and value is not None else None
    except (KeyboardInterrupt, *STOPS):
        raise
    except BaseException as error:
        reason = error_text.message(error) or type(error).__name__
        raise ResultNotStored(f"the task succeeded, but its result cannot be stored: {reason}") from error


def recorded_class(task: TaskDefinition | None, exception: BaseException) -> str:
    """Return the path of the exception class that an execution records.

    If a task of Django's task framework returned a result that cannot be stored, this is the class of the cause,
    because the framework promises that.
    """
    is_result_error = type(exception) is ResultNotStored and task is not None and task.adapter is not None
    return error_text.class_path(exception.__cause__ or exception if is_result_error else exception)


def refuse_unrun_value(value: Any) -> None:
    """Raise `Dead` if a function returned its work unrun, as a coroutine, another awaitable or a generator."""
    is_generator = inspect.isgenerator(value) or inspect.isasyncgen(value)
    if not is_generator and not inspect.isawaitable(value):
        return
    if inspect.iscoroutine(value):
        value.close()  # otherwise Python warns that it was never awaited
    advice = "do the work in the function itself" if is_generator else "write the task with `async def` and await it"
    raise Dead(f"the task returned a {type(value).__name__}, which is never run: {advice}")


def binds(task: TaskDefinition, args: list[Any], kwargs: dict[str, Any]) -> bool:
    """Return whether a task's function can be called with these arguments."""
    try:
        task.signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True
