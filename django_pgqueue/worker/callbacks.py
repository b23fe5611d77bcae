"""Run the application's signal receivers of a worker process in a thread of their own.

A receiver may hang, raise anything, or lose its database connection. The engine's threads therefore only append the
event to a bounded queue, and one daemon thread calls the receivers, in order. The main thread calls `watch()` once a
second: a call that takes longer than 30 s is abandoned with its thread, and a new thread continues with the next
receiver. Nothing that a receiver does can stop completions, heartbeats or claims.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from . import describe, hygiene
from .bounded import call_in_time
from .events import log_failure

if TYPE_CHECKING:
    from django_pgqueue.signals import TaskSignal

T = TypeVar("T")
logger = logging.getLogger("django_pgqueue.worker")

QUEUE_LIMIT: Final = 10_000
"""Events that wait at most; more are dropped and counted."""
EXCEPTION_LIMIT: Final = 1000
"""An event with an exception is dropped where so many wait: an exception keeps the variables of all its frames."""
CALLBACK_SECONDS: Final = 30.0
ANSWER_SECONDS: Final = 10.0
"""How long an engine thread waits for an answer of the application: a schedule's unique key, or its headers."""
ABANDONED_LIMIT: Final = 3
"""Threads that hang in a receiver at most, besides the one that calls receivers."""
QUICK_SECONDS: Final = 0.002
"""Receivers that take less on average may slow the claims down, so that their events need not be dropped."""
HANGS_SECONDS: Final = 0.1
DRAIN_TURN_SECONDS: Final = 0.005


class Event(NamedTuple):
    """A signal to deliver, or a function to call."""

    signal: TaskSignal | None
    task_name: str | None
    about: dict[str, Any]
    function: Callable[[], Any] | None = None


Call = tuple[Any, Callable[[], Any]]


class CallbackRunner:
    """The queue of events, and the thread that calls their receivers, started by the first event."""

    def __init__(self) -> None:
        self.dropped = 0
        """How many events were dropped since the process began."""
        self.seconds_per_call = 0.0
        """How long a receiver takes, averaged over about the last ten calls."""
        self._events: deque[Event] = deque()
        """The first is the one whose receivers are being called."""
        self._calls: deque[Call] | None = None
        """The receivers of the first event that are still to be called."""
        self._thread: CallbackThread | None = None
        self._abandoned: list[CallbackThread] = []
        self._guard = threading.Lock()
        """Held to take the next call and to replace the thread; never while a receiver runs."""
        self._wake = threading.Event()
        self._dropped_logged = 0

    def __len__(self) -> int:
        return len(self._events)

    def submit(self, signal: TaskSignal, task_name: str | None, about: dict[str, Any]) -> None:
        """Queue an event; from any thread. Never blocks: without room the event is dropped and counted."""
        limit = QUEUE_LIMIT if about.get("exception") is None else EXCEPTION_LIMIT
        self._add(Event(signal, task_name, about), limit)

    def publish(self, signal: TaskSignal, task_name: str | None, about: dict[str, Any]) -> None:
        """Queue an event if somebody listens; from any thread."""
        if signal.has_listeners(task_name):
            self.submit(signal, task_name, about)

    def call(self, function: Callable[[], Any]) -> None:
        """Queue a call of a function of the application; from any thread."""
        self._add(Event(None, None, {}, function), QUEUE_LIMIT)

    def ask(self, function: Callable[[], T]) -> T:
        """Return what a function of the application answers; raise `TimeoutError` if that takes too long."""
        return call_in_time(function, ANSWER_SECONDS)

    def _add(self, event: Event, limit: int) -> None:
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
        """Wake the thread; harmless at any time, from any thread."""
        if not self._wake.is_set():
            self._wake.set()

    @property
    def is_behind(self) -> bool:
        """Whether quick receivers only need time: more jobs now would have their events dropped.

        Slow or hanging receivers do not count. They must not keep the worker from its jobs.
        """
        thread = self._thread
        if len(self._events) <= QUEUE_LIMIT // 2 or thread is None:
            return False
        return self.seconds_per_call < QUICK_SECONDS and thread.busy_seconds < HANGS_SECONDS

    # ---------------------------------------------------------------- the main thread

    def watch(self) -> None:
        """Replace the thread if it hangs or has died; log how many events were dropped. Call it about once a second."""
        if self.dropped > self._dropped_logged:
            count, self._dropped_logged = self.dropped - self._dropped_logged, self.dropped
            logger.error("%d signals were not sent: the receivers are too slow, %d wait", count, len(self._events))
        self._abandoned = [thread for thread in self._abandoned if thread.is_alive()]
        thread = self._thread
        if thread is None or (thread.is_alive() and thread.busy_seconds <= CALLBACK_SECONDS):
            return
        if thread.is_alive():
            thread.log_hanging()
            if len(self._abandoned) >= ABANDONED_LIMIT:
                return
            self._abandoned.append(thread)
        with self._guard:
            thread.is_abandoned = True
            self._start_thread()
        self.wake()  # the abandoned thread may have returned just now, and wait for an event: it is to end

    def drain(self, seconds: float, is_interrupted: Callable[[], bool] = lambda: False) -> None:
        """Wait until no event is left, at most so many seconds, or until `is_interrupted()`."""
        deadline = time.monotonic() + seconds
        while self._events and time.monotonic() < deadline and not is_interrupted():
            self.watch()
            time.sleep(DRAIN_TURN_SECONDS)
        if self._events:
            logger.error("%d signals were not sent: the process ends before their receivers", len(self._events))

    def _start_thread(self) -> None:
        self._thread = CallbackThread(self)
        self._thread.start()

    # ---------------------------------------------------------------- the callback thread

    def next_call(self, thread: CallbackThread) -> Call | None:
        """Return the next receiver to call, None if there is none for this thread at the moment."""
        with self._guard:
            while self._events and not thread.is_abandoned:
                if self._calls is None:
                    self._calls = deque(_calls_of(self._events[0]))
                if self._calls:
                    return self._calls.popleft()
                self._calls = None
                self._events.popleft()
            return None

    def wait(self) -> None:
        """Wait for an event."""
        self._wake.wait()
        self._wake.clear()  # before the look at the queue: an event that comes later sets it again

    def called(self, seconds: float) -> None:
        """Take note of how long a call took."""
        self.seconds_per_call += (seconds - self.seconds_per_call) / 10


class CallbackThread(threading.Thread):
    """Calls receivers, one after another, until it is abandoned."""

    def __init__(self, runner: CallbackRunner) -> None:
        super().__init__(name="pgqueue-callbacks", daemon=True)
        self.runner = runner
        self.is_abandoned = False
        self._began_at: float | None = None
        self._receiver: Any = None
        self._is_logged = False

    @property
    def busy_seconds(self) -> float:
        """How long the present call has been running."""
        began_at = self._began_at
        return 0.0 if began_at is None else time.monotonic() - began_at

    def run(self) -> None:
        """Call receivers; each in a copy of a clean context, and with connections that are sound."""
        context = hygiene.clean_context()
        try:
            while not self.is_abandoned:
                call = self.runner.next_call(self)
                if call is None:
                    self.runner.wait()
                else:
                    context.copy().run(self._call, *call)
        finally:
            self.runner.wake()  # this thread may have taken the wake-up of the one that replaces it
            with suppress(BaseException):
                hygiene.close_all()

    def _call(self, receiver: Any, call: Callable[[], Any]) -> None:
        began_at = time.monotonic()
        self._receiver, self._began_at = receiver, began_at
        try:
            hygiene.before_job()
            call()
            hygiene.after_job()
        except BaseException as error:  # noqa: BLE001 -- whatever a receiver raises, the next one is called
            log_failure(receiver, error)
            self._leave_clean()
        finally:
            self._began_at = self._receiver = None
            self.runner.called(time.monotonic() - began_at)

    def _leave_clean(self) -> None:
        """Close what connections the receiver has spoilt; a terminated session fails one receiver at most."""
        try:
            hygiene.after_job()
        except BaseException:  # noqa: BLE001 -- a connection that cannot even be tidied
            with suppress(BaseException):
                hygiene.close_all()

    def log_hanging(self) -> None:
        """Log once where the receiver hangs."""
        if self._is_logged:
            return
        self._is_logged = True
        frame = sys._current_frames().get(self.ident or 0)
        stack = "".join(traceback.format_stack(frame)) if frame else ""
        name = describe.name_of(self._receiver)
        logger.error("the receiver %s has not returned for %.0f s: left to itself\n%s", name, self.busy_seconds, stack)


def _calls_of(event: Event) -> list[Call]:
    if event.function is not None:
        return [(event.function, event.function)]
    if event.signal is None:
        return []
    try:
        return event.signal.calls_for(event.task_name, **event.about)
    except BaseException as error:  # noqa: BLE001 -- weak references run the application's callbacks
        describe.log_exception("the receivers of a signal cannot be found", error)
        return []
