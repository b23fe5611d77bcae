"""What can run beside an application: a steady stream of jobs, a drain, and processes that only compute."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

from tests.tools.benchmarks.place import FILES, Bench, cpu_seconds, wait_for
from tests.tools.benchmarks.server import processes
from tests.tools.benchmarks.systems.system import Load, System

STARTING_SECONDS = 60.0
JOBS_A_SECOND = 1_000
PRODUCERS = 2
BURNERS = 4
"""As many as the busiest processes of the jobs: a worker process, two of its sessions, and a producer."""


class Beside(NamedTuple):
    """What runs beside the application."""

    cpu_seconds: Callable[[], float]
    """What it has used so far, without its sessions on the application's server."""
    done: Callable[[], int]
    """How many jobs have run."""
    lasts: Callable[[], bool]
    """Whether it has not come to its own end."""


Beginning = Callable[[], AbstractContextManager[Beside]]


@contextmanager
def nothing() -> Iterator[Beside]:
    """Leave the application alone."""
    yield Beside(lambda: 0.0, lambda: 0, lambda: True)


@contextmanager
def burning(bench: Bench, cores: float) -> Iterator[Beside]:
    """Compute in a few processes, which use so much processor time together."""
    words = [str(bench.python), str(FILES / "burn.py"), str(cores / BURNERS)]
    burners = [subprocess.Popen(words) for _ in range(BURNERS)]
    try:
        yield Beside(lambda: _cpu_of(burners), lambda: 0, lambda: True)
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


class Jobs:
    """Jobs of ours on one server. `is_elsewhere`: it is not the server of the application."""

    def __init__(self, bench: Bench, system: System, *, is_elsewhere: bool = False) -> None:
        self._bench, self._system, self._is_elsewhere = bench, system, is_elsewhere

    @contextmanager
    def steady(self, way: str, numbers: range) -> Iterator[Beside]:
        """Enqueue 1,000 jobs a second, and run them by one worker. There must be more than the application needs."""
        each = len(numbers) // PRODUCERS
        with self._working(numbers) as beside:
            producers = [
                self._bench.start_producer(way, "noop", numbers.start + place * each, each, JOBS_A_SECOND / PRODUCERS)
                for place in range(PRODUCERS)
            ]
            try:
                wait_for(beside.done, STARTING_SECONDS, "no job has run")
                yield beside._replace(
                    cpu_seconds=lambda: beside.cpu_seconds() + _cpu_of(producers),
                    lasts=lambda: all(producer.poll() is None for producer in producers),
                )
            finally:
                for producer in producers:
                    producer.kill()
                    producer.communicate()

    @contextmanager
    def drain(self, numbers: range) -> Iterator[Beside]:
        """Drain a backlog by one worker process. It must last longer than the application runs."""
        self._bench.produce("bulk", "noop", numbers.start, len(numbers))
        with self._working(numbers) as beside:
            wait_for(beside.done, STARTING_SECONDS, "no job has run")
            yield beside

    @contextmanager
    def _working(self, numbers: range) -> Iterator[Beside]:
        bench = self._bench
        worker = bench.start(self._system.worker(Load("noop")))

        def used() -> float:
            return cpu_seconds([worker]) + (bench.server.cpu_seconds() if self._is_elsewhere else 0.0)

        def done() -> int:
            return len(numbers) - bench.runs[numbers.start : numbers.stop].count(0)

        try:
            yield Beside(used, done, lambda: done() < len(numbers))
        finally:
            bench.stop([worker])
        if max(bench.runs) > 1:
            raise RuntimeError("a job ran more than once")


def _cpu_of(started: list[subprocess.Popen[bytes]] | list[subprocess.Popen[str]]) -> float:
    pids = {process.pid for process in started}
    return sum(process.cpu_seconds for process in processes() if process.pid in pids)
