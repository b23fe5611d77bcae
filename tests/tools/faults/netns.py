"""A network of a scenario's own: a server at one end of a virtual cable, workers in a namespace at the other.

What the kernel here can do to it: packets dropped or reset by nftables, in either direction, all or some; a slow line
by the token bucket filter. Delays and reordering (netem) are not to be had everywhere, and are not used.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.process.server import Server
from tests.tools.faults.run import Run
from tests.tools.faults.suite import SETTINGS

PORT: Final = 5432
NETS: Final = itertools.count(os.getpid() % 200)
"""Which 10.77.n.0/24 is next: runs on one machine should not meet, and scenarios of one run must not."""
OUT, IN = "output", "input"
"""Directions as the worker sees them: its requests, and the server's replies."""


def command(*words: str) -> None:
    """Run a program that has to succeed."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"


class Net:
    """A namespace with one cable to this machine."""

    def __init__(self) -> None:
        number = next(NETS) % 250
        self.name = f"pgq{os.getpid()}-{number}"
        self.outside, self.inside = f"pgqo{number}", f"pgqi{number}"
        self.here, self.there = f"10.77.{number}.1", f"10.77.{number}.2"

    @property
    def prefix(self) -> Sequence[str]:
        """The start of a command that runs the rest in it."""
        return ["ip", "netns", "exec", self.name]

    def open(self) -> None:
        """Make it."""
        command("ip", "netns", "add", self.name)
        command("ip", "link", "add", self.outside, "type", "veth", "peer", "name", self.inside, "netns", self.name)
        command("ip", "addr", "add", f"{self.here}/24", "dev", self.outside)
        command("ip", "link", "set", self.outside, "up")
        command("ip", "-n", self.name, "addr", "add", f"{self.there}/24", "dev", self.inside)
        for device in (self.inside, "lo"):
            command("ip", "-n", self.name, "link", "set", device, "up")

    def close(self) -> None:
        """Remove it; the cable goes with it."""
        subprocess.run(["ip", "link", "del", self.outside], check=False, capture_output=True)
        subprocess.run(["ip", "netns", "del", self.name], check=False, capture_output=True)

    def rule(self, direction: str, verdict: str) -> None:
        """Do something to the packets of PostgreSQL in one direction: `drop`, `reject with tcp reset`, or some."""
        port = "dport" if direction == OUT else "sport"
        self._nft("add", "table", "inet", "fault")
        hook = f"{{ type filter hook {direction} priority 0 ; }}"
        self._nft("add", "chain", "inet", "fault", direction, hook)
        self._nft("add", "rule", "inet", "fault", direction, "tcp", port, str(PORT), *verdict.split())

    def cut(self) -> None:
        """Swallow everything, both ways."""
        self.rule(OUT, "drop")
        self.rule(IN, "drop")

    def heal(self) -> None:
        """Let everything pass again."""
        self._nft("delete", "table", "inet", "fault")

    def slow(self, rate: str) -> None:
        """Make the line slow in both directions."""
        words = ("root", "tbf", "rate", rate, "burst", "1600", "latency", "400ms")
        command("tc", "qdisc", "add", "dev", self.outside, *words)
        command("tc", "-n", self.name, "qdisc", "add", "dev", self.inside, *words)

    def _nft(self, *words: str) -> None:
        command(*self.prefix, "nft", *words)


@contextmanager
def own_net() -> Iterator[Net]:
    """A network for one scenario."""
    net = Net()
    try:
        net.open()
        yield net
    finally:
        net.close()


@contextmanager
def listening_on(net: Net, **settings: str) -> Iterator[Server]:
    """A server on the near end of the cable, in a short path."""
    with tempfile.TemporaryDirectory(prefix="pgqn", dir="/tmp") as home:
        Path(home).chmod(0o755)
        given = {**SETTINGS, "max_connections": "100", "listen_addresses": net.here, **settings}
        server = Server(Path(home), port=PORT, settings=given)
        try:
            admit(server, f"{net.here}/24")
            yield server
        finally:
            server.cluster.stop("immediate")


def across(run: Run, **settings: str) -> Net:
    """Put the scenario's server behind a network: `run.settings` lead there over TCP.

    A worker with `prefix=net.prefix` is on the far side, one without on the server's. `settings` are the server's.
    """
    net = run.enter(own_net())
    run.move_to(run.enter(listening_on(net, **settings)))
    run.settings |= {"HOST": net.here}
    return net


def admit(server: Server, network: str) -> None:
    """Let clients and standbys of a network in."""
    hba: Any = server.cluster.data / "pg_hba.conf"
    with hba.open("a") as file:
        file.write(f"host all,replication all {network} trust\n")
    with server.connect() as session:
        session.execute("SELECT pg_reload_conf()")
