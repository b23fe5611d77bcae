"""A real worker with `--queue NAME=N`: how many jobs of each queue run at a time, also while a process is replaced."""

from __future__ import annotations

from itertools import accumulate

import pytest

from django_pgqueue.models import Job, Worker
from tests.app import tasks

pytestmark = pytest.mark.process


@pytest.mark.promise("queue-option-limits")
def test_queues_of_one_worker_have_different_concurrency(start, tmp_path):
    """Plain functions and coroutines count together, and so do the jobs of a process and of its replacement."""
    records = {name: tmp_path / name for name in ("mail", "default")}
    for name, count in (("mail", 16), ("default", 60)):
        for number in range(count):
            task = tasks.overlap if number % 2 else tasks.async_overlap
            task.using(queue_name=name, priority=5 if name == "mail" else 0).enqueue(str(records[name]), 0.1)
    worker = start("--queue", "mail=2", "--queue", "default=6", "--max-jobs", "25", "--until-empty")
    assert worker.has_drained()
    assert ": database 'default', queues mail (2), default (6), 1 process x 8 jobs, " in worker.said
    assert Job.objects.filter(state="succeeded").count() == 76
    assert set(Worker.objects.values_list("queue_names", "concurrency")) == {("mail=2,default=6", 8)}
    assert Worker.objects.count() > 1
    most = {}
    for name, record in records.items():
        running = list(accumulate(1 if mark == "begin" else -1 for mark in record.read_text().split()))
        most[name] = max(running)
        assert running[-1] == 0
    assert most["mail"] == 2
    assert most["default"] in (5, 6)
