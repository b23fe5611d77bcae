"""Note what one circle over the keys of a lane has found, for the rest after it.

Used by `limited_lanes`, in the fetcher's thread.
"""

from __future__ import annotations

import time


class Circle:
    """One visit to all keys of a lane."""

    def __init__(self, *, from_start: bool) -> None:
        self.began_at = time.monotonic()
        self.from_start = from_start
        """Whether the searches of this circle use no cursors."""
        self.is_fruitful = False
        """Whether a job was claimed."""
        self.has_waiting = False
        """Whether a due job waits for a slot or a token."""
        self.wait_until = float("inf")

    def wait(self, until: float) -> None:
        """Note that something can change at this time."""
        self.wait_until = min(self.wait_until, until)
