"""Scenarios 15g, 15h and 15i: jobs beside many that wait, a drain of many lanes of each kind, and turns of the kinds.

The jobs are written by SQL. Those that wait have a key of `timely`, without a token for an hour.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Final

from tests.tools.benchmarks.percentiles import percentile
from tests.tools.benchmarks.place import Bench, wait_for
from tests.tools.benchmarks.scale import jobs, seconds
from tests.tools.benchmarks.scenarios.drain import drained
from tests.tools.benchmarks.scenarios.scenario import Figures, Scenario
from tests.tools.benchmarks.systems import limited
from tests.tools.benchmarks.systems.system import Load, System

QUEUES: Final = 3_000
KEYS: Final = 200_000
SINGLE: Final = 30
"""Jobs that are enqueued one by one beside those that wait."""
BACKLOG: Final = 60_000
SETTLING_SECONDS: Final = 10.0
APART_SECONDS: Final = 0.5
TURNS_SECONDS: Final = 3.0

TASKS: Final = """

from django_pgqueue import Chunk


@task(chunk=10)
def in_chunk(chunk: Chunk[int]):
    for number in chunk.items:
        record.ran(number)


@task(limit=Limit("timely", key="{number}", rate="1/h"))
def timely(number):
    record.ran(number)


@task(limit=Limit("free", key="{number}"))
def free(number):
    record.ran(number)
"""
FILES: Final = {name: text + TASKS for name, text in limited.FILES.items()}
WRITE: Final = """
INSERT INTO pgqueue_job (task_name, queue_name, arguments, max_attempts, limit_key)
SELECT %(task)s, CASE WHEN %(queues)s THEN 'queue-' || n ELSE 'default' END,
       json_build_object('args', json_build_array(n), 'kwargs', json_build_object()), 10, {limit_key}
FROM generate_series(%(first)s::int, %(last)s::int - 1) AS n
"""
SPEND: Final = """
INSERT INTO pgqueue_limit_state (limit_key, full_at)
SELECT DISTINCT limit_key, now() + interval '1 hour' FROM pgqueue_job WHERE limit_key LIKE 'timely%'
"""
STARTS: Final = """
SELECT date_part('epoch', execution.claimed_at - job.enqueued_at)
FROM pgqueue_execution AS execution JOIN pgqueue_job AS job ON job.id = job_id
"""
CLAIMS: Final = """
SELECT count(DISTINCT execution.claimed_at)
FROM pgqueue_execution AS execution JOIN pgqueue_job AS job ON job.id = job_id WHERE task_name = 'app.tasks.{task}'
"""
KINDS: Final = {"noop": "NULL", "free": "'free:' || n % 50", "in_chunk": "'+app.tasks.in_chunk'"}
"""For each kind of lanes: a task, and the key of job `n`."""


def measure_beside(bench: Bench, system: System) -> Figures:
    """Measure how soon single jobs start beside many that wait for one token, or each for its own."""
    bench.write(FILES)
    figures: dict[str, float] = {}
    first = jobs(KEYS)
    waiting = {
        "3,000 queues": (jobs(QUEUES), "'timely:same'", True),
        "200,000 keys": (jobs(KEYS), "'timely:' || n", False),
    }
    for name, (count, limit_key, has_queues) in waiting.items():
        bench.connection.execute("TRUNCATE pgqueue_job, pgqueue_execution, pgqueue_limit_state")
        _write(bench, "timely", limit_key, range(count), has_queues=has_queues)
        bench.connection.execute(SPEND)
        bench.connection.execute("VACUUM (ANALYZE) pgqueue_job, pgqueue_limit_state")
        worker = bench.start(system.worker(Load("noop")))
        time.sleep(seconds(SETTLING_SECONDS))
        for task in ("noop", "timely"):
            bench.connection.execute("TRUNCATE pgqueue_execution")
            bench.produce("paced", task, first, SINGLE, 1 / APART_SECONDS)
            wait_for(partial(_have_run, bench, first), 300, "jobs that have not run")
            waits = [float(row[0]) for row in bench.connection.execute(STARTS).fetchall()]
            figures[f"{task} beside {name}: most s"] = max(waits)
            figures[f"{task} beside {name}: p50 s"] = percentile(waits, 0.5)
            first += SINGLE
        bench.stop([worker])
    return figures


def _have_run(bench: Bench, first: int) -> bool:
    return not bench.runs[first : first + SINGLE].count(0)


def measure_drain(bench: Bench, system: System) -> Figures:
    """Drain as many queues as jobs, with jobs of each kind."""
    bench.write(FILES)
    figures, first = dict[str, float](), 0
    for task, limit_key in KINDS.items():
        numbers = range(first, first + jobs(QUEUES))
        bench.connection.execute("TRUNCATE pgqueue_job, pgqueue_execution")
        _write(bench, task, limit_key, numbers, has_queues=True)
        drain = drained(bench, system, Load(task), numbers, enqueue=False)
        figures |= {f"{task}_per_second": drain.jobs_per_second, f"{task}_commits": drain.figures["commits"]}
        first = numbers.stop
    return figures


def measure_turns(bench: Bench, system: System) -> Figures:
    """Count the claims of each kind, while one queue has a backlog of no-op jobs of all kinds."""
    bench.write(FILES)
    for number, (task, limit_key) in enumerate(KINDS.items()):
        first = number * jobs(BACKLOG)
        _write(bench, task, limit_key, range(first, first + jobs(BACKLOG)), has_queues=False)
    bench.connection.execute("VACUUM (ANALYZE) pgqueue_job")
    worker = bench.start(system.worker(Load("noop")))
    wait_for(lambda: bench.count("SELECT count(*) FROM pgqueue_execution") > 0, 60, "no job has begun")
    time.sleep(seconds(TURNS_SECONDS))
    claims = {task: float(bench.count(CLAIMS.format(task=task))) for task in KINDS}
    bench.stop([worker])
    shares = {f"{task}_claims": count for task, count in claims.items()}
    return {"least_of_most": min(claims.values()) / max(claims.values()), **shares}


def _write(bench: Bench, task: str, limit_key: str, numbers: range, *, has_queues: bool) -> None:
    params = {"task": f"app.tasks.{task}", "queues": has_queues, "first": numbers.start, "last": numbers.stop}
    bench.connection.execute(WRITE.format(limit_key=limit_key.replace("%", "%%")).encode(), params)


BESIDE = Scenario(
    name="15g",
    title="single jobs beside 3,000 queues whose jobs wait for one token, and beside 200,000 keys that wait",
    measure=measure_beside,
    takes_part=lambda system: system.name == "us",
    jobs=lambda system: jobs(KEYS) + 4 * SINGLE,
    rounds=1,
    figure="timely beside 200,000 keys: most s",
    bigger_is_better=False,
    targets=("each starts within 1 s",),
)
QUEUES_OF_KINDS = Scenario(
    name="15h",
    title="3,000 queues with one due job each: plain jobs, jobs with a limit, and chunks",
    measure=measure_drain,
    takes_part=lambda system: system.name == "us",
    jobs=lambda system: 3 * jobs(QUEUES),
    rounds=1,
    figure="in_chunk_per_second",
    targets=("at most two commits for each job",),
)
TURNS = Scenario(
    name="15i",
    title="the claims of plain jobs, jobs with a limit and chunks, with a backlog of no-op jobs of each in one queue",
    measure=measure_turns,
    takes_part=lambda system: system.name == "us",
    jobs=lambda system: 3 * jobs(BACKLOG),
    rounds=1,
    figure="least_of_most",
    targets=("≥ 0.8",),
)
