"""Run one claimed job in the isolated process of a slot, and wait for it.

Called by `ThreadSlot`, which treats it like an `Attempt`. Other threads call `interrupt()`, `ask_to_cancel()`,
`cancel()` and `time_out()` while `run()` waits.

`SlotProcess` keeps the isolated process of one slot, which runs the slot's isolated jobs one after another. The slot's
thread starts and closes the process; other threads may kill it or ask it to cancel its job. A lock ensures that no
thread signals a process that was closed, because another process may have its pid by then.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Set as AbstractSet
from typing import Final

from django_pgqueue.ground.attempt_ends import CANCELLED, ISOLATED_DIED
from django_pgqueue.ground.endings import Ending
from django_pgqueue.ground.log_events import job_event
from django_pgqueue.lifecycle.types import Claimed
from django_pgqueue.worker.execution import retry_policy
from django_pgqueue.worker.execution.attempt_plan import AttemptPlan
from django_pgqueue.worker.execution.failure import given_up
from django_pgqueue.worker.execution.report import ProgressSink, Report, for_each_job
from django_pgqueue.worker.runtime.exit_functions import EXIT_SECONDS
from django_pgqueue.worker.runtime.process_info import exit_code_text

from .fork_server import ForkServer
from .isolated_process import IsolatedProcess, IsolatedProcessDied, IsolatedProcessKilled

logger = logging.getLogger("django_pgqueue.worker")

LIMIT_SECONDS: Final = EXIT_SECONDS + 1.0
"""An isolated process limits its exit functions itself. A process that takes longer than this is killed."""
POLL_SECONDS: Final = 0.01
NO_PROCESS_BACKOFF_SECONDS: Final = 1.0
NO_PROCESS_DELAY_SECONDS: Final = 5.0
"""The delay of a released job for which no process could be started."""


class EndingProcesses:
    """The ending isolated processes of one worker process. The threads of its slots use it concurrently.

    A slot closes its isolated process without waiting for it. The worker process must wait for these processes before
    it exits, because its exit kills them. It must not wait for a process that hangs.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ending: list[tuple[IsolatedProcess, float]] = []

    def add(self, process: IsolatedProcess) -> None:
        """Watch a process that was asked to end."""
        with self._lock:
            self._ending.append((process, time.monotonic() + LIMIT_SECONDS))
        self.sweep()

    def sweep(self) -> bool:
        """Forget the processes that have ended and kill those over the limit. Return whether all have ended."""
        with self._lock:
            for process, kill_at in list(self._ending):
                if process.has_ended():
                    process.forget()
                    self._ending.remove((process, kill_at))
                elif time.monotonic() > kill_at:
                    process.kill()
            return not self._ending

    def wait(self) -> None:
        """Wait until all have ended, at most `LIMIT_SECONDS`."""
        stop_at = time.monotonic() + LIMIT_SECONDS
        while not self.sweep() and time.monotonic() < stop_at:
            time.sleep(POLL_SECONDS)


class SlotProcess:
    """The isolated process of one slot, if it has one."""

    def __init__(self, fork_server: ForkServer, ending_processes: EndingProcesses, max_rss_mib: float | None) -> None:
        self._fork_server = fork_server
        self._ending_processes = ending_processes
        self._max_rss_mib = max_rss_mib
        self.current: IsolatedProcess | None = None
        self._lock = threading.Lock()

    def get(self) -> IsolatedProcess:
        """Return the process. Start one if there is none or it has ended. Raise `OSError` if that fails.

        A new process first calls the receivers of `worker_process_started`, if there are any. Wait for that here, where
        the time does not count against the timeout of the job.
        """
        if self.current is not None and self.current.has_ended():
            self.close()  # it ended while it was idle, and no job is to blame
        if self.current is None:
            self.current = self._fork_server.start_process()
            if self._fork_server.has_start_receivers and not self.current.has_started():
                self.kill()
                self.close()
                raise OSError("the process ended or hung while it called the receivers of worker_process_started")
        return self.current

    def close(self) -> None:
        """End the process, if there is one, without waiting for its end."""
        with self._lock:
            process, self.current = self.current, None
            if process is not None:
                process.close()
                self._ending_processes.add(process)

    def close_if_unfit(self) -> None:
        """End the process if its next job should not run there: a job has left something behind, or it has grown."""
        process = self.current
        if process is None:
            return
        has_grown = self._max_rss_mib is not None and process.resident_mib > self._max_rss_mib
        if process.is_worn or has_grown:
            self.close()

    def kill(self) -> None:
        """Kill the process, if there is one. Safe from any thread."""
        with self._lock:
            if self.current is not None:
                self.current.kill()

    def ask_to_cancel(self) -> None:
        """Send a cancellation request to the job that runs in the process. Safe from any thread."""
        with self._lock:
            if self.current is not None:
                self.current.ask_to_cancel()

    def stack(self) -> str:
        """Return the stack of the process; "" if there is none or it does not answer in time. Safe from any thread."""
        with self._lock:
            return "" if self.current is None else self.current.stack()


class IsolatedAttempt:
    """The counterpart of `Attempt`, with the same methods, for a job that runs in another process."""

    runs_here = False
    """Not this process runs the job."""
    interrupted = timed_out = asked = cancelled = False

    def __init__(
        self, plan: AttemptPlan, claimed: Claimed, alias: str, process: SlotProcess, notes: ProgressSink
    ) -> None:
        self.plan = plan
        self.claimed = claimed
        self.alias = alias
        self.process = process
        self.notes = notes
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
        report = self._report(Ending.CRASHED, f"{ISOLATED_DIED} ({how})")
        for each in (report, *report.others):
            each.delay_seconds = retry_policy.delay_after_crash(each.claimed, alias=self.alias)
            each.is_exhausted = retry_policy.is_exhausted(each.claimed, None, has_crashed=True)
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
