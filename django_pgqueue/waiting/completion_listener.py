"""Receive notifications that awaited jobs have ended, on one connection per database for all waits of a process.

`result_wait` calls `awaiting()` for a wait that lasts. The listener announces the awaited job ids to the workers on the
channel `AWAITED`. A worker that ends one of these jobs sends its id on the channel `OVER`, after the commit. While no
process waits, completions send no notifications. A supervisor that closes the executions of a dead process, and an
application that cancels a job, do not know who waits, so they always send one. The workers use `notify()` and
`ids_in()` too.

Notifications only shorten a wait. If one is lost, if a worker missed an announcement, or if a pooler does not forward
notifications, the polls of `result_wait` find the end of the job. They continue all the time.

Concurrency: the waiting threads add and remove waits; the listener's own thread uses the connection. `_lock` guards the
waits. A `Waker` wakes the listener's thread when they change.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from typing import Final

import psycopg

from django_pgqueue.db import reconnects
from django_pgqueue.db.engine_connection import EngineConnection, connect
from django_pgqueue.db.errors import message_without_detail
from django_pgqueue.ground.posix import after_fork_in_child
from django_pgqueue.ground.waker import Waker
from django_pgqueue.settings.conf import get_settings

logger = logging.getLogger("django_pgqueue.db")

AWAITED: Final = "pgqueue_awaited"
"""A separate channel, because a notification on the main one makes workers poll for jobs, older releases included."""
OVER: Final = "pgqueue_over"
"""Workers send the ids of awaited jobs that have ended on this channel."""
IDS_A_WORD: Final = 300
"""Maximum number of ids in one notification. A payload has less than 8,000 bytes, and an id up to 19 digits."""
KEEP_SECONDS: Final = 2.0
"""How long the connection stays open after the last wait. A test database is dropped after the last test, and
PostgreSQL gives sessions 5 s to leave it."""
REPEAT_SECONDS: Final = 15.0
"""How often all awaited ids are announced again. Workers that started since need them; workers forget ids that are not
repeated."""
PAUSE_LIMIT_SECONDS: Final = 60.0
"""Maximum backoff after an error. It starts at 1 s and doubles. After a lost connection it starts at once."""
STATEMENT_SECONDS: Final = 5.0
"""How long the listener waits for the answer to a statement."""
CLOSE_SECONDS: Final = 1.0
"""How long `close()` waits for the listener's thread."""

Wake = Callable[[], object]


def awaiting(alias: str, job_id: int, wake: Wake) -> AbstractContextManager[None]:
    """Return a context manager that calls `wake()`, from another thread, each time the job may have ended.

    It also calls `wake()` once after the workers were informed of the wait. A caller that reads the job's row after
    each call cannot miss its end. It never waits for the server and raises no database errors. With `PGQUEUE["NOTIFY"]`
    off, it does nothing.
    """
    settings = get_settings()
    if not settings.NOTIFY:
        return nullcontext()
    try:
        return _listener_of(settings.listen_alias(alias)).awaiting(job_id, wake)
    except OSError:  # no file descriptor is left for the socket pair
        logger.debug("cannot listen for the ends of awaited jobs, waits poll instead", exc_info=True)
        return nullcontext()


def notify(connection: EngineConnection, channel: str, job_ids: Iterable[int]) -> None:
    """Send job ids on a channel, in as many notifications as needed. Errors of the database pass through."""
    for payload in payloads(job_ids):
        connection.execute("SELECT pg_notify(%s, %s)", (channel, payload))


def payloads(job_ids: Iterable[int]) -> list[str]:
    """Return the payloads of the notifications that contain these job ids."""
    texts = list(map(str, job_ids))
    return [",".join(texts[first : first + IDS_A_WORD]) for first in range(0, len(texts), IDS_A_WORD)]


def ids_in(payload: str) -> list[int]:
    """Return the job ids in a notification, without invalid ones. Any role that can connect can send notifications."""
    return [int(text) for text in payload.split(",") if text.isascii() and text.isdigit() and len(text) < 20]


class CompletionListener:
    """The awaited jobs of one database, and a thread that listens for their ends while there are any."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self._lock = threading.Lock()
        self._waits: dict[int, list[Wake]] = {}
        self._unannounced: set[int] = set()
        """Awaited job ids that were not announced to the workers yet."""
        self._left_at = 0.0
        """When the last wait ended."""
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        self._errors = 0
        self._connect_at = 0.0
        self._repeat_at = 0.0
        self._waker = Waker()

    @contextmanager
    def awaiting(self, job_id: int, wake: Wake) -> Iterator[None]:
        """Call `wake()` each time the job may have ended; see the function of this name."""
        with self._lock:
            self._waits.setdefault(job_id, []).append(wake)
            self._unannounced.add(job_id)
            self._start()
        self._waker.wake()
        try:
            yield
        finally:
            with self._lock:
                self._remove(job_id, wake)

    def close(self) -> None:
        """End the thread and close its connection. The listener cannot be used again."""
        self._closed.set()
        self._waker.wake()
        thread = self._thread
        if thread is not None:
            thread.join(CLOSE_SECONDS)
        self._waker.close()

    def _start(self) -> None:
        """Start the thread if it does not run. Requires `_lock`."""
        if self._thread is None and not self._closed.is_set():
            self._thread = threading.Thread(target=self._run, name="pgqueue-waiting", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # no more threads can be started, or the interpreter is shutting down
                self._thread = None

    def _remove(self, job_id: int, wake: Wake) -> None:
        """Remove one wait. Requires `_lock`."""
        wakes = self._waits[job_id]
        wakes.remove(wake)
        if not wakes:
            del self._waits[job_id]
            self._unannounced.discard(job_id)
        if not self._waits:
            self._left_at = time.monotonic()
            self._waker.wake()  # it sleeps until the next repetition, and has to close the connection earlier

    def _wake(self, job_ids: Iterable[int]) -> None:
        """Wake the waits for these jobs. Calls `wake()` outside the lock."""
        with self._lock:
            wakes = [wake for job_id in job_ids for wake in self._waits.get(job_id, ())]
        for wake in wakes:
            wake()

    # ---------------------------------------------------------------- in the listener's own thread

    def _run(self) -> None:
        while self._is_needed():
            if self._closed.wait(max(0.0, self._connect_at - time.monotonic())) or not self._waits:
                continue
            try:
                with closing(self._connection()) as connection:
                    self._serve(connection)
            except Exception as error:  # noqa: BLE001 -- waits poll by themselves, so any error only costs time
                logger.debug(
                    "cannot listen for the ends of awaited jobs, waits poll instead: %s", message_without_detail(error)
                )
                self._connect_at = time.monotonic() + self._pause_after(error)
                self._errors = min(self._errors + 1, 20)

    def _pause_after(self, error: Exception) -> float:
        if reconnects.is_lost_connection(error):
            return reconnects.pause_seconds(self._errors, PAUSE_LIMIT_SECONDS)
        return min(2.0**self._errors, PAUSE_LIMIT_SECONDS)

    def _is_needed(self) -> bool:
        """Return whether the thread must go on. If not, forget it under the lock: the next wait starts another one."""
        with self._lock:
            if self._waits and not self._closed.is_set():
                return True
            self._thread = None
            return False

    def _connection(self) -> EngineConnection:
        connection = connect(self.alias, "waiting", STATEMENT_SECONDS)
        if connection.prepare_threshold is None:  # a transaction pooler: LISTEN would apply to another client's session
            connection.close()
            raise psycopg.NotSupportedError("a transaction pooler does not forward notifications")
        return connection

    def _serve(self, connection: EngineConnection) -> None:
        connection.add_notify_handler(lambda notice: self._wake(ids_in(notice.payload)))  # arrived with an answer
        connection.execute(f"LISTEN {OVER}")
        self._errors = 0
        with self._lock:
            self._unannounced.update(self._waits)
        while not self._may_disconnect():
            self._announce(connection)
            self._wait_for_event(connection)

    def _may_disconnect(self) -> bool:
        if self._closed.is_set():
            return True
        return not self._waits and time.monotonic() >= self._left_at + KEEP_SECONDS

    def _announce(self, connection: EngineConnection) -> None:
        """Announce the new awaited ids to the workers, or all of them if the time for a repetition has come.

        A job can end before the workers learn of the wait, and then no worker announces its end. So its waits are woken
        once after the announcement, to read the row again.
        """
        now = time.monotonic()
        with self._lock:
            new_ids, self._unannounced = self._unannounced, set()
            job_ids = set(self._waits) if now >= self._repeat_at else new_ids
        if now >= self._repeat_at:
            self._repeat_at = now + REPEAT_SECONDS
        if job_ids:
            notify(connection, AWAITED, job_ids)
        self._wake(new_ids)

    def _wait_for_event(self, connection: EngineConnection) -> None:
        """Wait for a change of the waits, a notification, or the time of the next repetition or of disconnecting."""
        until = self._repeat_at if self._waits else self._left_at + KEEP_SECONDS
        if connection.fileno() in self._waker.wait(max(0.0, until - time.monotonic()), connection.fileno()):
            connection.pgconn.consume_input()
            while notice := connection.pgconn.notifies():
                self._wake(ids_in(notice.extra.decode("ascii", "replace")))


# ---------------------------------------------------------------------------- the listeners of this process

_all: dict[str, CompletionListener] = {}
_all_lock = threading.Lock()
_inherited: list[dict[str, CompletionListener]] = []
"""The parent's listeners after a fork. Collecting one would close its connection and end the parent's session."""


def _listener_of(alias: str) -> CompletionListener:
    with _all_lock:
        if alias not in _all:
            _all[alias] = CompletionListener(alias)
        return _all[alias]


def _forget_in_child() -> None:
    """Start without listeners after a fork, because threads, connections and a locked lock are the parent's."""
    global _all, _all_lock
    _inherited.append(_all)
    _all, _all_lock = {}, threading.Lock()


def close() -> None:
    """Close every listener of this process. Called at its exit."""
    with _all_lock:
        for completion_listener in _all.values():
            completion_listener.close()
        _all.clear()


after_fork_in_child(_forget_in_child)
atexit.register(close)
