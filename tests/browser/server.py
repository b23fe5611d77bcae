"""A database of its own, and a live server on it. The browser tests and the program for the screenshots use it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from django.db import connection
from django.test.utils import setup_databases, teardown_databases
from pytest_django.live_server_helper import LiveServer

# The last requests of a browser that was closed can still have sessions, and then the database cannot be removed.
END_SESSIONS: Final = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
)


@contextmanager
def live_server() -> Iterator[str]:
    """Make a database, start the server on a free port, and return its URL."""
    made = setup_databases(verbosity=0, interactive=False)
    try:
        live = LiveServer("127.0.0.1")
        try:
            yield live.url
        finally:
            live.stop()
    finally:
        with connection.cursor() as cursor:
            cursor.execute(END_SESSIONS)
        teardown_databases(made, verbosity=0)
