"""Keep the cursors of the keys of all lanes: where the next claim from each key begins.

Used by `LimitedLanes`, in the fetcher's thread. Without cursors, each claim from a key would walk again over the index
entries of all its claimed jobs, while a transaction elsewhere has an old snapshot. Jobs that commit late can lie behind
a cursor. For these, a claim begins `MARGIN` before the cursor now and then. Claims must not all do so: at 5,000 jobs a
second, they would walk over 10,000 entries each. For older jobs, the walk over all keys drops the cursor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Final

from django_pgqueue.lifecycle import Claimed, Cursor, Lane

CURSORS: Final = 5000
"""How many keys have a cursor."""
MARGIN: Final = timedelta(seconds=2)
LOOK_BACK_SECONDS: Final = 0.5
"""How often a claim from a key begins `MARGIN` before its cursor."""
TOLERANCE: Final = timedelta(milliseconds=1)


class KeyCursors:
    """The cursors of one fetcher."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last: dict[tuple[Lane, str], tuple[Cursor, float]] = {}
        """The last claimed job of each key, and when a claim begins before it again. The newest entry comes last."""

    def beginning(self, lane: Lane, key: str) -> Cursor:
        """Return where the next claim from a key begins."""
        if (found := self._last.get((lane, key))) is None:
            return Cursor()
        cursor, looks_back_at = found
        return cursor if self._clock() < looks_back_at else Cursor(cursor.run_after - MARGIN, 0)

    def keep(self, lane: Lane, claimed: Iterable[Claimed]) -> None:
        """Move the cursor of each key to its last claimed job, even if that is further back."""
        now = self._clock()
        last = {job.limit_key: job for job in claimed if job.limit_key is not None}
        for key, job in last.items():
            _, looks_back_at = self._last.pop((lane, key), (None, 0.0))
            if looks_back_at <= now:
                looks_back_at = now + LOOK_BACK_SECONDS
            self._last[lane, key] = Cursor(job.run_after, job.job_id), looks_back_at
        while len(self._last) > CURSORS:
            del self._last[next(iter(self._last))]

    def drop_if_behind(self, lane: Lane, key: str, run_after: datetime) -> None:
        """Let the next claim begin at the first job of a key, if that job comes before the cursor."""
        found = self._last.get((lane, key))
        if found is not None and run_after < found[0].run_after - TOLERANCE:
            del self._last[lane, key]

    def forget(self, lane: Lane, key: str) -> None:
        """Let the next claim from a key begin at its first job."""
        self._last.pop((lane, key), None)
