"""The interface between the pool and its slots: what a slot needs to run jobs and to report them.

`Pool` implements it. The slots know only this page, so a slot can be tested without a pool.
"""

from __future__ import annotations

from typing import Protocol

from django_pgqueue.worker.execution.attempt import Attempt
from django_pgqueue.worker.execution.report import ProgressSink, Report
from django_pgqueue.worker.isolation.isolated_attempt import IsolatedAttempt

from .inflight import InFlight, JobQueue

AnyAttempt = Attempt | IsolatedAttempt


class SlotHost(Protocol):
    """The pool, as its slots see it."""

    alias: str
    in_flight: InFlight
    notes: ProgressSink
    jobs: JobQueue
    """The executions that wait for a thread."""

    def started(self, attempt: AnyAttempt, slot: int) -> None:
        """Record that an attempt starts in this process or in an isolated one."""

    def finished(self, report: Report, slot: int) -> None:
        """Take responsibility for a report, and free the slot of its job."""
