"""PostgreSQL and Redis for the measurements: private, on Unix sockets, gone when the measurements are."""

import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg import sql

from example_project.embedded.server import Cluster, binaries, reachable
from tests.tools.peers.place import Place, wait_until

REDIS_SOCKET = "redis.sock"


@contextmanager
def postgresql() -> Iterator[dict[str, str]]:
    """A new server; yields the variables by which libpq and its kin find it."""
    with tempfile.TemporaryDirectory(prefix="pgq", dir="/tmp") as home:  # the path of a socket has to be short
        Path(home).chmod(0o755)
        cluster = Cluster(Path(home, "server"), reachable(binaries(), Path(home, "copy")))
        cluster.start()
        where = cluster.connection_settings
        try:
            yield {"PGHOST": where["HOST"], "PGPORT": where["PORT"], "PGUSER": where["USER"]}
        finally:
            cluster.stop("immediate")


def connect(variables: dict[str, str], database: str = "postgres") -> psycopg.Connection[tuple[object, ...]]:
    host, port, user = (variables[name] for name in ("PGHOST", "PGPORT", "PGUSER"))
    return psycopg.connect(host=host, port=port, user=user, dbname=database, autocommit=True)


def make_database(variables: dict[str, str], name: str) -> dict[str, str]:
    """A database for one measurement; returns the variables that lead to it."""
    with connect(variables) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    return variables | {"PGDATABASE": name}


def postgresql_version(variables: dict[str, str]) -> str:
    with connect(variables) as connection:
        return f"PostgreSQL {connection.info.parameter_status('server_version')}"


def asking(query: str) -> Callable[[Place], str]:
    """Looks at the job by a query that returns one text, or no row if the job's row is gone."""

    def look(place: Place) -> str:
        with connect(place.variables, place.variables["PGDATABASE"]) as connection:
            row = connection.execute(query.encode()).fetchone()
        return str(row[0]) if row else "no row"

    return look


@contextmanager
def redis(directory: Path) -> Iterator[dict[str, str]]:
    """A Redis server of its own, with its own defaults but for where it listens and that it saves nothing."""
    socket = directory / REDIS_SOCKET
    command = ["redis-server", "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(directory)]
    with (directory / "redis.log").open("ab") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    try:
        if not wait_until(socket.exists, 20):
            raise RuntimeError(f"redis-server does not listen: see {directory}/redis.log")
        yield {"REDIS_SOCKET": str(socket)}
    finally:
        server.terminate()
        server.wait()


def redis_version() -> str:
    said = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=True).stdout
    return "Redis " + said.split("v=")[1].split()[0]


def redis_says(place: Place, *words: str) -> str:
    """The answer of one Redis command."""
    command = ["redis-cli", "-s", place.variables["REDIS_SOCKET"], *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
