"""Scenario 21: measure a poll, an idle worker and a drain with 10,000 queues of three priorities each.

A lane is one queue at one priority with waiting jobs. The jobs are written by SQL, the jobs of a lane far from each
other in the table.
"""

from __future__ import annotations

import json
import time

from tests.tools.benchmarks.place import FILES, Bench, cpu_seconds, wait_for
from tests.tools.benchmarks.scale import jobs, seconds
from tests.tools.benchmarks.scenarios.drain import drained
from tests.tools.benchmarks.scenarios.scenario import Figures, Scenario
from tests.tools.benchmarks.systems.system import Load, System

SCRIPT = "polls.py"
QUEUES, PRIORITIES, JOBS_OF_LANE = 10_000, 3, 10
SETTLING_SECONDS = 10.0
IDLE_SECONDS = 60.0
SINGLE = 200
"""Jobs that are enqueued one by one, each in another queue, while the worker has nothing to do."""
APART_SECONDS = 0.05

WRITE = """
INSERT INTO pgqueue_job (task_name, queue_name, priority, arguments, max_attempts, run_after)
SELECT 'app.tasks.noop', 'queue-' || n %% %(queues)s, n / %(queues)s %% %(priorities)s * 10,
       json_build_object('args', json_build_array(n), 'kwargs', json_build_object()), 10,
       now() + make_interval(secs => %(delay)s)
FROM generate_series(%(first)s::int, %(last)s::int - 1) AS n
"""
ADAPTER = """
import itertools

QUEUES = {queues}


def enqueue(task, number):
    queue_name = f"queue-{{number * 7919 % QUEUES}}"
    getattr(tasks, task).using(queue_name=queue_name).enqueue(number)
"""
LATENCY = """
SELECT percentile_cont(%(part)s) WITHIN GROUP (ORDER BY date_part('epoch', execution.claimed_at - job.enqueued_at))
FROM pgqueue_execution AS execution JOIN pgqueue_job AS job ON job.id = job_id
"""
DAY_SECONDS = 24 * 3600.0


def measure(bench: Bench, system: System) -> Figures:
    """Measure idle polls and single jobs beside jobs that are due tomorrow, and then two drains."""
    queues = jobs(QUEUES)
    lanes = queues * PRIORITIES
    count = lanes * JOBS_OF_LANE
    figures: dict[str, float] = {"lanes": lanes}
    bench.write({SCRIPT: (FILES / SCRIPT).read_text()})
    for name, written in (("without_jobs", 0), ("idle", lanes)):
        _write(bench, queues, range(written), DAY_SECONDS)
        found = json.loads(bench.run((SCRIPT,)).splitlines()[-1])
        figures |= {f"{name}_{figure}": value for figure, value in found.items()}
    figures |= _idle_worker(bench, system, queues, count)
    rates = {}
    for name, number_of_queues in (("one_queue", 1), ("many_lanes", queues)):
        bench.connection.execute("TRUNCATE pgqueue_job, pgqueue_execution")
        first = SINGLE + (count if name == "many_lanes" else 0)
        priorities = 1 if number_of_queues == 1 else PRIORITIES
        _write(bench, number_of_queues, range(first, first + count), 0.0, priorities)
        drain = drained(bench, system, Load("noop"), range(first, first + count), enqueue=False)
        rates[name] = drain.jobs_per_second
        figures |= {f"{name}_{figure}": value for figure, value in drain.figures.items()}
    return {"share_of_one_queue": rates["many_lanes"] / rates["one_queue"], **figures}


def _write(bench: Bench, queues: int, numbers: range, delay: float, priorities: int = PRIORITIES) -> None:
    params = {"queues": queues, "priorities": priorities, "delay": delay, "first": numbers.start, "last": numbers.stop}
    bench.connection.execute(WRITE.encode(), params)
    bench.connection.execute("VACUUM (ANALYZE) pgqueue_job, pgqueue_execution")
    bench.connection.execute("CHECKPOINT")


def _idle_worker(bench: Bench, system: System, queues: int, count: int) -> Figures:
    """Measure a worker while no job is due, and how soon it claims single jobs of any queue."""
    adapter = (bench.directory / "adapter.py").read_text()
    bench.write({"adapter.py": adapter + ADAPTER.format(queues=queues)})
    worker = bench.start(system.worker(Load("noop")))
    time.sleep(seconds(SETTLING_SECONDS))
    cpu, server_cpu, lasting = cpu_seconds([worker]), bench.server.cpu_seconds(), seconds(IDLE_SECONDS)
    time.sleep(lasting)
    figures = {
        "idle_worker_cpu_ms_a_minute": (cpu_seconds([worker]) - cpu) * 60_000 / lasting,
        "idle_server_cpu_ms_a_minute": (bench.server.cpu_seconds() - server_cpu) * 60_000 / lasting,
    }
    bench.produce("paced", "noop", 0, SINGLE, 1 / APART_SECONDS)
    wait_for(lambda: not bench.runs[:SINGLE].count(0), 60, "jobs that have not run")
    for name, part in (("p50", 0.5), ("p99", 0.99), ("most", 1.0)):
        found = bench.connection.execute(LATENCY.encode(), {"part": part}).fetchone()
        figures[f"claimed_after_ms_{name}"] = float(found[0]) * 1000 if found and found[0] is not None else float("nan")
    figures["claimed"] = bench.count("SELECT count(*) FROM pgqueue_execution")
    bench.stop([worker])
    bench.check_each_ran_once(range(SINGLE))
    return figures


MANY_LANES = Scenario(
    name="21",
    title="10,000 queues of three priorities each: an idle worker, and the drain beside that of one queue",
    measure=measure,
    takes_part=lambda system: system.name == "us",
    jobs=lambda system: SINGLE + 2 * jobs(QUEUES) * PRIORITIES * JOBS_OF_LANE,
    figure="share_of_one_queue",
    targets=("an idle poll ≤ 5 ms", "≥ 0.7 of the rate of one queue"),
    rounds=1,
)
