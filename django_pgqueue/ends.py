"""How a process hears that jobs which it waits for are over: on one connection for all its waits of a database.

Who waits tells the workers for which jobs, on the channel `AWAITED`. A worker that then writes the end of one says so
on `OVER`, after the commit of that. Where nobody waits nobody says anything.

All of it is a hint. A word that is lost, a worker that never heard, a pooler that hands nothing on: then the end is
found by the looks of `waiting`, which go on meanwhile.
"""

from __future__ import annotations

import atexit
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from typing import Final

import psycopg

from .conf import get_settings
from .db import EngineConnection, connect, told

logger = logging.getLogger("django_pgqueue.db")

AWAITED: Final = "pgqueue_awaited"
"""A channel of its own, for what is said there must not have workers look for jobs, those of older releases neither."""
OVER: Final = "pgqueue_over"
IDS_A_WORD: Final = 300
"""A notification carries less than 8,000 bytes, and an id may have 19 digits."""
KEEP_SECONDS: Final = 2.0
"""How long the connection is kept without a wait. A test database is dropped after the last test, and PostgreSQL gives
sessions 5 s to leave it."""
REPEAT_SECONDS: Final = 15.0
"""The workers are told again this often, for some have come since; they forget what is not repeated."""
PAUSE_LIMIT_SECONDS: Final = 60.0
"""After an error it rests for 1, 2, 4 s, and at last so long."""
STATEMENT_SECONDS: Final = 5.0
CLOSE_SECONDS: Final = 1.0

Wake = Callable[[], object]


def awaiting(alias: str, job_id: int, wake: Wake) -> AbstractContextManager[None]:
    """Call `wake()`, from another thread, when this job may be over; once also when the workers were told of the wait.

    Whoever looks after each call misses no end. Does not wait for the server, and raises nothing of the database's.
    """
    settings = get_settings()
    if not settings.NOTIFY:
        return nullcontext()
    try:
        return _ends_of(settings.LISTEN_DATABASE or alias).awaiting(job_id, wake)
    except OSError:  # no descriptor is left for the sockets of the first wait
        logger.debug("ends of jobs are found by looking alone", exc_info=True)
        return nullcontext()


def tell(connection: EngineConnection, channel: str, job_ids: Iterable[int]) -> None:
    """Notify whoever listens on a channel about these jobs; raises what the database raises."""
    texts = list(map(str, job_ids))
    for first in range(0, len(texts), IDS_A_WORD):
        word = ",".join(texts[first : first + IDS_A_WORD])
        connection.execute("SELECT pg_notify(%s, %s)", (channel, word))


def ids_in(word: str) -> list[int]:
    """Return the ids in a notification, which anybody who may connect can send: what is none is left out."""
    return [int(text) for text in word.split(",") if text.isascii() and text.isdigit() and len(text) < 20]


class Ends:
    """What is awaited of one database, and the thread that listens for it while anything is."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self._lock = threading.Lock()
        self._waits: dict[int, list[Wake]] = {}
        self._untold: set[int] = set()
        """Jobs that the workers have not been told of."""
        self._left_at = 0.0
        """When the last wait of all ended."""
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        self._errors = 0
        self._connect_at = 0.0
        self._repeat_at = 0.0
        self._rope, self._clapper = socket.socketpair()
        for end in (self._rope, self._clapper):
            end.settimeout(0.0)

    @contextmanager
    def awaiting(self, job_id: int, wake: Wake) -> Iterator[None]:
        """Do as the function above."""
        with self._lock:
            self._waits.setdefault(job_id, []).append(wake)
            self._untold.add(job_id)
            self._start()
        self._ring()
        try:
            yield
        finally:
            with self._lock:
                self._remove(job_id, wake)

    def close(self) -> None:
        """End the thread and its connection, for good."""
        self._closed.set()
        self._ring()
        thread = self._thread
        if thread is not None:
            thread.join(CLOSE_SECONDS)
        self._rope.close()
        self._clapper.close()

    def _start(self) -> None:
        if self._thread is None and not self._closed.is_set():
            self._thread = threading.Thread(target=self._run, name="pgqueue-ends", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # no more threads, or the interpreter ends
                self._thread = None

    def _remove(self, job_id: int, wake: Wake) -> None:
        wakes = self._waits[job_id]
        wakes.remove(wake)
        if not wakes:
            del self._waits[job_id]
            self._untold.discard(job_id)
        if not self._waits:
            self._left_at = time.monotonic()
            self._ring()  # for it sleeps until it is to repeat something

    def _ring(self) -> None:
        """Have the thread look at what has changed."""
        with suppress(OSError):  # full of rings that it has not heard yet, or closed
            self._rope.send(b"!")

    def _wake(self, job_ids: Iterable[int]) -> None:
        with self._lock:
            wakes = [wake for job_id in job_ids for wake in self._waits.get(job_id, ())]
        for wake in wakes:
            wake()

    # ---------------------------------------------------------------- in its own thread

    def _run(self) -> None:
        while self._is_needed():
            if self._closed.wait(max(0.0, self._connect_at - time.monotonic())) or not self._waits:
                continue
            try:
                with closing(self._connection()) as connection:
                    self._serve(connection)
            except Exception as error:  # noqa: BLE001 -- whatever it is, those who wait look by themselves
                logger.debug("ends of jobs are found by looking alone: %s", told(error))
                self._connect_at = time.monotonic() + min(2.0**self._errors, PAUSE_LIMIT_SECONDS)
                self._errors = min(self._errors + 1, 10)

    def _is_needed(self) -> bool:
        with self._lock:
            if self._waits and not self._closed.is_set():
                return True
            self._thread = None  # whoever comes now starts another
            return False

    def _connection(self) -> EngineConnection:
        connection = connect(self.alias, "waiting", STATEMENT_SECONDS)
        if connection.prepare_threshold is None:  # then this is a pooler, where LISTEN would be left to a stranger
            connection.close()
            raise psycopg.NotSupportedError("a pooler hands no notifications on")
        return connection

    def _serve(self, connection: EngineConnection) -> None:
        connection.add_notify_handler(lambda notice: self._wake(ids_in(notice.payload)))  # those that come with answers
        connection.execute(f"LISTEN {OVER}")
        self._errors = 0
        with self._lock:
            self._untold.update(self._waits)
        while not self._is_over():
            self._tell(connection)
            self._hear(connection)

    def _is_over(self) -> bool:
        if self._closed.is_set():
            return True
        return not self._waits and time.monotonic() >= self._left_at + KEEP_SECONDS

    def _tell(self, connection: EngineConnection) -> None:
        """Tell the workers what they do not know; all, if it is time for that."""
        now = time.monotonic()
        with self._lock:
            untold, self._untold = self._untold, set()
            job_ids = set(self._waits) if now >= self._repeat_at else untold
        if now >= self._repeat_at:
            self._repeat_at = now + REPEAT_SECONDS
        if job_ids:
            tell(connection, AWAITED, job_ids)
        self._wake(untold)  # to look once more: they may have ended before anybody knew

    def _hear(self, connection: EngineConnection) -> None:
        """Wait for a ring, a notification, or the time to do something."""
        until = self._repeat_at if self._waits else self._left_at + KEEP_SECONDS
        poll = select.poll()
        poll.register(self._clapper, select.POLLIN)
        poll.register(connection.fileno(), select.POLLIN)
        woken = {descriptor for descriptor, _ in poll.poll(1000 * max(0.0, until - time.monotonic()))}
        if self._clapper.fileno() in woken:
            self._clapper.recv(4096)
        if connection.fileno() in woken:
            connection.pgconn.consume_input()
            while notice := connection.pgconn.notifies():
                self._wake(ids_in(notice.extra.decode("ascii", "replace")))


# ---------------------------------------------------------------------------- those of this process

_all: dict[str, Ends] = {}
_all_lock = threading.Lock()
_inherited: list[dict[str, Ends]] = []
"""Kept from being collected: to close a connection here would end the parent's session."""


def _ends_of(alias: str) -> Ends:
    with _all_lock:
        if alias not in _all:
            _all[alias] = Ends(alias)
        return _all[alias]


def _forget_in_child() -> None:
    """After a fork: the thread is the parent's, and so is what it holds."""
    global _all, _all_lock
    _inherited.append(_all)
    _all, _all_lock = {}, threading.Lock()


def close() -> None:
    """Close every connection of this process that listens for ends; called at its end."""
    with _all_lock:
        for ends in _all.values():
            ends.close()
        _all.clear()


os.register_at_fork(after_in_child=_forget_in_child)
atexit.register(close)
