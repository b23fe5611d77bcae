"""Scenario 9: large tables. 5,000,000 finished and 1,000,000 future jobs, in 200 queues of three priorities each.

They are written by SQL, as jobs that have run; then the tables are vacuumed and analysed, as they would have been long
ago, and the server is given a checkpoint, so that nothing of this is left to do while the drain is timed.
"""

from __future__ import annotations

import json
import statistics
import time

from tests.tools.benchmarks.place import FILES, Bench
from tests.tools.benchmarks.scale import jobs
from tests.tools.benchmarks.scenarios.drain import drained
from tests.tools.benchmarks.scenarios.scenario import Scenario
from tests.tools.benchmarks.systems.system import Load, System

SCRIPT = "statements.py"
FINISHED, FUTURE = 5_000_000, 1_000_000
LEAST = 50_000
DRAINS = 3
COLUMNS = "task_name, queue_name, priority, arguments, max_attempts"
VALUES = (
    "'app.tasks.noop', 'queue-' || n %% 200, (n / 200 %% 3 - 1) * 10, "
    "json_build_object('args', json_build_array(n), 'kwargs', json_build_object()), 10"
)

FINISHED_JOBS = f"""
INSERT INTO pgqueue_job ({COLUMNS}, state, attempt, enqueued_at, run_after, finished_at)
SELECT {VALUES}, CASE WHEN n %% 100 = 0 THEN 'dead' ELSE 'succeeded' END, 1, at, at, at + interval '20 ms'
FROM generate_series(1, %(jobs)s) AS n
CROSS JOIN LATERAL (SELECT now() - interval '6 days' * (1 - n / %(jobs)s::float8)) AS given (at)
"""
"""Finished over the last six days, one in a hundred of them dead: none is past its retention."""

EXECUTIONS = """
INSERT INTO pgqueue_execution
    (job_id, attempt, worker_id, outcome, claimed_at, started_at, finished_at, lease_expires_at)
SELECT id, 1, 1, CASE state WHEN 'dead' THEN 'failed' ELSE 'succeeded' END,
       run_after + interval '10 ms', run_after + interval '10 ms', finished_at, run_after + interval '1 minute'
FROM pgqueue_job
WHERE finished_at IS NOT NULL AND queue_name <> 'default'
ORDER BY id
"""

FUTURE_JOBS = f"""
INSERT INTO pgqueue_job ({COLUMNS}, run_after)
SELECT {VALUES}, now() + interval '1 day' + n * interval '50 ms' FROM generate_series(1, %(jobs)s) AS n
"""

DUE = """
SELECT (SELECT count(*) FROM pgqueue_job WHERE state = 'ready' AND limit_key IS NULL AND queue_name = 'default')
     + (SELECT count(*) FROM pgqueue_execution WHERE finished_at IS NULL)
"""
"""What the drain has not finished, the future aside; by indexes, so that to look takes nothing from the worker."""


def measure(bench: Bench, system: System) -> dict[str, float]:
    system = system._replace(unfinished=lambda bench: bench.count(DUE))
    empty = rate(bench, system, 0)
    took = fill(bench)
    full = rate(bench, system, DRAINS * system.drain_jobs)
    bench.write({SCRIPT: (FILES / SCRIPT).read_text()})
    single: dict[str, float] = json.loads(bench.run((SCRIPT,)).splitlines()[-1])
    rates = {
        "share_of_empty": full / empty,
        "jobs_per_second_empty": empty,
        "jobs_per_second_full": full,
    }
    return rates | single | {"tables_mb": megabytes(bench), "filling_seconds": took}


def rate(bench: Bench, system: System, first: int) -> float:
    """The median of a few drains, one after the other."""
    firsts = range(first, first + DRAINS * system.drain_jobs, system.drain_jobs)
    numbers = [range(start, start + system.drain_jobs) for start in firsts]
    return statistics.median(drained(bench, system, Load("noop"), its).jobs_per_second for its in numbers)


def fill(bench: Bench) -> float:
    """Write the history; return the seconds it took."""
    began = time.monotonic()
    bench.connection.execute(FINISHED_JOBS.encode(), {"jobs": jobs(FINISHED, LEAST)})
    bench.connection.execute(EXECUTIONS)
    bench.connection.execute(FUTURE_JOBS.encode(), {"jobs": jobs(FUTURE)})
    bench.connection.execute("VACUUM (ANALYZE) pgqueue_job, pgqueue_execution")
    bench.connection.execute("CHECKPOINT")
    return time.monotonic() - began


def megabytes(bench: Bench) -> float:
    size = bench.count("SELECT pg_total_relation_size('pgqueue_job') + pg_total_relation_size('pgqueue_execution')")
    return size / 2**20


HISTORY = Scenario(
    name="9",
    title="beside 5,000,000 finished and 1,000,000 future jobs in 600 lanes: the drain, and single statements",
    measure=measure,
    takes_part=lambda system: system.name == "us",
    jobs=lambda system: 2 * DRAINS * system.drain_jobs,
    figure="share_of_empty",
    targets=(
        "≥ 0.9 of the rate with empty tables",
        "an idle poll ≤ 2 ms",
        "lanes, extend_500, rescue_look and prune_look ≤ 5 ms each",
    ),
    rounds=1,
)
