"""The interface between the pool and its slots: what a slot needs to run jobs and to report them.

`Pool` implements it. The slots know only this page, so a slot can be tested without a pool.
"""

from __future__ import annotations

from typing import Protocol

from django_pgqueue.lifecycle.types import Claimed
from django_pgqueue.worker.execution.attempt_plan import AttemptPlan
from django_pgqueue.worker.execution.report import ProgressSink, Report

from .inflight import InFlight, JobQueue


class WaitingAttempt(Protocol):
    """An attempt, as the pool sees it when it starts."""

    @property
    def claimed(self) -> Claimed: ...
    @property
    def plan(self) -> AttemptPlan: ...
    @property
    def runs_here(self) -> bool:
        """Whether the function runs in this process."""


class SlotHost(Protocol):
    """The pool, as its slots see it."""

    @property
    def alias(self) -> str: ...
    @property
    def in_flight(self) -> InFlight: ...
    @property
    def notes(self) -> ProgressSink: ...
    @property
    def jobs(self) -> JobQueue:
        """The executions that wait for a thread."""

    def started(self, attempt: WaitingAttempt, slot: int) -> None:
        """Record that an attempt starts in this process or in an isolated one."""

    def finished(self, report: Report, slot: int) -> None:
        """Take responsibility for a report, and free the slot of its job."""
