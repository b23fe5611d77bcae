"""Let one thread sleep until another thread or a signal wakes it, a file descriptor is readable, or its time is over.

The fetcher, the supervisor, the fork server and the listener for completed jobs sleep in a `Waker`.

Concurrency: one thread waits. Any thread may wake it, at any time; a wake-up before the wait ends the next wait.
"""

from __future__ import annotations

import select
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

MAX_WAIT_SECONDS: Final = 3600.0
"""`poll()` accepts at most 2**31 ms (about 24.8 days)."""


def is_readable(descriptor: int, timeout_seconds: float = 0.0) -> bool:
    """Return whether a descriptor can be read or its other end is closed, now or before the time is over."""
    return bool(_readable([descriptor], timeout_seconds))


def readable_check(descriptor: int) -> Callable[[], object]:
    """Return a function that returns a true value if the descriptor can be read or its other end is closed.

    It is for one thread, and for a descriptor that is checked again and again: nothing is set up for each check.
    """
    if not hasattr(select, "poll"):
        return partial(is_readable, descriptor)
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return partial(poll.poll, 0)


def _readable(descriptors: Sequence[int], timeout_seconds: float) -> set[int]:
    """Return the descriptors that are readable, now or before the time is over. Windows has no `poll()`."""
    if not hasattr(select, "poll"):
        return set(select.select(descriptors, [], [], timeout_seconds)[0])
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll(timeout_seconds * 1000)}


class Waker:
    """The sleep of one thread. A forked process must not use its parent's."""

    def __init__(self) -> None:
        self._sender, self._receiver = socket.socketpair()
        for end in (self._sender, self._receiver):
            end.settimeout(0.0)
        self._is_woken = False

    def wake(self) -> None:
        """End the present wait, or the next one. Safe from any thread, also after `close()`."""
        if not self._is_woken:
            self._is_woken = True
            with suppress(OSError):  # the buffer is full of bytes that were not read yet, or the socket is closed
                self._sender.send(b"!")

    def wake_on_signals(self) -> None:
        """Wake the waiting thread at each signal that this process handles. Call it in the main thread."""
        signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)

    def wait(self, timeout_seconds: float, *descriptors: int) -> set[int]:
        """Sleep until woken, or until a descriptor is readable, for whole milliseconds and an hour at most.

        Returns:
            The readable descriptors, with `fileno()` if the thread was woken.
        """
        own = self.fileno()
        ready = _readable((own, *descriptors), min(timeout_seconds, MAX_WAIT_SECONDS))
        if own in ready:
            self._receiver.recv(4096)
        self._is_woken = False  # after the read: who still sees True does not write, and the caller answers it now
        return ready

    def fileno(self) -> int:
        """Return the descriptor that is readable after `wake()`."""
        return self._receiver.fileno()

    def close(self) -> None:
        """Close the sockets."""
        self._sender.close()
        self._receiver.close()
