"""One thread of the pool, that runs one job after another."""

from __future__ import annotations

import ctypes
import logging
import sys
import threading
import time
import traceback
from contextvars import Context
from queue import Empty
from typing import TYPE_CHECKING, Final

from django_pgqueue import registry
from django_pgqueue.exceptions import LeaseLost, TaskCancelled, TaskTimeout

from . import cancelling, describe, hygiene
from .deadlines import AGAIN_SECONDS
from .executor import Attempt
from .giving_up import given_up
from .interruption import begin_time_slice, may_interrupt
from .isolated import IsolatedAttempt
from .report import STOPS, last_resort

if TYPE_CHECKING:
    from django_pgqueue.lifecycle import Claimed

    from .cell import Cell
    from .pool import Pool
    from .report import Report

logger = logging.getLogger("django_pgqueue.worker")

INTERRUPT_TRIES: Final = 20
CELL_IDLE_SECONDS: Final = 60.0
"""How long a process for isolated jobs is kept for the next one."""


class ThreadSlot(threading.Thread):
    """One thread that runs one job after another, or waits for the process that runs an isolated one."""

    def __init__(self, pool: Pool, slot: int) -> None:
        super().__init__(name=f"pgqueue-job-{slot}", daemon=True)
        self.pool = pool
        self.slot = slot
        self.attempt: Attempt | IsolatedAttempt | None = None
        self.cell: Cell | None = None
        """The process that isolated jobs of this slot run in, one after another."""
        self._given_up = False
        self._context = Context()
        self._guard = threading.Lock()
        """Held to start and end an attempt, and to throw an exception into it: it hits that job or none."""

    def run(self) -> None:
        """Run jobs until told to end, or given up."""
        self._context = hygiene.clean_context()
        try:
            while not self._given_up and (execution_id := self._next()) is not None:
                claimed = self.pool.hand.start(execution_id, self.slot, wait=True)
                if claimed is not None:
                    self._run_one(claimed)
        finally:
            self.close_cell()
            hygiene.close_all()
            cancelling.forget(threading.get_ident())

    def _next(self) -> int | None:
        while self.cell is not None:
            try:
                return self.pool.jobs.get(timeout=CELL_IDLE_SECONDS)
            except Empty:
                self.close_cell()
        return self.pool.jobs.get()

    def close_cell(self) -> None:
        """End the process for isolated jobs, if there is one."""
        with self._guard:  # nobody is to signal it any more
            cell, self.cell = self.cell, None
            if cell is not None:
                cell.close()
                self.pool.ending_processes.add(cell)

    # ---------------------------------------------------------------- from other threads

    def interrupt(self, execution_id: int) -> None:
        """Make that job stop, if it runs here, for its lease is lost; C code sees it when it returns to Python."""
        for _ in range(INTERRUPT_TRIES):
            with self._guard:
                if not self._runs(execution_id):
                    return
                self.attempt.interrupt()  # type: ignore[union-attr]  # it runs
                if self._throw(LeaseLost):
                    return
            time.sleep(AGAIN_SECONDS)

    def time_out(self, execution_id: int) -> bool:
        """Make that job stop, if it runs here, for its time is over; False if it has to be tried again."""
        return self._end_attempt(execution_id, TaskTimeout)

    def ask_to_cancel(self, execution_id: int) -> bool:
        """Tell that job that somebody wants it cancelled; say whether it runs here."""
        with self._guard:
            runs = self._runs(execution_id)
            if runs:
                self.attempt.ask_to_cancel()  # type: ignore[union-attr]  # it runs
            return runs

    def cancel(self, execution_id: int) -> bool:
        """Make that job stop, if it runs here, for it was asked to and has not; False if it has to be tried again."""
        return self._end_attempt(execution_id, TaskCancelled)

    def _end_attempt(self, execution_id: int, exception: type[TaskTimeout | TaskCancelled]) -> bool:
        """Raise it in this thread, and cancel a query that it waits for; False if nothing can be thrown just now."""
        with self._guard:
            if not self._runs(execution_id):
                return True
            if not self._throw(exception):
                return False
            attempt: Attempt | IsolatedAttempt = self.attempt  # type: ignore[assignment]  # it runs
            if exception is TaskTimeout:
                attempt.time_out()
            else:
                attempt.cancel()
            cancelling.cancel_queries(self.ident or 0)
            return True

    def give_up(self, execution_id: int) -> Report | None:
        """Leave that job to itself, if it still runs here: this thread reports no more; return its report instead."""
        with self._guard:
            attempt = self.attempt
            if attempt is None or not self._runs(execution_id):
                return None
            self._given_up = True
            frame = sys._current_frames().get(self.ident or 0)
            stack = "".join(traceback.format_stack(frame)) if frame else ""
            words = f"Where it was, 5 s after its time:\n{stack}"
            # Asked, and not by what was thrown: nothing can be into who waits for a log handler's lock.
            is_cancelled = attempt.asked and not attempt.timed_out
            return given_up(attempt.claimed, attempt.started_at, stack=words, cancelled=is_cancelled)

    def _runs(self, execution_id: int) -> bool:
        return self.attempt is not None and self.attempt.claimed.execution_id == execution_id

    def _throw(self, exception: type[BaseException]) -> bool:
        """Raise an exception in this thread, unless a lock of all threads would stay locked by that; say whether."""
        if isinstance(self.attempt, Attempt):  # an isolated one stops by losing its process
            begin_time_slice()
            if not may_interrupt(sys._current_frames().get(self.ident or 0)):
                return False
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.ident or 0), ctypes.py_object(exception))
        return True

    # ---------------------------------------------------------------- one job

    def _run_one(self, claimed: Claimed) -> None:
        attempt = self._attempt(claimed)
        try:
            report = self._guarded(attempt)
        except BaseException:  # noqa: BLE001 -- the job is to end all the same
            self._leave()
            report = last_resort(claimed, attempt.started_at)
        self._clean_up(attempt)
        if self._given_up:
            logger.warning("job %s, left to itself, has ended after all; it does not count", claimed.job_id)
            return
        # Handed over before it leaves the hand: at each moment somebody answers for the execution.
        self.pool.hand_over(report)
        self.pool.ended(claimed.execution_id, self.slot)

    def _attempt(self, claimed: Claimed) -> Attempt | IsolatedAttempt:
        if self.pool.isolates(claimed, registry.get(claimed.task_name)):
            return IsolatedAttempt(claimed, self)
        return Attempt(claimed, self.pool.alias, self.pool.notes)

    def _guarded(self, attempt: Attempt | IsolatedAttempt) -> Report:
        """Run an attempt, and catch what is thrown into it at whatever moment; return its first end."""
        ends: list[Report] = []
        try:
            try:
                try:
                    self.attempt = attempt
                    self.pool.started(attempt.claimed, self.slot, here=isinstance(attempt, Attempt))
                    hygiene.before_job()
                    ends.append(self._context.copy().run(attempt.run))
                    self._leave()
                except STOPS as thrown:  # in after the task's function had ended, or before it began
                    self._leave()
                    ends.append(attempt.ended_by(thrown))
            except STOPS as thrown:  # another of the three, while the first was being caught
                self._leave()
                ends.append(attempt.ended_by(thrown))
        except STOPS as thrown:  # and the last
            self._leave()
            ends.append(attempt.ended_by(thrown))
        except BaseException as error:  # noqa: BLE001 -- a connection that cannot even be closed
            self._leave()
            ends.append(attempt.ended_by(error))
        return ends[0]

    def _leave(self) -> None:
        """From here on nothing is thrown."""
        with self._guard:
            self.attempt = None

    def _clean_up(self, attempt: Attempt | IsolatedAttempt) -> None:
        try:
            if (
                attempt.interrupted or attempt.timed_out or attempt.cancelled
            ):  # the exception may have hit the driver in mid-air
                hygiene.close_all()
            else:
                hygiene.after_job()
        except BaseException as error:  # noqa: BLE001 -- closing runs the code of a database backend
            describe.log_exception(f"cleaning up after job {attempt.claimed.job_id} failed", error)
