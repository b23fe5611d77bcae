"""The slots that jobs run in: threads for ordinary tasks, one event loop for coroutines, side by side.

`concurrency` jobs run at a time, of both kinds together. Asynchronous ORM calls (`await Model.objects.aget()`) all run
on one further thread with one connection, asgiref's own: Django has no asynchronous connections.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING

from asgiref.sync import sync_to_async

from django_pgqueue import registry
from django_pgqueue.exceptions import LeaseLost

from . import hygiene
from .executor import Attempt
from .hand import Full, Hand

if TYPE_CHECKING:
    from django_pgqueue.lifecycle import Claimed

    from .board import Board
    from .report import Report

logger = logging.getLogger("django_pgqueue.worker")


class Pool:
    """Starts the jobs of a hand, each in a slot, and hands over their reports."""

    def __init__(
        self, hand: Hand, board: Board, alias: str, concurrency: int, hand_over: Callable[[Report], None]
    ) -> None:
        self.hand = hand
        self.board = board
        self.alias = alias
        self.concurrency = concurrency
        self.hand_over = hand_over
        self.on_hunger: Callable[[], None] = lambda: None
        """Called when a slot has become free and no job waits for it."""
        self.jobs: SimpleQueue[int | None] = SimpleQueue()
        self.threads = [ThreadSlot(self, slot) for slot in range(concurrency)]
        self.loop = LoopSlots(self, first_slot=concurrency)

    def start(self) -> None:
        """Start the threads and the event loop."""
        for thread in (*self.threads, self.loop):
            thread.start()

    def submit(self, jobs: Iterable[Claimed]) -> None:
        """Queue jobs that the hand holds as waiting."""
        to_loop = []
        for claimed in jobs:
            task = registry.get(claimed.task_name)
            if task is not None and task.is_async:
                to_loop.append(claimed.execution_id)
            else:
                self.jobs.put(claimed.execution_id)
        if to_loop:
            self.loop.submit(to_loop)

    def interrupt(self, execution_ids: Iterable[int]) -> None:
        """Make these running jobs stop: their flag is set, `LeaseLost` raised in a thread, a coroutine cancelled."""
        for execution_id in execution_ids:
            running = self.hand.running.get(execution_id)
            if running is None:
                continue
            if running.slot < self.concurrency:
                self.threads[running.slot].interrupt(execution_id)
            else:
                self.loop.interrupt(execution_id)

    def ended(self, execution_id: int, slot: int) -> None:
        """A job has ended and its report is handed over: forget it."""
        self.hand.end(execution_id)
        self.board.ended(slot)
        self.loop.room_made()
        if not self.hand.waiting:
            self.on_hunger()

    def stop(self) -> None:
        """Let each slot end after the job it has; jobs that still wait are the fetcher's to release."""
        for _ in self.threads:
            self.jobs.put(None)
        self.loop.stop()


class ThreadSlot(threading.Thread):
    """One thread that runs one job after another."""

    def __init__(self, pool: Pool, slot: int) -> None:
        super().__init__(name=f"pgqueue-job-{slot}", daemon=True)
        self.pool = pool
        self.slot = slot
        self.attempt: Attempt | None = None
        self._guard = threading.Lock()
        """Held to start and end an attempt, and to throw an exception into it: it hits that job or none."""

    def run(self) -> None:
        """Run jobs until told to end."""
        self._context = hygiene.clean_context()
        while (execution_id := self.pool.jobs.get()) is not None:
            claimed = self.pool.hand.start(execution_id, self.slot, wait=True)
            if claimed is not None:
                self._run_one(claimed)
        hygiene.close_all()

    def interrupt(self, execution_id: int) -> None:
        """Raise `LeaseLost` in this thread if it runs that job; C code sees it when it returns to Python."""
        with self._guard:
            attempt = self.attempt
            if attempt is None or attempt.claimed.execution_id != execution_id:
                return
            attempt.interrupt()
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.ident or 0), ctypes.py_object(LeaseLost))

    def _run_one(self, claimed: Claimed) -> None:
        pool = self.pool
        pool.board.started(self.slot, claimed.execution_id)
        attempt = Attempt(claimed, pool.alias)
        report = self._guarded(attempt)
        try:
            hygiene.after_job()
        except Exception:
            logger.exception("cleaning up after job %s", claimed.job_id)
        # Handed over before it leaves the hand: at each moment somebody answers for the execution.
        pool.hand_over(report)
        pool.ended(claimed.execution_id, self.slot)

    def _guarded(self, attempt: Attempt) -> Report:
        report = None
        try:
            hygiene.before_job()
            self.attempt = attempt
            report = self._context.copy().run(attempt.run)
            with self._guard:
                self.attempt = None
        except LeaseLost as lost:  # thrown in after the task's function had ended, or before it began
            with self._guard:
                self.attempt = None
            return report or attempt.ended_by(lost)
        except Exception as error:  # noqa: BLE001 -- a connection that cannot even be closed
            return attempt.ended_by(error)
        return report


class LoopSlots(threading.Thread):
    """The event loop, with as many coroutines at a time as there are threads."""

    def __init__(self, pool: Pool, first_slot: int) -> None:
        super().__init__(name="pgqueue-loop", daemon=True)
        self.pool = pool
        self.free = list(range(first_slot, first_slot + pool.concurrency))
        self.waiting: deque[int] = deque()
        self.running: dict[int, tuple[Attempt, asyncio.Task[None]]] = {}
        self.loop = asyncio.new_event_loop()
        self._generation = hygiene.generation()
        self._ending = False

    def run(self) -> None:
        """Run the loop until it is stopped."""
        asyncio.set_event_loop(self.loop)
        self._context = hygiene.clean_context()
        while not self._ending:
            try:
                self.loop.run_forever()
            except BaseException:  # SystemExit of a subtask comes out here, and is no reason to end the others
                logger.exception("a subtask ended the event loop; it goes on")
        self.loop.close()

    def submit(self, execution_ids: list[int]) -> None:
        """Queue jobs; from any thread."""
        with suppress(RuntimeError):  # the loop is closed: the worker is ending, and releases what waits
            self.loop.call_soon_threadsafe(self._add, execution_ids)

    def room_made(self) -> None:
        """A job has ended: start one that waits, if there is one; from any thread."""
        if not self.waiting:
            return
        if threading.current_thread() is self:
            self._start_waiting()
        else:
            self.submit([])

    def interrupt(self, execution_id: int) -> None:
        """Cancel a coroutine; from any thread."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._cancel, execution_id)

    def stop(self) -> None:
        """Stop the loop; from any thread."""
        self._ending = True
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.loop.stop)

    def _add(self, execution_ids: list[int]) -> None:
        self.waiting.extend(execution_ids)
        self._start_waiting()

    def _start_waiting(self) -> None:
        while self.waiting and self.free:
            execution_id = self.waiting[0]
            try:
                claimed = self.pool.hand.start(execution_id, self.free[-1], wait=False)
            except Full:
                break
            self.waiting.popleft()
            if claimed is None:
                continue
            slot = self.free.pop()
            self.pool.board.started(slot, execution_id)
            attempt = Attempt(claimed, self.pool.alias)
            job = self.loop.create_task(self._run_one(attempt, slot), context=self._context.copy())
            self.running[execution_id] = (attempt, job)

    async def _run_one(self, attempt: Attempt, slot: int) -> None:
        execution_id = attempt.claimed.execution_id
        report = await self._run_cleanly(attempt)
        self.pool.hand_over(report)
        self.running.pop(execution_id, None)
        self.free.append(slot)
        self.pool.ended(execution_id, slot)

    async def _run_cleanly(self, attempt: Attempt) -> Report:
        """Run a coroutine; tidy the asynchronous ORM's thread if the server was lost before, or it was used."""
        report = None
        try:
            if hygiene.generation() != self._generation:
                self._generation = hygiene.generation()
                await sync_to_async(hygiene.before_job)()
            statements = hygiene.statements_off_slots()
            report = await attempt.run_async()
            if hygiene.statements_off_slots() != statements:
                await sync_to_async(hygiene.after_job)()
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 -- a connection that cannot even be closed
            return report or attempt.ended_by(error)
        return report

    def _cancel(self, execution_id: int) -> None:
        if execution_id in self.running:
            attempt, task = self.running[execution_id]
            attempt.interrupt()
            self.loop.call_soon(task.cancel)  # behind its first step: cancelled before that, it would report nothing
