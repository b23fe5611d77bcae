"""What a machine may lack, and how that shows: a scenario that needs it is then skipped, and says why."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final


def faketime_library() -> Path | None:
    """Return the library that libfaketime preloads, if it is installed."""
    found = sorted(Path("/usr/lib").glob("**/faketime/libfaketime.so.1"))
    return found[0] if found else None


PGBOUNCER_VARIABLE: Final = "PGQUEUE_PGBOUNCER"


def pgbouncer() -> str:
    """Return the program PgBouncer: that in PGQUEUE_PGBOUNCER, or the one in the PATH."""
    return os.environ.get(PGBOUNCER_VARIABLE, "pgbouncer")


def _root() -> str:
    return "" if os.geteuid() == 0 else "needs root"


def _faketime() -> str:
    return "" if faketime_library() else "libfaketime is not installed"


def _pids() -> str:
    usable = os.access("/sys/fs/cgroup/pids", os.W_OK)
    return "" if usable else "no writable cgroup (version 1) for the number of processes"


def _memory() -> str:
    usable = os.access("/sys/fs/cgroup/memory", os.W_OK)
    return "" if usable else "no writable cgroup (version 1) for memory"


def _tmpfs() -> str:
    return _root() or ("" if shutil.which("mount") else "mount is not installed")


@contextmanager
def _namespace() -> Iterator[str]:
    """A network namespace to try things in; its name is empty if there are none here."""
    name = f"pgq-try-{os.getpid()}-{threading.get_ident()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    try:
        yield "" if made.returncode else name
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _namespaces() -> str:
    if reason := _root() or program("ip")():
        return reason
    with _namespace() as name:
        return "" if name else "no network namespaces here"


def _routed_namespaces() -> str:
    if reason := _namespaces():
        return reason
    with _namespace() as name:
        for words in (
            ["ip", "-n", name, "rule", "add", "from", "192.0.2.1", "blackhole"],
            ["ip", "netns", "exec", name, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"],
        ):
            if subprocess.run(words, capture_output=True, check=False).returncode:
                return f"namespaces cannot route here: `{' '.join(words[4:])}` fails"
    return ""


def _tbf() -> str:
    if reason := _namespaces() or program("tc")():
        return reason
    with _namespace() as name:
        words = ["qdisc", "add", "dev", "lo", "root", "tbf", "rate", "1mbit", "burst", "1600", "latency", "400ms"]
        done = subprocess.run(["tc", "-n", name, *words], capture_output=True, check=False)
        return "the kernel has no token bucket filter (tbf)" if done.returncode else ""


def program(name: str) -> Callable[[], str]:
    """Return the check for a program in the PATH."""
    return lambda: "" if shutil.which(name) else f"{name} is not installed"


NEEDS: Final[dict[str, Callable[[], str]]] = {
    "root": _root,
    "faketime": _faketime,
    "pids cgroup": _pids,
    "memory cgroup": _memory,
    "tmpfs": _tmpfs,
    "nft": program("nft"),
    "pgbouncer": lambda: program(pgbouncer())(),
    "namespaces": _namespaces,
    "routed namespaces": _routed_namespaces,
    "tbf": _tbf,
}


def missing(needs: tuple[str, ...]) -> str:
    """Return why a scenario with these needs cannot run here; an empty string if it can."""
    return next(filter(None, (NEEDS[need]() for need in needs)), "")
