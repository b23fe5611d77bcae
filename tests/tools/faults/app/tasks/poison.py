"""Tasks that take their worker down, or try to, and tasks whose ends are hard to write down."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from django_pgqueue import TaskContext, task
from tests.tools.faults.app.tasks import body


@task(takes_context=True, backoff=0)
def swallow_memory(context: TaskContext, tag: str = "") -> None:
    """Take memory until the kernel objects."""
    with body(context, "swallow_memory"):
        time.sleep(0.3)  # so that neighbours which started beside it have ended
        taken = []
        while True:
            taken.append(bytearray(b"x") * 20_000_000)


@task(takes_context=True, backoff=0)
def too_large(context: TaskContext, tag: str = "") -> None:
    """Ask for more memory than the limit of the address space allows."""
    with body(context, "too_large"):
        bytearray(10**10)


def _overflow_the_stack() -> None:
    sys.setrecursionlimit(10**8)
    nested: list[Any] = []
    for _ in range(10**6):
        nested = [nested]
    repr(nested)


DEATHS: dict[str, Callable[[], Any]] = {
    "segfault": lambda: ctypes.string_at(0),
    "exit 0": lambda: os._exit(0),
    "exit 1": lambda: os._exit(1),
    "abort": os.abort,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stack": _overflow_the_stack,
}


@task(takes_context=True, backoff=0)
def die(context: TaskContext, how: str, tag: str = "") -> None:
    """End the process."""
    with body(context, "die"):
        time.sleep(0.3)  # as above
        DEATHS[how]()


class HostileError(Exception):
    """Cannot even say what it is."""

    def __str__(self) -> str:
        raise ValueError("no")

    __repr__ = __str__

    def __reduce__(self) -> Any:
        raise TypeError("no")


def _cycle() -> BaseException:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    return first


def _recurse() -> BaseException:
    return _recurse()


ERRORS: dict[str, Callable[[], BaseException]] = {
    "SystemExit": lambda: SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "BaseException": lambda: BaseException("bare"),
    "StopIteration": StopIteration,
    "hostile": HostileError,
    "cycle": _cycle,
    "group": lambda: ExceptionGroup("many", [ValueError(number) for number in range(10_000)]),
    "large": lambda: ValueError("x" * 5_000_000),
    "nul": lambda: ValueError("a\0b"),
    "surrogate": lambda: ValueError("a\ud800b"),
    "recursion": _recurse,
}


@task(takes_context=True, backoff=0, max_attempts=2)
def fail_with(context: TaskContext, what: str, tag: str = "") -> None:
    """Raise what a worker may not expect."""
    with body(context, "fail_with"):
        raise ERRORS[what]()


@task(takes_context=True, backoff=0, max_attempts=2)
async def fail_with_async(context: TaskContext, what: str, tag: str = "") -> None:
    """The same on the event loop."""
    with body(context, "fail_with"):
        raise ERRORS[what]()


def _endless() -> list[Any]:
    nested: list[Any] = []
    nested.append(nested)
    return nested


RESULTS: dict[str, Callable[[], Any]] = {
    "set": lambda: {1},
    "nan": lambda: float("nan"),
    "infinity": lambda: [float("inf")],
    "nul": lambda: {"a": "\0"},
    "surrogate": lambda: "\ud800",
    "bytes": lambda: b"x",
    "endless": _endless,
    "large": lambda: "x" * 5_000_000,
    "digits": lambda: 10**5000,
    "object": HostileError,
}


@task(takes_context=True, backoff=0, max_attempts=2)
def return_what(context: TaskContext, what: str, tag: str = "") -> Any:
    """Return what cannot be stored."""
    with body(context, "return_what"):
        return RESULTS[what]()


BACKOFFS: dict[int, Callable[[], Any]] = {
    1: lambda: 1e308,
    2: lambda: float("nan"),
    3: lambda: -5,
    4: lambda: "soon",
    5: lambda: 1 / 0,
    6: lambda: float("inf"),
}


@task(takes_context=True, backoff=lambda attempt, error: BACKOFFS[int(str(error))]())
def odd_backoff(context: TaskContext, kind: int, tag: str = "") -> None:
    """Fail, with a backoff that makes no sense."""
    with body(context, "odd_backoff"):
        raise RuntimeError(str(kind))


@task(takes_context=True, max_attempts=1000)
def often(context: TaskContext, tag: str = "") -> None:
    """Fail with the ordinary backoff."""
    with body(context, "often"):
        raise RuntimeError("again")
