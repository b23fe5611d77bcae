"""Run the application's signal receivers of a worker process in a thread of their own.

A receiver may hang, raise anything, or lose its database connection. The engine's threads therefore only append the
event to a bounded queue, and one daemon thread calls the receivers, in order. The main thread calls `watch()` once a
second. A call that takes longer than 30 s is abandoned with its thread, and a new thread continues with the next
receiver. While three calls of one receiver hang, only this receiver is not called. No receiver can stop completions,
heartbeats, claims or other receivers.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

from django_pgqueue.ground import log_events
from django_pgqueue.ground.plurals import counted
from django_pgqueue.signals import WorkerSignal
from django_pgqueue.worker.execution import error_text
from django_pgqueue.worker.execution.job_events import log_failure
from django_pgqueue.worker.runtime import django_connections
from django_pgqueue.worker.runtime.process_info import call_here

from .receivers import Call, Delivery, PendingCalls, calls_of, contained, identity

T = TypeVar("T")
logger = logging.getLogger("django_pgqueue.worker")

QUEUE_LIMIT: Final = 10_000
"""Maximum number of queued events. Further events are dropped and counted."""
EXCEPTION_LIMIT: Final = 1000
"""The same for an event with an exception, because an exception keeps the variables of all its frames alive."""
CALLBACK_SECONDS: Final = 30.0
ANSWER_SECONDS: Final = 10.0
"""The time in which the application's functions must return the options of a schedule's job."""
ABANDONED_LIMIT: Final = 3
"""Maximum number of threads that hang in one receiver."""
SKIPPED: Final = "left out %s of receivers, because %d earlier calls of each of them have not returned"
QUICK_SECONDS: Final = 0.002
"""Receivers that take less than this on average may slow down the claims; then their events are not dropped."""
HANGS_SECONDS: Final = 0.1
DRAIN_TURN_SECONDS: Final = 0.005


class CallbackRunner:
    """The queue of events, and the thread that calls their receivers, started by the first event."""

    def __init__(self) -> None:
        self.dropped = 0
        """How many events were dropped since the process began."""
        self.seconds_per_call = 0.0
        """Duration of a call, averaged over about the last ten calls."""
        self._events: deque[Delivery] = deque()
        """The receivers of the first event are being called."""
        self._calls: deque[Call] | None = None
        """The receivers of the first event that have not been called yet."""
        self._thread: CallbackThread | None = None
        self._abandoned: list[CallbackThread] = []
        self._guard = threading.Lock()
        """Held to take the next call and to replace the thread; never while a receiver runs."""
        self._wake = threading.Event()
        self._dropped_logged = 0
        self._skipped = 0
        """How many calls were left out since the last log line, because calls of their receiver hang."""
        self._asked = PendingCalls(ANSWER_SECONDS)

    def __len__(self) -> int:
        return len(self._events)

    def submit(self, signal: WorkerSignal, task_name: str | None, about: dict[str, Any]) -> None:
        """Queue an event, or drop and count it if the queue is full. Never blocks; safe from any thread."""
        limit = QUEUE_LIMIT if about.get("exception") is None else EXCEPTION_LIMIT
        self._add(Delivery(signal, task_name, about), limit)

    def publish(self, signal: WorkerSignal, task_name: str | None, about: dict[str, Any]) -> None:
        """Queue an event if its signal has receivers. Safe from any thread."""
        if signal.has_listeners(task_name):
            self.submit(signal, task_name, about)

    def call(self, function: Callable[[], Any]) -> None:
        """Queue a call of an application's function. Safe from any thread."""
        self._add(Delivery(None, None, {}, function), QUEUE_LIMIT)

    def ask(self, function: Callable[[], T], owner: str, occasion: Hashable, describe: Callable[[], str]) -> T:
        """Call an application's function, as `PendingCalls.ask()` does. Only one thread may use it.

        Raises:
            NotReturned: The function has not returned yet. Ask again.
            TimeoutError: It has not returned within 10 s, or three earlier calls of this owner still hang.
            RuntimeError: It has raised an exception that would end the engine's thread.
            Exception: Any other error of the function.
        """
        return self._asked.ask(partial(contained, function, describe), owner, occasion, describe)

    def _add(self, event: Delivery, limit: int) -> None:
        if len(self._events) >= limit:
            self.dropped += 1
            return
        self._events.append(event)
        if self._thread is None:
            with self._guard:
                if self._thread is None:
                    self._start_thread()
        self.wake()

    def wake(self) -> None:
        """Wake the thread. Safe at any time and from any thread."""
        if not self._wake.is_set():
            self._wake.set()

    @property
    def is_behind(self) -> bool:
        """Whether claims should wait for the receivers, because events of further jobs would be dropped.

        This is False for slow or hanging receivers, because they must not keep the worker from its jobs.
        """
        thread = self._thread
        if len(self._events) <= QUEUE_LIMIT // 2 or thread is None:
            return False
        return self.seconds_per_call < QUICK_SECONDS and thread.busy_seconds < HANGS_SECONDS

    # ---------------------------------------------------------------- the main thread

    def watch(self) -> None:
        """Replace the thread if it hangs or has died, and log how many events were dropped. Call it once a second."""
        if self.dropped > self._dropped_logged:
            count, self._dropped_logged = self.dropped - self._dropped_logged, self.dropped
            logger.error(
                "the receivers are too slow: did not send %s, %d more wait",
                counted(count, "signal"),
                len(self._events),
                extra=log_events.event("signals_dropped", count=count),
            )
        if (count := self._skipped) > 0:
            self._skipped -= count
            extra = log_events.event("signals_dropped", count=count)
            logger.error(SKIPPED, counted(count, "call"), ABANDONED_LIMIT, extra=extra)
        self._abandoned = [thread for thread in self._abandoned if thread.is_alive()]
        thread = self._thread
        if thread is None or (thread.is_alive() and thread.busy_seconds <= CALLBACK_SECONDS):
            return
        if thread.is_alive():
            thread.log_hanging()
            self._abandoned.append(thread)
        with self._guard:
            thread.is_abandoned = True
            self._start_thread()
        self.wake()  # the abandoned thread may have just returned and be waiting for an event; wake it so that it ends

    def drain(self, seconds: float, is_interrupted: Callable[[], bool] = lambda: False) -> None:
        """Wait as `wait_until_called()` does, at the end of the process, and log how many events are left."""
        if not self.wait_until_called(seconds, is_interrupted):
            extra = log_events.event("signals_dropped", count=len(self._events))
            logger.error("the process is ending: did not send %s", counted(len(self._events), "signal"), extra=extra)

    def wait_until_called(self, seconds: float, is_interrupted: Callable[[], bool] = lambda: False) -> bool:
        """Wait until no event is left, `is_interrupted()` returns True, or `seconds` have passed.

        Return whether no event is left.
        """
        deadline = time.monotonic() + seconds
        while self._events and time.monotonic() < deadline and not is_interrupted():
            self.watch()
            time.sleep(DRAIN_TURN_SECONDS)
        return not self._events

    def _start_thread(self) -> None:
        self._thread = CallbackThread(self)
        self._thread.start()

    # ---------------------------------------------------------------- the callback thread

    def next_call(self, thread: CallbackThread) -> Call | None:
        """Return the next receiver that this thread has to call, or None."""
        with self._guard:
            while self._events and not thread.is_abandoned:
                if self._calls is None:
                    self._calls = deque(calls_of(self._events[0]))
                while self._calls:
                    call = self._calls.popleft()
                    if self._may_call(call[0]):
                        return call
                self._calls = None
                self._events.popleft()
            return None

    def _may_call(self, receiver: Any) -> bool:
        """Return whether fewer than `ABANDONED_LIMIT` calls of a receiver hang. If not, count the call."""
        hanging = sum(thread.is_calling(receiver) for thread in self._abandoned)
        self._skipped += hanging >= ABANDONED_LIMIT
        return hanging < ABANDONED_LIMIT

    def wait(self) -> None:
        """Wait for an event."""
        self._wake.wait()
        self._wake.clear()  # before the queue is read: an event that is added later sets it again

    def called(self, seconds: float) -> None:
        """Record how long a call took."""
        self.seconds_per_call += (seconds - self.seconds_per_call) / 10


class CallbackThread(threading.Thread):
    """Call receivers one after another until this thread is abandoned."""

    def __init__(self, runner: CallbackRunner) -> None:
        super().__init__(name="pgqueue-callbacks", daemon=True)
        self.runner = runner
        self.is_abandoned = False
        self._began_at: float | None = None
        self._receiver: Any = None
        self._is_logged = False

    @property
    def busy_seconds(self) -> float:
        """Seconds that the current call has been running."""
        began_at = self._began_at
        return 0.0 if began_at is None else time.monotonic() - began_at

    def is_calling(self, receiver: Any) -> bool:
        """Return whether the current call is one of this receiver."""
        return self._began_at is not None and identity(self._receiver) == identity(receiver)

    def run(self) -> None:
        """Call receivers, each in a copy of a clean context and with working connections."""
        context = django_connections.clean_context()
        try:
            while not self.is_abandoned:
                call = self.runner.next_call(self)
                if call is None:
                    self.runner.wait()
                else:
                    context.copy().run(self._call, *call)
        finally:
            self.runner.wake()  # this thread may have consumed the wake-up of its replacement
            with suppress(BaseException):
                django_connections.close_all()

    def _call(self, receiver: Any, call: Callable[[], Any]) -> None:
        began_at = time.monotonic()
        self._receiver, self._began_at = receiver, began_at
        try:
            django_connections.before_job()
            call_here(call)
            django_connections.after_job()
        except BaseException as error:  # noqa: BLE001 -- whatever a receiver raises, the next one is called
            log_failure(receiver, error)
            self._leave_clean()
        finally:
            self._began_at = self._receiver = None
            self.runner.called(time.monotonic() - began_at)

    def _leave_clean(self) -> None:
        """Close the connections that the receiver broke, so that a terminated session fails one receiver at most."""
        try:
            django_connections.after_job()
        except BaseException:  # noqa: BLE001 -- cleaning up a connection may fail too
            with suppress(BaseException):
                django_connections.close_all()

    def log_hanging(self) -> None:
        """Log the stack of the hanging receiver, once."""
        if self._is_logged:
            return
        self._is_logged = True
        frame = sys._current_frames().get(self.ident or 0)
        stack = "".join(traceback.format_stack(frame)) if frame else ""
        name = error_text.name_of(self._receiver)
        logger.error(
            "the receiver %s has not returned for %.0f s and is abandoned\n%s",
            name,
            self.busy_seconds,
            stack,
            extra=log_events.event("receiver_hangs", receiver=name),
        )
