"""A real worker tells those who wait for its jobs; here nobody would find their ends by looking."""

from __future__ import annotations

import asyncio

import pytest
from asgiref.sync import async_to_sync

from django_pgqueue import JobGone
from django_pgqueue.models import Job
from django_pgqueue.waiting import listener
from tests.app import tasks
from tests.test_ends import fresh, in_background, only_told, overhears, wait_until_asked

__all__ = ["fresh", "only_told", "overhears"]
"""Fixtures of the tests where the test itself tells."""
pytestmark = pytest.mark.process


@pytest.fixture
def worker(start):
    running = start("--concurrency", "30", POLL_INTERVAL=60.0, LEASE=60.0)
    running.wait_until_ready()
    tasks.noop.enqueue()
    running.wait_until(lambda: Job.objects.filter(state="succeeded").exists())
    return running


def knows(worker):
    """Wait until the worker has heard what was said before; only a notification wakes it."""
    job = tasks.noop.enqueue()
    worker.wait_until(lambda: Job.objects.get(pk=job.pk).state == "succeeded")


@pytest.mark.promise("end-notifies-waiters")
def test_the_ends_of_all_kinds_of_jobs_are_told(worker, engine, only_told, overhears, tmp_path):
    path, asked = str(tmp_path / "go"), overhears(listener.AWAITED)
    threads = [tasks.wait_for_file.enqueue(path) for _ in range(3)]
    coroutines = [tasks.await_file.enqueue(path) for _ in range(8)]
    apart, gone = tasks.isolated_tell_and_wait.enqueue(path), tasks.wait_and_keep_nothing.enqueue(path)
    atomic = tasks.isolated_tell_atomically.enqueue(path)

    async def all_of(jobs):
        return await asyncio.gather(*[job.await_result(40) for job in jobs])

    waits = [in_background(lambda job=job: job.wait(40)) for job in (*threads, apart, atomic, gone)]
    waits.append(in_background(lambda: async_to_sync(all_of)(coroutines)))
    wait_until_asked(asked, [*threads, *coroutines, apart, gone, atomic])
    knows(worker)
    (tmp_path / "go").touch()
    assert [one.result() for one in waits[:3]] == [path] * 3
    assert [one.result() for one in waits[3:5]] == [None, None]
    with pytest.raises(JobGone):
        waits[5].result()
    assert waits[6].result() == [path] * 8
