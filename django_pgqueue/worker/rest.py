"""How long a look that comes again and again rests, so that it never takes more than a tenth of the time."""

from __future__ import annotations

from typing import Final

FACTOR: Final = 10


class Rest:
    """The rest of one recurring look: ten times what it takes.

    The lesser of its last two times counts. What grows with dead entries is slow each time; one that was slow once only
    waited, as for a migration's lock, and a rest of ten times that would be a stall of its own.
    """

    def __init__(self) -> None:
        self._took_seconds = 0.0
        self.seconds = 0.0

    def after(self, took_seconds: float) -> float:
        """Note how long the look took; return how long it is to rest, which `seconds` says from now on too."""
        before, self._took_seconds = self._took_seconds, took_seconds
        self.seconds = FACTOR * min(before, took_seconds)
        return self.seconds
