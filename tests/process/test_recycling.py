"""Processes that are replaced because of their number of jobs or their memory: no job is lost, run twice or charged."""

from __future__ import annotations

import os
import signal
import time

import pytest
from django.db import connection

from django_pgqueue.models import Execution, Job
from tests.app import tasks

pytestmark = pytest.mark.process


def assert_each_ran_once_and_uncharged(count: int) -> None:
    assert set(Job.objects.values_list("state", "attempt", "crashes")) == {("succeeded", 1, 0)}
    assert Job.objects.count() == count
    assert Execution.objects.filter(outcome="succeeded").count() == count
    assert set(Execution.objects.values_list("outcome", flat=True)) <= {"succeeded", "released"}


@pytest.mark.parametrize("processes", ["1", "3"])
def test_recycling_after_max_jobs_loses_no_job(start, tmp_path, processes):
    path, count = tmp_path / "record", 300
    tasks.record.enqueue_many([((str(path), str(number)), {}) for number in range(count)])
    worker = start("--max-jobs", "40", "--processes", processes, "--concurrency", "4")
    worker.wait_until(lambda: not Job.objects.exclude(state="succeeded").exists(), 60)
    assert_each_ran_once_and_uncharged(count)
    assert sorted(map(int, path.read_text().split())) == list(range(count))
    assert worker.said.count("is replaced") >= 2
    assert "died" not in worker.said


def test_recycling_waits_for_slow_jobs_beyond_the_grace(start, tmp_path):
    """Slow jobs run on threads and on the event loop when their process is due for replacement.

    The process waits for them, and longer than a stop would.
    """
    go_on, path = tmp_path / "go", tmp_path / "record"
    started = [tmp_path / name for name in ("sync", "async")]
    slow = [
        tasks.wait_for_file.using(priority=10).enqueue(str(go_on), started=str(started[0])),
        tasks.await_file.using(priority=10).enqueue(str(go_on), started=str(started[1])),
    ]
    worker = start("--max-jobs", "10", "--concurrency", "6", GRACE=0.2)
    worker.wait_until(lambda: all(mark.exists() for mark in started))
    tasks.record.enqueue_many([((str(path), str(number)), {}) for number in range(40)])
    worker.wait_until(lambda: "will be replaced" in worker.said)
    first, announced_at = worker.children[0], time.monotonic()
    worker.wait_until(lambda: time.monotonic() > announced_at + 1)  # five times the grace period of a stop
    assert Execution.objects.filter(job__in=slow, outcome=None).count() == 2
    go_on.touch()
    worker.wait_until(lambda: not Job.objects.exclude(state="succeeded").exists(), 60)
    assert_each_ran_once_and_uncharged(42)
    assert sorted(map(int, path.read_text().split())) == list(range(40))
    worker.wait_until(lambda: first not in worker.children)
    assert Execution.objects.filter(job__in=slow).count() == 2


@pytest.mark.parametrize("how", ["ends", "is killed"])
def test_replacement_uses_all_places_once_predecessor_ended(start, tmp_path, how):
    """Until the predecessor ends, both processes together run no more jobs than one process does."""
    end_first, started, end_rest = tmp_path / "end first", tmp_path / "started", tmp_path / "end rest"
    tasks.wait_for_file.using(max_attempts=1).enqueue(str(end_first), started=str(started))
    worker = start("--max-jobs", "2", "--concurrency", "2")
    worker.wait_until(started.exists)
    [first] = worker.children
    tasks.noop.enqueue()
    worker.wait_until(lambda: len(worker.children) == 2)
    rest = [tmp_path / "second", tmp_path / "third"]
    for mark in rest:
        tasks.wait_for_file.enqueue(str(end_rest), started=str(mark))
    worker.wait_until(lambda: any(mark.exists() for mark in rest))
    assert not all(mark.exists() for mark in rest)
    if how == "ends":
        end_first.touch()
    else:
        os.kill(first, signal.SIGKILL)
    worker.wait_until(lambda: all(mark.exists() for mark in rest))
    end_rest.touch()


def test_recycling_with_async_jobs_loses_no_job(start, tmp_path):
    tasks.async_overlap.enqueue_many([((str(tmp_path / "record"),), {}) for _ in range(100)])
    worker = start("--max-jobs", "25", "--processes", "2", "--concurrency", "4", "--until-empty")
    assert worker.has_drained(60)
    assert_each_ran_once_and_uncharged(100)
    assert (tmp_path / "record").read_text().split().count("end") == 100


def test_recycling_after_memory_growth_loses_no_job(start):
    tasks.leak_memory.enqueue_many([((10,), {})] * 60)
    worker = start("--max-rss-mb", "250", "--processes", "2", "--concurrency", "2")
    worker.wait_until(lambda: not Job.objects.exclude(state="succeeded").exists(), 60)
    assert_each_ran_once_and_uncharged(60)
    worker.wait_until(lambda: "is replaced" in worker.said)
    assert "died" not in worker.said


def most_at_a_time(lines: list[str]) -> int:
    """Return the highest number of jobs that ran at the same time, from the order of their recorded begins and ends."""
    running = most = 0
    for line in lines:
        running += 1 if line == "begin" else -1
        most = max(most, running)
    return most


def sessions() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
        return int(cursor.fetchone()[0])


@pytest.mark.promise("concurrency-bound")
@pytest.mark.parametrize("kind", ["threads", "coroutines", "memory"])
def test_recycling_beside_long_jobs_is_bounded(start, tmp_path, kind):
    """Each process is replaced soon and has a long job that outlasts it. Retiring processes must not accumulate."""
    path, go_on, concurrency, processes = tmp_path / "record", tmp_path / "go", 3, 2
    short = tasks.async_overlap if kind == "coroutines" else tasks.overlap
    for _ in range(concurrency * processes * 2):
        tasks.overlap_until.enqueue(str(path), str(go_on))
        short.enqueue_many([((str(path),), {}) for _ in range(30)])
    reason = ("--max-rss-mb", "10") if kind == "memory" else ("--max-jobs", "4")
    worker = start(*reason, "--concurrency", str(concurrency), "--processes", str(processes))
    seen = []

    def record_counts() -> None:
        seen.append((len(worker.children), sessions()))

    def has_seen_recycling() -> bool:
        record_counts()
        return bool(worker.said.count("will be replaced: it finishes") >= processes)

    worker.wait_until(has_seen_recycling, 30)
    until = time.monotonic() + 3
    worker.wait_until(lambda: record_counts() or time.monotonic() > until)
    assert most_at_a_time(path.read_text().split()) <= concurrency * processes
    go_on.touch()
    worker.wait_until(lambda: record_counts() or not Job.objects.exclude(state="succeeded").exists(), 60)
    lines = path.read_text().split()
    assert most_at_a_time(lines) <= concurrency * processes
    assert lines.count("end") == Job.objects.count()
    assert max(count for count, _ in seen) <= 2 * processes
    assert max(count for _, count in seen) <= 2 * processes * (6 + concurrency + 1) + 10
