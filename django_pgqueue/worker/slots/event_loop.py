"""Run coroutine tasks on one event loop, in a thread of its own.

`Loops` starts the loop and replaces it. Each running job stands in `running` from before its coroutine exists until the
coroutine has ended. The thread that removes a job from `running` is the one that reports its result, so each job is
reported once: by the loop, by `give_up()`, or by `Loops` after `retire()`.

A job can change the loop: its task factory, or any of its methods. The loop therefore creates the tasks of jobs without
the factory. If it cannot create one at all, it says so in `has_failed`, and `Loops` replaces it.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Any, Final

from asgiref.sync import sync_to_async

from django_pgqueue.exceptions import Dead
from django_pgqueue.ground.attempt_ends import STACK_OF_RUNNING
from django_pgqueue.ground.log_events import event, job_event
from django_pgqueue.lifecycle.types import Claimed
from django_pgqueue.worker.execution import error_text
from django_pgqueue.worker.execution.attempt import Attempt
from django_pgqueue.worker.execution.attempt_plan import AttemptPlan
from django_pgqueue.worker.execution.chunk_attempt import planned_attempt
from django_pgqueue.worker.execution.failure import given_up
from django_pgqueue.worker.execution.lost_writes import report_of_lost_writes
from django_pgqueue.worker.execution.report import Report, released
from django_pgqueue.worker.runtime import django_connections
from django_pgqueue.worker.runtime.django_connections import uses

from .host import SlotHost
from .inflight import Full, QueuedJob
from .stacks import coroutine_frames, execution_of_thread, stack_of_coroutine

logger = logging.getLogger("django_pgqueue.worker")

RETIREMENT_SECONDS: Final = 1.0
"""Time that the coroutines of a retired loop get to clean up, once the loop is no longer blocked."""
AT_ONCE_SECONDS: Final = 0.01
"""A loop that ends within this time of its start has probably done nothing."""
AT_ONCE_LIMIT: Final = 100
"""How many times in a row a loop may end at once because jobs stop it, by `loop.stop()` or a `SystemExit` of a subtask.
All other exceptions are those of the loop itself, for example because a job has closed its selector."""


class LoopSlots(threading.Thread):
    """The event loop. It runs as many coroutines at a time as the pool has threads.

    Args:
        host: The pool.
        waiting: The executions to start. The loops of a process share them.
        free: The free slots. `SlotHost.finished()` adds those that become free. The loops share them too.
    """

    def __init__(self, host: SlotHost, waiting: deque[QueuedJob], free: list[int]) -> None:
        super().__init__(name="pgqueue-loop", daemon=True)
        self.host = host
        self.waiting = waiting
        self.free = free
        self.running: dict[int, tuple[Attempt, asyncio.Task[None]]] = {}
        self.is_used = False
        """Whether a job has started on this loop."""
        self.has_failed = False
        """Whether this loop could not start a job, or ends as soon as it starts. It starts no other job."""
        self.loop = asyncio.new_event_loop()
        self._orm = OrmThread(self.loop, self.running)
        self._ending = False
        self._is_replaced = False
        self._asked_at = 0.0
        self.unanswered = 0
        """How many checks in a row the loop has not answered."""
        self._guard = threading.Lock()
        """Held to start coroutines and to replace the loop. Otherwise a coroutine could start after `retire()` has
        returned, and no thread would report its result."""

    def run(self) -> None:
        """Run the loop until it is stopped."""
        asyncio.set_event_loop(self.loop)
        self._context = django_connections.clean_context()
        runs = LoopRuns(self.loop)
        while not (self._ending or self.has_failed):
            self.has_failed |= runs.run()
        with suppress(BaseException):  # a job may have closed parts of it
            self.loop.close()

    def start_waiting(self) -> None:
        """Start the jobs in `waiting` that may run. Safe from any thread."""
        if threading.current_thread() is self:
            self._start_waiting()
        else:
            self._call(self._start_waiting)

    def _call(self, function: Callable[..., Any], *args: Any) -> None:
        """Call a function in the loop's thread."""
        with suppress(RuntimeError):  # the loop is closed: the worker is stopping, and releases prefetched jobs
            self.loop.call_soon_threadsafe(function, *args)

    def interrupt(self, execution_id: int) -> None:
        """Cancel a coroutine because its lease is lost. Safe from any thread."""
        self._call(self._cancel, execution_id, Attempt.interrupt)

    def time_out(self, execution_id: int) -> bool:
        """Cancel a coroutine because of its timeout. Return True: no retry is needed. Safe from any thread."""
        self._call(self._cancel, execution_id, Attempt.time_out)
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
        self._call(self._cancel, execution_id, Attempt.cancel)
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
        stack = f"{reason} {STACK_OF_RUNNING}\n{stack}"
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

    def ask(self) -> None:
        """Ask the loop whether it goes on, and count in `unanswered` how often it has not answered.

        One thread calls this once a second, and the loop has that second to answer. A count of seconds would be wrong:
        C code that holds the interpreter lock stops the caller too, and the caller may be the first to continue.
        """
        if self._asked_at:
            self.unanswered += 1
        elif self.is_used or self.waiting:
            self._asked_at = time.monotonic()
            try:
                self.loop.call_soon_threadsafe(self._answer)
            except RuntimeError:  # the loop is closed
                self._answer()

    def _answer(self) -> None:
        self._asked_at, self.unanswered = 0.0, 0

    @property
    def blocked_since(self) -> float:
        """Since when the loop has not answered, by the monotonic clock, or 0."""
        return self._asked_at if self.unanswered else 0.0

    def blocking_execution(self) -> int | None:
        """Return the running execution whose code the loop runs now, also in a subtask or a callback; None if none is.

        Safe from any thread.
        """
        current = asyncio.current_task(self.loop)
        for execution_id, (_, task) in list(self.running.items()):
            if task is current:
                return execution_id
        found = execution_of_thread(self.ident, current)
        return found if found in self.running else None

    def stack(self) -> str:
        """Return the stack of the loop's thread."""
        frame = sys._current_frames().get(self.ident or 0)
        return "".join(traceback.format_stack(frame)) if frame else ""

    def replace(self) -> None:
        """Start no more jobs, because another loop does. The running ones go on."""
        with self._guard:
            self._is_replaced = True

    def retire(self) -> list[int]:
        """Abandon the whole loop. Return its executions; the caller must report them."""
        self.replace()
        self._ending = True
        left = [key for key in list(self.running) if self.running.pop(key, None) is not None]
        self._call(self._end_all)
        return left

    def _end_all(self) -> None:
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.call_later(RETIREMENT_SECONDS, self.loop.stop)

    def stop(self) -> None:
        """Stop the loop. Safe from any thread."""
        self._ending = True
        self._call(self.loop.stop)

    def _start_waiting(self) -> None:
        failed: tuple[Claimed, int] | None = None
        waiting = self.waiting
        free = self.free
        with self._guard:
            while waiting and free and not (self._is_replaced or self.has_failed):
                execution_id, plan = waiting[0]
                slot = free.pop()  # first, because other threads add slots at any time
                try:
                    claimed = self.host.in_flight.start(execution_id, slot, wait=False)
                except Full:
                    free.append(slot)
                    break
                waiting.popleft()
                if claimed is None:
                    free.append(slot)
                    continue
                try:
                    self._start(claimed, plan, slot)
                except BaseException as error:  # noqa: BLE001 -- a job that was taken needs an owner, whatever happens
                    self.has_failed, failed = True, (claimed, slot)
                    error_text.log_exception(
                        f"the event loop could not start job {claimed.job_id}; a new event loop replaces it",
                        error,
                        extra=job_event("event_loop_failed", claimed),
                    )
        if failed is not None:
            self.host.finished(released(failed[0]), failed[1])

    def _start(self, claimed: Claimed, plan: AttemptPlan, slot: int) -> None:
        """Start a coroutine. Its task is created without the loop's task factory, which a job may have set.

        A factory may refuse a context, run the coroutine at once, or raise.
        """
        host = self.host
        self.is_used = True
        attempt = planned_attempt(plan, claimed, host.alias, host.notes)
        host.started(attempt, slot)
        coroutine = self._run_one(attempt, slot)
        try:
            task = asyncio.Task(coroutine, loop=self.loop, context=self._context.copy())
        except BaseException:
            coroutine.close()
            raise
        self.running[claimed.execution_id] = (attempt, task)
        # The code of another job can cancel this task before its first step. Then the coroutine reports nothing.
        task.add_done_callback(self._report_unstarted)

    async def _run_one(self, attempt: Attempt, slot: int) -> None:
        """Run a coroutine. Clean up the asynchronous ORM's connection after an outage and after a job that used it."""
        report = None
        try:
            if self._orm.losses != uses.losses:
                await self._orm.close_lost()
            statements = uses.statements_off_slots
            report = await attempt.run_async()
            if uses.statements_off_slots != statements:
                report = await self._orm.clean_up(attempt, report)
        except BaseException as error:  # noqa: BLE001 -- closing a connection may fail too
            report = report or attempt.ended_by(error)
        if self.running.pop(attempt.claimed.execution_id, None) is None:
            logger.warning(
                "job %s had been abandoned and has now ended; its result does not count",
                attempt.claimed.job_id,
                extra=job_event("abandoned_job_ended", attempt.claimed),
            )
            return
        self.host.finished(report, slot)

    def _report_unstarted(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            return
        for execution_id, (attempt, started) in list(self.running.items()):
            if started is task and self.running.pop(execution_id, None) is not None:
                slot = self.host.in_flight.running[execution_id].slot
                self.host.finished(attempt.ended_by(asyncio.CancelledError()), slot)

    def _cancel(self, execution_id: int, mark: Callable[[Attempt], None]) -> None:
        if execution_id in self.running:
            attempt, task = self.running[execution_id]
            mark(attempt)
            # After its first step: a coroutine that is cancelled before that would report nothing.
            self.loop.call_soon(task.cancel)


class LoopRuns:
    """Runs one event loop, again and again, and counts how many times in a row it ends as soon as it starts.

    `LoopSlots` calls this in the loop's thread. A loop that ends as soon as it starts must not be started for ever:
    each start takes the processor, and logs a traceback.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._in_a_row = 0

    def run(self) -> bool:
        """Run the loop until it ends. Return whether it is broken."""
        began, limit = time.monotonic(), AT_ONCE_LIMIT
        try:
            self._loop.run_forever()
        except BaseException as error:  # a subtask's SystemExit arrives here; it must not stop the other jobs
            limit = AT_ONCE_LIMIT if isinstance(error, (SystemExit, KeyboardInterrupt)) else 1
            logger.exception(
                "a subtask raised an exception that stopped the event loop; the loop is started again",
                extra=event("event_loop_interrupted"),
            )
        self._in_a_row = self._in_a_row + 1 if time.monotonic() - began < AT_ONCE_SECONDS else 0
        return self._in_a_row >= limit


class OrmThread:
    """The connections of the asynchronous ORM.

    All asynchronous ORM calls of a process run in one thread of asgiref, on one connection for each database.
    `LoopSlots` calls `close_lost()` and `clean_up()` before and after a coroutine job, if there is something to do.
    Everything here runs in the thread of the event loop; what changes a connection is passed to the thread of the ORM.

    Args:
        loop: The event loop that uses them.
        running: The jobs that run on the loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, running: Mapping[int, tuple[Attempt, object]]) -> None:
        self._loop = loop
        self._running = running
        self.losses = uses.losses
        """How often the server had been lost when the connections were last closed because of that."""
        self._used_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._close_task: asyncio.Task[None] | None = None

    async def close_lost(self) -> None:
        """Close connections that are older than the last loss of the server."""
        self.losses = uses.losses
        await sync_to_async(django_connections.before_job)()

    async def clean_up(self, attempt: Attempt, report: Report) -> Report:
        """Clean up the connections, because a job has used them. Return its report.

        If writes were rolled back, another report says so. Coroutines share the connections, so the writes may be those
        of any job that still runs.
        """
        self._used_at = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(django_connections.IDLE_SECONDS, self._close_unused)
        try:
            await sync_to_async(django_connections.after_job)()
        except Dead as error:
            others = [other for other, _ in list(self._running.values()) if other is not attempt]
            return report_of_lost_writes(attempt, report, error, others)
        return report

    def _close_unused(self) -> None:
        """Close the connections if no job has used them for a while: one timer at a time."""
        left_seconds = self._used_at + django_connections.IDLE_SECONDS - self._loop.time()
        if self._running or left_seconds > 0:
            wait_seconds = left_seconds if left_seconds > 0 else django_connections.IDLE_SECONDS
            self._timer = self._loop.call_later(wait_seconds, self._close_unused)
            return
        self._timer = None
        # Without the loop's task factory, which a job may have set.
        self._close_task = asyncio.Task(sync_to_async(self._close_if_idle)(), loop=self._loop)

    def _close_if_idle(self) -> None:
        """Close this thread's connections unless a job has started since. Its statements wait for this thread."""
        if not self._running:
            django_connections.close_idle()
