"""Scenario 12: what a worker takes that does nothing, and whether one grows that does very much."""

from __future__ import annotations

import re
import time
from collections import Counter
from pathlib import Path

from tests.tools.benchmarks.memory import child, resident_mb
from tests.tools.benchmarks.place import Bench, cpu_seconds, wait_for
from tests.tools.benchmarks.scale import jobs, seconds
from tests.tools.benchmarks.scenarios.scenario import Scenario
from tests.tools.benchmarks.systems.system import Load, System
from tests.tools.peers.place import Worker

BEFORE = 100
"""Jobs that are run first, so that the worker is known to work."""
SETTLING_SECONDS = 10.0
IDLE_SECONDS = 120.0
STATEMENT = re.compile(r"LOG:  (?:statement|execute [^:]*): \s*(?:/\* pgqueue:(\w+) \*/)?")
"""A line of the server's log, and the name that each statement of ours begins with."""

CHUNK = 50_000
MANY = 1_000_000


def idle(bench: Bench, system: System) -> dict[str, float]:
    """Count the statements of a worker while nothing is to be done."""
    log_statements(bench)
    worker = bench.start(system.worker(Load("noop")))
    bench.produce("bulk", "noop", 0, BEFORE)
    wait_for(lambda: not system.unfinished(bench) and not bench.runs.count(0), 60, "jobs that are not finished")
    time.sleep(seconds(SETTLING_SECONDS))
    figures = counted(bench, worker, seconds(IDLE_SECONDS))
    bench.stop([worker])
    bench.check_each_ran_once(range(BEFORE))
    return figures


def log_statements(bench: Bench) -> None:
    """Have the server log every statement of the sessions of this database that begin from now on."""
    if not Path(bench.variables["PGHOST"], "log").exists():
        raise RuntimeError("statements are counted in the server's log, which is not at hand")
    bench.connection.execute(f'ALTER DATABASE "{bench.variables["PGDATABASE"]}" SET log_statement = "all"'.encode())


def counted(bench: Bench, worker: Worker, lasting_seconds: float) -> dict[str, float]:
    """Count the logged statements for so long."""
    log = Path(bench.variables["PGHOST"], "log")
    before, cpu_before = log.stat().st_size, cpu_seconds([worker])
    time.sleep(lasting_seconds)
    with log.open("rb") as file:
        file.seek(before)
        found = Counter(STATEMENT.findall(file.read().decode(errors="replace")))
    minutes, cpu = lasting_seconds / 60, cpu_seconds([worker]) - cpu_before
    measured = {"statements_a_minute": found.total() / minutes, "worker_cpu_ms_a_minute": cpu * 1000 / minutes}
    return measured | {name or "other": number / minutes for name, number in found.most_common()}


def grown(bench: Bench, system: System) -> dict[str, float]:
    """Run very many jobs, enqueued while they run, never more than two chunks ahead; see how the process grows."""
    chunk = jobs(CHUNK)
    last = chunk * (MANY // CHUNK)
    worker = bench.start(system.worker(Load("noop")))
    began = time.monotonic()
    resident: list[float] = []
    pid = 0
    for first in range(0, last, chunk):
        bench.produce("bulk", "noop", first, chunk)
        wait_for(lambda first=first: not bench.runs[:first].count(0), 120, "jobs that have not run", pause=0.01)
        if first:
            pid = pid or child(worker)
            resident.append(resident_mb(pid))
    wait_for(lambda: not system.unfinished(bench), 120, "jobs that are not finished")
    took = time.monotonic() - began
    resident.append(resident_mb(pid))
    if child(worker) != pid:
        raise RuntimeError("the worker's process was replaced meanwhile")
    bench.stop([worker])
    bench.check_each_ran_once(range(last))
    return {
        "growth_mb": resident[-1] - resident[0],
        "rss_mb_first": resident[0],
        "rss_mb_most": max(resident),
        "rss_mb_end": resident[-1],
        "jobs": last,
        "jobs_per_second": last / took,
    }


IDLE = Scenario(
    name="12a",
    title="statements of one idle worker in a minute, counted in the server's log over two minutes",
    measure=idle,
    takes_part=lambda system: system.name == "us",
    jobs=lambda system: BEFORE,
    figure="statements_a_minute",
    bigger_is_better=False,
    targets=("≤ 30 statements a minute",),
)
GROWTH = Scenario(
    name="12b",
    title="resident memory of the worker's process over 1,000,000 no-op jobs, after the first 50,000",
    measure=grown,
    takes_part=lambda system: system.name == "us",
    jobs=lambda system: jobs(CHUNK) * (MANY // CHUNK),
    figure="growth_mb",
    bigger_is_better=False,
    targets=("≤ 10 MB after the first 50,000 jobs",),
)
