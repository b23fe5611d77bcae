"""Middleware: application code that runs before each enqueue and around each execution.

`PGQUEUE["MIDDLEWARE"]` lists the classes. A middleware class takes no arguments and has one or more of these methods:

* `enqueue(self, call)` is called before anything is written. It can read the `Call` and change `call.headers`.
* `run(self, context)` returns a context manager. The task's function runs inside it.
* `arun(self, context)` returns an asynchronous context manager. It replaces `run()` for coroutine tasks.

`enqueue()` and the schedules call `changed_headers()`. The worker calls `run_inside()` or `arun_inside()` for each
attempt. If the setting is empty, the worker calls the task's function directly.

The interface uses context managers instead of a `next()` function, because a middleware could forget to call `next()`,
call it twice or return a different value. This module records the function's result inside all middleware. A middleware
can therefore change how an attempt ends only by raising an exception.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, ExitStack
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from .settings.conf import clear_at_change, get_settings
from .tasks import registry

if TYPE_CHECKING:
    from .lifecycle.schedules import Scheduled
    from .tasks.context import TaskContext
    from .tasks.definition import TaskDefinition

HOOKS: Final = ("enqueue", "run", "arun")


@dataclass(slots=True, kw_only=True)
class Call:
    """Argument of a middleware's `enqueue()`: one `enqueue()` call, or one `enqueue_many()` call with all its jobs.

    Example::

        class TenantMiddleware:
            def enqueue(self, call: Call) -> None:
                call.headers["tenant"] = current_tenant()
    """

    task: TaskDefinition
    """The task, with the options set by `using()`."""
    database: str
    """Alias of the database that the jobs are added to."""
    headers: dict[str, Any]
    """Headers of the new jobs: names with a string, number, boolean or None. Change this dict in place."""
    schedule: Scheduled | None = None
    """The schedule whose job is enqueued, or None."""


@dataclass(frozen=True, slots=True)
class MiddlewareChain:
    """The methods of all middleware, in the order of the setting."""

    enqueue: tuple[Callable[[Call], Any], ...] = ()
    run: tuple[Callable[[TaskContext], AbstractContextManager[Any]], ...] = ()
    arun: tuple[Callable[[TaskContext], AbstractContextManager[Any] | AbstractAsyncContextManager[Any]], ...] = ()


@cache
def chain() -> MiddlewareChain:
    """Return the project's middleware. The first call in each process creates the instances.

    Raises:
        ImproperlyConfigured: A path cannot be imported, or its object is not a valid middleware class.
    """
    paths = get_settings().MIDDLEWARE
    named = [registry.instantiated("MIDDLEWARE", path, _class_problems, shows_error=True) for path in paths]
    instances = [*_added.values(), *named]
    return MiddlewareChain(
        enqueue=tuple(instance.enqueue for instance in instances if hasattr(instance, "enqueue")),
        run=tuple(instance.run for instance in instances if hasattr(instance, "run")),
        arun=tuple(
            getattr(instance, "arun", None) or instance.run for instance in instances if hasattr(instance, "run")
        ),
    )


def is_used() -> bool:
    """Return whether the project has any middleware, without importing it."""
    return bool(_added or get_settings().MIDDLEWARE)


def add(name: str, instance: Any) -> None:
    """Put a middleware around those of the setting, once for each name. For integrations that install themselves."""
    _added.setdefault(name, instance)
    chain.cache_clear()


def remove(name: str) -> None:
    """Remove a middleware that was added by `add()`."""
    _added.pop(name, None)
    chain.cache_clear()


_added: dict[str, Any] = {}


clear_at_change(chain)


def _class_problems(middleware_class: Any) -> Iterator[str]:
    if not isinstance(middleware_class, type):
        yield "it must be a class"
        return
    hooks = {name: hook for name in HOOKS if (hook := getattr(middleware_class, name, None)) is not None}
    if not hooks:
        yield f"it must have at least one of the methods {', '.join(HOOKS)}"
    if "arun" in hooks and "run" not in hooks:
        yield "it has arun() for coroutine tasks but no run() for other tasks: add run()"
    for name, hook in hooks.items():
        if not callable(hook):
            yield f"its {name} must be a method"
        elif inspect.iscoroutinefunction(hook) or inspect.isgeneratorfunction(hook) or inspect.isasyncgenfunction(hook):
            yield WRONG_FUNCTION[name]


WRONG_FUNCTION: Final = {
    "enqueue": "its enqueue() must be a plain method, not a coroutine or generator function",
    "run": "its run() must return a context manager: decorate a generator function with contextlib.contextmanager",
    "arun": "its arun() must return an asynchronous context manager: decorate an asynchronous generator function with "
    "contextlib.asynccontextmanager",
}


def changed_headers(
    headers: dict[str, Any], task: TaskDefinition, database: str, schedule: Scheduled | None = None
) -> dict[str, Any]:
    """Return the headers of a call, as changed by the middleware.

    Raises:
        ImproperlyConfigured: As `chain()`.
        Exception: Any error that a middleware raises to refuse the call. Nothing is written yet.
    """
    call = Call(task=task, database=database, headers=headers, schedule=schedule)
    for hook in chain().enqueue:
        hook(call)
    return call.headers


def run_inside(context: TaskContext, function: Callable[[], Any]) -> Any:
    """Call a function inside the middleware and return its value.

    An exception that a middleware raises replaces the function's exception. If the middleware suppresses the function's
    exception, this raises it again. No middleware can replace an exception with which the worker stops a task, such as
    `LeaseLost`.
    """
    value: Any = None
    ended_by: BaseException | None = None
    raised: Exception | None = None
    try:
        with ExitStack() as stack:
            try:
                for manager in chain().run:
                    stack.enter_context(manager(context))
                value = function()
            except BaseException as error:
                ended_by = error
                raise
    except Exception as error:  # noqa: BLE001 -- _raise_final() raises it or the function's exception
        raised = error
    _raise_final(ended_by, raised)
    return value


async def arun_inside(context: TaskContext, function: Callable[[], Awaitable[Any]]) -> Any:
    """Await a coroutine function inside the middleware and return its value, like `run_inside()`.

    For a middleware without `arun()`, this enters and exits the context manager of `run()` on the event loop.
    """
    value: Any = None
    ended_by: BaseException | None = None
    raised: Exception | None = None
    try:
        async with AsyncExitStack() as stack:
            try:
                for manager in chain().arun:
                    entered = manager(context)
                    if isinstance(entered, AbstractAsyncContextManager):
                        await stack.enter_async_context(entered)
                    else:
                        stack.enter_context(entered)
                value = await function()
            except BaseException as error:
                ended_by = error
                raise
    except Exception as error:  # noqa: BLE001 -- as in run_inside()
        raised = error
    _raise_final(ended_by, raised)
    return value


def _raise_final(ended_by: BaseException | None, raised: Exception | None) -> None:
    """Raise the exception that the attempt ends with, if there is one.

    `ended_by` is the exception of the function, or of a middleware on entry. `raised` is the exception that left the
    outermost middleware, and normally the one to raise. `ended_by` is raised in two cases: the middleware suppressed
    it, or the worker stopped the task with it (lease lost, timeout exceeded, coroutine cancelled).
    """
    is_final = not isinstance(ended_by, Exception)
    if ended_by is not None and (raised is None or is_final):
        raise ended_by
    if raised is not None:
        raise raised
