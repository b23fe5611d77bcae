"""Keep the cursors in the keys of a lane: where the next claim from each key begins.

Used by `limited_lanes`, in the fetcher's thread. Without cursors, each claim from a key would walk again over the index
entries of all its claimed jobs, while a transaction elsewhere has an old snapshot. Jobs that commit late can lie behind
a cursor. For these, a claim begins `MARGIN` before the cursor now and then. Claims must not all do so: at 5,000 jobs a
second, they would walk over 10,000 entries each. Older jobs are found by circles without cursors.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from django_pgqueue.lifecycle import Claimed, Cursor

CURSORS: Final = 200
"""How many keys of a lane have a cursor."""
MARGIN: Final = timedelta(seconds=2)
LOOK_BACK_SECONDS: Final = 0.5
"""How often a claim from a key begins `MARGIN` before its cursor."""


class KeyCursors:
    """The cursors of one lane."""

    def __init__(self) -> None:
        self.last_claimed: dict[str, Cursor] = {}
        """Keys and the last job that was claimed from each. The key that was claimed from last comes last."""
        self._looks_back_at: dict[str, float] = {}

    def beginning(self, key: str) -> Cursor:
        """Return where the next claim from a key begins."""
        cursor = self.last_claimed.get(key)
        if cursor is None:
            return Cursor()
        return cursor if time.monotonic() < self._looks_back_at[key] else Cursor(cursor.run_after - MARGIN, 0)

    def keep(self, claimed: Iterable[Claimed]) -> None:
        """Move the cursor of each key to its last claimed job, even if that is further back."""
        now = time.monotonic()
        last = {job.limit_key: job for job in claimed if job.limit_key is not None}
        for key, job in last.items():
            self.last_claimed.pop(key, None)
            self.last_claimed[key] = Cursor(job.run_after, job.job_id)
            if self._looks_back_at.get(key, 0.0) <= now:
                self._looks_back_at[key] = now + LOOK_BACK_SECONDS
        for key in list(self.last_claimed)[:-CURSORS]:
            self.forget(key)

    def forget(self, key: str) -> None:
        """Let the next claim from a key begin at its first job."""
        self.last_claimed.pop(key, None)
        self._looks_back_at.pop(key, None)
