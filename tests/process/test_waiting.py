"""A real worker notifies callers that wait for its jobs. In these tests, no caller would find an end by polling."""

from __future__ import annotations

import asyncio

import pytest
from asgiref.sync import async_to_sync

from django_pgqueue import JobGone
from django_pgqueue.models import Job
from django_pgqueue.waiting import completion_listener
from tests.app import tasks
from tests.test_completion_listener import fresh, in_background, only_told, overhears, wait_until_asked

__all__ = ["fresh", "only_told", "overhears"]
"""Fixtures of the tests in which the test itself notifies the waiters."""
pytestmark = pytest.mark.process


@pytest.fixture
def worker(start):
    running = start("--concurrency", "30", POLL_INTERVAL=60.0, LEASE=60.0)
    running.wait_until_ready()
    tasks.noop.enqueue()
    running.wait_until(lambda: Job.objects.filter(state="succeeded").exists())
    return running


def wait_until_worker_knows(worker):
    """Wait until the worker has received earlier notifications; only a notification wakes it."""
    job = tasks.noop.enqueue()
    worker.wait_until(lambda: Job.objects.get(pk=job.pk).state == "succeeded")


@pytest.mark.promise("end-notifies-waiters")
def test_waiters_for_all_kinds_of_jobs_are_notified(worker, engine, only_told, overhears, tmp_path):
    path, asked = str(tmp_path / "go"), overhears(completion_listener.AWAITED)
    threads = [tasks.wait_for_file.enqueue(path) for _ in range(3)]
    coroutines = [tasks.await_file.enqueue(path) for _ in range(8)]
    isolated, gone = tasks.isolated_tell_and_wait.enqueue(path), tasks.wait_and_keep_nothing.enqueue(path)
    atomic = tasks.isolated_tell_atomically.enqueue(path)

    async def all_of(jobs):
        return await asyncio.gather(*[job.await_result(40) for job in jobs])

    waits = [in_background(lambda job=job: job.wait(40)) for job in (*threads, isolated, atomic, gone)]
    waits.append(in_background(lambda: async_to_sync(all_of)(coroutines)))
    wait_until_asked(asked, [*threads, *coroutines, isolated, gone, atomic])
    wait_until_worker_knows(worker)
    (tmp_path / "go").touch()
    assert [wait.result() for wait in waits[:3]] == [path] * 3
    assert [wait.result() for wait in waits[3:5]] == [None, None]
    with pytest.raises(JobGone):
        waits[5].result()
    assert waits[6].result() == [path] * 8
