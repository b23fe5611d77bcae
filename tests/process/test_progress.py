"""Real workers store the progress of jobs in threads, coroutines and isolated processes; callers wait for results."""

from __future__ import annotations

import pytest
from asgiref.sync import async_to_sync

from django_pgqueue import CannotWait, JobFailed
from django_pgqueue.models import Job
from tests.app import tasks
from tests.process.harness import django

pytestmark = pytest.mark.process


def progress_of(job: Job) -> tuple[object, ...] | None:
    job.refresh_from_db()
    return job.progress and job.progress[:3]


@pytest.mark.promise("progress-visible-while-running")
@pytest.mark.parametrize(
    "task",
    [tasks.tell_and_wait, tasks.tell_and_await, tasks.isolated_tell_and_wait],
    ids=["thread", "coroutine", "process"],
)
def test_progress_is_visible_during_job_and_final_at_its_end(start, tmp_path, task):
    may_end = tmp_path / "may end"
    job = task.enqueue(str(may_end))
    worker = start()
    worker.wait_until(lambda: progress_of(job) == (1.0, 4.0, "begun"))
    assert job.state == "running"
    may_end.touch()
    result = job.wait(20)
    assert progress_of(job) == (999.0, 999.0, "ended")
    assert result == ([1.0, 4.0, "begun"] if task is tasks.tell_and_await else None)


def test_progress_of_isolated_atomic_task_is_complete(start, tmp_path):
    may_end = tmp_path / "may end"
    job = tasks.isolated_tell_atomically.enqueue(str(may_end))
    worker = start()
    worker.wait_until(lambda: progress_of(job) == (1.0, 4.0, "begun"))
    may_end.touch()
    job.wait(20)
    assert progress_of(job) == (999.0, 999.0, "ended")


def test_progress_just_before_timeout_is_stored(start):
    job = tasks.tell_and_stay.enqueue()
    start()
    with pytest.raises(JobFailed, match="TaskTimeout"):
        job.wait(20)
    assert progress_of(job) == (2.0, 4.0, "")


def test_progress_before_worker_stop_is_stored(start, tmp_path):
    job = tasks.tell_and_wait.enqueue(str(tmp_path / "never"))
    worker = start(GRACE=0.1)
    worker.wait_until(lambda: progress_of(job) is not None)
    worker.send(15)
    assert worker.exit_code() == 0
    assert progress_of(job) == (1.0, 4.0, "begun")
    assert job.state == "ready"


def test_progress_in_foreground_is_stored(committing):
    job = tasks.tell.enqueue([1, 3, "one"])
    django("pgqueue", "run", str(job.pk))
    assert progress_of(job) == (1.0, 3.0, "one")


def test_await_result_in_async_code_returns_result(start):
    job = tasks.async_add.enqueue(2, 3)
    start()
    assert async_to_sync(job.await_result)(20) == 5
    assert job.state == "succeeded"


def test_wait_through_retries_returns_final_result(start):
    job = tasks.fail_until.enqueue(3)
    start()
    assert job.wait(20) == 3
    assert job.attempt == 3


@pytest.mark.promise("endless-wait-refused")
@pytest.mark.parametrize("task", [tasks.wait_for_another, tasks.await_another], ids=["thread", "coroutine"])
def test_wait_for_another_job_inside_job_is_refused_at_once(start, task):
    other = tasks.noop.using(run_after=3600).enqueue()
    job = task.enqueue(other.pk)
    start()
    with pytest.raises(JobFailed) as failure:
        job.wait(40)
    assert failure.value.exception_class == f"{CannotWait.__module__}.{CannotWait.__qualname__}"
    execution = job.executions.get()
    run_seconds = (execution.finished_at - execution.started_at).total_seconds()
    assert run_seconds < 9, "the wait must be refused at once"
