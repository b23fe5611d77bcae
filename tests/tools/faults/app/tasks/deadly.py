"""Tasks that never end, or end their process, where a timeout and a process of their own are the answer."""

from __future__ import annotations

import ctypes
import re
import time
from contextlib import suppress

from django_pgqueue import TaskContext, task
from tests.app.tasks import end_process
from tests.tools.faults.app.tasks import body

TIMEOUT_SECONDS = 1.0


@task(takes_context=True, isolation="process", backoff=0)
def die(context: TaskContext, tag: str = "", how: str = "segfault") -> None:
    """End the process, one way or another."""
    with body(context, "die"):
        end_process(how)


@task(takes_context=True, isolation="process", backoff=0)
def swallow_memory(context: TaskContext, tag: str = "") -> None:
    """Take memory until the kernel objects."""
    with body(context, "swallow_memory"):
        taken = []
        while True:
            taken.append(bytearray(b"x") * 20_000_000)


def never_end(how: str) -> None:
    """Go on for ever, one way or another."""
    match how:
        case "a loop":
            while True:
                sum(range(1000))
        case "one call in C":
            re.match("(a+)+$", "a" * 60 + "b")
        case "a sleep":
            time.sleep(1e6)
        case "C that keeps the interpreter":
            ctypes.PyDLL(None).sleep(100_000)
        case _:
            raise ValueError(how)


@task(takes_context=True, timeout=TIMEOUT_SECONDS)
def endless(context: TaskContext, tag: str = "", how: str = "a loop") -> None:
    """Never end, in a thread."""
    with body(context, "endless"):
        never_end(how)


@task(takes_context=True, timeout=TIMEOUT_SECONDS, isolation="process")
def endless_alone(context: TaskContext, tag: str = "", how: str = "a loop") -> None:
    """Never end, in a process of its own."""
    with body(context, "endless_alone"):
        never_end(how)


@task(takes_context=True, backoff=0)
def unmoved(context: TaskContext, tag: str = "") -> None:
    """Swallow whatever is thrown in, for ever."""
    with body(context, "unmoved"):
        while True:
            with suppress(BaseException):
                time.sleep(0.05)


@task(takes_context=True, backoff=0, isolation="process")
def unmoved_alone(context: TaskContext, tag: str = "") -> None:
    """The same in a process of its own."""
    with body(context, "unmoved_alone"):
        while True:
            with suppress(BaseException):
                time.sleep(0.05)
