"""What is reported of an attempt that did not end when it was to."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from django_pgqueue import registry
from django_pgqueue.conf import get_settings
from django_pgqueue.exceptions import TaskTimeout

from . import describe, policy
from .report import Ending, Report

if TYPE_CHECKING:
    from django_pgqueue.lifecycle import Claimed

CANCELLED: Final = "stopped while it ran, for somebody has cancelled the job"


def given_up(claimed: Claimed, started_at: float, *, stack: str, cancelled: bool = False) -> Report:
    """Return the report of an attempt that did not end when it was to, with the stack of what it was doing."""
    if cancelled:
        error = describe.storable(f"{CANCELLED}, and did not end.\n{stack}", get_settings().MAX_TRACEBACK_BYTES)
        return Report(claimed, Ending.CANCELLED, started_at, time.monotonic(), error=error)
    timeout = timeout_of(claimed)
    return Report(
        claimed,
        Ending.FAILED,
        started_at,
        time.monotonic(),
        delay_seconds=policy.delay_after_failure(claimed, timeout, in_time=True),
        exception=timeout,
        exception_class=describe.class_path(timeout),
        error=describe.message(timeout),
        traceback=describe.storable(stack, get_settings().MAX_TRACEBACK_BYTES),
    )


def timeout_of(claimed: Claimed) -> TaskTimeout:
    task = registry.get(claimed.task_name)
    seconds = (task and task.timeout_seconds) or 0.0
    return TaskTimeout(f"ran for longer than its timeout of {seconds:g} s")
