"""Tasks that take their worker down, or try to."""

from __future__ import annotations

import time

from django_pgqueue import TaskContext, task
from tests.faults.app.tasks import body


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
