"""How fast jobs start."""

from __future__ import annotations

import time

from .hand import Hand


class Rate:
    """Jobs started per second, lately."""

    def __init__(self, hand: Hand) -> None:
        self._hand = hand
        self._started, self._at = hand.started, time.monotonic()
        self._smooth = 0.0

    def per_second(self) -> float:
        """Return the rate, fading by half in about a tenth of a second."""
        now = time.monotonic()
        elapsed = now - self._at
        if elapsed > 0.005:
            current = (self._hand.started - self._started) / elapsed
            weight = min(1.0, elapsed / 0.1)
            self._smooth += (current - self._smooth) * weight
            self._started, self._at = self._hand.started, now
        return self._smooth
