"""The PostgreSQL server that everything is measured on, and what it counts."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlparse

import psycopg
from psycopg import sql

from example_project.embedded.server import Cluster, binaries, reachable
from tests.tools.peers.brokers import connect

DURABLE = {"max_connections": "300", "fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}
TUNED = {"shared_buffers": "1GB", "max_wal_size": "8GB", "checkpoint_timeout": "15min"}
"""So that no checkpoint falls into one round and not into another. All else is PostgreSQL's default."""
TICKS = os.sysconf("SC_CLK_TCK")


class Server(NamedTuple):
    """A server, and its postmaster where it runs on this machine."""

    variables: dict[str, str]
    pid: int | None = None
    template: str = "template0"
    """The database that new databases are copies of."""

    def cpu_seconds(self) -> float:
        """What all its processes have used, those that have ended too; not a number for a server elsewhere."""
        if self.pid is None:
            return math.nan
        return sum(process.cpu_seconds for process in processes() if self.pid in (process.pid, process.parent))

    def make_database(self, name: str) -> dict[str, str]:
        """Make a database, in place of one that has this name; return the variables that lead to it."""
        with connect(self.variables) as connection:
            self._drop(connection, name)
            made, template = sql.Identifier(name), sql.Identifier(self.template)
            connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(made, template))
            connection.execute("CHECKPOINT")
        return self.variables | {"PGDATABASE": name}

    def drop_database(self, name: str) -> None:
        """Drop a database with whatever is connected to it."""
        with connect(self.variables) as connection:
            self._drop(connection, name)

    def _drop(self, connection: psycopg.Connection[Any], name: str) -> None:
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


class Process(NamedTuple):
    """A process of this machine; CPU seconds are its own and those of children that it has waited for."""

    pid: int
    parent: int
    session: int
    cpu_seconds: float


def processes() -> Iterator[Process]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            yield Process(int(entry.name), int(fields[1]), int(fields[3]), sum(map(int, fields[11:15])) / TICKS)


@contextmanager
def server() -> Iterator[Server]:
    """Yield the server of DATABASE_URL, or a new one with its data below `/tmp`."""
    if url := os.environ.get("DATABASE_URL"):
        yield Server(_variables(url))
        return
    with _directory() as home:
        # The programs are copied there too if need be: the account that runs them cannot enter root's home directory.
        cluster = Cluster(home / "server", reachable(binaries(), home / "copy"), settings=DURABLE | TUNED)
        cluster.start()
        where = cluster.connection_settings
        try:
            yield Server({"PGHOST": where["HOST"], "PGPORT": where["PORT"], "PGUSER": where["USER"]}, cluster.pid)
        finally:
            cluster.stop("immediate")


@contextmanager
def _directory() -> Iterator[Path]:
    """A directory whose path is short, as a socket's has to be."""
    with tempfile.TemporaryDirectory(prefix="pgq", dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def _variables(url: str) -> dict[str, str]:
    parts = urlparse(url)
    given = {
        "PGHOST": parts.hostname,
        "PGPORT": str(parts.port or 5432),
        "PGUSER": parts.username,
        "PGPASSWORD": parts.password,
    }
    return {name: unquote(value) for name, value in given.items() if value}


class Counters(NamedTuple):
    """What the server has counted in one database since it was made."""

    wal_bytes: int
    commits: int
    row_versions: int
    """Written over or deleted: each a dead row in the end."""

    @classmethod
    def read(cls, connection: psycopg.Connection[Any]) -> Counters:
        connection.execute("SELECT pg_stat_force_next_flush(), pg_stat_clear_snapshot()")
        row = connection.execute(
            "SELECT pg_current_wal_lsn() - '0/0'::pg_lsn, "
            "(SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()), "
            "(SELECT sum(n_tup_upd + n_tup_del)::bigint FROM pg_stat_user_tables)"
        ).fetchone()
        assert row
        return cls(*(int(value or 0) for value in row))

    def since(self, before: Counters) -> Counters:
        """What was counted since then."""
        return Counters(*(now - then for now, then in zip(self, before, strict=True)))
