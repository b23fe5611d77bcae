"""Errors that say what to call instead.

Newcomers call a task by the methods of the queue that they know, or call `enqueue()` in a coroutine. Both kinds of
tasks raise these errors: this package's own, and those of Django's framework.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from django.core.exceptions import SynchronousOnlyOperation

INSTEAD: Final = {
    "delay": "enqueue(…), with the arguments of the function",
    "apply_async": "using(run_after=…, queue_name=…, priority=…).enqueue(…), with the arguments of the function",
    "delay_on_commit": "enqueue(…): the job commits with your transaction. See also enqueue_on_commit(…)",
    "defer": "enqueue(…), with the arguments of the function",
    "defer_async": "await aenqueue(…), with the arguments of the function",
    "send": "enqueue(…), with the arguments of the function",
    "schedule_in": "using(run_after=…).enqueue(…)",
}
"""Names of the methods of Celery, Procrastinate, Dramatiq and others, and what a task has instead."""

OF_A_TASK: Final = {
    "si": "s(…). To pass no result on, let the job wait by Workflow.add(task.s(…), after=[node])",
    "signature": "s(…)",
}
"""The same for methods that make a call. Tasks of Django's framework have no `s()`."""

OF_A_CALL: Final = {
    "set": "make the call by task.using(…).s(…)",
    **dict.fromkeys(
        ("enqueue", "aenqueue", "delay", "apply_async"),
        "call task.enqueue(…), or pass the call to chain(), group(), Workflow.add() or enqueue_many()",
    ),
}
"""Names of the methods of Celery's signatures and of tasks, and what to write instead for a call made by `s()`."""


def missing_attribute(owner: object, name: str) -> AttributeError:
    """Return the error for an attribute that a task does not have.

    A task of Django's framework has no `s()`, so nothing is said of the methods that it would stand for.
    """
    if isinstance(getattr(type(owner), name, None), property):  # it exists, and has raised an AttributeError itself
        try:
            object.__getattribute__(owner, name)
        except AttributeError as error:
            return error
    kind = type(owner).__name__
    message = f"{kind!r} object has no attribute {name!r}"
    advice = INSTEAD | (OF_A_TASK if hasattr(type(owner), "s") else {})
    if name in advice:
        message += f": call {advice[name]}"
    elif name == "retry":
        message += ": raise Retry(…) in the function, or call retry() on a job"
    return AttributeError(message, name=name, obj=owner)


def missing_attribute_of_call(owner: object, name: str) -> AttributeError:
    """Return the error for an attribute that a call made by `task.s(…)` does not have."""
    message = f"{type(owner).__name__!r} object has no attribute {name!r}"
    if name in OF_A_CALL:
        message += f": {OF_A_CALL[name]}"
    return AttributeError(message, name=name, obj=owner)


def listed(form: str, values: Iterable[Any], contents: str) -> list[Any]:
    """Return a list of values. Raise `TypeError` if one of the `contents` was passed without a list to `form`."""
    try:
        return list(values)
    except TypeError:
        if hasattr(values, "__iter__"):  # its own iteration has failed
            raise
        raise TypeError(f"{form} takes a list of {contents}, not {type(values).__name__}: write […]") from None


def called_in_coroutine(
    task_name: str, form: str = "task.aenqueue(…)", done: str = "enqueued"
) -> SynchronousOnlyOperation:
    """Return the error for a call on the event loop. `form` is the call that belongs there."""
    return SynchronousOnlyOperation(
        f"{task_name} was {done} from a coroutine: use `await {form}` there. To share a transaction with other "
        "writes, put all of them into one function, and call it with sync_to_async()."
    )
