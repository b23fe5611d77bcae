"""A job that spoils the event loop of its process: the loop is replaced, and the other coroutine jobs run."""

from __future__ import annotations

import json

import pytest

from django_pgqueue.models import Execution, Job
from tests.app import hostile, tasks

pytestmark = pytest.mark.process


def states(jobs):
    return set(Job.objects.filter(pk__in=[job.pk for job in jobs]).values_list("state", flat=True))


@pytest.mark.promise("event-loop-is-replaced")
def test_task_left_on_the_loop_stops_no_coroutine_job(start, settings, tmp_path):
    """The task blocks the loop after its job has ended. Jobs in threads need the slots of the coroutines too."""
    settings.PGQUEUE = {"TASK_MODULES": hostile.MODULES}
    end, may_end, started, health = (tmp_path / name for name in ("end", "may end", "started", "health.json"))
    neighbour = tasks.await_file.enqueue(str(may_end), started=str(started))
    worker = start("--concurrency", "4", "--health-file", str(health), TASK_MODULES=hostile.MODULES)
    worker.wait_until(started.exists)
    process = worker.children
    leaving = hostile.leave_blocking_task.enqueue(str(end))
    worker.wait_until(end.with_suffix(".blocked").exists)
    later = [hostile.answer.enqueue(number) for number in range(6)] + [hostile.work.enqueue() for _ in range(6)]
    worker.wait_until(lambda: json.loads(health.read_text())["status"] == "event loop blocked")
    worker.wait_until(lambda: states([leaving, *later]) == {"succeeded"})
    may_end.touch()
    worker.wait_until(lambda: states([neighbour]) == {"succeeded"})
    outcomes = Execution.objects.filter(job=neighbour).order_by("id").values_list("outcome", flat=True)
    assert list(outcomes) == ["released", "succeeded"]
    assert worker.children == process
    worker.wait_until(lambda: json.loads(health.read_text())["status"] == "ok")
    assert "in _block_until" in worker.said, "the log shows what blocks the loop"
    end.touch()
