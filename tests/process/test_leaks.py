"""One job leaks state of all kinds, and the next job on the same slot finds none of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from django.contrib.auth.models import Group

from django_pgqueue.models import Job
from tests.app import leftovers

pytestmark = pytest.mark.process

MODULES = ["tests.app.leftovers"]
CONTEXT = {"time zone": "UTC", "language": "en-us", "variable": "clean"}
CONNECTION = {
    "wrappers": False,
    "queries": 0,
    "debug": False,
    "atomic": False,
    "settings": 0,
    "tables": 0,
    "locks": 0,
    "channels": 0,
    "cursors": 0,
    "seen": 0,
}


@pytest.fixture(autouse=True)
def _found_by_workers(settings):
    settings.PGQUEUE = {"TASK_MODULES": MODULES}


@pytest.mark.promise("defect-coroutine-leaks-locale", "defect-setting-after-comment")
def test_leak_of_one_job_is_invisible_to_the_next_job(start):
    """Each kind of leak runs before each kind of task. One kind must not make the worker close the connection."""
    leaving = [
        lambda to: to(leftovers.leave).enqueue("connection"),
        lambda to: to(leftovers.leave).enqueue("session"),
        lambda to: to(leftovers.leave).enqueue("transaction"),
        lambda to: to(leftovers.leave_from_atomic).enqueue(),
        lambda to: to(leftovers.leave_from_coroutine).enqueue(),
    ]
    finding = [leftovers.find, leftovers.find_from_atomic, leftovers.find_from_coroutine]
    priority, left, found = 100, [], []
    for leave in leaving:
        for find in finding:
            left.append(leave(lambda task, to=priority: task.using(priority=to)))
            found.append((find, find.using(priority=priority - 1).enqueue()))
            priority -= 2
    assert start("--concurrency", "1", "--until-empty", TASK_MODULES=MODULES).has_drained()
    lost = [job.pk for job in left[6:9]]
    assert set(Job.objects.exclude(pk__in=lost).values_list("state", flat=True)) == {"succeeded"}
    assert set(Job.objects.filter(pk__in=lost).values_list("state", flat=True)) == {"dead"}, "their writes are lost"
    for find, job in found:
        job.refresh_from_db()
        atomic = {"atomic": True} if find is leftovers.find_from_atomic else {}
        assert job.result == [job.result[0], CONTEXT, CONNECTION | atomic], job.pk
    assert {job.result[0] for _, job in found} == {"pgqueue-job-0", ""}
    assert not Group.objects.exists()


def test_cache_connection_in_slot_is_created_once(start):
    jobs = [leftovers.the_cache.enqueue() for _ in range(5)]
    assert start("--concurrency", "1", "--until-empty", TASK_MODULES=MODULES).has_drained()
    assert Job.objects.filter(pk__in=[job.pk for job in jobs]).values("result").distinct().count() == 1


def test_leak_of_process_state_is_logged_and_replaces_process(start, tmp_path):
    wanderer = leftovers.wander.enqueue(str(tmp_path))
    worker = start("--concurrency", "1", TASK_MODULES=MODULES)
    worker.wait_until(lambda: "is replaced" in worker.said)
    worker.wait_until(lambda: worker.said.count("is ready") == 2)
    job = leftovers.where.enqueue()
    worker.wait_until(lambda: Job.objects.get(pk=job.pk).state == "succeeded")
    wanderer.refresh_from_db()
    job.refresh_from_db()
    assert job.result[0] == str(Path.cwd())
    assert job.result[1] not in (wanderer.result, os.getpid())
    name = "task tests.app.leftovers.wander leaked"
    assert f"{name}: the working directory" in worker.said
    assert f"{name}: the umask ('0022', now '0007'); the process will be replaced" in worker.said
    assert worker.said.count("the working directory") == 1
    assert "(its jobs have leaked global state)" in worker.said
