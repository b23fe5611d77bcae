"""Scenario 23: 1 to 200 sessions that claim and complete: their rate, how even they share the jobs, what they wait for.

The sessions are threads of a few client processes and use the product's own statements. No job runs between a claim
and its completion, so the sessions meet as often as they can.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from tests.tools.benchmarks.files import record
from tests.tools.benchmarks.place import FILES, Bench, wait_for
from tests.tools.benchmarks.scale import jobs
from tests.tools.benchmarks.scenarios.scenario import Figures, Scenario, grouped
from tests.tools.benchmarks.systems.system import System
from tests.tools.benchmarks.waits import Waits, sampled_waits

SESSIONS = (1, 10, 50, 100, 200)
PROCESSES = 4
SCRIPT = "sessions.py"
STARTING_SECONDS = 120.0
LASTING_SECONDS = 300.0
LEAST = 200


class Part(NamedTuple):
    """Jobs for one measurement, and how many a session claims at a time."""

    batch: int
    jobs: int


PARTS = (Part(1, 10_000), Part(10, 40_000))


def measure(bench: Bench, system: System) -> Figures:
    """Measure each number of sessions with each size of a claim, beside the finished jobs of those before.

    A few jobs are run first: tables that are known to be empty have other plans than those of any real application.
    """
    bench.write({SCRIPT: (FILES / SCRIPT).read_text()})
    measured: dict[str, Figures] = {}
    first = LEAST
    _claimed(bench, 1, 1, range(first))
    for part in PARTS:
        for sessions in SESSIONS:
            numbers = range(first, first + jobs(part.jobs, LEAST))
            measured[f"{sessions} sessions, {part.batch} a claim"] = _claimed(bench, sessions, part.batch, numbers)
            first = numbers.stop
    return grouped(measured)


def _claimed(bench: Bench, sessions: int, batch: int, numbers: range) -> Figures:
    bench.connection.execute("CHECKPOINT")
    bench.produce("bulk", "noop", numbers.start, len(numbers))
    bench.connection.execute("ANALYZE pgqueue_job, pgqueue_execution")
    waits = Waits()
    with _clients(bench, sessions, batch) as clients:
        server_before = bench.server.cpu_seconds()
        with sampled_waits(bench, waits):
            began = time.monotonic()
            (bench.directory / record.GO).touch()
            outputs = [client.communicate(timeout=LASTING_SECONDS)[0] for client in clients]
    server_cpu = bench.server.cpu_seconds() - server_before
    bench.check_each_ran_once(numbers)
    answers = [json.loads(output.splitlines()[-1]) for output in outputs]
    per_session = [count for answer in answers for count in answer["jobs"]]
    return {
        "jobs_per_second": len(numbers) / (max(answer["ended"] for answer in answers) - began),
        "client_cpu_us": sum(answer["cpu_seconds"] for answer in answers) / len(numbers) * 1e6,
        "server_cpu_us": server_cpu / len(numbers) * 1e6,
        **fairness(per_session),
        "% Lock": waits.percent_of("Lock"),
        "% LWLock": waits.percent_of("LWLock"),
        **waits.percent,
    }


@contextmanager
def _clients(bench: Bench, sessions: int, batch: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Start the client processes, and wait until all sessions are connected."""
    (bench.directory / record.GO).unlink(missing_ok=True)
    bounds = [sessions * place // PROCESSES for place in range(PROCESSES + 1)]
    shares = [(low, high - low) for low, high in pairwise(bounds) if high > low]
    ready = [bench.directory / f"{record.READY}-{first}" for first, _ in shares]
    for file in ready:
        file.unlink(missing_ok=True)
    clients = [_client(bench, count, batch, first) for first, count in shares]
    try:
        wait_for(lambda: all(file.exists() for file in ready), STARTING_SECONDS, "sessions that do not connect")
        yield clients
        if any(client.returncode for client in clients):
            raise RuntimeError("a client failed: its error is in the output of the benchmark")
    finally:
        for client in clients:
            client.kill()
            client.wait()


def _client(bench: Bench, count: int, batch: int, first: int) -> subprocess.Popen[str]:
    words = [SCRIPT, str(count), str(batch), str(first)]
    return subprocess.Popen(
        [bench.python, *words], env=bench.variables, cwd=bench.directory, stdout=subprocess.PIPE, text=True
    )


def fairness(per_session: Sequence[int]) -> Figures:
    """How even the sessions share the jobs. Jain's index is 1 if all have as many, and 1 / n if one has all."""
    squares = sum(count**2 for count in per_session)
    return {
        "jobs_of_a_session_least": min(per_session),
        "jobs_of_a_session_median": median(per_session),
        "jobs_of_a_session_most": max(per_session),
        "jain": sum(per_session) ** 2 / (len(per_session) * squares),
    }


CLAIMING_SESSIONS = Scenario(
    name="23",
    title="1 to 200 sessions in 4 client processes claim and complete 10,000 jobs one by one, and 40,000 in tens",
    measure=measure,
    takes_part=lambda system: system.name == "us",
    jobs=lambda system: LEAST + len(SESSIONS) * sum(jobs(part.jobs, LEAST) for part in PARTS),
    figure="200 sessions, 10 a claim: jobs_per_second",
    targets=("no session waits for a row that another one has locked", "Jain's index ≥ 0.9"),
    by_group=True,
    rounds=1,
)
