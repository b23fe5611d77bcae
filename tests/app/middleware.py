"""Middleware that the tests put into PGQUEUE["MIDDLEWARE"]; what it saw is in `seen`."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from typing import Any

from django_pgqueue import Snooze, TaskContext
from django_pgqueue.middleware import Call

seen: list[Any] = []
tenant: ContextVar[str | None] = ContextVar("tenant", default=None)


class Outer:
    """Notes what passes."""

    name = "outer"

    def enqueue(self, call: Call) -> None:
        seen.append((self.name, "enqueue", call.task.name, call.database))

    @contextmanager
    def run(self, context: TaskContext):
        seen.append((self.name, "in", context.job_id, context.attempt, context.task_name))
        try:
            yield
        except BaseException as error:
            seen.append((self.name, "raised", type(error).__name__))
            raise
        else:
            seen.append((self.name, "out"))


class Inner(Outer):
    """The same, under another name."""

    name = "inner"


class Tenancy:
    """Carries a context variable from the caller to the task."""

    def enqueue(self, call: Call) -> None:
        if tenant.get() is not None:
            call.headers["tenant"] = tenant.get()

    @contextmanager
    def run(self, context: TaskContext):
        token = tenant.set(context.headers.get("tenant"))
        try:
            yield
        finally:
            tenant.reset(token)


class Awaiting:
    """Has a way of its own around coroutines."""

    @contextmanager
    def run(self, context: TaskContext):
        seen.append("run")
        yield

    @asynccontextmanager
    async def arun(self, context: TaskContext):
        await asyncio.sleep(0)
        seen.append("arun")
        yield
        await asyncio.sleep(0)
        seen.append("arun out")


class Swallows:
    """Tries to hide whatever happens."""

    @contextmanager
    def run(self, context: TaskContext):
        with suppress(BaseException):
            yield


class SwallowsToo(Swallows):
    """Also around coroutines."""

    @asynccontextmanager
    async def arun(self, context: TaskContext):
        with suppress(BaseException):
            yield


class Translates:
    """Raises something else in place of what was raised."""

    @contextmanager
    def run(self, context: TaskContext):
        try:
            yield
        except BaseException as error:
            raise LookupError("translated") from error


class Refuses:
    """Lets nothing be enqueued."""

    def enqueue(self, call: Call) -> None:
        raise PermissionError(f"not {call.task.name}")


class FailsAtEntry:
    """Lets nothing run."""

    @contextmanager
    def run(self, context: TaskContext):
        if context.job_id:
            raise LookupError("at entry")
        yield


class FailsAtExit:
    """Finds fault with everything afterwards."""

    @contextmanager
    def run(self, context: TaskContext):
        yield
        raise LookupError("at exit")


class Snoozes:
    """Has everything wait for a minute."""

    @contextmanager
    def run(self, context: TaskContext):
        if context.job_id:
            raise Snooze(60, "maintenance")
        yield


class SetsHeaders:
    """Sets the headers that a test says."""

    headers: Any = {}

    def enqueue(self, call: Call) -> None:
        call.headers = self.headers


# ------------------------------------------------------------------ of the wrong shape

number = 7


class Nothing:
    """Has none of the methods."""


class NoManager:
    """Forgot the decorator."""

    def run(self, context: TaskContext):
        yield


class NoAsyncManager(Swallows):
    """Forgot the other decorator."""

    async def arun(self, context: TaskContext):
        yield


class OnlyAsync:
    """Leaves the other tasks alone."""

    @asynccontextmanager
    async def arun(self, context: TaskContext):
        yield


class AsyncEnqueue:
    """Would never be awaited."""

    async def enqueue(self, call: Call) -> None:
        """Do nothing."""


class NoMethod:
    """Has something else of that name."""

    run = 7


class NeedsArguments(Outer):
    """Cannot be made."""

    def __init__(self, name: str) -> None:
        self.name = name


class ReturnsNothing:
    """Looks right until it is called."""

    def run(self, context: TaskContext) -> None:
        """Do nothing."""
