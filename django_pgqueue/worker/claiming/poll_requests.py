"""Pass requests of other threads to the fetcher: to wake up, or to poll soon.

The worker process creates it before the services, so that the pool, the completer and the reactions can wake the
fetcher without knowing it.
"""

from __future__ import annotations

from .notification_waker import NotificationWaker


class PollRequests:
    """The requests of other threads to one fetcher. Every method is safe from any thread."""

    def __init__(self, waker: NotificationWaker) -> None:
        self.waker = waker
        self._is_urgent = False

    def wake(self) -> None:
        """End the fetcher's current sleep. Harmless at any time."""
        self.waker.wake()

    def poll_soon(self) -> None:
        """Make the fetcher poll at once, and more often for a while, because jobs have become ready."""
        self._is_urgent = True
        self.wake()

    def take_urgent(self) -> bool:
        """Return whether `poll_soon()` was called since the last call of this method."""
        is_urgent, self._is_urgent = self._is_urgent, False
        return is_urgent
