"""How much memory a worker's processes take."""

from __future__ import annotations

from pathlib import Path

from tests.tools.benchmarks.server import processes
from tests.tools.peers.place import Worker


def child(worker: Worker) -> int:
    """The one process that runs the jobs of a worker of ours, which its supervisor has started."""
    [pid] = children(worker)
    return pid


def children(worker: Worker) -> list[int]:
    """The processes that run the jobs of a worker of ours."""
    return [process.pid for process in processes() if process.parent == worker.pid]


def resident_mb(pid: int) -> float:
    return _megabytes(pid, "VmRSS")


def peak_mb(pid: int) -> float:
    return _megabytes(pid, "VmHWM")


def _megabytes(pid: int, name: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    [kilobytes] = [line.split()[1] for line in lines if line.startswith(f"{name}:")]
    return int(kilobytes) / 1024
