"""Stop signals: which jobs finish, which jobs are released, and how soon the worker exits."""

from __future__ import annotations

import os
import signal
import time

import pytest

from django_pgqueue.models import Execution, Job
from tests import helpers
from tests.app import tasks

pytestmark = pytest.mark.process


def start_running_job(start, tmp_path, task=tasks.wait_for_file, **options):
    """Start a worker and a job that waits for a file; return (worker, job, file) once the job runs."""
    started, done = tmp_path / "started", tmp_path / "done"
    job = task.enqueue(str(done), started=str(started))
    worker = start(**options)
    worker.wait_until(started.exists)
    return worker, job, done


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stop_of_idle_worker_exits_at_once(start, number):
    worker = start()
    worker.wait_until_ready()
    worker.send(number)
    assert worker.exit_code() == 0


def test_stop_with_job_within_grace_finishes_it_once(start, tmp_path):
    worker, job, done = start_running_job(start, tmp_path, GRACE=20.0)
    worker.send(signal.SIGTERM)
    worker.wait_until(lambda: "stopping" in worker.said)
    done.touch()
    assert worker.exit_code() == 0
    job.refresh_from_db()
    assert (job.state, job.attempt, job.result) == ("succeeded", 1, str(done))
    assert Execution.objects.filter(job=job).count() == 1


@pytest.mark.promise("deploy-charges-nothing")
@pytest.mark.parametrize("task", [tasks.wait_for_file, tasks.await_file], ids=["thread", "coroutine"])
def test_stop_with_job_beyond_grace_releases_it_uncharged(start, tmp_path, task):
    worker, job, _ = start_running_job(start, tmp_path, task, GRACE=0.3)
    worker.send(signal.SIGTERM)
    assert worker.exit_code() == 0
    job.refresh_from_db()
    assert (job.state, job.attempt, job.crashes) == ("ready", 0, 0)
    assert Execution.objects.get(job=job).outcome == "released"


def job_that_stays_ready(worker):
    """Enqueue a job. Return it if no process claims it in some seconds: each learns of the stop a moment later."""
    job = tasks.noop.enqueue()
    try:
        worker.wait_until(lambda: Job.objects.get(pk=job.pk).state != "ready", 3)
    except AssertionError:
        return job
    return None


def test_stop_with_new_job_leaves_it_ready(start, tmp_path):
    worker, _, done = start_running_job(start, tmp_path, GRACE=60.0)
    worker.send(signal.SIGTERM)
    worker.wait_until(lambda: "stopping" in worker.said)
    later = worker.wait_until(lambda: job_that_stays_ready(worker))
    done.touch()
    assert worker.exit_code() == 0
    later.refresh_from_db()
    assert later.state == "ready"
    assert not Execution.objects.filter(outcome=None).exists()


def test_second_signal_releases_running_job_at_once(start, tmp_path):
    worker, job, _ = start_running_job(start, tmp_path, GRACE=60.0)
    worker.send(signal.SIGTERM)
    worker.wait_until(lambda: "stopping" in worker.said)
    worker.send(signal.SIGTERM)
    assert worker.exit_code(30) == 0
    job.refresh_from_db()
    assert (job.state, job.attempt) == ("ready", 0)


def test_third_signal_kills_all_processes_at_once(start, tmp_path):
    worker, _, _ = start_running_job(start, tmp_path, GRACE=60.0)
    children = worker.children
    os.kill(children[0], signal.SIGSTOP)  # only the third signal can end a stopped process
    for count in range(3):
        worker.send(signal.SIGTERM)
        if count < 2:
            worker.wait_until(lambda seen=count + 1: worker.said.count("signal") >= seen)
    assert worker.exit_code() == 130
    worker.wait_until(lambda: not any(os.path.exists(f"/proc/{pid}/cwd") for pid in children))


def test_signal_to_all_processes_counts_once(start, tmp_path):
    worker, job, done = start_running_job(start, tmp_path, GRACE=20.0)
    worker.send_all(signal.SIGINT)
    worker.wait_until(lambda: "stopping" in worker.said)
    done.touch()
    assert worker.exit_code() == 0
    job.refresh_from_db()
    assert job.state == "succeeded"


@pytest.mark.promise("lost-supervisor-jobs-return")
def test_killed_supervisor_lets_processes_release_and_exit(start, tmp_path):
    worker, job, _ = start_running_job(start, tmp_path, GRACE=0.5)
    children = worker.children
    worker.send(signal.SIGKILL)
    worker.exit_code()
    worker.wait_until(lambda: not any(os.path.exists(f"/proc/{pid}/cwd") for pid in children))
    assert Job.objects.get(pk=job.pk).state == "ready"


@pytest.mark.promise("stop-releases-running-job-last")
def test_running_job_at_a_stop_is_released_just_before_exit(start, tmp_path):
    """A released job can start on another worker while it still runs here.

    The release must therefore come just before the exit, whatever the completer waits for.
    """
    worker, finished, done = start_running_job(start, tmp_path, GRACE=0.3, LEASE=60.0)
    stubborn = tasks.stay_all_the_same.enqueue(str(tmp_path / "started-too"), str(tmp_path / "end"))
    worker.wait_until((tmp_path / "started-too").exists)
    child = worker.children[0]
    with helpers.connect() as session, session.transaction():
        session.execute("SELECT FROM pgqueue_job WHERE id = %s FOR UPDATE", [finished.pk])
        done.touch()
        worker.send(signal.SIGTERM)
        worker.wait_until(lambda: Execution.objects.filter(job=stubborn, outcome="released").exists(), 30)
        released_at = time.monotonic()
        worker.wait_until(lambda: not os.path.exists(f"/proc/{child}/cwd"), 30)
        alone_seconds = time.monotonic() - released_at
    assert alone_seconds < 8, "the release must come just before the exit; once it came 9.8 s before"
    assert worker.exit_code() == 0
    stubborn.refresh_from_db()
    assert (stubborn.state, stubborn.attempt, stubborn.crashes) == ("ready", 0, 0)


def test_job_that_ends_in_time_is_written_before_any_release(start, tmp_path):
    worker, finished, done = start_running_job(start, tmp_path, GRACE=0.3, LEASE=60.0)
    stubborn = tasks.stay_all_the_same.enqueue(str(tmp_path / "started-too"), str(tmp_path / "end"))
    worker.wait_until((tmp_path / "started-too").exists)
    with helpers.connect() as session, session.transaction():
        session.execute("SELECT FROM pgqueue_job WHERE id = %s FOR UPDATE", [finished.pk])
        done.touch()
        worker.send(signal.SIGTERM)
        worker.wait_until(lambda: "still running after the grace" in worker.said)
        assert not Execution.objects.filter(job=stubborn, outcome="released").exists()
    assert worker.exit_code() == 0
    finished.refresh_from_db()
    assert (finished.state, finished.attempt) == ("succeeded", 1)
    assert Execution.objects.get(job=stubborn).finished_at >= Execution.objects.get(job=finished).finished_at


def test_job_that_fails_when_interrupted_by_a_stop_is_uncharged(start, tmp_path):
    started = tmp_path / "started"
    job = tasks.fail_when_interrupted.enqueue(str(started))
    worker = start(GRACE=0.3)
    worker.wait_until(started.exists)
    worker.send(signal.SIGTERM)
    assert worker.exit_code() == 0
    assert (tmp_path / "started.interrupted").exists()
    job.refresh_from_db()
    assert (job.state, job.attempt) == ("ready", 0)
    assert Execution.objects.get(job=job).outcome == "released"


@pytest.mark.promise("except-exception-lets-stops-pass")
def test_job_that_catches_every_exception_stops_at_lost_lease(start, tmp_path):
    started = tmp_path / "started"
    job = tasks.catch_every_exception.enqueue(str(started))
    worker = start(GRACE=0.3)
    worker.wait_until(started.exists)
    worker.send(signal.SIGTERM)
    assert worker.exit_code() == 0
    assert not (tmp_path / "started.caught").exists()
    job.refresh_from_db()
    assert (job.state, job.attempt) == ("ready", 0)


@pytest.mark.parametrize("delay", [0.0, 0.005, 0.01, 0.02, 0.04])
def test_stop_during_process_replacement_exits_cleanly(start, delay):
    """The stop signal can arrive before the new process has its id."""
    worker = start("--processes", "4")
    worker.wait_until(lambda: worker.said.count("is ready") == 4)
    for pid in worker.children:
        os.kill(pid, signal.SIGKILL)
    moment = time.monotonic() + delay
    worker.wait_until(lambda: time.monotonic() >= moment)
    worker.send(signal.SIGTERM)
    assert worker.exit_code(30) == 0
