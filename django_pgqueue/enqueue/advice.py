"""Errors that say what to call instead.

Newcomers call a task by the methods of the queue that they know, or call `enqueue()` in a coroutine. Both kinds of
tasks raise these errors: this package's own, and those of Django's framework.
"""

from __future__ import annotations

from typing import Final

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


def missing_attribute(owner: object, name: str) -> AttributeError:
    """Return the error for an attribute that a task does not have."""
    if isinstance(getattr(type(owner), name, None), property):  # it exists, and has raised an AttributeError itself
        try:
            object.__getattribute__(owner, name)
        except AttributeError as error:
            return error
    kind = type(owner).__name__
    message = f"{kind!r} object has no attribute {name!r}"
    if name in INSTEAD:
        message += f": call {INSTEAD[name]}"
    return AttributeError(message, name=name, obj=owner)


def called_in_coroutine(task_name: str, form: str = "task.aenqueue(…)") -> SynchronousOnlyOperation:
    """Return the error for a call on the event loop. `form` is the call that belongs there."""
    return SynchronousOnlyOperation(
        f"{task_name} was enqueued from a coroutine: use `await {form}` there. To share a transaction with other "
        "writes, put all of them into one function, and call it with sync_to_async()."
    )
