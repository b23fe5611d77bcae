"""The slots that jobs run in: threads for ordinary tasks, one event loop for coroutines, side by side; and processes of
their own for isolated jobs, each waited for by one of the threads.

`concurrency` jobs run at a time, of all kinds together. Asynchronous ORM calls (`await Model.objects.aget()`) all run
on one further thread with one connection, asgiref's own: Django has no asynchronous connections.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from django_pgqueue import registry
from django_pgqueue.conf import get_settings

from .board import ELSEWHERE
from .deadlines import Deadlines
from .ending_processes import EndingProcesses
from .hand import Hand
from .isolated import IsolatedAttempt
from .loop_slots import LoopSlots
from .notes import Notes
from .report import Ending, Report, last_resort
from .thread_slot import ThreadSlot

if TYPE_CHECKING:
    from django_pgqueue.lifecycle import Claimed
    from django_pgqueue.task import Task

    from .board import Board
    from .nursery import Nursery
    from .options import Options

logger = logging.getLogger("django_pgqueue.worker")

STUCK_LIMIT: Final = 3
"""Jobs given up because they did not end when they were to, and whose threads may run for ever, before the process is
replaced."""


class Pool:
    """Starts the jobs of a hand, each in a slot, and hands over their reports."""

    def __init__(
        self, options: Options, hand: Hand, board: Board, nursery: Nursery, hand_over: Callable[[Report], None]
    ) -> None:
        self.options = options
        self.hand = hand
        self.board = board
        self.nursery = nursery
        self.alias = options.database
        self.concurrency = options.concurrency
        self.hand_over = hand_over
        self.on_hunger: Callable[[], None] = lambda: None
        """Called when a slot has become free and no job waits for it."""
        self.notes = Notes()
        """Where jobs tell how far they are; the completer's, where there is one."""
        self.jobs: SimpleQueue[int | None] = SimpleQueue()
        self.deadlines = Deadlines(self.time_out, self.cancel, self.give_up)
        self.ending_processes = EndingProcesses()
        self.threads = [ThreadSlot(self, slot) for slot in range(self.concurrency)]
        self.loop = LoopSlots(self, first_slot=self.concurrency)
        self._given_up = 0
        self._is_stopping = False

    @property
    def is_worn(self) -> bool:
        """Whether this process had better be replaced: threads stay that nobody can end, or the nursery is gone."""
        return self._given_up >= STUCK_LIMIT or self.nursery.is_gone

    def start(self) -> None:
        """Start the threads and the event loop."""
        for thread in (*self.threads, self.loop):
            thread.start()

    def submit(self, jobs: Iterable[Claimed]) -> None:
        """Queue jobs that the hand holds as waiting."""
        to_loop = []
        for claimed in jobs:
            task = registry.get(claimed.task_name)
            if task is not None and task.is_async and not self.isolates(claimed, task):
                to_loop.append(claimed.execution_id)
            else:
                self.jobs.put(claimed.execution_id)
        if to_loop:
            self.loop.submit(to_loop)

    def isolates(self, claimed: Claimed, task: Task[Any, Any] | None) -> bool:
        """Say whether a job is to run in a process of its own: by option, by its task, or for what it once did."""
        if claimed.isolated or self.options.isolation == "process":
            return True
        return task is not None and task.isolation == "process"

    def started(self, claimed: Claimed, slot: int, *, here: bool = True) -> None:
        """A job starts, here or in a process of its own: tell the supervisor; watch its time, if nobody else does."""
        task = registry.get(claimed.task_name)
        stop_at = 0.0 if here else ELSEWHERE
        if here and task is not None and task.timeout_seconds is not None:
            stop_at = time.monotonic() + task.timeout_seconds
            self.deadlines.add(claimed.execution_id, stop_at)
        self.board.started(slot, claimed.execution_id, stop_at)

    def ended(self, execution_id: int, slot: int) -> None:
        """A job has ended and its report is handed over: forget it."""
        self.deadlines.remove(execution_id)
        self.hand.end(execution_id)
        self.board.ended(slot)
        self.loop.room_made()
        if not self.hand.waiting:
            self.on_hunger()

    def stop(self) -> None:
        """Let each slot end after the job it has; jobs that still wait are the fetcher's to release."""
        self._is_stopping = True
        for _ in self.threads:
            self.jobs.put(None)
        self.loop.stop()

    # ---------------------------------------------------------------- ending what runs

    def interrupt(self, execution_ids: Iterable[int]) -> None:
        """Make these running jobs stop: their flag is set, `LeaseLost` raised in a thread, a coroutine cancelled."""
        for execution_id in execution_ids:
            if slot := self._slot_of(execution_id):
                slot.interrupt(execution_id)

    def close_cells(self, *, wait: bool) -> None:
        """Have the processes end that wait for isolated jobs; `wait`, a few seconds at most, until they have."""
        for thread in self.threads:
            if not isinstance(thread.attempt, IsolatedAttempt):
                thread.close_cell()
        if wait:
            self.ending_processes.wait()

    def time_out(self, execution_id: int) -> bool:
        """Make a running job stop for its time is over: `TaskTimeout` raised in a thread, a coroutine cancelled.

        Returns False if it has to be tried again.
        """
        slot = self._slot_of(execution_id)
        return slot is None or slot.time_out(execution_id)

    def ask_to_cancel(self, execution_ids: Iterable[int]) -> set[int]:
        """Tell these running jobs to stop: a coroutine is cancelled now, a thread asks its context, and has a grace.

        Returns which were told: one that is just being started is to be told again.
        """
        now, grace_seconds = time.monotonic(), get_settings().CANCEL_GRACE
        told = set()
        for execution_id in execution_ids:
            if (slot := self._slot_of(execution_id)) and slot.ask_to_cancel(execution_id):
                at_once = isinstance(slot, LoopSlots)
                self.deadlines.add_cancel(execution_id, now if at_once else now + grace_seconds)
                told.add(execution_id)
        return told

    def cancel(self, execution_id: int) -> bool:
        """Make a running job stop that was asked to: `TaskCancelled` raised in a thread, a coroutine cancelled."""
        slot = self._slot_of(execution_id)
        return slot is None or slot.cancel(execution_id)

    def give_up(self, execution_id: int) -> None:
        """Report a job that did not end when it was to, with its stack, and give its slot to others."""
        running = self.hand.running.get(execution_id)
        slot = self._slot_of(execution_id)
        if running is None or slot is None:
            return
        blocked = isinstance(slot, LoopSlots) and slot.is_blocked(execution_id)
        report = slot.give_up(execution_id)
        if report is None:  # it has ended a moment ago
            return
        logger.error(
            "job %s (%s) goes on after it was to stop: closed as %s, and left to itself",
            report.claimed.job_id,
            report.claimed.task_name,
            report.ending.value,
        )
        self._given_up += 1
        self.hand_over(report)
        self.ended(
            execution_id, running.slot
        )  # before the slot is used again: its next job has the same words of the board
        if isinstance(slot, ThreadSlot):
            self._replace_thread(running.slot)
        elif blocked:
            self._replace_loop()
        else:
            slot.free_slot(running.slot)

    def _slot_of(self, execution_id: int) -> ThreadSlot | LoopSlots | None:
        running = self.hand.running.get(execution_id)
        if running is None:
            return None
        return self.threads[running.slot] if running.slot < self.concurrency else self.loop

    def replace_dead_threads(self) -> None:
        """Start a thread in place of each that has died, and report the job that it ran as failed.

        Called by the main thread. Whatever a job raises is caught, so this is a second line of defence.
        """
        if self._is_stopping:
            return
        for slot, thread in enumerate(self.threads):
            if thread.is_alive():
                continue
            logger.error("the thread of slot %d has died: replaced", slot)
            for execution_id, running in list(self.hand.running.items()):
                if running.slot == slot:
                    self.hand_over(last_resort(running.claimed, time.monotonic()))
                    self.ended(execution_id, slot)
            self._replace_thread(slot)

    def _replace_thread(self, slot: int) -> None:
        self.threads[slot] = ThreadSlot(self, slot)
        self.threads[slot].start()

    def _replace_loop(self) -> None:
        """Start a new loop in place of a blocked one; what else ran there is given back."""
        left = self.loop.retire()
        self.loop = LoopSlots(self, first_slot=self.concurrency)
        self.loop.start()
        for execution_id in left:
            running = self.hand.running[execution_id]
            logger.warning("job %s is given back: its event loop is blocked", running.claimed.job_id)
            now = time.monotonic()
            self.hand_over(Report(running.claimed, Ending.RELEASED, now, now))
            self.ended(execution_id, running.slot)
