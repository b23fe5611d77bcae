"""Report attempts that did not stop at their timeout or after their cancellation.

The slots call this when they abandon a job, because the attempt itself may never return.
"""

from __future__ import annotations

import time
from typing import Final

from django_pgqueue.exceptions import TaskTimeout
from django_pgqueue.ground.endings import Ending
from django_pgqueue.lifecycle.types import Claimed
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.tasks import registry

from . import error_text, retry_policy
from .report import Report, for_each_job

CANCELLED: Final = "stopped while it ran because the job was cancelled"


def given_up(claimed: Claimed, started_at: float, *, alias: str, stack: str, cancelled: bool = False) -> Report:
    """Return the report of an attempt that did not stop in time, with the stack of its code, or of each job of a chunk.

    `alias` is the database of the job.
    """
    if cancelled:
        error = error_text.storable(
            f"{CANCELLED}, but its code kept running.\n{stack}", get_settings().MAX_TRACEBACK_BYTES
        )
        return for_each_job(
            claimed, lambda job: Report(job, Ending.CANCELLED, started_at, time.monotonic(), error=error)
        )
    timeout = timeout_of(claimed)
    traceback = error_text.storable(stack, get_settings().MAX_TRACEBACK_BYTES)

    def timed_out(job: Claimed) -> Report:
        return Report(
            job,
            Ending.FAILED,
            started_at,
            time.monotonic(),
            delay_seconds=retry_policy.delay_after_failure(job, timeout, alias=alias, in_time=True),
            exception=timeout,
            exception_class=error_text.class_path(timeout),
            error=error_text.message(timeout),
            traceback=traceback,
        )

    return for_each_job(claimed, timed_out)


def timeout_of(claimed: Claimed) -> TaskTimeout:
    task = registry.get(claimed.task_name)
    seconds = (task and task.timeout_seconds) or 0.0
    return TaskTimeout(f"ran for longer than its timeout of {seconds:g} s")
