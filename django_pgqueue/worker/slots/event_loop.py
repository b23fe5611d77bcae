"""Run coroutine tasks on one event loop, in a thread of its own.

`Pool` starts the loop and submits jobs to it. Each running job stands in `running`. The thread that removes a job from
`running` is the one that reports its result, so each job is reported once: by its coroutine, by `give_up()`, or by the
pool after `retire()`.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from asgiref.sync import sync_to_async

from django_pgqueue.log_events import event, job_event
from django_pgqueue.worker.execution.attempt import Attempt
from django_pgqueue.worker.execution.chunk_attempt import attempt_of
from django_pgqueue.worker.execution.timeouts import given_up
from django_pgqueue.worker.runtime import django_connections

from .inflight import Full
from .stacks import coroutine_frames, stack_of_coroutine

if TYPE_CHECKING:
    from django_pgqueue.worker.execution.report import Report

    from .host import SlotHost

logger = logging.getLogger("django_pgqueue.worker")

RETIREMENT_SECONDS: Final = 1.0
"""Time that the coroutines of a retired loop get to clean up, once the loop is no longer blocked."""


class LoopSlots(threading.Thread):
    """The event loop. It runs as many coroutines at a time as the pool has threads."""

    def __init__(self, host: SlotHost, slots: range) -> None:
        super().__init__(name="pgqueue-loop", daemon=True)
        self.host = host
        self.free = list(slots)
        self.waiting: deque[int] = deque()
        self.running: dict[int, tuple[Attempt, asyncio.Task[None]]] = {}
        self.loop = asyncio.new_event_loop()
        self._generation = django_connections.generation()
        self._connections_used_at = 0.0
        self._closing: asyncio.TimerHandle | None = None
        """The timer that closes the connections of the asynchronous ORM."""
        self._close_task: asyncio.Task[None] | None = None
        self._ending = False
        self._retired = False
        self._asked_at = 0.0
        self._guard = threading.Lock()
        """Held to start coroutines and to retire the loop. Otherwise a coroutine could start after `retire()` returned,
        and no thread would report its result."""

    def run(self) -> None:
        """Run the loop until it is stopped."""
        asyncio.set_event_loop(self.loop)
        self._context = django_connections.clean_context()
        while not self._ending:
            try:
                self.loop.run_forever()
            except BaseException:  # a subtask's SystemExit arrives here; it must not stop the other jobs
                logger.exception(
                    "a subtask raised an exception that stopped the event loop; the loop is started again",
                    extra=event("event_loop_interrupted"),
                )
        self.loop.close()

    def submit(self, execution_ids: list[int]) -> None:
        """Queue jobs. Safe from any thread."""
        with suppress(RuntimeError):  # the loop is closed: the worker is stopping, and releases prefetched jobs
            self.loop.call_soon_threadsafe(self._add, execution_ids)

    def room_made(self) -> None:
        """Start a prefetched coroutine job, if there is one, because a job has ended. Safe from any thread."""
        if not self.waiting:
            return
        if threading.current_thread() is self:
            self._start_waiting()
        else:
            self.submit([])

    def free_slot(self, slot: int) -> None:
        """Reuse the slot of a coroutine that was abandoned. Safe from any thread."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._free_slot, slot)

    def interrupt(self, execution_id: int) -> None:
        """Cancel a coroutine because its lease is lost. Safe from any thread."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._cancel, execution_id, Attempt.interrupt)

    def time_out(self, execution_id: int) -> bool:
        """Cancel a coroutine because of its timeout. Return True: no retry is needed. Safe from any thread."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._cancel, execution_id, Attempt.time_out)
        return True

    def ask_to_cancel(self, execution_id: int, of_chunk: AbstractSet[int]) -> bool:
        """Set a coroutine's cancellation flag, or of a chunk the flags of these executions. Safe from any thread.

        Return whether the job runs here.
        """
        attempt, _ = self.running.get(execution_id, (None, None))
        if attempt is not None:
            attempt.ask_to_cancel(of_chunk)
        return attempt is not None

    def cancel(self, execution_id: int) -> bool:
        """Cancel a coroutine because its job is cancelled. Return True: no retry is needed. Safe from any thread."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._cancel, execution_id, Attempt.cancel)
        return True

    def give_up(self, execution_id: int) -> Report | None:
        """Abandon a coroutine that still runs, and return the report in its place; None if it has ended.

        Safe from any thread. The coroutine itself reports nothing from now on.
        """
        attempt, task = self.running.pop(execution_id, (None, None))
        if attempt is None or task is None:
            return None
        was_cancelled = attempt.timed_out or attempt.cancelled
        stack = "".join(coroutine_frames(task).format()) if was_cancelled else self.stack()
        reason = "The coroutine was cancelled and did not end." if was_cancelled else "The event loop was blocked."
        stack = f"{reason} Stack 5 s after the job should have stopped:\n{stack}"
        is_cancelled = attempt.asked and not attempt.timed_out
        return given_up(attempt.claimed, attempt.started_at, alias=attempt.alias, stack=stack, cancelled=is_cancelled)

    def stack_of(self, execution_id: int) -> str | None:
        """Return the stack of a coroutine: where it waits, or the loop's thread if it runs now. None if it has ended.

        Safe from any thread.
        """
        _, task = self.running.get(execution_id, (None, None))
        return None if task is None else stack_of_coroutine(task, self.ident)

    def is_blocked(self, execution_id: int) -> bool:
        """Return whether the loop has not yet processed a request to cancel this coroutine."""
        attempt, _ = self.running.get(execution_id, (None, None))
        return attempt is not None and not (attempt.timed_out or attempt.cancelled)

    def blocked_since(self) -> float:
        """Return since when the loop has not answered, by the monotonic clock, or 0. Then ask it for the next call.

        Called once a second, by one thread. A loop without jobs is not asked.
        """
        since = self._asked_at
        if not since and (self.running or self.waiting):
            self._asked_at = time.monotonic()
            try:
                self.loop.call_soon_threadsafe(self._answer)
            except RuntimeError:  # the loop is closed
                self._asked_at = 0.0
        return since

    def _answer(self) -> None:
        self._asked_at = 0.0

    def stack(self) -> str:
        """Return the stack of the loop's thread."""
        frame = sys._current_frames().get(self.ident or 0)
        return "".join(traceback.format_stack(frame)) if frame else ""

    def retire(self) -> list[int]:
        """Abandon the whole loop because it is blocked. Return its executions; the caller must report them."""
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
        """Stop the loop. Safe from any thread."""
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
                    claimed = self.host.in_flight.start(execution_id, self.free[-1], wait=False)
                except Full:
                    break
                self.waiting.popleft()
                if claimed is None:
                    continue
                slot = self.free.pop()
                attempt = attempt_of(claimed, self.host.alias, self.host.notes)
                job = self.loop.create_task(self._run_one(attempt, slot), context=self._context.copy())
                self.running[execution_id] = (attempt, job)
                self.host.started(claimed, slot)

    async def _run_one(self, attempt: Attempt, slot: int) -> None:
        execution_id = attempt.claimed.execution_id
        report = await self._run_cleanly(attempt)
        if self.running.pop(execution_id, None) is None:
            logger.warning(
                "job %s had been abandoned and has now ended; its result does not count",
                attempt.claimed.job_id,
                extra=job_event("abandoned_job_ended", attempt.claimed),
            )
            return
        self.free.append(slot)
        self.host.finished(report, slot)

    async def _run_cleanly(self, attempt: Attempt) -> Report:
        """Run a coroutine. Clean up the asynchronous ORM's connection after an outage and after a job that used it."""
        report = None
        try:
            if django_connections.generation() != self._generation:
                self._generation = django_connections.generation()
                await sync_to_async(django_connections.before_job)()
            statements = django_connections.statements_off_slots()
            report = await attempt.run_async()
            if django_connections.statements_off_slots() != statements:
                await sync_to_async(django_connections.after_job)()
                self._note_connections()
        except BaseException as error:  # noqa: BLE001 -- closing a connection may fail too
            return report or attempt.ended_by(error)
        return report

    def _note_connections(self) -> None:
        """Close the connections of the asynchronous ORM when no job has used them for a while: one timer at a time."""
        self._connections_used_at = self.loop.time()
        if self._closing is None:
            self._closing = self.loop.call_later(django_connections.IDLE_SECONDS, self._close_unused_connections)

    def _close_unused_connections(self) -> None:
        left_seconds = self._connections_used_at + django_connections.IDLE_SECONDS - self.loop.time()
        if self.running or left_seconds > 0:
            wait_seconds = left_seconds if left_seconds > 0 else django_connections.IDLE_SECONDS
            self._closing = self.loop.call_later(wait_seconds, self._close_unused_connections)
            return
        self._closing = None
        self._close_task = self.loop.create_task(sync_to_async(self._close_if_idle)())

    def _close_if_idle(self) -> None:
        """Close this thread's connections unless a job has started since. Its statements wait for this thread."""
        if not self.running:
            django_connections.close_idle()

    def _cancel(self, execution_id: int, mark: Callable[[Attempt], None]) -> None:
        if execution_id in self.running:
            attempt, task = self.running[execution_id]
            mark(attempt)
            # After its first step: a coroutine that is cancelled before that would report nothing.
            self.loop.call_soon(task.cancel)
