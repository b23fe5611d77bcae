"""`PGQUEUE["MIDDLEWARE"]`: what a project wants done before each enqueue and around each run.

A middleware is a class without arguments, with one or more of these:

* `enqueue(self, call)`, called before anything is written, may read the call and change `call.headers`;
* `run(self, context)` returns a context manager that the task's function runs in;
* `arun(self, context)` returns an asynchronous one, used instead of `run()` for coroutine tasks.

Context managers rather than a `next()` to call: none can forget to call it, call it twice, or return something else.
What the function returned or raised is noted inside of all of them, so a middleware changes how an attempt ends only
by raising something itself. With an empty list nothing of this is entered.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, ExitStack
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from . import registry
from .conf import get_settings
from .exceptions import LeaseLost

if TYPE_CHECKING:
    from .context import TaskContext
    from .task import Task

HOOKS: Final = ("enqueue", "run", "arun")


@dataclass(slots=True, kw_only=True)
class Call:
    """What is about to be enqueued: one job, or all of one `enqueue_many()`."""

    task: Task[Any, Any]
    """With what `using()` has changed."""
    database: str
    """Alias of the database that the jobs go to."""
    headers: dict[str, Any]
    """What the jobs will carry: names to strings, numbers, booleans or None; to be changed in place."""


@dataclass(frozen=True, slots=True)
class Chain:
    """The hooks of all middleware, in the order of the list."""

    enqueue: tuple[Callable[[Call], Any], ...] = ()
    run: tuple[Callable[[TaskContext], AbstractContextManager[Any]], ...] = ()
    arun: tuple[Callable[[TaskContext], AbstractContextManager[Any] | AbstractAsyncContextManager[Any]], ...] = ()


@cache
def chain() -> Chain:
    """Return the project's middleware, made at the first call in each process and kept.

    Raises `ImproperlyConfigured` for a path that leads nowhere, or to something of another shape.
    """
    made = [_made(path) for path in get_settings().MIDDLEWARE]
    return Chain(
        enqueue=tuple(one.enqueue for one in made if hasattr(one, "enqueue")),
        run=tuple(one.run for one in made if hasattr(one, "run")),
        arun=tuple(getattr(one, "arun", None) or one.run for one in made if hasattr(one, "run")),
    )


def _forget(*, setting: str, **kwargs: object) -> None:
    if setting == "PGQUEUE":
        chain.cache_clear()


setting_changed.connect(_forget)


def _made(path: str) -> Any:
    try:
        kind = registry.imported(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise ImproperlyConfigured(
            f"PGQUEUE['MIDDLEWARE'] names {path!r}, which cannot be imported: {error}"
        ) from error
    for wrong in _wrong_shape(kind):
        raise ImproperlyConfigured(f"PGQUEUE['MIDDLEWARE'] names {path!r}: {wrong}")
    try:
        return kind()
    except Exception as error:
        raise ImproperlyConfigured(f"PGQUEUE['MIDDLEWARE'] names {path!r}, which cannot be made: {error!r}") from error


def _wrong_shape(kind: Any) -> Iterator[str]:
    if not isinstance(kind, type):
        yield "it must be a class"
        return
    hooks = {name: hook for name in HOOKS if (hook := getattr(kind, name, None)) is not None}
    if not hooks:
        yield f"it must have at least one of the methods {', '.join(HOOKS)}"
    if "arun" in hooks and "run" not in hooks:
        yield "it has arun() for coroutine tasks, and no run() for the others"
    for name, hook in hooks.items():
        if not callable(hook):
            yield f"its {name} must be a method"
        elif inspect.iscoroutinefunction(hook) or inspect.isgeneratorfunction(hook) or inspect.isasyncgenfunction(hook):
            yield WRONG_FUNCTION[name]


WRONG_FUNCTION: Final = {
    "enqueue": "its enqueue() must be a plain method: it is called, and not waited for",
    "run": "its run() must return a context manager: decorate a generator function with contextlib.contextmanager",
    "arun": "its arun() must return an asynchronous context manager: decorate an asynchronous generator function with "
    "contextlib.asynccontextmanager",
}


def headers_of(task: Task[Any, Any], database: str) -> dict[str, Any]:
    """Return the headers of a call: those of `using()`, and what the middleware makes of them."""
    headers = dict(task.headers or {})
    if hooks := chain().enqueue:
        call = Call(task=task, database=database, headers=headers)
        for hook in hooks:
            hook(call)
        headers = call.headers
    return headers


def run_inside(context: TaskContext, function: Callable[[], Any]) -> Any:
    """Call a function inside of the middleware; what that raises is raised, what it swallows is raised all the same.

    What the worker itself throws in, and `LeaseLost`, nothing takes the place of.
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
    except Exception as error:  # noqa: BLE001 -- raised again, unless it must not count
        raised = error
    _raise_what_counts(ended_by, raised)
    return value


async def arun_inside(context: TaskContext, function: Callable[[], Awaitable[Any]]) -> Any:
    """Do the same for a coroutine; a middleware without `arun()` is entered and left by its `run()`, on the loop."""
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
    except Exception as error:  # noqa: BLE001 -- as above
        raised = error
    _raise_what_counts(ended_by, raised)
    return value


def _raise_what_counts(ended_by: BaseException | None, raised: Exception | None) -> None:
    """Raise what ended the innermost call if all the middleware swallowed it, or if nothing may take its place.

    The worker's own word is that: the lease is lost, the time is over, a coroutine is cancelled.
    """
    is_final = isinstance(ended_by, LeaseLost) or not isinstance(ended_by, Exception)
    if ended_by is not None and (raised is None or is_final):
        raise ended_by
    if raised is not None:
        raise raised
