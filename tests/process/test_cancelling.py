"""Jobs that are cancelled while they run: told within a second, stopped after the grace, and ended as cancelled."""

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
    """Enqueues a task that says when it has begun, and waits until it has; returns the job and its worker."""

    def begin_one(task, *args, worker=None, arguments=(), **options):
        started = tmp_path / f"started-{len(list(tmp_path.iterdir()))}"
        job = task.enqueue(*args, str(started))
        worker = worker or start(*arguments, **{"CANCEL_GRACE": 0.3, "LEASE": 600.0, "POLL_INTERVAL": 60.0, **options})
        worker.wait_until(started.exists)
        return job, worker

    return begin_one


def wait_for_end(worker, job):
    worker.wait_until(lambda: Job.objects.get(pk=job.pk).finished_at)
    job.refresh_from_db()
    return Execution.objects.filter(job_id=job.pk).order_by("id").last()


@pytest.mark.promise("cancel-notifies-job")
@pytest.mark.parametrize("arguments", [(), ("--no-listen",)])
def test_a_task_that_asks_hears_of_it_and_ends_with_its_own_reason(begin, arguments):
    """Long before the grace is over, and before the next beat, which is 150 s away: longer than any wait here."""
    worker = None
    for task in (tasks.look_around, tasks.look_around_apart, framework.look_around):
        job, worker = begin(task, worker=worker, arguments=arguments, CANCEL_GRACE=600.0)
        job = Job.objects.get(pk=getattr(job, "id", job))
        assert job.cancel()
        execution = wait_for_end(worker, job)
        assert (job.state, execution.outcome, execution.error) == ("cancelled", "cancelled", "stopped half-way"), task


@pytest.mark.promise("cancel-stops-after-grace")
def test_one_that_does_not_ask_is_stopped(begin):
    worker = None
    for task in (tasks.look_at_nothing, tasks.look_at_nothing_apart, tasks.query_for_long, tasks.await_long):
        job, worker = begin(task, worker=worker)
        assert job.cancel()
        assert not job.cancel(), "asked twice"
        execution = wait_for_end(worker, job)
        assert (job.state, execution.outcome, execution.error) == ("cancelled", "cancelled", STOPPED), task
        assert job.attempt == 1
        other = tasks.add.enqueue(1, 2)
        wait_for_end(worker, other)
        assert other.result == 3


def test_a_coroutine_is_cancelled_without_a_grace(begin):
    job, worker = begin(tasks.await_long, CANCEL_GRACE=600.0)
    job.cancel()
    assert wait_for_end(worker, job).outcome == "cancelled"


@pytest.mark.parametrize("arguments", [(), ("--no-listen",)])
def test_a_coroutine_that_cleans_up_is_left_alone(begin, tmp_path, arguments):
    """Also when the worker looks again, on another's account or because it hears nothing."""
    cleaned = tmp_path / "cleaned"
    job = tasks.clean_up_for_a_while.enqueue(str(tmp_path / "began"), str(cleaned))
    other, worker = begin(tasks.look_around, arguments=arguments, CANCEL_GRACE=600.0)
    worker.wait_until((tmp_path / "began").exists)
    job.cancel()
    worker.wait_until((tmp_path / "cleaned.began").exists)
    other.cancel()
    assert wait_for_end(worker, job).outcome == "cancelled"
    assert cleaned.exists()


def test_a_stopping_worker_is_told_as_soon(begin):
    """The fetcher, which hears notifications, has ended by then."""
    job, worker = begin(tasks.look_around, GRACE=60.0, CANCEL_GRACE=600.0)
    worker.wait_until_ready()
    worker.send(signal.SIGTERM)
    worker.wait_until(lambda: "stop" in worker.said)
    time.sleep(1)
    job.cancel()
    worker.wait_until(lambda: Job.objects.get(pk=job.pk).finished_at, 5)


def test_a_success_counts_all_the_same(begin):
    job, worker = begin(tasks.finish_all_the_same)
    job.cancel()
    wait_for_end(worker, job)
    assert (job.state, job.result) == ("succeeded", "cleaned up")


def test_an_atomic_task_is_rolled_back(begin):
    job, worker = begin(tasks.create_group_until_cancelled, "half-way")
    job.cancel()
    wait_for_end(worker, job)
    assert job.state == "cancelled"
    assert not Group.objects.exists()


def test_one_that_stays_is_closed_with_its_stack_and_its_slot_used_again(begin, tmp_path):
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


def test_a_request_counts_from_its_commit(begin):
    job, worker = begin(tasks.look_around, CANCEL_GRACE=600.0)
    with transaction.atomic():
        job.cancel()
        transaction.set_rollback(True)
    other, _ = begin(tasks.look_around, worker=worker)
    assert Job.objects.filter(pk__in=[job.pk, other.pk]).cancel() == 2
    assert wait_for_end(worker, other).error == "stopped half-way"
    assert wait_for_end(worker, job).error == "stopped half-way"


def test_one_that_waits_for_a_slot_never_starts(begin, tmp_path):
    job, worker = begin(tasks.look_around, arguments=("--concurrency", "1"))
    waiting = tasks.look_around.enqueue(str(tmp_path / "never"))
    waiting.cancel()
    wait_for_end(worker, waiting)
    assert waiting.state == "cancelled"
    job.cancel()
    wait_for_end(worker, job)
    assert not (tmp_path / "never").exists()


def test_each_of_several_workers_tells_its_own(begin, start):
    jobs = [begin(tasks.look_around, arguments=("--concurrency", "1"), CANCEL_GRACE=600.0) for _ in range(3)]
    assert Job.objects.filter(state="running").cancel() == 3
    for job, worker in jobs:
        assert wait_for_end(worker, job).outcome == "cancelled"
