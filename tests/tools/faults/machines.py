"""Machines of a scenario's own, joined by a router: each is a network namespace, and the router can lose its packets.

The addresses exist inside these namespaces only, and nothing but `ip` is needed. The router discards packets without a
word, as a broken network does: nobody is refused, and no sender gets an error. A server in a namespace is reached by
the scenario itself through its Unix socket, whatever the router loses.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from tests.tools.faults.netns import NETS, command

CLONE_NEWNET: Final = 0x40000000
LIBC: Final = ctypes.CDLL(None, use_errno=True)


class Machine:
    """A namespace with one cable, which leads to the router."""

    def __init__(self, router: Router, label: str, place: int) -> None:
        self.router = router
        self.label = label
        self.name = f"{router.stem}-{label}"
        self.port = f"port{place}"
        self.gateway, self.address = (f"{router.network}.{4 * place + end}" for end in (1, 2))

    @property
    def prefix(self) -> Sequence[str]:
        """The start of a command that runs the rest on this machine."""
        return ["ip", "netns", "exec", self.name]

    def open(self) -> None:
        """Make it, and connect it."""
        command("ip", "netns", "add", self.name)
        router = ("ip", "-n", self.router.name)
        command(*router, "link", "add", self.port, "type", "veth", "peer", "name", "cable", "netns", self.name)
        command(*router, "addr", "add", f"{self.gateway}/30", "dev", self.port)
        command(*router, "link", "set", self.port, "up")
        here = ("ip", "-n", self.name)
        command(*here, "addr", "add", f"{self.address}/30", "dev", "cable")
        for device in ("lo", "cable"):
            command(*here, "link", "set", device, "up")
        command(*here, "route", "add", "default", "via", self.gateway)

    def close(self) -> None:
        """Kill what runs on it, and remove it."""
        self.kill()
        subprocess.run(["ip", "netns", "del", self.name], check=False, capture_output=True)

    def cut(self) -> None:
        """Have the router lose every packet from and to this machine."""
        for direction in ("from", "to"):
            command("ip", "-n", self.router.name, "rule", "add", direction, self.address, "blackhole")

    def heal(self) -> None:
        """Let all packets pass again."""
        for direction in ("from", "to"):
            command("ip", "-n", self.router.name, "rule", "del", direction, self.address, "blackhole")

    @contextmanager
    def partitioned(self) -> Iterator[None]:
        """Cut the machine off for as long as the `with` block lasts."""
        self.cut()
        try:
            yield
        finally:
            self.heal()

    def pids(self) -> list[int]:
        """Return the processes that run on it."""
        done = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True, check=False)
        return [int(pid) for pid in done.stdout.split()]

    def kill(self) -> None:
        """End all its processes by SIGKILL."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Router:
    """A namespace that forwards packets between machines."""

    def __init__(self) -> None:
        number = next(NETS) % 250
        self.stem = f"pgq{os.getpid()}-{number}"
        self.name = f"{self.stem}-router"
        self.network = f"10.77.{number}"
        self.machines: list[Machine] = []

    def open(self) -> None:
        """Make it."""
        command("ip", "netns", "add", self.name)
        command("ip", "-n", self.name, "link", "set", "lo", "up")
        forward = "echo 1 > /proc/sys/net/ipv4/ip_forward"
        command("ip", "netns", "exec", self.name, "sh", "-c", forward)

    def add(self, label: str) -> Machine:
        """Make a machine, and connect it."""
        machine = Machine(self, label, len(self.machines))
        self.machines.append(machine)
        machine.open()
        return machine

    def close(self) -> None:
        """Remove it, and all machines with it."""
        for machine in self.machines:
            machine.close()
        subprocess.run(["ip", "netns", "del", self.name], check=False, capture_output=True)


@contextmanager
def own_router() -> Iterator[Router]:
    """A router for one scenario."""
    router = Router()
    try:
        router.open()
        yield router
    finally:
        router.close()


@contextmanager
def entered(machine: Machine) -> Iterator[None]:
    """Have processes that this thread starts run on a machine. `ip netns exec` cannot: it needs root to the end."""
    with open("/proc/thread-self/ns/net") as home, open(f"/run/netns/{machine.name}") as there:
        _enter(there.fileno())
        try:
            yield
        finally:
            _enter(home.fileno())


def _enter(descriptor: int) -> None:
    if LIBC.setns(descriptor, CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
