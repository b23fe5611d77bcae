"""Run jobs one after another in one thread of the pool.

`Pool` starts one `ThreadSlot` for each unit of concurrency. The thread runs ordinary jobs itself and waits for the
isolated process of an isolated job. Other threads stop its job by raising an exception in it, under `_guard`: the
exception hits exactly that job or no job. Each job is reported once, by this thread or by `give_up()`.
"""

from __future__ import annotations

import ctypes
import logging
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from contextvars import Context
from queue import Empty
from typing import Final

from django_pgqueue.exceptions import Dead, LeaseLost, TaskCancelled, TaskTimeout
from django_pgqueue.ground.attempt_ends import STACK_OF_RUNNING
from django_pgqueue.ground.log_events import job_event
from django_pgqueue.lifecycle.types import Claimed
from django_pgqueue.worker.execution import error_text
from django_pgqueue.worker.execution.attempt import Attempt
from django_pgqueue.worker.execution.attempt_plan import AttemptPlan
from django_pgqueue.worker.execution.chunk_attempt import planned_attempt
from django_pgqueue.worker.execution.failure import given_up
from django_pgqueue.worker.execution.lost_writes import report_of_lost_writes
from django_pgqueue.worker.execution.report import STOPS, Report, last_resort
from django_pgqueue.worker.isolation.isolated_attempt import IsolatedAttempt, SlotProcess
from django_pgqueue.worker.runtime import django_connections

from . import query_cancel
from .deadlines import RETRY_SECONDS
from .host import AnyAttempt, SlotHost
from .inflight import QueuedJob
from .interruption import begin_time_slice, may_interrupt
from .stacks import stack_of_thread

logger = logging.getLogger("django_pgqueue.worker")

INTERRUPT_TRIES: Final = 20
IDLE_PROCESS_SECONDS: Final = 60.0
"""How long an idle isolated process is kept for the next isolated job."""


class ThreadSlot(threading.Thread):
    """A thread that runs one job after another, or waits for the isolated process that runs one."""

    def __init__(self, host: SlotHost, slot: int, process: SlotProcess) -> None:
        super().__init__(name=f"pgqueue-job-{slot}", daemon=True)
        self.host = host
        self.slot = slot
        self.process = process
        self.attempt: AnyAttempt | None = None
        self._given_up = False
        self._context = Context()
        self._connections: Sequence[object] = ()
        """The connections of this thread. While it is empty, nothing needs to be cleaned before and after a job."""
        self._are_open = False
        """Whether one of them was still open after the last job."""
        self._guard = threading.Lock()
        """Held to start and end an attempt, and to raise an exception in it. Without it the next job could be hit."""
        self._sleep = threading.Lock()
        """Acquired by this thread. It sleeps until `JobQueue` releases the lock."""
        self._sleep.acquire()

    def run(self) -> None:
        """Run jobs until `None` arrives in the queue or this thread is abandoned."""
        self._context, self._connections = django_connections.clean_context(), django_connections.watched_here()
        in_flight = self.host.in_flight
        try:
            while not self._given_up and (queued := self._next()) is not None:
                execution_id, plan = queued
                claimed = in_flight.start(execution_id, self.slot, wait=True)
                if claimed is not None:
                    self._run_one(claimed, plan)
        finally:
            self.process.close()
            django_connections.close_all()
            query_cancel.forget(threading.get_ident())

    def _next(self) -> QueuedJob | None:
        """Wait for an execution. Meanwhile close the connections and the isolated process that are not needed."""
        jobs = self.host.jobs
        try:
            return jobs.queued.popleft()  # as `get()` would, which would be one more call for each job
        except IndexError:
            pass  # wait
        if self._are_open:
            try:
                return jobs.get(self._sleep, django_connections.IDLE_SECONDS)
            except Empty:
                django_connections.close_idle()
                self._are_open = False
        while self.process.current is not None:
            try:
                return jobs.get(self._sleep, IDLE_PROCESS_SECONDS)
            except Empty:
                self.process.close()
        return jobs.get(self._sleep)

    def close_idle_process(self) -> None:
        """End the isolated process, if there is one and it runs no job."""
        if not isinstance(self.attempt, IsolatedAttempt):
            self.process.close()

    # ---------------------------------------------------------------- from other threads

    def interrupt(self, execution_id: int) -> None:
        """Stop the job, if it runs here, because its lease is lost. C code notices when it returns to Python."""
        for _ in range(INTERRUPT_TRIES):
            with self._guard:
                if not self._is_running(execution_id):
                    return
                self.attempt.interrupt()  # type: ignore[union-attr]  # it runs
                if self._raise_in_thread(LeaseLost):
                    return
            time.sleep(RETRY_SECONDS)

    def time_out(self, execution_id: int) -> bool:
        """Stop the job, if it runs here, because of its timeout. Return False if the caller must try again."""
        return self._end_attempt(execution_id, TaskTimeout)

    def ask_to_cancel(self, execution_id: int, of_chunk: AbstractSet[int]) -> bool:
        """Set the job's cancellation flag, or of a chunk the flags of these executions. Return whether it runs here."""
        with self._guard:
            runs = self._is_running(execution_id)
            if runs:
                self.attempt.ask_to_cancel(of_chunk)  # type: ignore[union-attr]  # it runs
            return runs

    def cancel(self, execution_id: int) -> bool:
        """Stop the job, if it runs here, after its cancellation grace. Return False if the caller must try again."""
        return self._end_attempt(execution_id, TaskCancelled)

    def _end_attempt(self, execution_id: int, exception: type[TaskTimeout | TaskCancelled]) -> bool:
        """Raise `exception` in this thread and cancel a query that the thread waits for.

        Return False if the thread is at a point where nothing may be raised.
        """
        with self._guard:
            if not self._is_running(execution_id):
                return True
            if not self._raise_in_thread(exception):
                return False
            attempt: AnyAttempt = self.attempt  # type: ignore[assignment]  # it runs
            if exception is TaskTimeout:
                attempt.time_out()
            else:
                attempt.cancel()
            query_cancel.cancel_queries(self.ident or 0)
            return True

    def give_up(self, execution_id: int) -> Report | None:
        """Abandon the job and this thread, and return the report in its place; None if the job has ended.

        The thread itself reports nothing from now on.
        """
        with self._guard:
            attempt = self.attempt
            if attempt is None or not self._is_running(execution_id):
                return None
            self._given_up = True
            frame = sys._current_frames().get(self.ident or 0)
            stack = "".join(traceback.format_stack(frame)) if frame else ""
            text = f"{STACK_OF_RUNNING}\n{stack}"
            # Decide by the request, not by a raised exception: none can be raised in a thread that waits for a log
            # handler's lock.
            is_cancelled = attempt.asked and not attempt.timed_out
            alias = self.host.alias
            return given_up(attempt.claimed, attempt.started_at, alias=alias, stack=text, cancelled=is_cancelled)

    def stack_of(self, execution_id: int) -> str | None:
        """Return the stack of the job, or of its isolated process; None if it does not run here."""
        with self._guard:
            if not self._is_running(execution_id):
                return None
            if isinstance(self.attempt, Attempt):
                return stack_of_thread(self.ident)
        stack = self.process.stack()  # without the guard: it waits for the process, and the job may end meanwhile
        return stack if self._is_running(execution_id) else None

    def _is_running(self, execution_id: int) -> bool:
        return self.attempt is not None and self.attempt.claimed.execution_id == execution_id

    def _raise_in_thread(self, exception: type[BaseException]) -> bool:
        """Raise an exception in this thread and return True.

        Return False if that would leave a lock locked that all threads need.
        """
        if isinstance(self.attempt, Attempt):  # an isolated job stops when its process is killed
            begin_time_slice()
            if not may_interrupt(sys._current_frames().get(self.ident or 0)):
                return False
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.ident or 0), ctypes.py_object(exception))
        return True

    # ---------------------------------------------------------------- one job

    def _run_one(self, claimed: Claimed, plan: AttemptPlan) -> None:
        attempt = self._attempt(claimed, plan)
        try:
            report = self._guarded(attempt)
        except BaseException:  # noqa: BLE001 -- the job must get a report in any case
            self._detach()
            report = last_resort(claimed, attempt.started_at)
        report = self._clean_up(attempt, report)
        if self._given_up:
            logger.warning(
                "job %s had been abandoned and has now ended; its result does not count",
                claimed.job_id,
                extra=job_event("abandoned_job_ended", claimed),
            )
            return
        self.host.finished(report, self.slot)

    def _attempt(self, claimed: Claimed, plan: AttemptPlan) -> AnyAttempt:
        """Return an attempt in this thread, or in an isolated process: by the plan, or after a crash."""
        if plan.is_isolated or claimed.isolated:
            return IsolatedAttempt(plan, claimed, self.host.alias, self.process, self.host.notes)
        return planned_attempt(plan, claimed, self.host.alias, self.host.notes)

    def _guarded(self, attempt: AnyAttempt) -> Report:
        """Run an attempt and return its first report. Catch the exceptions that other threads raise at any moment."""
        reports: list[Report] = []
        try:
            try:
                try:
                    self.attempt = attempt
                    self.host.started(attempt, self.slot)
                    if self._connections:
                        django_connections.before_job()
                    reports.append(self._context.copy().run(attempt.run))
                    self._detach()
                except STOPS as exception:  # raised before the task's function began, or after it ended
                    self._detach()
                    reports.append(attempt.ended_by(exception))
            except STOPS as exception:  # a second one of the three, raised while the first was being caught
                self._detach()
                reports.append(attempt.ended_by(exception))
        except STOPS as exception:  # the third
            self._detach()
            reports.append(attempt.ended_by(exception))
        except BaseException as error:  # noqa: BLE001 -- closing a connection may fail too
            self._detach()
            reports.append(attempt.ended_by(error))
        return reports[0]

    def _detach(self) -> None:
        """Detach the attempt: from now on no exception is raised in this thread."""
        with self._guard:
            self.attempt = None

    def _clean_up(self, attempt: AnyAttempt, report: Report) -> Report:
        """Clean up this thread's connections. Return the report, or another one if writes were rolled back."""
        try:
            if attempt.interrupted or attempt.timed_out or attempt.cancelled:
                # The exception may have interrupted the database driver in the middle of an operation.
                django_connections.close_all()
                self._are_open = False
            elif self._connections:
                self._are_open = django_connections.after_job()
        except Dead as error:
            self._are_open = True
            return report_of_lost_writes(attempt, report, error)
        except BaseException as error:  # noqa: BLE001 -- closing runs the code of a database backend
            self._are_open = True
            extra = job_event("job_cleanup_failed", attempt.claimed)
            error_text.log_exception(f"cleaning up after job {attempt.claimed.job_id} failed", error, extra=extra)
        return report
