"""How far the running jobs of a process are, until it is written: the latest of each, all in one statement a second.

Nothing happens, and nothing is asked, while no job tells anything. The completer carries them in a worker process:
what an attempt has told last must be written before its end is, which closes the execution.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import psycopg
from django.db import DatabaseError

from django_pgqueue import lifecycle
from django_pgqueue.db import TRANSIENT, Connection, EngineConnection, is_lost, told
from django_pgqueue.lifecycle import ExecutionKey, Fate, Noted

from .trouble import trouble

if TYPE_CHECKING:
    from django_pgqueue.progress import Progress

logger = logging.getLogger("django_pgqueue.worker")

WRITE_SECONDS: Final = 1.0
"""Between two writes of what has changed."""
NOTHING_SECONDS: Final = 60.0
TELL_SECONDS: Final = 0.1
"""Between two messages of the process of an isolated job."""


class Note(NamedTuple):
    """What was told, and when, by the monotonic clock."""

    progress: Progress
    noted_at: float


class NoteSink(Protocol):
    """Where an attempt passes on what its task says of its progress."""

    def note(self, key: ExecutionKey, progress: Progress) -> None:
        """Keep how far the attempt is; return at once."""


class Notes:
    """The latest of each execution that is not written yet.

    Any thread tells; to put in, to take out and to put back are each one operation on a dict, so there is no lock.
    """

    def __init__(self, on_news: Callable[[], None] = lambda: None) -> None:
        self.on_news = on_news
        """Called when there is something to write, and there was nothing."""
        self._is_told = False
        """Whether that was called since there was nothing."""
        self._unwritten: dict[ExecutionKey, Note] = {}
        self._written_at = float("-inf")

    def __len__(self) -> int:
        return len(self._unwritten)

    def note(self, key: ExecutionKey, progress: Progress) -> None:
        """Take note of how far an attempt is."""
        self._unwritten[key] = Note(progress, time.monotonic())
        if not self._is_told:  # looked at after the note is there: see `due_in_seconds`
            self._is_told = True
            self.on_news()

    @property
    def due_in_seconds(self) -> float:
        """How long the next write may wait: a minute, which is to say for ever, if there is nothing to write.

        Who tells something after the second look calls `on_news()`; what was told before is seen by that look.
        """
        if not self._unwritten:
            self._is_told = False
            if not self._unwritten:
                return NOTHING_SECONDS
        return max(0.0, self._written_at + WRITE_SECONDS - time.monotonic())

    def write(self, connection: Connection, keys: Iterable[ExecutionKey] | None = None) -> set[ExecutionKey]:
        """Write what there is, of these executions or of all; return those whose rows were locked: try them again.

        What cannot be written for another reason is dropped, with a line in the log: how far a job is must not be in
        the way of how it ends. Raises what a lost connection raises, and then nothing is dropped.
        """
        wanted = list(self._unwritten) if keys is None else keys
        taken = {key: note for key in wanted if (note := self._unwritten.pop(key, None)) is not None}
        if keys is None:
            self._written_at = time.monotonic()
        if not taken:
            return set()
        try:
            fates, refused = lifecycle.divided(
                connection, _as_rows(taken), lambda part: lifecycle.note_progress(connection, part)
            )
        except (psycopg.Error, DatabaseError, OSError) as error:
            if not isinstance(connection, EngineConnection) or is_lost(connection):
                self._put_back(taken)
                raise
            if isinstance(error, TRANSIENT):
                self._put_back(taken)
                return set(taken)
            if trouble.may_speak():
                logger.warning("the progress of %d jobs cannot be written: %s", len(taken), told(error))
            return set()
        if refused and trouble.may_speak():
            logger.warning("the progress of %d jobs cannot be written: %s", len(refused), told(refused[0].error))
        locked = {key for key in taken if fates.get(key.execution_id) is Fate.LOCKED}
        self._put_back({key: taken[key] for key in locked})
        return locked

    def _put_back(self, taken: dict[ExecutionKey, Note]) -> None:
        for key, note in taken.items():
            self._unwritten.setdefault(key, note)  # what was told meanwhile is later


class Teller:
    """In the process of an isolated job: tells the worker process, which writes, what the job tells.

    What follows within a tenth of a second waits for the next, or for the end: a loop that tells of each of a million
    steps is not to send a million messages.
    """

    def __init__(self, send: Callable[[dict[str, Any]], None]) -> None:
        self._send = send
        self._sent_at = float("-inf")
        self._latest: Progress | None = None

    def note(self, key: ExecutionKey, progress: Progress) -> None:
        """Take note, and send it unless another was just sent."""
        self._latest = progress
        now = time.monotonic()
        if now - self._sent_at >= TELL_SECONDS:
            self._sent_at = now
            with suppress(OSError):  # nobody is there to read it any more: the end will show
                self._send(self.message(key.execution_id))

    def message(self, execution_id: int) -> dict[str, Any]:
        """Return what is sent, with the end of the attempt too."""
        return {"execution_id": execution_id, "progress": self._latest and list(self._latest[:3])}


def _as_rows(taken: dict[ExecutionKey, Note]) -> list[Noted]:
    now = time.monotonic()
    return [Noted(key, note.progress, now - note.noted_at) for key, note in taken.items()]
