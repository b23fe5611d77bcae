"""The counts of attempts that real workers leave behind: when they stop, and when one of their processes dies."""

from __future__ import annotations

import signal

import pytest

from django_pgqueue import stats
from django_pgqueue.models import Job
from tests.app import tasks

pytestmark = pytest.mark.process


def failures():
    return {(one.task_name, one.exception_class): (one.retried, one.dead) for one in stats.throughput().failures}


@pytest.mark.promise("stats-stop")
def test_stop_of_worker_writes_the_counts_of_the_last_seconds(start, tmp_path):
    """A job ends after the signal, when the worker does no maintenance any more."""
    started, end = tmp_path / "started", tmp_path / "end"
    last = tasks.wait_for_file.enqueue(str(end), started=str(started))
    tasks.noop.enqueue_many([((), {})] * 30)
    tasks.async_add.using(queue_name="other").enqueue(1)
    tasks.fail.enqueue()
    worker = start(GRACE=20.0)
    others = Job.objects.exclude(pk=last.pk)
    worker.wait_until(lambda: started.exists() and not others.exclude(state__in=["succeeded", "dead"]).exists())
    worker.send(signal.SIGTERM)
    worker.wait_until(lambda: "stopping" in worker.said)
    end.touch()
    assert worker.exit_code(40) == 0
    found = stats.throughput()
    assert (found.counts.succeeded, found.counts.retried, found.counts.dead) == (32, 1, 1)
    assert found.wait.count == found.run.count == 34
    assert found.wait.p99 < 60
    assert failures() == {(tasks.fail.name, "builtins.RuntimeError"): (1, 1)}
    assert stats.throughput(queue="other").counts.succeeded == 1


def test_death_of_worker_process_counts_its_jobs_as_crashed(start):
    tasks.die_once.enqueue()
    worker = start()
    worker.wait_until(lambda: Job.objects.filter(state="succeeded").exists())
    worker.send(signal.SIGTERM)
    assert worker.exit_code() == 0
    counts = stats.throughput().counts
    assert (counts.crashed, counts.retried, counts.succeeded) == (1, 1, 1)
    assert failures() == {(tasks.die_once.name, ""): (1, 0)}
