"""Run the jobs of this process in slots.

Ordinary tasks run in threads and coroutine tasks on one event loop. An isolated job runs in a process of its own, and
one of the threads waits for it. At most `concurrency` jobs run at a time, of all kinds together. All asynchronous ORM
calls (`await Model.objects.aget()`) run on one further thread with one connection, which belong to asgiref, because
Django has no asynchronous connections.

`WorkerProcess` owns the pool, the fetcher submits jobs, and the reports go to the completer. Each job that starts gets
exactly one report.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from itertools import groupby
from operator import attrgetter
from typing import Final

from django_pgqueue.ground.endings import NOT_COUNTED
from django_pgqueue.ground.log_events import event, job_event
from django_pgqueue.lifecycle.types import Claimed
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.tasks import registry
from django_pgqueue.worker.execution.attempt_plan import AttemptPlans
from django_pgqueue.worker.execution.report import ProgressSink, Report, last_resort, released
from django_pgqueue.worker.isolation.fork_server import ForkServer
from django_pgqueue.worker.isolation.isolated_attempt import EndingProcesses, SlotProcess
from django_pgqueue.worker.options import Options
from django_pgqueue.worker.runtime.shared_memory import ELSEWHERE, ProcessState

from .deadlines import Deadlines
from .event_loop import LoopSlots
from .host import AnyAttempt
from .inflight import InFlight, JobQueue, QueuedJob, Running
from .loops import Loops
from .thread_slot import ThreadSlot

logger = logging.getLogger("django_pgqueue.worker")

TASK_NAME: Final = attrgetter("task_name")
STUCK_LIMIT: Final = 3
"""Abandoned jobs after which the process is replaced, because their threads may run for ever."""


class Pool:
    """Start jobs in slots and hand over their reports."""

    def __init__(
        self,
        options: Options,
        in_flight: InFlight,
        process_state: ProcessState,
        fork_server: ForkServer,
        hand_over: Callable[[Report], None],
        notes: ProgressSink,
        on_free_slot: Callable[[], None],
    ) -> None:
        """Create the slots. `on_free_slot` is called when a slot has become free and no prefetched job waits for it.

        It is also called when a queue that was full has a free slot again.
        """
        self.options = options
        self.in_flight = in_flight
        self.process_state = process_state
        self.fork_server = fork_server
        self.alias = options.database
        self.concurrency = options.concurrency
        self._plans = AttemptPlans(isolates_all=options.isolation == "process")
        self._hand_over = hand_over
        self.notes = notes
        self._on_free_slot = on_free_slot
        self.jobs = JobQueue()
        self.deadlines = Deadlines(self.time_out, self.cancel, self.give_up)
        self.ending_processes = EndingProcesses()
        self.threads = [self._thread_slot(slot) for slot in range(self.concurrency)]
        self.loops = Loops(self, range(self.concurrency, 2 * self.concurrency), self._release_left)
        self._given_up = 0
        self._is_stopping = False

    @property
    def is_worn(self) -> bool:
        """Whether this process should be replaced: too many abandoned jobs, or the fork server is gone."""
        return self._given_up + self.loops.abandoned >= STUCK_LIMIT or self.fork_server.is_gone

    @property
    def loop(self) -> LoopSlots:
        """The event loop that starts coroutine jobs."""
        return self.loops.current

    def start(self) -> None:
        """Start the threads and the event loop."""
        for thread in self.threads:
            thread.start()
        self.loops.start()

    def submit(self, jobs: Iterable[Claimed]) -> None:
        """Queue jobs that are in `in_flight.waiting`."""
        to_loop: list[QueuedJob] = []
        to_threads: list[QueuedJob] = []
        for name, of_task in groupby(jobs, key=TASK_NAME):
            plan = self._plans.of(name)
            if not plan.uses_loop:
                to_threads += [(claimed.execution_id, plan) for claimed in of_task]
                continue
            for claimed in of_task:
                (to_threads if claimed.isolated else to_loop).append((claimed.execution_id, plan))
        self.jobs.put(to_threads)
        if to_loop:
            self.loops.submit(to_loop)

    def started(self, attempt: AnyAttempt, slot: int) -> None:
        """Record in shared memory that an attempt starts, and watch its timeout if it runs in this process."""
        claimed = attempt.claimed
        timeout_seconds = attempt.plan.timeout_seconds
        queue_slots = self.in_flight.queue_slots
        stop_at = 0.0
        if not attempt.runs_here:
            stop_at = ELSEWHERE
        elif timeout_seconds is not None:
            stop_at = time.monotonic() + timeout_seconds
            self.deadlines.add(claimed.execution_id, stop_at)
        group = 0 if queue_slots is None else queue_slots.number_of(claimed.queue_name)
        self.process_state.started(slot, claimed.execution_id, stop_at, group)

    def finished(self, report: Report, slot: int) -> None:
        """Hand over a report, and free the slot of its job."""
        execution_id = report.claimed.execution_id
        in_flight = self.in_flight
        # In this order: otherwise the lease monitor could find an open execution that no part of this process knows.
        self._hand_over(report)
        if report.ending not in NOT_COUNTED:
            self.process_state.note_ended(slot, execution_id)
        for other in report.others:
            self._hand_over(other)
            if other.ending not in NOT_COUNTED:
                self.process_state.note_ended(slot, other.claimed.execution_id)
        if self.deadlines.watched:
            self.deadlines.remove(execution_id)
        in_flight.end(execution_id)
        self.process_state.ended(slot)
        if slot >= self.concurrency:
            self.loops.free.append(slot)
        if self.loops.waiting:
            self.loops.current.start_waiting()
        if not in_flight.waiting or ((slots := in_flight.queue_slots) and slots.is_awaited(report.claimed.queue_name)):
            self._on_free_slot()

    def stop(self) -> None:
        """Let each slot end after its current job. Prefetched jobs stay in `in_flight`; the caller releases them."""
        self._is_stopping = True
        self.jobs.put([None] * len(self.threads))
        self.loops.stop()

    # ---------------------------------------------------------------- ending what runs

    def interrupt(self, execution_ids: Iterable[int]) -> None:
        """Stop running jobs whose lease is lost: set their flag, raise `LeaseLost` in a thread, cancel a coroutine.

        If only some jobs of a chunk are lost, the others continue. A chunk in one transaction can only end as a whole.
        """
        lost = set(execution_ids)
        for first_id, running in self._running_with(lost).items():
            members = {job.execution_id for job in running.claimed.members}
            task = registry.get(running.claimed.task_name)
            if members <= lost or task is None or task.atomic:
                self._slot(running).interrupt(first_id)
            else:
                self.in_flight.lose(members & lost)

    def close_isolated_processes(self, *, wait: bool) -> None:
        """End the idle isolated processes. With `wait`, wait until they have ended, for a few seconds at most."""
        for thread in self.threads:
            thread.close_idle_process()
        if wait:
            self.ending_processes.wait()

    def time_out(self, execution_id: int) -> bool:
        """Stop a running job because of its timeout: raise `TaskTimeout` in a thread, cancel a coroutine.

        Return False if the caller must try again.
        """
        slot = self._slot_of(execution_id)
        return slot is None or slot.time_out(execution_id)

    def ask_to_cancel(self, execution_ids: Iterable[int]) -> set[int]:
        """Ask running jobs to stop. A coroutine is cancelled now; a thread has `CANCEL_GRACE` to check its context.

        Return the jobs that received the request. A job that is just starting does not; the caller must ask again.
        """
        now, grace_seconds = time.monotonic(), get_settings().CANCEL_GRACE
        asked, notified = set(execution_ids), set()
        for first_id, running in self._running_with(asked).items():
            slot, members = self._slot(running), {job.execution_id for job in running.claimed.members}
            if not slot.ask_to_cancel(first_id, members & asked):
                continue
            notified |= members & asked
            if members <= asked:  # the other jobs of a chunk go on
                at_once = isinstance(slot, LoopSlots)
                self.deadlines.add_cancel(first_id, now if at_once else now + grace_seconds)
        return notified

    def cancel(self, execution_id: int) -> bool:
        """Stop a running job that ignored its cancellation: raise `TaskCancelled` in a thread, cancel a coroutine.

        Return False if the caller must try again.
        """
        slot = self._slot_of(execution_id)
        return slot is None or slot.cancel(execution_id)

    def give_up(self, execution_id: int) -> None:
        """Abandon a job that did not stop in time: report it with its stack, and free its slot."""
        running = self.in_flight.running.get(execution_id)
        slot = self._slot_of(execution_id)
        if running is None or slot is None:
            return
        blocked = isinstance(slot, LoopSlots) and slot.is_blocked(execution_id)
        report = slot.give_up(execution_id)
        if report is None:  # it ended a moment ago
            return
        logger.error(
            "job %s (%s) still runs although it should have stopped: recorded as %s and abandoned",
            report.claimed.job_id,
            report.claimed.task_name,
            report.ending.value,
            extra=job_event("job_abandoned", report.claimed),
        )
        self._given_up += 1
        self.finished(report, running.slot)  # before the slot is used again: its next job has the same shared memory
        if isinstance(slot, ThreadSlot):
            self._replace_thread(running.slot)
        elif blocked:
            self.loops.abandon(slot)

    def stack_of(self, execution_id: int) -> str | None:
        """Return the stack of a running job; None if it does not run here. Safe from any thread."""
        running = self.in_flight.running_with(execution_id)
        return None if running is None else self._slot(running).stack_of(running.claimed.execution_id)

    def _slot_of(self, execution_id: int) -> ThreadSlot | LoopSlots | None:
        running = self.in_flight.running.get(execution_id)
        return None if running is None else self._slot(running)

    def _slot(self, running: Running) -> ThreadSlot | LoopSlots:
        if running.slot < self.concurrency:
            return self.threads[running.slot]
        return self.loops.of(running.claimed.execution_id)

    def _running_with(self, execution_ids: Iterable[int]) -> dict[int, Running]:
        """Return the running jobs and chunks with these executions, by the execution of the first job."""
        found = [self.in_flight.running_with(execution_id) for execution_id in execution_ids]
        return {running.claimed.execution_id: running for running in found if running is not None}

    def replace_dead_threads(self) -> None:
        """Replace each thread that has died, and report the job that it ran as failed.

        The main thread calls this. Every exception of a job is caught, so this is a second line of defence.
        """
        if self._is_stopping:
            return
        for slot, thread in enumerate(self.threads):
            if thread.is_alive():
                continue
            extra = event("slot_thread_died", slot=slot)
            logger.error("the thread of slot %d has died; a new thread replaces it", slot, extra=extra)
            for running in list(self.in_flight.running.values()):
                if running.slot == slot:
                    self.finished(last_resort(running.claimed, time.monotonic()), slot)
            self._replace_thread(slot)

    def _thread_slot(self, slot: int) -> ThreadSlot:
        process = SlotProcess(self.fork_server, self.ending_processes, self.options.max_rss_mb)
        return ThreadSlot(self, slot, process)

    def _replace_thread(self, slot: int) -> None:
        self.threads[slot] = self._thread_slot(slot)
        self.threads[slot].start()

    def _release_left(self, execution_ids: list[int]) -> None:
        """Release the jobs that ran on an event loop that was abandoned."""
        for execution_id in execution_ids:
            running = self.in_flight.running[execution_id]
            extra = job_event("event_loop_blocked", running.claimed)
            logger.warning("job %s is released because its event loop is blocked", running.claimed.job_id, extra=extra)
            self.finished(released(running.claimed), running.slot)
