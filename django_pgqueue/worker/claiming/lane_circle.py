"""Keep where a fetcher is in its circle over all lanes, if these are too many for one scan.

Used by `LanePages`, in the fetcher's thread. Invariant: when a circle is complete, each lane was read at least once
since the circle began. The fetcher may then sleep until the next job is due.
"""

from __future__ import annotations

from typing import Final

from django_pgqueue.lifecycle import Lane

RENEW_SECONDS: Final = 0.4
"""For this long after a notification, each page begins the circle again. `enqueue()` omits notifications that follow
another at once, and relies on the polls of this time."""


class LaneCircle:
    """The position in the circle, and which part of the circle is still to do."""

    def __init__(self) -> None:
        self.position: Lane | None = None
        """The last lane of the last page. None: the next page begins with the first lane."""
        self.is_complete = False
        self.began_at = float("-inf")
        self._stop: Lane | None = None
        """The position at which the circle began."""
        self._is_past_end = False
        self._renew_until = float("-inf")

    def begin(self, now: float) -> None:
        """Read all lanes, beginning at the present position."""
        self.began_at, self.is_complete = now, False
        self._stop, self._is_past_end = self.position, False

    def renew(self, now: float) -> None:
        """Begin again because jobs may have been enqueued in any lane just now, or are about to be committed."""
        self._renew_until = now + RENEW_SECONDS
        self.begin(now)

    def before_page(self, now: float) -> None:
        """Note that a page is read now."""
        if now < self._renew_until:
            self.begin(now)

    def after_page(self, last: Lane | None) -> None:
        """Move behind the last lane of a page. None: no lane follows the page."""
        self.position = last
        if last is None:
            self.is_complete |= self._is_past_end or self._stop is None
            self._is_past_end = True
        elif self._is_past_end and self._stop is not None:
            self.is_complete |= _place(last) >= _place(self._stop)


def _place(lane: Lane) -> tuple[str, int]:
    """Return what the index of ready jobs is ordered by. Its collation compares code points, as Python does."""
    return lane.queue_name, -lane.priority
