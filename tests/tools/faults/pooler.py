"""PgBouncer before a scenario's server, in transaction mode."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row

from example_project.embedded.server import service_account
from tests.process.server import Server
from tests.tools.faults.needs import pgbouncer
from tests.tools.faults.ports import free_port
from tests.tools.faults.run import Run


def pgbouncer_version() -> tuple[int, ...]:
    """Return the version of PgBouncer, such as (1, 21, 0)."""
    done = subprocess.run([pgbouncer(), "--version"], capture_output=True, text=True, check=True)
    return tuple(int(part) for part in done.stdout.split()[1].split("."))


class Pooler:
    """A PgBouncer, to be paused and restarted at will."""

    def __init__(self, home: Path, run: Run, settings: dict[str, str]) -> None:
        self.home = home
        self.port = free_port()
        self.given = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(self.port),
            "unix_socket_dir": "",
            "auth_type": "any",
            "admin_users": "postgres",
            "pool_mode": "transaction",
            "max_client_conn": "500",
            "logfile": str(home / "log"),
            **settings,
        }
        self._write(run.server)
        self.process = self._start()

    def _write(self, server: Server) -> None:
        where = server.cluster.connection_settings
        lines = ["[databases]", f"* = host={where['HOST']} port={where['PORT']} user={where['USER']}", "[pgbouncer]"]
        lines += [f"{key} = {value}" for key, value in self.given.items()]
        (self.home / "ini").write_text("\n".join([*lines, ""]))

    def lead_to(self, server: Server) -> None:
        """Connect to another server from now on, as an operator does after a failover: clients keep their sessions."""
        self._write(server)
        self.tell("RELOAD")

    def _start(self) -> subprocess.Popen[bytes]:
        account = service_account()  # it refuses root, as the server does
        process = subprocess.Popen(
            [shutil.which(pgbouncer()) or pgbouncer(), "-q", str(self.home / "ini")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            user=account.pw_uid if account else None,
            group=account.pw_gid if account else None,
            extra_groups=[] if account else None,
        )
        deadline = time.monotonic() + 20
        while not self._answers():
            assert process.poll() is None and time.monotonic() < deadline, (self.home / "log").read_text()
            time.sleep(0.02)
        return process

    def _answers(self) -> bool:
        try:
            self.tell("SHOW VERSION")
        except psycopg.OperationalError:
            return False
        return True

    def show(self, what: str, database: str) -> list[dict[str, Any]]:
        """Return the rows of a command such as `SHOW CLIENTS` that belong to a database."""
        return [row for row in self.tell(f"SHOW {what}") if row["database"] == database]

    def tell(self, command: str) -> list[dict[str, Any]]:
        """Give a command at its console; return the rows of its answer."""
        with psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            user="postgres",
            dbname="pgbouncer",
            autocommit=True,
            connect_timeout=5,
            cursor_factory=psycopg.ClientCursor,
        ) as console:
            cursor = console.cursor(row_factory=dict_row)
            cursor.execute(command)
            return cursor.fetchall() if cursor.description else []

    def settings(self, database: dict[str, Any]) -> dict[str, Any]:
        """The settings of a database that is reached through it."""
        return database | {"HOST": "127.0.0.1", "PORT": str(self.port)}

    def stop(self) -> None:
        """End it at once, with all sessions through it."""
        # Since 1.23, PgBouncer waits after SIGTERM until all clients have left.
        self.process.send_signal(signal.SIGQUIT if pgbouncer_version() >= (1, 23) else signal.SIGTERM)
        self.process.wait(20)

    def restart(self) -> None:
        """End it at once, and start it again."""
        self.stop()
        self.process = self._start()


@contextmanager
def _pooler(run: Run, settings: dict[str, str]) -> Iterator[Pooler]:
    with tempfile.TemporaryDirectory(prefix="pgqp", dir="/tmp") as home:
        account = service_account()
        if account:
            shutil.chown(home, account.pw_uid, account.pw_gid)
        pooler = Pooler(Path(home), run, settings)
        try:
            yield pooler
        finally:
            pooler.stop()


def beside_pooler(run: Run, **settings: str) -> Pooler:
    """Start PgBouncer with these settings. Only workers with its address connect through it."""
    return run.enter(_pooler(run, settings))


def through_pooler(run: Run, **settings: str) -> Pooler:
    """Put PgBouncer before the scenario's server: `run.settings` lead through it. `settings` are PgBouncer's."""
    pooler = beside_pooler(run, **settings)
    run.settings = pooler.settings(run.settings)
    return pooler
