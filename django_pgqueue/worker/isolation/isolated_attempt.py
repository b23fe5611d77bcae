"""Run one claimed job in an isolated process, on behalf of the slot that waits for it.

Called by `ThreadSlot`, which treats it like an `Attempt`. Other threads call `interrupt()`, `ask_to_cancel()`,
`cancel()` and `time_out()` while `run()` waits.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from django_pgqueue import registry
from django_pgqueue.endings import Ending
from django_pgqueue.worker.execution import retry_policy
from django_pgqueue.worker.execution.report import Report
from django_pgqueue.worker.execution.timeouts import CANCELLED, given_up
from django_pgqueue.worker.runtime.process_info import how_it_died

from .isolated_process import IsolatedProcess, IsolatedProcessDied, IsolatedProcessKilled

if TYPE_CHECKING:
    from django_pgqueue.lifecycle import Claimed
    from django_pgqueue.worker.completion.progress_writer import NoteSink

logger = logging.getLogger("django_pgqueue.worker")

NO_PROCESS_BACKOFF_SECONDS: Final = 1.0
NO_PROCESS_DELAY_SECONDS: Final = 5.0
"""The delay of a released job for which no process could be started."""


class IsolatingSlot(Protocol):
    """The slot that waits for an isolated attempt, as the attempt uses it."""

    isolated_process: IsolatedProcess | None

    def close_isolated_process(self) -> None:
        """End the isolated process, if there is one."""


class IsolatedAttempt:
    """The counterpart of `Attempt`, with the same methods, for a job that runs in another process."""

    def __init__(
        self,
        claimed: Claimed,
        slot: IsolatingSlot,
        notes: NoteSink,
        start_process: Callable[[], IsolatedProcess],
        max_rss_mb: int | None,
    ) -> None:
        self.claimed = claimed
        self.slot = slot
        self._notes = notes
        self._start_process = start_process
        self._max_rss_mb = max_rss_mb
        self.interrupted = False
        self.timed_out = False
        self.asked = False
        self.cancelled = False
        self.started_at = time.monotonic()

    def run(self) -> Report:
        """Run the job in this slot's process and return its report. Start a process if necessary. Never raises."""
        try:
            isolated_process = self._slot_process()
        except OSError as error:
            return self._report_without_process(error)
        if self.interrupted or self.cancelled:  # before there was a process that could be killed
            return self._report(Ending.RELEASED)
        task = registry.get(self.claimed.task_name)
        timeout_seconds = task.timeout_seconds if task is not None else None
        try:
            report = isolated_process.run(self.claimed, timeout_seconds, self._notes, lambda: self.asked)
        except (IsolatedProcessKilled, IsolatedProcessDied) as ended:
            self.slot.close_isolated_process()
            if isinstance(ended, IsolatedProcessKilled):
                report = self._report_killed(ended.stack)
            else:
                report = self._report_died(ended.status)
            report.may_be_committed = task is not None and task.atomic
            return report
        has_grown = self._max_rss_mb is not None and isolated_process.resident_mib > self._max_rss_mb
        if isolated_process.is_worn or has_grown:
            self.slot.close_isolated_process()
        return report

    def _slot_process(self) -> IsolatedProcess:
        """Return the slot's isolated process, or a new one if it has none or that has ended."""
        if self.slot.isolated_process is not None and self.slot.isolated_process.has_ended():
            self.slot.close_isolated_process()  # it ended while it was idle, and no job is to blame
        self.slot.isolated_process = self.slot.isolated_process or self._start_process()
        return self.slot.isolated_process

    def interrupt(self) -> None:
        """Kill the process, and with it the job, because the lease is lost."""
        self.interrupted = True
        isolated_process = self.slot.isolated_process
        if isolated_process is not None:
            isolated_process.kill()

    def ask_to_cancel(self) -> None:
        """Send the cancellation request to the process. The task sees it when it asks its context."""
        self.asked = True
        if self.slot.isolated_process is not None:
            self.slot.isolated_process.ask_to_cancel()

    def cancel(self) -> None:
        """Kill the process, because the job has not stopped after a cancellation request."""
        self.asked = self.cancelled = True
        if self.slot.isolated_process is not None:
            self.slot.isolated_process.kill()

    def time_out(self) -> None:
        """Do nothing: `run()` itself kills the process at the task's timeout."""

    def ended_by(self, exception: BaseException) -> Report:
        """Return the report of an attempt that failed in this process, not in the task."""
        return self._report(Ending.RELEASED, str(exception))

    def _report_killed(self, stack: str) -> Report:
        return given_up(self.claimed, self.started_at, stack=f"Killed at its timeout. Stack at that time:\n{stack}")

    def _report_died(self, status: int | None) -> Report:
        if self.interrupted:
            return self._report(Ending.RELEASED)
        if self.cancelled:
            return self._report(Ending.CANCELLED, CANCELLED)
        how = "its exit status is unknown" if status is None else how_it_died(os.waitstatus_to_exitcode(status))
        report = self._report(Ending.CRASHED, f"the job's isolated process died ({how})")
        report.delay_seconds = retry_policy.delay_after_crash(retry_policy.as_held(self.claimed))
        return report

    def _report_without_process(self, error: OSError) -> Report:
        logger.warning("job %s is released: %s", self.claimed.job_id, error)
        time.sleep(NO_PROCESS_BACKOFF_SECONDS)  # the next job would fail too: do not release jobs at full speed
        report = self._report(Ending.RELEASED, f"the job needs an isolated process: {error}")
        report.delay_seconds = NO_PROCESS_DELAY_SECONDS
        return report

    def _report(self, ending: Ending, error: str = "") -> Report:
        return Report(self.claimed, ending, self.started_at, time.monotonic(), error=error)
