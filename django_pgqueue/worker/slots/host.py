"""The interface between the pool and its slots: what a slot needs to run jobs and to report them.

`Pool` implements it. The slots know only this page, so a slot can be tested without a pool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from django_pgqueue.definition import TaskDefinition
    from django_pgqueue.lifecycle import Claimed
    from django_pgqueue.worker.execution.report import ProgressSink, Report

    from .inflight import InFlight, JobQueue


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

    def isolates(self, claimed: Claimed, task: TaskDefinition | None) -> bool:
        """Return whether a job must run in an isolated process."""

    def started(self, claimed: Claimed, slot: int, *, here: bool = True) -> None:
        """Record that a job starts in this process (`here`) or in an isolated one."""

    def finished(self, report: Report, slot: int) -> None:
        """Take responsibility for a report, and free the slot of its job."""
