"""Cancelling running jobs: a job is notified within a second, stopped after the grace period, and ends as cancelled."""

from __future__ import annotations

import signal
import time

import pytest
from django.contrib.auth.models import Group
from django.db import transaction

from django_pgqueue.models import Execution, Job
from tests.app import tasks
from tests.framework import tasks as framework

pytestmark = pytest.mark.process
STOPPED = "stopped while it ran because the job was cancelled"


@pytest.fixture
def begin(start, tmp_path):
    """Return a function that enqueues a task, waits until it has started, and returns the job and its worker."""

    def begin_job(task, *args, worker=None, arguments=(), **options):
        started = tmp_path / f"started-{len(list(tmp_path.iterdir()))}"
        job = task.enqueue(*args, str(started))
        worker = worker or start(*arguments, **{"CANCEL_GRACE": 0.3, "LEASE": 600.0, "POLL_INTERVAL": 60.0, **options})
        worker.wait_until(started.exists)
        return job, worker

    return begin_job


def wait_for_end(worker, job):
    worker.wait_until(lambda: Job.objects.get(pk=job.pk).finished_at)
    job.refresh_from_db()
    return Execution.objects.filter(job_id=job.pk).order_by("id").last()


@pytest.mark.promise("cancel-notifies-job")
@pytest.mark.parametrize("arguments", [(), ("--no-listen",)])
def test_cancel_task_that_checks_ends_with_its_own_reason(begin, arguments):
    """The job is notified long before the grace period ends and before the next heartbeat.

    The next heartbeat is 150 s away, which is longer than any wait in this test.
    """
    worker = None
    for task in (tasks.look_around, tasks.look_around_apart, framework.look_around):
        job, worker = begin(task, worker=worker, arguments=arguments, CANCEL_GRACE=600.0)
        job = Job.objects.get(pk=getattr(job, "id", job))
        assert job.cancel()
        execution = wait_for_end(worker, job)
        assert (job.state, execution.outcome, execution.error) == ("cancelled", "cancelled", "stopped half-way"), task


@pytest.mark.promise("cancel-stops-after-grace")
def test_cancel_task_without_check_is_stopped_after_grace(begin):
    worker = None
    for task in (tasks.look_at_nothing, tasks.look_at_nothing_apart, tasks.query_for_long, tasks.await_long):
        job, worker = begin(task, worker=worker)
        assert job.cancel()
        assert not job.cancel(), "the second request must return False"
        execution = wait_for_end(worker, job)
        assert (job.state, execution.outcome, execution.error) == ("cancelled", "cancelled", STOPPED), task
        assert job.attempt == 1
        other = tasks.add.enqueue(1, 2)
        wait_for_end(worker, other)
        assert other.result == 3


def test_cancel_coroutine_ends_without_grace_period(begin):
    job, worker = begin(tasks.await_long, CANCEL_GRACE=600.0)
    job.cancel()
    assert wait_for_end(worker, job).outcome == "cancelled"


@pytest.mark.parametrize("arguments", [(), ("--no-listen",)])
def test_cancel_coroutine_cleaning_up_is_not_repeated(begin, tmp_path, arguments):
    """The worker checks for requests again: because another job is cancelled, or because it receives no notifications.

    It must not cancel the coroutine a second time, because that would end the clean-up.
    """
    cleaned = tmp_path / "cleaned"
    job = tasks.clean_up_for_a_while.enqueue(str(tmp_path / "began"), str(cleaned))
    other, worker = begin(tasks.look_around, arguments=arguments, CANCEL_GRACE=600.0)
    worker.wait_until((tmp_path / "began").exists)
    job.cancel()
    worker.wait_until((tmp_path / "cleaned.began").exists)
    other.cancel()
    assert wait_for_end(worker, job).outcome == "cancelled"
    assert cleaned.exists()


def test_cancel_in_stopping_worker_notifies_the_job(begin):
    """The fetcher, which receives notifications, has already ended."""
    job, worker = begin(tasks.look_around, GRACE=60.0, CANCEL_GRACE=600.0)
    worker.wait_until_ready()
    worker.send(signal.SIGTERM)
    worker.wait_until(lambda: "stop" in worker.said)
    time.sleep(1)
    job.cancel()
    worker.wait_until(lambda: Job.objects.get(pk=job.pk).finished_at)


def test_cancel_job_that_returns_keeps_its_success(begin):
    job, worker = begin(tasks.finish_all_the_same)
    job.cancel()
    wait_for_end(worker, job)
    assert (job.state, job.result) == ("succeeded", "cleaned up")


def test_cancel_atomic_task_rolls_back(begin):
    job, worker = begin(tasks.create_group_until_cancelled, "half-way")
    job.cancel()
    wait_for_end(worker, job)
    assert job.state == "cancelled"
    assert not Group.objects.exists()


def test_cancel_stuck_job_stores_stack_and_frees_slot(begin, tmp_path):
    end = tmp_path / "end"
    started = tmp_path / "began"
    job = tasks.stay_all_the_same.enqueue(str(started), str(end))
    other, worker = begin(tasks.look_at_nothing, arguments=("--concurrency", "2"))
    worker.wait_until(started.exists)
    job.cancel()
    execution = wait_for_end(worker, job)
    assert (job.state, execution.outcome) == ("cancelled", "cancelled")
    assert "its code kept running" in execution.error
    assert "stay_all_the_same" in execution.error
    after = tasks.add.enqueue(1, 2)
    wait_for_end(worker, after)
    assert Job.objects.get(pk=other.pk).state == "running"
    end.touch()
    worker.wait_until(lambda: "has now ended; its result does not count" in worker.said)
    assert Job.objects.get(pk=job.pk).state == "cancelled"


def test_cancel_request_rolled_back_has_no_effect(begin):
    job, worker = begin(tasks.look_around, CANCEL_GRACE=600.0)
    with transaction.atomic():
        job.cancel()
        transaction.set_rollback(True)
    other, _ = begin(tasks.look_around, worker=worker)
    assert Job.objects.filter(pk__in=[job.pk, other.pk]).cancel() == 2
    assert wait_for_end(worker, other).error == "stopped half-way"
    assert wait_for_end(worker, job).error == "stopped half-way"


def test_cancel_job_waiting_for_slot_never_starts(begin, tmp_path):
    job, worker = begin(tasks.look_around, arguments=("--concurrency", "1"))
    waiting = tasks.look_around.enqueue(str(tmp_path / "never"))
    waiting.cancel()
    wait_for_end(worker, waiting)
    assert waiting.state == "cancelled"
    job.cancel()
    wait_for_end(worker, job)
    assert not (tmp_path / "never").exists()


def test_cancel_in_bulk_reaches_jobs_of_several_workers(begin, start):
    jobs = [begin(tasks.look_around, arguments=("--concurrency", "1"), CANCEL_GRACE=600.0) for _ in range(3)]
    assert Job.objects.filter(state="running").cancel() == 3
    for job, worker in jobs:
        assert wait_for_end(worker, job).outcome == "cancelled"
