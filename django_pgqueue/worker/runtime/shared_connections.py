"""Share two database connections among the services of one worker process.

`Services` creates it. The fetcher prefers the first connection, which stays open and on which notifications arrive. The
completer prefers the second one, which is opened on first need and closed when nobody has needed it for a while. The
other services use the second connection while it is open, otherwise the first. If a connection is in use, a service
takes the other one, and opens it if need be.

Invariants: one thread uses a connection at a time. Maintenance and schedules, whose statements can be slow, use at most
one connection together, so the fetcher and the completer always have the other. The listener, which needs both at once,
never waits for the second while it uses the first.

Concurrency: `_lock` guards who uses which connection. A thread that finds none free waits in a queue. The thread that
returns a connection passes it to the first waiting thread that may use it, so no thread can overtake another.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum
from queue import SimpleQueue
from typing import Final, Protocol

import psycopg

from django_pgqueue.db.engine_connection import EngineConnection

from .connection import Link
from .service import restart_time_limit

IDLE_SECONDS: Final = 30.0
"""How long the second connection stays open after its last need. To open one costs the server 2 to 5 ms."""


class Preference(Enum):
    """Which connection a service takes if both are free."""

    FIRST = "first"
    SECOND = "second"
    OPEN = "the second if it is open"
    ONLY_FIRST = "only the first"
    ONLY_SECOND = "only the second"


class ConnectionInUse(Exception):
    """Another service uses the connection."""


class NotificationReader(Protocol):
    """The reader of the notifications that arrive on the first connection."""

    def opened(self, connections: SharedConnections, connection: EngineConnection) -> None:
        """Take notice of a new first connection. The calling thread uses it."""

    def before_return(self, connection: EngineConnection) -> None:
        """Read what the last statement has left. The calling thread still uses the first connection."""

    def after_return(self) -> None:
        """Take notice that the first connection is free or closed."""


@dataclass(eq=False)
class _Turn:
    """A thread that waits for a connection, and inside a `with` statement uses it.

    It is no generator, because the fetcher needs a connection between a notification and the start of its job.
    """

    share: Share
    take: Callable[[_Turn], Link]
    end: Callable[[_Turn], None]
    """Gives back the connection, or ends the wait."""
    link: Link | None = None
    """The connection that it uses."""
    granted: SimpleQueue[Link] = field(default_factory=SimpleQueue)

    def __enter__(self) -> EngineConnection:
        try:
            return self.take(self).live()
        except BaseException:
            self.end(self)
            raise

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        link: Link = self.link  # type: ignore[assignment]  # it has one
        try:
            if error is None:
                link.after_use()
            elif isinstance(error, (psycopg.Error, OSError)):
                link.after_error()
        finally:
            self.end(self)


class Share:
    """The shared connections as one service sees them: a `ConnectionSource`."""

    def __init__(self, connections: SharedConnections, preference: Preference, *, is_background: bool = False) -> None:
        self._connections = connections
        self.alias, self.role = connections.alias, connections.role
        """Alias of the database, and purpose of the first connection."""
        self.preference = preference
        self.is_background = is_background
        """Whether its statements may be slow. Such services use one connection together."""

    @property
    def connected_at(self) -> float:
        """When a connection was last opened for the first time or after a loss, by the monotonic clock."""
        return self._connections.connected_at

    def use(self) -> AbstractContextManager[EngineConnection]:
        """Wait for a connection, and yield it as `Link.use()` does. Do not call this inside another `use()`.

        A job can raise an exception in the thread of a service, also while that waits. The turn exists before the wait,
        so its connection is passed on even then. Otherwise nobody would use that connection any more.
        """
        return _Turn(self, self._connections.take, self._connections.end)

    def use_if_free(self) -> AbstractContextManager[EngineConnection]:
        """Yield a connection as `use()` does, but never wait for one. This may be called inside another `use()`.

        Raises:
            ConnectionInUse: if each connection that this service may use is in use.
        """
        return _Turn(self, self._connections.take_if_free, self._connections.end)


class SharedConnections:
    """Two connections to one database, and who uses them.

    Args:
        alias: Alias of the database.
        roles: Purposes of the first and the second connection; their `application_name` contains them.
        observer: The reader of the notifications on the first connection. None: nobody listens on it.
    """

    def __init__(self, alias: str, roles: tuple[str, str], observer: NotificationReader | None = None) -> None:
        self.alias = alias
        self.role = roles[0]
        self._observer = observer
        self._first = Link(alias, roles[0], self._on_open)
        self._second = Link(alias, roles[1])
        self._lock = threading.Lock()
        self._used: list[Link] = []
        self._has_background = False
        self._waiting: list[_Turn] = []
        self._needed_at = 0.0
        """When the second connection was last needed: by the completer, or because the first was in use."""
        self._first_only = Share(self, Preference.ONLY_FIRST)

    @property
    def connected_at(self) -> float:
        """When a connection was last opened for the first time or after a loss, by the monotonic clock."""
        return max(self._first.restored_at, self._second.restored_at)

    def share(self, preference: Preference, *, is_background: bool = False) -> Share:
        """Return what one service uses."""
        return Share(self, preference, is_background=is_background)

    def use_first_if_free(self, function: Callable[[EngineConnection], None]) -> bool:
        """Call a function with the first connection, if it is open. Return False if another thread uses it.

        Raises:
            psycopg.Error: from the function. The connection counts as lost then, and is closed.
        """
        with self._lock:
            if self._first in self._used:
                return False
            self._used.append(self._first)
        try:
            if (connection := self._first.open_connection) is not None:
                function(connection)
        except psycopg.Error:
            self._first.give_up()
            raise
        finally:
            self.give_back(self._first, self._first_only)
        return True

    def close_idle(self) -> None:
        """Close the second connection if nobody has needed it for a while. Never wait."""
        with self._lock:
            idle_seconds = time.monotonic() - self._needed_at
            if self._second in self._used or not self._is_second_open or idle_seconds < IDLE_SECONDS:
                return
            self._used.append(self._second)
        try:
            self._second.close()
        finally:
            self.give_back(self._second, self._first_only)

    def close(self) -> None:
        """Close both connections. No thread may use them."""
        self._first.close()
        self._second.close()

    # ---------------------------------------------------------------- who uses which connection

    def take(self, turn: _Turn) -> Link:
        """Return a connection that the calling thread uses until it calls `end()`. Wait until one is free."""
        with self._lock:
            link = self._grant_free(turn)
            if link is not None:
                return link
            self._waiting.append(turn)
        link = turn.granted.get()
        restart_time_limit()  # of the calling service, because others caused the wait
        return link

    def take_if_free(self, turn: _Turn) -> Link:
        """Return a connection as `take()` does, or raise `ConnectionInUse` if none is free."""
        with self._lock:
            link = self._grant_free(turn)
        if link is None:
            raise ConnectionInUse
        return link

    def end(self, turn: _Turn) -> None:
        """Give the connection of a turn back, or leave the queue if it waits for one."""
        with self._lock:
            if turn in self._waiting:
                self._waiting.remove(turn)
        if turn.link is not None:
            self.give_back(turn.link, turn.share)

    def give_back(self, link: Link, share: Share) -> None:
        """Pass a connection on to the first waiting thread that may use it."""
        observer = self._observer if link is self._first else None
        if observer is not None and (connection := link.open_connection) is not None:
            observer.before_return(connection)
        with self._lock:
            self._used.remove(link)
            if share.is_background:
                self._has_background = False
            for turn in list(self._waiting):
                if (free := self._grant_free(turn)) is not None:
                    self._waiting.remove(turn)
                    turn.granted.put(free)
        if observer is not None:
            observer.after_return()

    @property
    def _is_second_open(self) -> bool:
        return self._second.open_connection is not None

    def _free_for(self, share: Share) -> Link | None:
        """Return the connection that a service may use now, or None. Requires `_lock`."""
        if share.is_background and self._has_background:
            return None
        for link in self._in_order(share.preference):
            if link not in self._used:
                return link
        return None

    def _in_order(self, preference: Preference) -> tuple[Link, ...]:
        match preference:
            case Preference.ONLY_FIRST:
                return (self._first,)
            case Preference.ONLY_SECOND:
                return (self._second,)
            case Preference.FIRST:
                return (self._first, self._second)
            case Preference.OPEN if not self._is_second_open:
                return (self._first, self._second)
        return (self._second, self._first)

    def _grant_free(self, turn: _Turn) -> Link | None:
        """Let a turn use a connection that is free, and return it, or None. Requires `_lock`."""
        share = turn.share
        link = self._free_for(share)
        if link is None:
            return None
        turn.link = link
        if link is self._second and (share.preference is not Preference.OPEN or self._first in self._used):
            self._needed_at = time.monotonic()
        self._used.append(link)
        if share.is_background:
            self._has_background = True
        return link

    def _on_open(self, connection: EngineConnection) -> None:
        if self._observer is not None:
            self._observer.opened(self, connection)
