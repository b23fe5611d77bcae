"""The start-up options of connections: which ones this package sets, and whether the server accepts them.

Poolers refuse or ignore such options, each with its own message, and libpq does not reveal the SQLSTATE of a refused
connection. Therefore any failure with options counts as a refusal if a connection without options succeeds next, and
if options fail once more after that. During an outage both fail, which says nothing about options.

`engine_connection` keeps one `StartupOptions` for each alias. Forked processes inherit what it knows.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, TypeVar

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.pq import Conninfo, PGconn

C = TypeVar("C", bound=psycopg.Connection[Any])

RECHECK_SECONDS: Final = 600.0
"""How long a refusal is believed. After that, the next connection tries the options again."""
RETRY_SECONDS: Final = 60.0
"""How often a failure that repeats itself is followed by an attempt without options. A failure with a new message is
followed by one at once, so that a refusal after an outage costs no time."""
SLOW_SECONDS: Final = 1.0
"""A failure that takes longer is a network failure, if options were accepted before. To repeat it at once would double
the time until a lost server is noticed."""
KNOWN_FAILURES: Final = 20
"""How many messages are remembered, so that messages that differ each time do not double the load."""
NO_PORT: Final = "0"
"""libpq refuses this port after it has read its parameters, and before it looks up a host or opens a socket."""


class StartupOptions:
    """Knowledge of this process about the start-up options at one alias."""

    def __init__(self) -> None:
        self.are_accepted = False
        """Whether the latest connection had the options."""
        self._refusal: str | None = None
        self._refused_at = float("-inf")
        self._failures: dict[str, float] = {}
        """Messages of attempts with options, and when an attempt without options followed them."""

    def connect(self, with_options: Callable[[], C | None], without_options: Callable[[], C]) -> C:
        """Open a connection with options, or without them if the server refuses or ignores them.

        Args:
            with_options: Opens a connection. Returns None if the options did not arrive.
            without_options: Opens a connection.

        Raises:
            psycopg.OperationalError: if no connection can be opened.
        """
        if time.monotonic() - self._refused_at < RECHECK_SECONDS:
            return without_options()
        began = time.monotonic()
        try:
            connection = with_options()
        except psycopg.DatabaseError as error:
            message = message_of(error)
            if message != self._refusal:
                if not self._should_try_without(message, time.monotonic() - began):
                    raise
                return self._try_without(with_options, without_options)
        else:
            message = ""
            if connection is not None:
                self._accept()
                return connection
        self._refuse(message)
        return without_options()

    def _should_try_without(self, message: str, seconds: float) -> bool:
        """Return whether an attempt without options follows a failure that took so many seconds."""
        now = time.monotonic()
        self._failures = {text: at for text, at in self._failures.items() if now - at < RETRY_SECONDS}
        if message in self._failures or len(self._failures) >= KNOWN_FAILURES:
            return False
        self._failures[message] = now
        return not self.are_accepted or seconds < SLOW_SECONDS

    def _try_without(self, with_options: Callable[[], C | None], without_options: Callable[[], C]) -> C:
        """Open a connection without options, and let a second attempt with options decide whether they are refused.

        The first connection is closed before the second attempt, because it can have taken the last free slot of the
        server. If the third attempt fails too, without options, the server is to blame, and the options are not.
        """
        without_options().close()
        try:
            second, message = with_options(), ""
        except psycopg.DatabaseError as error:
            second, message = None, message_of(error)
        if second is not None:  # the first failure was an outage that has ended
            self._accept()
            return second
        connection = without_options()
        self._refuse(message)
        return connection

    def _accept(self) -> None:
        self.are_accepted = True
        self._forget()

    def _refuse(self, message: str) -> None:
        self.are_accepted = False
        self._forget()
        self._refusal, self._refused_at = message, time.monotonic()

    def _forget(self) -> None:
        self._refusal, self._refused_at, self._failures = None, float("-inf"), {}


def message_of(error: BaseException) -> str:
    """Return the text of an error without its numbers, such as the id of a session, which differ each time."""
    return re.sub(r"\d+", "", str(error))


def values_outside(params: Mapping[str, Any], names: Collection[str]) -> dict[str, str]:
    """Return those of the parameters that are set: in `params`, a service file or the environment.

    `engine_connection` calls it. A parameter that a project sets outside this package is never replaced: not in
    OPTIONS, not in a service file, and not in the environment of the process. The exceptions are `application_name`,
    and those settings in `options` that an engine connection needs. `docs/production/connections.md` has the table.

    libpq itself reads them, so the values and their precedence are those of a connection with `params`. This opens no
    connection, and takes 0.1 ms. If libpq cannot read the service file, the result is empty, and connecting raises.
    """
    known = {option.keyword.decode() for option in Conninfo.get_defaults()}  # the others are psycopg's
    conninfo = make_conninfo("", **{name: value for name, value in params.items() if name in known} | {"port": NO_PORT})
    unconnected = PGconn.connect_start(conninfo.encode())
    try:
        read = {option.keyword.decode(): option.val for option in unconnected.info}
    finally:
        unconnected.finish()
    return {name: value.decode() for name in names if (value := read.get(name))}


def with_defaults(params: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return `params` with those defaults that are set nowhere else.

    psycopg limits the time of an attempt to connect itself, and does not read `connect_timeout` from a service file.
    The values from outside are therefore passed on.
    """
    return {**defaults, **values_outside(params, defaults), **params}
