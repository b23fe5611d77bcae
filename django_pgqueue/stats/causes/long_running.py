"""Read which running jobs take much longer than the other attempts of their task.

`facts` calls `read_hanging()`. It reads nothing as long as no job has run for `LEAST_SECONDS`. A task counts only if
enough of its attempts ended within a day: without these, nobody knows how long it takes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Final, NamedTuple

from django_pgqueue.db.statements import execute
from django_pgqueue.ground import histogram
from django_pgqueue.settings.conf import DAY_SECONDS
from django_pgqueue.stats.depths import DepthReading
from django_pgqueue.stats.fleet import OPEN_LIMIT

from . import queries

LEAST_SECONDS: Final = 300.0
"""How long a job has to run until it can count as hanging."""
FACTOR: Final = 10
"""It has to run for this many times as long as 95 % of the attempts."""
LEAST_ATTEMPTS: Final = 20
TASKS_READ: Final = 20
"""Tasks with long-running jobs whose attempts are read."""


class HangingJobs(NamedTuple):
    """The running jobs of one task that hang: how many, the longest of them, and how long other attempts took."""

    task_name: str
    jobs: int
    longest_seconds: float
    job_id: int
    p95_seconds: float


def read_hanging(reading: DepthReading) -> list[HangingJobs]:
    """Return the tasks whose jobs hang. Runs two statements if a job has run for long, and none otherwise."""
    longest = Counter[str]()
    for group in reading.open_groups:
        if group.running and group.longest_seconds >= LEAST_SECONDS:
            longest[group.task_name] = max(longest[group.task_name], int(group.longest_seconds))
    if not longest:
        return []
    usual = _usual_seconds(reading, [name for name, _seconds in longest.most_common(TASKS_READ)])
    limits = {name: max(LEAST_SECONDS, FACTOR * p95, most) for name, (p95, most) in usual.items()}
    if not limits:
        return []
    params = {"task_names": list(limits), "limits_seconds": list(limits.values()), "limit": OPEN_LIMIT}
    return [
        HangingJobs(task_name, jobs, seconds, job_id, usual[task_name][0])
        for task_name, jobs, seconds, job_id in execute(reading.connection, queries.LONG_RUNNING, params)
    ]


def _usual_seconds(reading: DepthReading, task_names: list[str]) -> dict[str, tuple[float, float]]:
    """Return how long 95 % of the attempts of each task took within a day, and the longest one."""
    params = {"task_names": task_names, "seconds": DAY_SECONDS}
    histograms: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for name, bucket, count in execute(reading.connection, queries.RUN_TIMES, params):
        histograms[name][bucket] += count
    found = {}
    for name, counts in histograms.items():
        p95, most = histogram.percentile(counts, 0.95), histogram.percentile(counts, 1.0)
        if counts.total() >= LEAST_ATTEMPTS and p95 is not None and most is not None:
            found[name] = p95, most * (1 + histogram.RELATIVE_ERROR)
    return found
