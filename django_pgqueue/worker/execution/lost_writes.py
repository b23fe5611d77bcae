"""Report an attempt whose writes were rolled back, because its task returned while a transaction was open.

The slots and the foreground run call this after the task's function has returned. It protects one rule: a job does not
succeed if its writes are lost. It becomes dead at once, because another attempt would lose them again.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Final, Protocol

from django_pgqueue.exceptions import Dead
from django_pgqueue.ground.endings import SUCCESSES, Ending
from django_pgqueue.ground.log_events import job_event
from django_pgqueue.lifecycle.types import Claimed

from .report import Report

logger = logging.getLogger("django_pgqueue.worker")

NAMES_LOGGED: Final = 3


class ReturnedAttempt(Protocol):
    """An attempt whose function has returned."""

    claimed: Claimed

    def ended_by(self, exception: BaseException) -> Report:
        """Return the report of an attempt that ended with an exception."""


def report_of_lost_writes(
    attempt: ReturnedAttempt, report: Report, error: Dead, others: Collection[ReturnedAttempt] = ()
) -> Report:
    """Return the report of an attempt after the open transaction of its thread was rolled back.

    A failed attempt keeps its report, because its writes do not count. If the job is completed already, or if one of
    the `others` may have made the writes, the report stays too, and the loss is logged.
    """
    endings = {each.ending for each in (report, *report.others)}
    if not others:
        if not endings & SUCCESSES:
            return report
        if Ending.WRITTEN not in endings:
            return attempt.ended_by(error)
    names = sorted({each.claimed.task_name for each in (attempt, *others)})
    logger.error(
        "job %s%s of %s: %s",
        attempt.claimed.job_id,
        " or another job" if others else "",
        ", ".join(names[:NAMES_LOGGED]),
        error,
        extra=job_event("writes_lost", attempt.claimed),
    )
    return report
