"""A primary and a synchronous standby, each on a machine of its own: either can be lost, or cut off from all others."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from example_project.embedded.server import Cluster, binaries, claim_directory, reachable, service_account
from tests.process.harness import descendants, django
from tests.process.server import Server
from tests.tools.faults.machines import Machine, Router, entered
from tests.tools.faults.netns import admit
from tests.tools.faults.run import Run
from tests.tools.faults.standby import REPLICATION, Pair

ADVISED: Final = {"tcp_keepalives_idle": "6", "tcp_keepalives_interval": "1", "tcp_keepalives_count": "3"}
"""What docs/production/connections.md advises for the server, a tenth of it, as the suite's leases are."""
SETTINGS: Final = {**REPLICATION, **ADVISED, "max_connections": "400"}


class RemoteCluster(Cluster):
    """A cluster on a machine. Its programs start there."""

    def __init__(self, home: Path, bin_dir: Path, machine: Machine) -> None:
        super().__init__(home, bin_dir, settings={**SETTINGS, "listen_addresses": machine.address})
        self.machine = machine

    def _run(self, program: str, *arguments: str | Path) -> None:
        with entered(self.machine):
            super()._run(program, *arguments)

    def kill(self) -> None:
        """End all processes of the server by SIGKILL, as when its machine loses power."""
        for pid in [self.pid, *descendants(self.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def copy(self, source: RemoteCluster) -> None:
        """Replace the data by a copy of a running primary's, which then follows that primary."""
        claim_directory(self.home, owner=service_account())
        shutil.rmtree(self.data, ignore_errors=True)
        where = ["-h", source.machine.address, "-p", str(source.port), "-U", "postgres"]
        self._run("pg_basebackup", "-D", self.data, "-R", "-c", "fast", "--no-sync", *where)


class RemoteServer(Server):
    """A server on a machine: a primary with our tables, or a standby of `primary`."""

    cluster: RemoteCluster

    def __init__(self, home: Path, machine: Machine, primary: RemoteServer | None = None) -> None:
        self.machine = machine
        self.cluster = RemoteCluster(home / machine.label, reachable(binaries(), home / "copy"), machine)
        self.settings = self.settings_for("postgres")
        if primary:
            self.cluster.copy(primary.cluster)
        self.cluster.start()
        if not primary:
            django("migrate", "-v0", database=self.settings)


class RemotePair(Pair):
    """A primary and a standby on two machines."""

    old: RemoteServer
    new: RemoteServer

    def __init__(self, run: Run, home: Path, router: Router) -> None:
        self.run = run
        first, second = router.add("db1"), router.add("db2")
        self.old = RemoteServer(home, first)
        admit(self.old, f"{router.network}.0/24")
        run.move_to(self.old)  # before the tables are copied
        self.new = RemoteServer(home, second, self.old)
        self.addresses = [first.address, second.address]

    @property
    def settings(self) -> dict[str, Any]:
        """What leads a client on another machine to the primary: the settings that the documentation advises."""
        options = {"target_session_attrs": "read-write", "connect_timeout": 5}
        ports = ",".join(str(self.old.cluster.port) for _ in self.addresses)
        return self.old.settings | {"HOST": ",".join(self.addresses), "PORT": ports, "OPTIONS": options}

    def be_synchronous(self) -> None:
        """Acknowledge a commit only when the standby has it."""
        self.run.sql("ALTER SYSTEM SET synchronous_standby_names = '*'")
        self.run.sql("SELECT pg_reload_conf()")
        synchronous = "SELECT pid FROM pg_stat_replication WHERE sync_state = 'sync'"
        self.run.wait_until(lambda: self.run.sql(synchronous), what="a synchronous standby")

    def replace_standby(self) -> None:
        """After a failover, make the former primary the standby of the new one."""
        self.old.cluster.copy(self.new.cluster)
        self.old.cluster.start()
        self.old, self.new = self.new, self.old
        self.be_synchronous()


@contextmanager
def remote_pair(run: Run, router: Router) -> Iterator[RemotePair]:
    """A primary and a synchronous standby for one scenario. `run.settings` lead to the primary."""
    with tempfile.TemporaryDirectory(prefix="pgqr", dir="/tmp") as home:
        Path(home).chmod(0o755)
        pair = RemotePair(run, Path(home), router)
        try:
            run.settings = dict(pair.settings)
            pair.be_synchronous()
            yield pair
        finally:
            pair.stop()
