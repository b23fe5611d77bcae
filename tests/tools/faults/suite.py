"""What all scenarios share: one private server, with a template that has our tables and the suite's own."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from psycopg import sql

from tests.process.server import Server
from tests.tools.faults.schema import SCHEMA

SETTINGS: Final = {
    "max_connections": "300",
    "deadlock_timeout": "200ms",
    "log_min_messages": "warning",
    "recovery_init_sync_method": "syncfs",  # else a crash recovery opens every file of every database
}
TEMPLATE: Final = "postgres"
"""Our tables are in it, and nobody stays connected: each scenario gets a copy."""


class Suite:
    """The server of a suite run, and the directory where histories go."""

    def __init__(self, server: Server, where: Path, seed: int, *, fresh_start: bool) -> None:
        self.server = server
        self.fresh_start = fresh_start
        """Whether each worker starts Python anew. Otherwise, workers are forks (see `tests.process.preloaded`)."""
        self.where = where
        self.seed = seed
        self._lock = threading.Lock()
        self._databases = 0

    def new_database(self) -> str:
        """Make a database with all tables, empty; return its name."""
        with self._lock:  # one copy of a template at a time
            self._databases += 1
            name = f"fault_{self._databases}"
            with self.server.connect("template1") as session:
                copy = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(TEMPLATE))
                session.execute(copy)
        return name

    def drop_database(self, name: str) -> None:
        """Remove a database that a scenario is done with."""
        with self.server.connect("template1") as session:
            session.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@contextmanager
def suite(
    seed: int, keep: Path | None = None, settings: Mapping[str, str] = SETTINGS, *, fresh_start: bool = True
) -> Iterator[Suite]:
    """Start a server for a suite run, and stop it afterwards; histories are kept in `keep`, if given.

    In a short path, for that of a socket must not exceed 103 bytes.
    """
    with tempfile.TemporaryDirectory(prefix="pgqf", dir="/tmp") as home:
        Path(home).chmod(0o755)
        server = Server(Path(home), settings=settings)
        try:
            with server.connect() as session:
                session.execute(SCHEMA)
            where = keep or Path(home) / "histories"
            where.mkdir(parents=True, exist_ok=True)
            yield Suite(server, where.resolve(), seed, fresh_start=fresh_start)
        finally:
            server.cluster.stop("immediate")
