"""Real workers obey an operator who pauses, drains and clears queues and tasks."""

from __future__ import annotations

import time

import pytest

from django_pgqueue import control
from django_pgqueue.models import Execution, Job
from tests.app import tasks
from tests.helpers import wait_until

pytestmark = pytest.mark.process


def state_of(job):
    return Job.objects.get(pk=job.pk).state


@pytest.mark.promise("pause-obeyed")
def test_pause_idle_worker_obeys_and_wakes_at_the_resume(start):
    worker = start(POLL_INTERVAL=60.0)
    worker.wait_until_ready()
    first = tasks.noop.using(queue_name="mail").enqueue()
    worker.wait_until(lambda: state_of(first) == "succeeded")
    control.pause("mail", reason="the server is down", by="ada")
    time.sleep(control.queues.OBEY_SECONDS)  # the promise: a claim that was decided before can come until then
    paused = tasks.noop.using(queue_name="mail").enqueue()
    for _ in range(5):
        other = tasks.noop.enqueue()
        worker.wait_until(lambda other=other: state_of(other) == "succeeded")
    assert state_of(paused) == "ready"
    assert control.resume("mail")
    worker.wait_until(lambda: state_of(paused) == "succeeded")


def test_pause_of_task_without_other_jobs_is_obeyed(start):
    """A scan that finds no job also returns what is paused. The worker claims the next job before another scan."""
    worker = start(POLL_INTERVAL=60.0)
    worker.wait_until_ready()
    control.pause(task=tasks.add)
    other = tasks.noop.enqueue()
    worker.wait_until(lambda: state_of(other) == "succeeded")
    time.sleep(0.7)  # the worker has scanned for the last time and sleeps until it is woken
    paused = tasks.add.enqueue(1, 2)
    after = tasks.noop.enqueue()
    worker.wait_until(lambda: state_of(after) == "succeeded")
    assert state_of(paused) == "ready"


@pytest.mark.promise("pause-obeyed")
def test_drain_under_load_pauses_and_waits_for_running_jobs(start):
    tasks.spin_a_while.enqueue_many(((0.01,), {}) for _ in range(3000))
    worker = start("--concurrency", "2")
    worker.wait_until(lambda: Job.objects.filter(state="succeeded").count() > 20)
    assert control.drain(task=tasks.spin_a_while, timeout=20) == 0
    attempts = Execution.objects.count()
    other = tasks.noop.enqueue()
    worker.wait_until(lambda: state_of(other) == "succeeded")
    assert Execution.objects.count() == attempts + 1
    assert Job.objects.filter(state="ready").exists()
    assert control.clear(task=tasks.spin_a_while) == Job.objects.filter(state="cancelled").count() > 0
    assert control.resume(task=tasks.spin_a_while)


def test_clear_under_load_leaves_started_jobs_alone(start):
    tasks.spin_a_while.enqueue_many(((0.01,), {}) for _ in range(3000))
    worker = start("--concurrency", "4", LEASE=60.0)
    worker.wait_until(lambda: Job.objects.filter(state="succeeded").count() > 20)
    assert control.clear("default") == Job.objects.filter(state="cancelled").count() > 0
    assert not Job.objects.filter(cancel_requested_at__isnull=False, attempt__gte=1).exists()


@pytest.mark.promise("pause-ends-by-itself")
def test_pause_with_end_time_ends_by_itself(start):
    control.pause("mail", until=1.5)
    paused = tasks.noop.using(queue_name="mail").enqueue()
    worker = start(POLL_INTERVAL=60.0, POLL_INTERVAL_WITHOUT_LISTEN=60.0)
    worker.wait_until(lambda: state_of(paused) == "succeeded", 20)


def test_drain_timeout_returns_number_of_running_jobs(start, tmp_path):
    done, started = tmp_path / "done", tmp_path / "started"
    job = tasks.wait_for_file.using(queue_name="mail").enqueue(str(done), started=str(started))
    worker = start()
    worker.wait_until(started.exists)
    assert control.drain("mail", timeout=0.2) == 1
    done.touch()
    assert control.drain("mail") == 0
    wait_until(lambda: state_of(job) == "succeeded")
