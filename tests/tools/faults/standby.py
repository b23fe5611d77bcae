"""A primary and a streaming standby of a scenario's own, and the way from one to the other."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from example_project.embedded.server import Cluster, claim_directory, service_account
from tests.process.server import Server
from tests.tools.faults.ports import free_port
from tests.tools.faults.run import Run
from tests.tools.faults.suite import SETTINGS

REPLICATION: Final = {**SETTINGS, "wal_keep_size": "256MB", "max_connections": "100"}


class Standby(Server):
    """A copy of a primary, which follows it."""

    def __init__(self, home: Path, primary: Server) -> None:
        where = primary.cluster
        self.cluster = Cluster(home / "standby", where.bin_dir, port=free_port(), settings=REPLICATION)
        claim_directory(self.cluster.home, owner=service_account())
        source = ["-h", str(where.home), "-p", str(where.port), "-U", "postgres"]
        self.cluster._run("pg_basebackup", "-D", self.cluster.data, "-R", "-c", "fast", "--no-sync", *source)
        self.cluster.start()
        self.settings = self.settings_for("postgres")


class Pair:
    """Two servers with one history, until it forks."""

    old: Server
    new: Server

    def __init__(self, run: Run, home: Path) -> None:
        self.run = run
        self.old = Server(home, port=free_port(), settings=REPLICATION)
        run.move_to(self.old)  # our tables have to be there before they are copied
        self.new = Standby(home, self.old)

    @property
    def settings(self) -> dict[str, object]:
        """What leads a client to whichever of the two can be written to."""
        hosts, ports = zip(*(("127.0.0.1", str(server.cluster.port)) for server in (self.old, self.new)), strict=True)
        options = {"target_session_attrs": "read-write"}
        return self.old.settings | {"HOST": ",".join(hosts), "PORT": ",".join(ports), "OPTIONS": options}

    def wait_until_followed(self) -> None:
        """Wait until the standby has all that the primary has."""
        self.run.wait_until(
            lambda: self.run.sql("SELECT pid FROM pg_stat_replication WHERE replay_lsn >= pg_current_wal_lsn()"),
            what="the standby to have it all",
        )

    def part(self) -> None:
        """Have the standby follow no more: what is committed from now on is lost with the primary."""
        self.wait_until_followed()
        with self.new.connect() as session:
            session.execute("ALTER SYSTEM SET primary_conninfo = ''")
            session.execute("SELECT pg_reload_conf()")
        self.run.wait_until(lambda: not self.run.sql("SELECT pid FROM pg_stat_replication"), what="the end of it")

    def fail_over(self) -> None:
        """Crash the primary, and promote the standby; the scenario's own session goes there too."""
        self.old.cluster.stop("immediate")
        self.promote()

    def promote(self) -> None:
        """Have the standby lead."""
        with self.new.connect() as session:
            session.execute("SELECT pg_promote()")
        self.run.server = self.new
        if self.run._connection is not None:
            self.run._connection.close()

    def stop(self) -> None:
        """End both."""
        for server in (self.new, self.old):
            server.cluster.stop("immediate")


@contextmanager
def _pair(run: Run) -> Iterator[Pair]:
    with tempfile.TemporaryDirectory(prefix="pgqs", dir="/tmp") as home:
        Path(home).chmod(0o755)
        pair = Pair(run, Path(home))
        try:
            yield pair
        finally:
            pair.stop()


def replicated(run: Run) -> Pair:
    """Give the scenario a primary with a standby: `run.settings` lead to whichever can be written to."""
    pair = run.enter(_pair(run))
    run.settings = dict(pair.settings)
    return pair
