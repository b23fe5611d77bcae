"""Where one measurement happens: a directory, a database, an environment, and a look at what happens there."""

from __future__ import annotations

import json
import signal
import struct
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg

from tests.tools.benchmarks.files import record
from tests.tools.benchmarks.server import Server, processes
from tests.tools.peers.brokers import connect
from tests.tools.peers.place import Place, Worker, wait_until

PRODUCING_SECONDS = 900.0
FILES = Path(record.__file__).parent
COPIED = ("record.py", "produce.py", "shapes.py")


class Bench(Place):
    """The place of one system in one round of one scenario."""

    def __init__(
        self, directory: Path, python: Path, variables: Mapping[str, str], path: Path | None, server: Server
    ) -> None:
        super().__init__(directory, python, variables, path)
        self.variables["RECORD_DIRECTORY"] = str(directory)
        self.server = server
        self._connection: psycopg.Connection[Any] | None = None

    def lay_out(self, files: Mapping[str, str], jobs: int) -> None:
        """Write the system's files, and an empty record for so many jobs."""
        self.write({**{name: (FILES / name).read_text() for name in COPIED}, **files})
        record.make(self.directory, jobs)

    # ---------------------------------------------------------------- looking

    @property
    def connection(self) -> psycopg.Connection[Any]:
        """A connection to the measurement's database."""
        if self._connection is None:
            self._connection = connect(self.variables, self.variables["PGDATABASE"])
        return self._connection

    def count(self, query: str) -> int:
        """The one number that a query returns."""
        row = self.connection.execute(query.encode()).fetchone()
        return int(row[0]) if row else 0

    @property
    def runs(self) -> bytes:
        """How often each job ran."""
        return (self.directory / record.RUNS).read_bytes()

    def instants(self, name: str) -> list[float]:
        """The instants of a file of the record, by the number of the job."""
        return [instant for (instant,) in struct.iter_unpack("=d", (self.directory / name).read_bytes())]

    def check_each_ran_once(self, numbers: range) -> None:
        """Raise if the jobs' own record has one of these that did not run, or ran twice."""
        runs = self.runs[numbers.start : numbers.stop]
        if missing := runs.count(0):
            raise RuntimeError(f"{missing} of {len(numbers)} jobs did not run")
        if again := len(numbers) - runs.count(1):
            raise RuntimeError(f"{again} of {len(numbers)} jobs ran more than once")

    # ---------------------------------------------------------------- doing

    def produce(self, way: str, task: str, first: int, count: int, number: float = 0.0) -> dict[str, float]:
        """Enqueue, and wait for that to end; return what it measured."""
        return self.produced(self.start_producer(way, task, first, count, number))

    def start_producer(self, way: str, task: str, first: int, count: int, number: float = 0.0) -> subprocess.Popen[str]:
        """Begin to enqueue in a process of its own."""
        words = [way, task, str(first), str(count), str(number)]
        return subprocess.Popen(
            [self.python, "produce.py", *words],
            env=self.variables,
            cwd=self.directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def produced(self, producer: subprocess.Popen[str]) -> dict[str, float]:
        """What a producer measured, when it has ended."""
        output, errors = producer.communicate(timeout=PRODUCING_SECONDS)
        if producer.returncode:
            raise RuntimeError(f"the producer ended with {producer.returncode}:\n{output}{errors}")
        measured: dict[str, float] = json.loads(output.splitlines()[-1])
        return measured

    def settle(self) -> None:
        """Update the planner's statistics and write a checkpoint, so that neither happens in a measurement."""
        self.connection.execute("ANALYZE")
        self.connection.execute("CHECKPOINT")

    def stop(self, workers: Sequence[Worker]) -> None:
        """Stop workers as an operator would, and harder if that does not help."""
        for worker in workers:
            worker.process.send_signal(signal.SIGTERM)
        for worker in workers:
            wait_until(lambda worker=worker: worker.process.poll() is not None, 10.0)  # type: ignore[misc]  # a lambda
            worker.kill()

    def end(self) -> None:
        super().end()
        if self._connection is not None:
            self._connection.close()


def cpu_seconds(workers: Sequence[Worker]) -> float:
    """What these workers and their children have used so far."""
    sessions = {worker.pid for worker in workers}
    return sum(process.cpu_seconds for process in processes() if process.session in sessions)


def wait_for(condition: Any, seconds: float, what: str, pause: float = 0.002) -> float:
    """Wait until `condition()` is true; return that instant. Raises if it takes longer."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {seconds:.0f} s in vain: {what}")
        time.sleep(pause)
    return time.monotonic()
