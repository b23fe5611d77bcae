"""The next look of an idle fetcher, which the look of a sibling process may replace.

A notification wakes the idle processes of a supervisor together, so they would all look, and look again, at the same
time. Each waits somewhat longer than it has to, by chance, so that one of them looks first. It then skips its own look
if the other one began late enough to answer for it: see `shared_looks`.

Only the fetcher's thread uses this.
"""

from __future__ import annotations

import random
import time
from typing import Final

from .lanes import Lanes

APART_SECONDS: Final = 0.003
"""About how far apart a notification wakes the processes of one host."""
LONGER: Final = 1.5
"""By how many times the pause before a look may be longer."""
HELD_BACK_SECONDS: Final = 0.01


class FollowUp:
    """When the next look is due, and what it has to know."""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self.moment: float | None = None
        """The next look has to know what was committed by then. None: no other process can answer for it."""
        self._pause_seconds = 0.0
        self._held_back_at: float | None = None
        """Since when notifications have been held back without a look."""

    def take_moment(self) -> float | None:
        """Return the moment, which counts for one look."""
        moment, self.moment = self.moment, None
        return moment

    def after(self, pause_seconds: float) -> float:
        """Return how long to sleep before a look that is due after that pause."""
        if self.lanes.shared is None:
            return pause_seconds
        self._pause_seconds = pause_seconds
        return self._wait_for(time.monotonic() + pause_seconds)

    def hold_back(self, moment: float | None, *, announced: bool) -> float | None:
        """Return how long a sibling may take to look instead of this process, or None if it is time to look.

        After a notification, the process at the first place looks at once. A sleep that ended for another reason goes
        on, because nothing that it waits for has happened.
        """
        if moment is None or self.lanes.shared is None:
            return None
        if announced:
            if self.lanes.shared.place == 0 or self._was_held_back():
                return None
            self._pause_seconds = APART_SECONDS
        elif time.monotonic() >= min(moment, self.lanes.next_due_at(float("inf"))):
            self._held_back_at = None
            return None
        return self._wait_for(moment)

    def _was_held_back(self) -> bool:
        """Whether it is time to look although notifications follow each other faster than this process waits."""
        now = time.monotonic()
        if self._held_back_at is not None and now - self._held_back_at > HELD_BACK_SECONDS:
            self._held_back_at = None
            return True
        self._held_back_at = self._held_back_at or now
        return False

    def _wait_for(self, moment: float) -> float:
        self.moment = moment
        longer = random.uniform(0, LONGER) * self._pause_seconds  # noqa: S311 -- spreads load
        return max(0.0, moment - time.monotonic()) + APART_SECONDS + longer
