"""The jobs that somebody waits for, as far as this process has heard: it says when it has written the end of one.

Nothing happens, and nothing is asked, while nobody waits. See `ends` for the other side.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import psycopg

from django_pgqueue import ends
from django_pgqueue.db import EngineConnection
from django_pgqueue.lifecycle import Fate
from django_pgqueue.states import State

if TYPE_CHECKING:
    from django_pgqueue.db import Connection
    from django_pgqueue.lifecycle import Moved

logger = logging.getLogger("django_pgqueue.worker")

LIMIT: Final = 10_000
"""More are not kept in mind: who waits for the oldest of them finds the end by looking."""
FORGET_SECONDS: Final = 4 * ends.REPEAT_SECONDS
"""What was not repeated for so long nobody waits for any more."""


class Awaited:
    """Their ids, and when each was last heard. One thread hears, others tell."""

    def __init__(self) -> None:
        self._heard_at: OrderedDict[int, float] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._heard_at)

    def hear(self, word: str) -> None:
        """Keep in mind the ids that a notification carries."""
        now = time.monotonic()
        with self._lock:
            for job_id in ends.ids_in(word):
                self._heard_at[job_id] = now
                self._heard_at.move_to_end(job_id)
            self._forget(now)

    def tell(self, connection: Connection, job_ids: Iterable[int]) -> None:
        """Say which of these are over that somebody waits for; call it when that is committed. Raises nothing."""
        with self._lock:
            self._forget(time.monotonic())
            over = [job_id for job_id in job_ids if self._heard_at.pop(job_id, None) is not None]
        if not over or not isinstance(connection, EngineConnection):
            return
        try:
            ends.tell(connection, ends.OVER, over)
        except (psycopg.Error, OSError):
            logger.debug("nobody was told of the ends of %d jobs", len(over), exc_info=True)

    def _forget(self, now: float) -> None:
        while self._heard_at:
            oldest_at = next(iter(self._heard_at.values()))
            if len(self._heard_at) <= LIMIT and now - oldest_at <= FORGET_SECONDS:
                return
            self._heard_at.popitem(last=False)


def may_be_over(moved: Moved) -> bool:
    """Say whether an act may have ended a job. Who waits looks, so to tell of one that goes on does no harm."""
    return moved.fate is not Fate.LOCKED and moved.state is not State.READY
