"""Real workers keep the log lines of threads, coroutines and isolated processes, also of a process that dies."""

from __future__ import annotations

import pytest

from django_pgqueue.models import Execution, Job
from tests.app import tasks

pytestmark = pytest.mark.process


def messages(job: Job) -> list[str]:
    return [line.message for line in Execution.objects.get(job=job).log_lines]


@pytest.mark.promise("kept-log-lines-with-completion")
def test_worker_keeps_lines_of_every_kind_of_task(start, tmp_path):
    thread, atomic = tasks.log_lines.enqueue(2), tasks.log_atomically.enqueue()
    turns = [tasks.log_in_turns.enqueue(*names, str(tmp_path)) for names in (("a", "b"), ("b", "a"))]
    isolated, killed = tasks.log_isolated.enqueue(), tasks.log_isolated.enqueue("segfault")
    worker = start(CRASH_BUDGET=1)
    jobs = Job.objects.filter(finished_at=None)
    worker.wait_until(lambda: not jobs.exists())
    worker.wait_until(lambda: hasattr(Execution.objects.get(job=atomic), "log"))
    killed.refresh_from_db()
    assert killed.state == "dead"
    found = [messages(job) for job in (thread, atomic, *turns, isolated, killed)]
    assert found == [
        ["line 0", "line 1"],
        ["atomic"],
        ["a first", "a in a thread"],
        ["b first", "b in a thread"],
        *[[f"isolated {number}" for number in range(3)]] * 2,
    ]
