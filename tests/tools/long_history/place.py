"""The server of a long history, and how this process and workers reach its databases."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from django.db import connection

from example_project.embedded.server import Cluster, binaries, reachable

MEASURED: Final = {
    "max_connections": "100",
    "shared_buffers": "2GB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "15min",
    "track_io_timing": "on",
    "log_min_duration_statement": "250ms",
    "log_autovacuum_min_duration": "0",
}
"""The server of the measurements: durable, with more memory than the default, and few checkpoints."""
FILLING: Final = MEASURED | {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_wal_size": "16GB",
    "maintenance_work_mem": "2GB",
    "max_parallel_maintenance_workers": "2",
}
"""The server while the history is made. A crash then costs only the time of the fill."""
RETENTION: Final = dict.fromkeys(("succeeded", "cancelled", "dead"), 500 * 86_400.0)
"""Of workers, in seconds. With the default, they would delete the history."""
LONG: Final = "long_history"
SMALL: Final = "small_history"


@contextmanager
def running(home: Path, settings: dict[str, str]) -> Iterator[Cluster]:
    """Run the server in a directory with these settings, and stop it at the end."""
    home.mkdir(exist_ok=True)
    home.chmod(0o755)
    cluster = Cluster(home / "server", reachable(binaries(), home / "copy"), settings=settings)
    cluster.start()
    try:
        yield cluster
    finally:
        connection.close()
        cluster.stop()


def use_database(cluster: Cluster, name: str) -> None:
    """Connect Django to one database of the server."""
    connection.close()
    connection.settings_dict.update({**cluster.connection_settings, "NAME": name})


def run(statement: str, params: Any = None) -> list[tuple[Any, ...]]:
    """Run a statement on Django's connection. Return its rows."""
    with connection.cursor() as cursor:
        cursor.execute(statement, params)
        return list(cursor.fetchall()) if cursor.description else []


def scalar(statement: str, params: Any = None) -> Any:
    """Return the one value of a query."""
    [[value]] = run(statement, params)
    return value


@contextmanager
def worker(log: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker that keeps the history, on the database that Django is connected to, and stop it at the end."""
    where = {name: connection.settings_dict[name] for name in ("HOST", "PORT", "USER", "NAME")}
    environment = os.environ | {
        "DJANGO_SETTINGS_MODULE": "tests.worker_settings",
        "PGQUEUE_TEST_LOG": "WARNING",
        "PGQUEUE_TEST_OPTIONS": json.dumps({"RETENTION": RETENTION}),
        "PGQUEUE_TEST_DATABASE": json.dumps({"ENGINE": "django.db.backends.postgresql", "PASSWORD": "", **where}),
    }
    with log.open("ab") as output:
        command = [sys.executable, "-m", "django", "runworker", *arguments]
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)
