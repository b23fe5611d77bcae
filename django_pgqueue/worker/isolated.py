"""One claimed job that runs in a process of its own, as the slot sees it that waits for it."""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Final

from django_pgqueue import registry

from . import policy
from .cell import Cell, CellDied, CellKilled
from .giving_up import CANCELLED, given_up
from .leases import how_it_died
from .report import Ending, Report

if TYPE_CHECKING:
    from django_pgqueue.lifecycle import Claimed

    from .thread_slot import ThreadSlot

logger = logging.getLogger("django_pgqueue.worker")

NO_PROCESS_PAUSE_SECONDS: Final = 1.0
NO_PROCESS_DELAY_SECONDS: Final = 5.0
"""How long a job is left that no process could be started for."""


class IsolatedAttempt:
    """The counterpart of `Attempt`: the same questions, answered by another process."""

    def __init__(self, claimed: Claimed, slot: ThreadSlot) -> None:
        self.claimed = claimed
        self.slot = slot
        self.interrupted = False
        self.timed_out = False
        self.asked = False
        self.cancelled = False
        self.started_at = time.monotonic()

    def run(self) -> Report:
        """Have the job run in this slot's process, a new one if there is none; never raises."""
        try:
            cell = self._cell()
        except OSError as error:
            return self._without_process(error)
        if self.interrupted or self.cancelled:  # while there was no process yet to end
            return self._report(Ending.RELEASED)
        task = registry.get(self.claimed.task_name)
        timeout_seconds = task.timeout_seconds if task is not None else None
        try:
            report = cell.run(self.claimed, timeout_seconds, self.slot.pool.notes, lambda: self.asked)
        except (CellKilled, CellDied) as ended:
            self.slot.close_cell()
            report = self._killed(ended.stack) if isinstance(ended, CellKilled) else self._died(ended.status)
            report.may_be_committed = task is not None and task.atomic
            return report
        if cell.is_worn or self._has_grown(cell):
            self.slot.close_cell()
        return report

    def _cell(self) -> Cell:
        if self.slot.cell is not None and self.slot.cell.has_ended():  # while it was idle, which is no job's fault
            self.slot.close_cell()
        self.slot.cell = self.slot.cell or self.slot.pool.nursery.new_cell()
        return self.slot.cell

    def interrupt(self) -> None:
        """The lease is lost: end the process, and with it what the job does."""
        self.interrupted = True
        cell = self.slot.cell
        if cell is not None:
            cell.kill()

    def ask_to_cancel(self) -> None:
        """Tell the process, whose task may ask."""
        self.asked = True
        if self.slot.cell is not None:
            self.slot.cell.ask_to_cancel()

    def cancel(self) -> None:
        """The job was asked to stop, and has not: end the process."""
        self.asked = self.cancelled = True
        if self.slot.cell is not None:
            self.slot.cell.kill()

    def time_out(self) -> None:
        """Nothing: `run()` itself ends the process at the task's time."""

    def ended_by(self, exception: BaseException) -> Report:
        """Return the report of an attempt that this process, not the task, failed at."""
        return self._report(Ending.RELEASED, str(exception))

    def _killed(self, stack: str) -> Report:
        return given_up(self.claimed, self.started_at, stack=f"Killed at its timeout; where it was:\n{stack}")

    def _died(self, status: int | None) -> Report:
        if self.interrupted:
            return self._report(Ending.RELEASED)
        if self.cancelled:
            return self._report(Ending.CANCELLED, CANCELLED)
        how = "it left no trace" if status is None else how_it_died(os.waitstatus_to_exitcode(status))
        report = self._report(Ending.CRASHED, f"the process of its own that it ran in died ({how})")
        report.delay_seconds = policy.delay_after_crash(policy.as_held(self.claimed))
        return report

    def _without_process(self, error: OSError) -> Report:
        logger.warning("job %s is given back: %s", self.claimed.job_id, error)
        time.sleep(NO_PROCESS_PAUSE_SECONDS)  # the next will fare no better, so not at full speed
        report = self._report(Ending.RELEASED, f"it has to run in a process of its own: {error}")
        report.delay_seconds = NO_PROCESS_DELAY_SECONDS
        return report

    def _report(self, ending: Ending, error: str = "") -> Report:
        return Report(self.claimed, ending, self.started_at, time.monotonic(), error=error)

    def _has_grown(self, cell: Cell) -> bool:
        most = self.slot.pool.options.max_rss_mb
        return most is not None and cell.resident_mib > most
