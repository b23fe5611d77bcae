"""Run one claimed job in the isolated process of a slot, and wait for it.

Called by `ThreadSlot`, which treats it like an `Attempt`. Other threads call `interrupt()`, `ask_to_cancel()`,
`cancel()` and `time_out()` while `run()` waits.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Set as AbstractSet
from typing import Final

from django_pgqueue.ground.endings import Ending
from django_pgqueue.ground.log_events import job_event
from django_pgqueue.lifecycle.types import Claimed
from django_pgqueue.worker.execution import retry_policy
from django_pgqueue.worker.execution.attempt_plan import AttemptPlan
from django_pgqueue.worker.execution.failure import CANCELLED, given_up
from django_pgqueue.worker.execution.report import ProgressSink, Report, for_each_job
from django_pgqueue.worker.runtime.process_info import exit_code_text

from .isolated_process import IsolatedProcessDied, IsolatedProcessKilled
from .slot_process import SlotProcess

logger = logging.getLogger("django_pgqueue.worker")

NO_PROCESS_BACKOFF_SECONDS: Final = 1.0
NO_PROCESS_DELAY_SECONDS: Final = 5.0
"""The delay of a released job for which no process could be started."""


class IsolatedAttempt:
    """The counterpart of `Attempt`, with the same methods, for a job that runs in another process."""

    runs_here = False

    def __init__(
        self,
        plan: AttemptPlan,
        claimed: Claimed,
        alias: str,
        process: SlotProcess,
        notes: ProgressSink,
    ) -> None:
        self.plan = plan
        self.claimed = claimed
        self.alias = alias
        self.process = process
        self.notes = notes
        self.interrupted = False
        self.timed_out = False
        self.asked = False
        self.cancelled = False
        self.started_at = time.monotonic()

    def run(self) -> Report:
        """Run the job in this slot's process and return its report. Start a process if necessary. Never raises."""
        try:
            isolated_process = self.process.get()
        except OSError as error:
            if not (self.interrupted or self.cancelled):  # otherwise the process was killed while it started
                return self._report_without_process(error)
        if self.interrupted or self.cancelled:  # before the job was sent
            return self._report(Ending.RELEASED)
        task = self.plan.task
        try:
            report = isolated_process.run(self.claimed, self.plan.timeout_seconds, self.notes, lambda: self.asked)
        except (IsolatedProcessKilled, IsolatedProcessDied) as ended:
            self.process.close()
            if isinstance(ended, IsolatedProcessKilled):
                report = self._report_killed(ended.stack)
            else:
                report = self._report_died(ended.status)
            for each in (report, *report.others):
                each.may_be_committed = task is not None and task.atomic
            return report
        self.process.close_if_unfit()
        return report

    def interrupt(self) -> None:
        """Kill the process, and with it the job, because the lease is lost."""
        self.interrupted = True
        self.process.kill()

    def ask_to_cancel(self, of_chunk: AbstractSet[int] = frozenset()) -> None:
        """Send the cancellation request to the process. The task sees it when it asks its context.

        Of a chunk, the process can be asked only as a whole.
        """
        if self.claimed.others and not of_chunk >= {job.execution_id for job in self.claimed.members}:
            return
        self.asked = True
        self.process.ask_to_cancel()

    def cancel(self) -> None:
        """Kill the process, because the job has not stopped after a cancellation request."""
        self.asked = self.cancelled = True
        self.process.kill()

    def time_out(self) -> None:
        """Do nothing: `run()` itself kills the process at the task's timeout."""

    def ended_by(self, exception: BaseException) -> Report:
        """Return the report of an attempt that failed in this process, not in the task."""
        return self._report(Ending.RELEASED, str(exception))

    def _report_killed(self, stack: str) -> Report:
        stack = f"Killed at its timeout. Stack at that time:\n{stack}"
        return given_up(self.claimed, self.started_at, alias=self.alias, stack=stack)

    def _report_died(self, status: int | None) -> Report:
        if self.interrupted:
            return self._report(Ending.RELEASED)
        if self.cancelled:
            return self._report(Ending.CANCELLED, CANCELLED)
        how = "its exit status is unknown" if status is None else exit_code_text(os.waitstatus_to_exitcode(status))
        report = self._report(Ending.CRASHED, f"the job's isolated process died ({how})")
        for each in (report, *report.others):
            crashed = retry_policy.as_open_execution(each.claimed)
            each.delay_seconds = retry_policy.delay_after_crash(crashed, alias=self.alias)
        return report

    def _report_without_process(self, error: OSError) -> Report:
        logger.warning(
            "job %s is released: %s", self.claimed.job_id, error, extra=job_event("no_isolated_process", self.claimed)
        )
        time.sleep(NO_PROCESS_BACKOFF_SECONDS)  # the next job would fail too: do not release jobs at full speed
        report = self._report(Ending.RELEASED, f"the job needs an isolated process: {error}")
        for each in (report, *report.others):
            each.delay_seconds = NO_PROCESS_DELAY_SECONDS
        return report

    def _report(self, ending: Ending, error: str = "") -> Report:
        return for_each_job(
            self.claimed, lambda job: Report(job, ending, self.started_at, time.monotonic(), error=error)
        )
