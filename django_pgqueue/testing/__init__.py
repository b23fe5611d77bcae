"""The testing kit: real rows and statements, in the test's own thread and transaction.

`ImmediateBackend` and `DummyBackend` are Django's, for TASKS, with tasks that take this package's options.
"""

from typing import Any

from .asserting import assert_enqueued, assert_not_enqueued, capture_jobs, enqueued
from .clock import time_travel
from .running import run_jobs

__all__ = [
    "DummyBackend",
    "ImmediateBackend",
    "assert_enqueued",
    "assert_not_enqueued",
    "capture_jobs",
    "enqueued",
    "run_jobs",
    "time_travel",
]


def __getattr__(name: str) -> Any:
    """Import what needs a tasks framework only where it is asked for: on Django 5.2 that is another package's."""
    if name not in ("DummyBackend", "ImmediateBackend"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import backends

    return getattr(backends, name)
