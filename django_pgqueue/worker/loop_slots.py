"""The event loop of the pool, that coroutines run on."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from asgiref.sync import sync_to_async

from . import hygiene
from .executor import Attempt
from .giving_up import given_up
from .hand import Full

if TYPE_CHECKING:
    from .pool import Pool
    from .report import Report

logger = logging.getLogger("django_pgqueue.worker")

RETIREMENT_SECONDS: Final = 1.0
"""What the coroutines of a loop that was blocked get to clean up, once it runs again."""


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
        self._retired = False
        self._guard = threading.Lock()
        """Held to start coroutines, and to retire: none is started that nobody answers for."""

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

    def free_slot(self, slot: int) -> None:
        """Use a slot again whose coroutine was given up; from any thread."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._free_slot, slot)

    def interrupt(self, execution_id: int) -> None:
        """Cancel a coroutine, for its lease is lost; from any thread."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._cancel, execution_id, Attempt.interrupt)

    def time_out(self, execution_id: int) -> bool:
        """Cancel a coroutine, for its time is over; from any thread. There is no need to try again."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._cancel, execution_id, Attempt.time_out)
        return True

    def ask_to_cancel(self, execution_id: int) -> bool:
        """Tell a coroutine that somebody wants its job cancelled, from any thread; say whether it runs."""
        attempt, _ = self.running.get(execution_id, (None, None))
        if attempt is not None:
            attempt.ask_to_cancel()
        return attempt is not None

    def cancel(self, execution_id: int) -> bool:
        """Cancel a coroutine, for its job is to be cancelled; from any thread. There is no need to try again."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._cancel, execution_id, Attempt.cancel)
        return True

    def give_up(self, execution_id: int) -> Report | None:
        """Leave a coroutine to itself, if it still runs: it reports no more; return its report. From any thread."""
        attempt, task = self.running.pop(execution_id, (None, None))
        if attempt is None or task is None:
            return None
        told = attempt.timed_out or attempt.cancelled
        stack = "".join(_frames(task)) if told else self.stack()
        words = "It was cancelled, and did not end; where it was" if told else "The event loop was blocked in"
        stack = f"{words}, 5 s after its time:\n{stack}"
        return given_up(
            attempt.claimed, attempt.started_at, stack=stack, cancelled=attempt.asked and not attempt.timed_out
        )

    def is_blocked(self, execution_id: int) -> bool:
        """Say whether that coroutine was to be cancelled, and the loop has not come round to it."""
        attempt, _ = self.running.get(execution_id, (None, None))
        return attempt is not None and not (attempt.timed_out or attempt.cancelled)

    def stack(self) -> str:
        """Return what the loop's thread is doing."""
        frame = sys._current_frames().get(self.ident or 0)
        return "".join(traceback.format_stack(frame)) if frame else ""

    def retire(self) -> list[int]:
        """Give the whole loop up, for it is blocked; return the ids of the coroutines that are left without it."""
        with self._guard:
            self._retired = True
            left = [key for key in list(self.running) if self.running.pop(key, None) is not None]
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._end_all)
        return left

    def _end_all(self) -> None:
        self._ending = True
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.call_later(RETIREMENT_SECONDS, self.loop.stop)

    def stop(self) -> None:
        """Stop the loop; from any thread."""
        self._ending = True
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.loop.stop)

    def _add(self, execution_ids: list[int]) -> None:
        self.waiting.extend(execution_ids)
        self._start_waiting()

    def _free_slot(self, slot: int) -> None:
        self.free.append(slot)
        self._start_waiting()

    def _start_waiting(self) -> None:
        with self._guard:
            while self.waiting and self.free and not self._retired:
                execution_id = self.waiting[0]
                try:
                    claimed = self.pool.hand.start(execution_id, self.free[-1], wait=False)
                except Full:
                    break
                self.waiting.popleft()
                if claimed is None:
                    continue
                slot = self.free.pop()
                attempt = Attempt(claimed, self.pool.alias, self.pool.notes)
                job = self.loop.create_task(self._run_one(attempt, slot), context=self._context.copy())
                self.running[execution_id] = (attempt, job)
                self.pool.started(claimed, slot)

    async def _run_one(self, attempt: Attempt, slot: int) -> None:
        execution_id = attempt.claimed.execution_id
        report = await self._run_cleanly(attempt)
        if self.running.pop(execution_id, None) is None:
            logger.warning("job %s, left to itself, has ended after all; it does not count", attempt.claimed.job_id)
            return
        self.pool.hand_over(report)
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
        except BaseException as error:  # noqa: BLE001 -- a connection that cannot even be closed
            return report or attempt.ended_by(error)
        return report

    def _cancel(self, execution_id: int, why: Callable[[Attempt], None]) -> None:
        if execution_id in self.running:
            attempt, task = self.running[execution_id]
            why(attempt)
            self.loop.call_soon(task.cancel)  # behind its first step: cancelled before that, it would report nothing


def _frames(task: asyncio.Task[None]) -> list[str]:
    """Return the stack of a coroutine that waits, the innermost last, as lines of a traceback.

    `Task.get_stack()` tells the outermost frame alone of one that waits.
    """
    frames = []
    awaitable: Any = task.get_coro()
    while (frame := getattr(awaitable, "cr_frame", None)) is not None:
        frames.append((frame, frame.f_lineno))
        awaitable = awaitable.cr_await
    return traceback.StackSummary.extract(iter(frames)).format()
