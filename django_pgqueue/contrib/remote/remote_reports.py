"""Write over HTTP how executions ended: the thread of a remote worker that sends reports.

The slots hand reports over. It protects one rule: a report is kept, and its lease extended, until the server has
answered. The server answers a repeated report as "already", so a lost answer does no harm.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from django_pgqueue.exceptions import ResultNotStored
from django_pgqueue.ground.endings import ENDINGS, SUCCESSES, Ending
from django_pgqueue.ground.log_events import job_event
from django_pgqueue.lifecycle.types import TransitionResult, TransitionStatus
from django_pgqueue.reactions import JobTransition
from django_pgqueue.states import Outcome, State
from django_pgqueue.worker.execution.error_text import class_path
from django_pgqueue.worker.execution.job_events import Events

from .client import RemoteClient
from .job_json import request_of
from .remote_services import BATCH, RemoteLeases, RemoteService

if TYPE_CHECKING:
    from django_pgqueue.worker.execution.report import Report

logger = logging.getLogger("django_pgqueue.worker")

LINES: Final = Events(lambda signal, task_name, about: None)
"""Writes the log line of each attempt, and sends no signals: the server has sent them."""
STATES: Final = {
    Outcome.SUCCEEDED: State.SUCCEEDED,
    Outcome.CANCELLED: State.CANCELLED,
    Outcome.RELEASED: State.READY,
    Outcome.SNOOZED: State.READY,
}
"""The state of a job after its attempt. After a failure it depends on the delay."""
SHORT_ERROR: Final = 1000
"""Characters of an error that are left of a report which is too large. It has no traceback then."""
FIRST_PAUSE_SECONDS: Final = 0.2
LONGEST_PAUSE_SECONDS: Final = 5.0
"""How long to wait before reports are sent again that could not be written. The time doubles."""


class Reports(RemoteService):
    """Write how executions ended. A report is kept until the server has answered."""

    def __init__(self, client: RemoteClient, leases: RemoteLeases, alias: str) -> None:
        super().__init__("remote-reports")
        self._alias = alias
        self._client = client
        self._leases = leases
        self._reports: dict[int, Report] = {}
        self._pause_seconds = FIRST_PAUSE_SECONDS

    def __len__(self) -> int:
        return len(self._reports)

    def hand_over(self, report: Report) -> None:
        """Take over a report. Safe from any thread."""
        self._reports[report.claimed.execution_id] = report
        self.wake()

    def send(self) -> float:
        """Write all reports that were handed over, in batches of one operation."""
        batches: defaultdict[str, list[tuple[Report, dict[str, Any]]]] = defaultdict(list)
        for execution_id, report in list(self._reports.items()):
            path, item = request_of(report)
            handle = self._leases.handles.get(execution_id, "")
            batches[path].append((report, {"execution": handle} | item))
        is_any_left = False
        for path, entries in batches.items():
            for start in range(0, len(entries), BATCH):
                batch = entries[start : start + BATCH]
                results = getattr(self._client, path)([item for _, item in batch])
                is_any_left |= len(results) < len(batch)
                for (report, _), result in zip(batch, results, strict=False):  # an error ends the results
                    is_any_left |= not self._settle(report, result)
        if not is_any_left:
            self._pause_seconds = FIRST_PAUSE_SECONDS
            return 60.0
        pause_seconds, self._pause_seconds = self._pause_seconds, min(2 * self._pause_seconds, LONGEST_PAUSE_SECONDS)
        return pause_seconds

    def _settle(self, report: Report, result: dict[str, Any]) -> bool:
        """Forget a report that the server has answered. Return False if it must be sent again."""
        claimed = report.claimed
        if result["result"] == "locked":
            return False
        if result["result"] == "too_large" and report.ending in SUCCESSES:
            self._reports[claimed.execution_id] = _without_result(report)
            return False
        if result["result"] == "too_large" and len(report.error) + len(report.traceback) > SHORT_ERROR:
            self._reports[claimed.execution_id] = replace(report, error=report.error[:SHORT_ERROR], traceback="")
            return False
        if result["result"] in ("lost", "unknown", "refused", "too_large"):
            logger.warning(
                "the server does not accept the result of job %s (%s): %s",
                claimed.job_id,
                report.ending.value,
                result["result"],
                extra=job_event("result_discarded", claimed),
            )
        else:
            LINES.observe(_transition_of(report), self._alias)
        self._reports.pop(claimed.execution_id, None)
        self._leases.handles.pop(claimed.execution_id, None)
        return True


def _without_result(report: Report) -> Report:
    """Return the report of a success whose result the server refuses, as that of a failure. No retry would help."""
    error = "the task succeeded, but its result cannot be stored: it is larger than a request to the server may be"
    return replace(
        report,
        ending=Ending.FAILED,
        result=None,
        error=error,
        exception_class=class_path(ResultNotStored()),
        delay_seconds=None,
    )


def _transition_of(report: Report) -> JobTransition:
    """Return what became of a job, for its log line."""
    outcome, claimed = ENDINGS[report.ending].outcome, report.claimed
    state = STATES.get(outcome, State.DEAD if report.delay_seconds is None else State.READY)
    return JobTransition(
        claimed.job_id,
        claimed.task_name,
        TransitionResult(TransitionStatus.DONE, state),
        report.ending,
        report.error,
        report.exception,
        report.delay_seconds,
        exception_class=report.exception_class,
        traceback=report.traceback,
        details={
            "execution_id": claimed.execution_id,
            "queue_name": claimed.queue_name,
            "attempt": claimed.attempt,
            "duration_seconds": report.duration_seconds,
        },
    )
