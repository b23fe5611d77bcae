"""Test chunks in a real worker, and what a lost process does to them."""

from __future__ import annotations

import os
import signal

import pytest

from django_pgqueue.models import Execution, Job
from tests.process.conftest import start

from . import tasks

__all__ = ["start"]

pytestmark = pytest.mark.process


def test_jobs_of_a_killed_process_run_again_one_by_one(start, tmp_path):
    """Each job may be the cause, so each is charged, and runs isolated and alone from then on."""
    path = tmp_path / "done"
    started = path.with_suffix(".started")
    for _ in range(4):
        tasks.wait_for_file.enqueue(str(path))
    worker = start("--concurrency", "2", TASK_MODULES=[tasks.__name__])
    worker.wait_until(started.exists)
    child = worker.children[0]
    started.unlink()
    os.kill(child, signal.SIGKILL)
    worker.wait_until(started.exists)
    path.touch()
    worker.wait_until(lambda: Job.objects.filter(state="succeeded").count() == 4)
    assert list(Job.objects.values_list("attempt", "crashes", "result")) == [(2, 1, 1)] * 4
    assert set(Execution.objects.filter(attempt=1).values_list("outcome", flat=True)) == {"crashed"}
    assert tasks.isolated.enqueue("a").wait(20) not in (child, *worker.children)
    path.unlink()
    started.unlink()
    stopped = [tasks.wait_for_file.enqueue(str(path)) for _ in range(4)]
    worker.wait_until(started.exists)
    worker.send(signal.SIGTERM)
    worker.send(signal.SIGTERM)
    worker.exit_code()
    left = Job.objects.filter(id__in=[job.pk for job in stopped])
    assert list(left.values_list("state", "attempt")) == [("ready", 0)] * 4
