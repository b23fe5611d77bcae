"""Test helpers for applications: run jobs, assert what was enqueued, and travel in time.

Tests import the functions from here, or use the pytest fixture `pgqueue`. The functions use the real tables and
statements on the test's own connection, so they work inside `TestCase`, and everything is rolled back with the test.

`ImmediateBackend` and `DummyBackend` are Django's task backends for tests, for use in TASKS. Their tasks accept this
package's options.
"""

from typing import Any

from .assertions import assert_enqueued, assert_not_enqueued, capture_jobs, enqueued
from .clock import time_travel
from .job_runner import delete_all_jobs, run_jobs

__all__ = [
    "DummyBackend",
    "ImmediateBackend",
    "assert_enqueued",
    "assert_not_enqueued",
    "capture_jobs",
    "delete_all_jobs",
    "enqueued",
    "run_jobs",
    "time_travel",
]


def __getattr__(name: str) -> Any:
    """Import the backends on first use, because Django 5.2 has no tasks framework without another package."""
    if name not in ("DummyBackend", "ImmediateBackend"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import backends

    return getattr(backends, name)
