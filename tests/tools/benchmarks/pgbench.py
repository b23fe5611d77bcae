"""pgbench as an application beside the queue: its tables, runs at a fixed rate, and their latencies."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from example_project.embedded.server import binaries
from tests.tools.benchmarks.percentiles import percentile
from tests.tools.benchmarks.place import Bench

SCALE = 20
"""2,000,000 accounts, 300 MB. There are 20 branches, so that few of the 8 clients meet at one."""
CLIENTS = 8
TPS = re.compile(r"^tps = ([\d.]+)", re.MULTILINE)


class Pgbench:
    """pgbench in the database of a measurement, with transactions like TPC-B."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def fill(self, scale: int) -> None:
        """Make its tables."""
        self._run("-i", "-q", "-s", str(scale))

    def most_per_second(self, seconds: float) -> float:
        """The transactions per second without a limit."""
        [rate] = TPS.findall(self._run(*self._words(seconds)))
        return float(rate)

    def start(self, prefix: str, per_second: float, seconds: float) -> Run:
        """Begin transactions at that rate, at random instants. `prefix` is that of the files of its log."""
        words = [*self._words(seconds), "-R", f"{per_second:.1f}", "-l", "--log-prefix", prefix]
        return Run(self._popen(*words), self._bench.directory, prefix)

    def _words(self, seconds: float) -> list[str]:
        return ["-n", "-c", str(CLIENTS), "-j", "1", "-T", str(max(1, round(seconds)))]

    def _run(self, *words: str) -> str:
        return Run(self._popen(*words), self._bench.directory, "").output()

    def _popen(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [binaries() / "pgbench", *words],
            env=self._bench.variables,
            cwd=self._bench.directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


class Transaction(NamedTuple):
    """A line of pgbench's log. The latency counts from the instant that the rate asked for."""

    ended_at: float
    """Unix time."""
    latency_ms: float


class Run(NamedTuple):
    """A pgbench that runs, or has run."""

    process: subprocess.Popen[str]
    directory: Path
    prefix: str

    def output(self) -> str:
        """Wait for its end."""
        output = self.process.communicate()[0]
        if self.process.returncode:
            raise RuntimeError(f"pgbench ended with {self.process.returncode}:\n{output}")
        return output

    def latencies(self, since: float, until: float) -> dict[str, float]:
        """The latencies of the transactions that ended in this interval of Unix time."""
        self.output()
        found = [one.latency_ms for one in self._transactions() if since <= one.ended_at < until]
        return {"tps": len(found) / (until - since), **latency_figures(found)}

    def _transactions(self) -> list[Transaction]:
        logs = self.directory.glob(f"{self.prefix}.*")
        return [transaction(line) for log in logs for line in log.read_text().splitlines()]


def transaction(line: str) -> Transaction:
    """Read `client number latency_us script seconds microseconds lag_us`."""
    fields = line.split()
    return Transaction(int(fields[4]) + int(fields[5]) / 1e6, int(fields[2]) / 1000)


def latency_figures(found: Sequence[float]) -> dict[str, float]:
    """The mean and the percentiles, in ms."""
    if not found:
        raise RuntimeError("pgbench has logged no transaction")
    shares = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99}
    return {"avg_ms": mean(found), **{name: percentile(found, share) for name, share in shares.items()}}
