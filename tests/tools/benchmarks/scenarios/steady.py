"""Scenario 5: half of what can be drained, for five minutes, while what is finished is removed again.

Retention is 5 s and pruning is due each second, so that what holds for a week at the defaults can be seen in minutes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from statistics import mean
from typing import NamedTuple

from tests.tools.benchmarks.percentiles import percentile, pick_up_ms
from tests.tools.benchmarks.place import Bench, wait_for
from tests.tools.benchmarks.scale import jobs, seconds
from tests.tools.benchmarks.scenarios.drain import drained
from tests.tools.benchmarks.scenarios.scenario import Scenario
from tests.tools.benchmarks.systems.system import Load, System

RETENTION_SECONDS = 5.0
SETTINGS = f'\nPGQUEUE = {{"RETENTION": {{"succeeded": {RETENTION_SECONDS}}}, "PRUNE_INTERVAL": 1}}\n'
LASTING_SECONDS = 300.0
WARMING_SECONDS = 5.0
SAMPLING_SECONDS = 15.0
"""A sample takes up to 90 ms of one core, because it reads the index entries of jobs that have been claimed or removed.
Every 5 seconds, that would be more than 1 % of the time, and the p99 would show it."""
DRAINED = 50_000
MOST_A_SECOND = 40_000
"""What the record has room for."""

SAMPLE = """
SELECT (SELECT count(*) FROM pgqueue_job WHERE state = 'ready' AND limit_key IS NULL),
       pg_total_relation_size('pgqueue_job') + pg_total_relation_size('pgqueue_execution'),
       (SELECT extract(epoch FROM now() - min(finished_at))::float8 FROM pgqueue_job
        WHERE state = 'succeeded' AND finished_at IS NOT NULL)
"""


class Sample(NamedTuple):
    ready: int
    megabytes: float
    oldest_seconds: float


def measure(bench: Bench, system: System) -> dict[str, float]:
    """First what can be drained, with the same settings, then half of that as a stream."""
    with (bench.directory / "settings.py").open("a") as file:
        file.write(SETTINGS)
    first = jobs(DRAINED)
    limit = drained(bench, system, Load("noop"), range(first)).jobs_per_second
    pace = min(limit / 2, MOST_A_SECOND)
    last = first + round(pace * seconds(LASTING_SECONDS))
    worker = bench.start(system.worker(Load("began")))
    time.sleep(seconds(WARMING_SECONDS))  # it begins, and removes what was drained
    producer = bench.start_producer("stream", "began", first, last - first, pace)
    samples = list(sampled(bench, lambda: producer.poll() is not None))
    produced = bench.produced(producer)
    wait_for(lambda: not system.unfinished(bench), 300, "jobs that are not finished")
    bench.stop([worker])
    bench.check_each_ran_once(range(last))
    waited = pick_up_ms(bench, first, last)
    return {
        "p99_ms": percentile(waited, 0.99),
        "p50_ms": percentile(waited, 0.5),
        "most_ms": max(waited),
        "enqueued_per_second": (last - first) / produced["seconds"],
        "drained_per_second": limit,
        "producer_late_seconds": produced["late_seconds"],
        **courses(samples),
    }


def sampled(bench: Bench, is_over: Callable[[], bool]) -> Iterator[Sample]:
    """A look at the tables every few seconds, until it is over."""
    while not is_over():
        row = bench.connection.execute(SAMPLE).fetchone()
        assert row
        yield Sample(row[0], row[1] / 2**20, row[2] or 0.0)
        time.sleep(seconds(SAMPLING_SECONDS, least=0.5))


def courses(samples: Sequence[Sample]) -> dict[str, float]:
    """How the queue and the tables went: the last minute of five against the first, and so on."""
    fifth, third = max(1, len(samples) // 5), max(1, len(samples) // 3)
    early = mean(sample.megabytes for sample in samples[third : 2 * third])
    late = mean(sample.megabytes for sample in samples[-third:])
    lags = [max(0.0, sample.oldest_seconds - RETENTION_SECONDS) for sample in samples]
    return {
        "ready_first_minute": mean(sample.ready for sample in samples[:fifth]),
        "ready_last_minute": mean(sample.ready for sample in samples[-fifth:]),
        "mb_second_third": early,
        "mb_last_third": late,
        "size_growth": late / early - 1,
        "prune_lag_seconds_most": max(lags),
        "prune_lag_seconds_end": lags[-1],
    }


STEADY = Scenario(
    name="5",
    title="half of the drain's rate for five minutes, retention 5 s: pick-up, and what grows",
    measure=measure,
    takes_part=lambda system: system.name == "us",
    jobs=lambda system: jobs(DRAINED) + round(MOST_A_SECOND * seconds(LASTING_SECONDS)),
    figure="p99_ms",
    bigger_is_better=False,
    targets=("the queue does not grow", "the tables do not grow: last third within a tenth of the second"),
)
