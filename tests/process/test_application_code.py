"""Slow or failing receivers, backoffs, log handlers and exit functions of the application affect only themselves."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from django_pgqueue.models import Execution, Job
from tests import helpers
from tests.app import tasks

from .harness import Worker
from .test_isolation import succeeded

pytestmark = pytest.mark.process


def kill_runner_of(job: Job, worker: Worker, started: Path) -> None:
    """Wait until a job has started, then kill the worker process that runs it."""
    worker.wait_until(started.exists)
    execution = Execution.objects.get(job=job, finished_at=None)
    from django_pgqueue.models import Worker as Record

    os.kill(Record.objects.get(pk=execution.worker_id).pid, signal.SIGKILL)


def assert_ran_once(job):
    """Assert that a job has started once.

    The job can have been prefetched in the process that was killed. That claim is released and not charged.
    """
    executions = Execution.objects.filter(job=job)
    assert executions.filter(started_at__isnull=False).count() == 1
    assert set(executions.values_list("outcome", flat=True)) <= {"succeeded", "released"}


@pytest.mark.promise("slow-code-costs-no-lease", "defect-slow-receiver-costs-leases")
def test_crash_with_slow_receiver_keeps_leases_of_others(start_with, notes, tmp_path):
    """The receiver takes 10 s, which is longer than a lease."""
    end, started, other_started = tmp_path / "end", tmp_path / "started", tmp_path / "other started"
    crashing = tasks.wait_again.enqueue(str(tmp_path / "never"), str(started))
    worker = start_with("slow_receiver", "--concurrency", "1", "--processes", "2", LEASE=8.0)
    worker.wait_until(started.exists)
    other = tasks.wait_for_file.enqueue(str(end), started=str(other_started))
    worker.wait_until(other_started.exists)
    kill_runner_of(crashing, worker, started)
    worker.wait_until(lambda: "receiver ended" in notes(), 40)
    end.touch()
    worker.wait_until(lambda: succeeded(other))
    assert_ran_once(other)


@pytest.mark.parametrize("hook", ["exiting_receiver", "raising_log_handler"])
def test_crash_with_exiting_callback_keeps_supervisor(start_with, tmp_path, hook):
    started, end = tmp_path / "started", tmp_path / "end"
    job = tasks.wait_again.enqueue(str(end), str(started))
    worker = start_with(hook)
    kill_runner_of(job, worker, started)
    end.touch()
    worker.wait_until(lambda: succeeded(job))
    assert Execution.objects.filter(job=job, outcome="crashed").count() == 1
    worker.send(signal.SIGTERM)
    assert worker.exit_code() == 0


@pytest.mark.promise("slow-code-costs-no-lease")
@pytest.mark.parametrize("task", ["wait_with_exiting_backoff", "wait_with_hanging_backoff"])
def test_crash_with_broken_backoff_uses_default(start_with, tmp_path, task):
    started = tmp_path / "started"
    job = getattr(tasks, task).enqueue(str(tmp_path / "never"), str(started))
    worker = start_with("exit_functions", RESCUE_INTERVAL=60.0)
    kill_runner_of(job, worker, started)
    worker.wait_until(lambda: Execution.objects.filter(job=job, outcome="crashed").exists())
    assert Job.objects.get(pk=job.pk).crashes == 1
    worker.send(signal.SIGTERM)
    assert worker.exit_code() == 0


@pytest.mark.promise("defect-log-handler-stops-supervisor")
def test_crash_with_blocked_log_handler_keeps_heartbeats(start_with, notes, tmp_path):
    started, end, other_started = tmp_path / "started", tmp_path / "end", tmp_path / "other started"
    job = tasks.wait_again.enqueue(str(tmp_path / "end"), str(started))
    worker = start_with("blocking_log_handler", "--concurrency", "1", "--processes", "2", LEASE=8.0)
    worker.wait_until(started.exists)
    other = tasks.wait_for_file.enqueue(str(end), started=str(other_started))
    worker.wait_until(other_started.exists)
    kill_runner_of(job, worker, started)
    worker.wait_until(lambda: any("blocks" in line for line in notes()))
    for _ in range(2):
        ends_at = helpers.lease_of(other)
        worker.wait_until(lambda at=ends_at: helpers.lease_of(other) > at)
    end.touch()
    worker.wait_until(lambda: succeeded(job, other))
    assert_ran_once(other)
    worker.send(signal.SIGTERM)
    assert worker.exit_code(30) == 0


@pytest.mark.promise("on-commit-not-interrupted", "defect-on-commit-interrupted")
@pytest.mark.parametrize(
    "task", [tasks.work_after_commit, tasks.isolated_work_after_commit, tasks.discarded_work_after_commit]
)
def test_work_after_commit_of_atomic_task_is_not_interrupted(start, tmp_path, task):
    """The worker compares its jobs with the open executions, and the commit has closed the execution of this job."""
    may_end, started, ended = (tmp_path / name for name in ("may end", "started", "ended"))
    job = task.enqueue(str(may_end), str(started), str(ended))
    worker = start("--concurrency", "2", LEASE=6.0)
    worker.wait_until(started.exists)
    other = tasks.wait_for_file.enqueue(str(may_end), started=str(tmp_path / "other started"))
    for _ in range(3):  # the lease of the other job is extended, and then each process compares
        worker.wait_until(lambda: Execution.objects.filter(job=other).exists())
        ends_at = helpers.lease_of(other)
        worker.wait_until(lambda at=ends_at: helpers.lease_of(other) > at)
    may_end.touch()
    worker.wait_until(lambda: ended.exists() and succeeded(other))
    assert not Job.objects.filter(pk=job.pk).exclude(state="succeeded").exists()
    assert "no longer belong" not in worker.said


@pytest.mark.promise("exit-functions-run", "defect-no-exit-functions")
def test_worker_until_empty_runs_exit_functions(start_with, notes):
    for _ in range(10):
        tasks.noop.enqueue()
        before = len(notes())
        assert start_with("exit_functions", "--until-empty").has_drained()
        new = notes()[before:]
        [stopping] = [line for line in new if line.startswith("stopping worker")]
        assert new.count(f"atexit {stopping.split()[-1]}") == 1


@pytest.mark.parametrize("how", ["stop", "worn"])
def test_isolated_process_that_ends_runs_exit_functions(start_with, notes, how):
    jobs = [tasks.isolated_noop.enqueue() for _ in range(8)]
    worker = start_with("exit_functions", "--concurrency", "4", *(["--max-rss-mb", "1"] if how == "worn" else []))
    worker.wait_until(lambda: succeeded(*jobs))
    worker.send(signal.SIGTERM)
    assert worker.exit_code() == 0
    pids = {job.result for job in Job.objects.filter(pk__in=[job.pk for job in jobs])}
    assert pids
    for pid in pids:
        assert notes().count(f"stopping isolated {pid}") == notes().count(f"atexit {pid}") == 1


def test_stop_waits_for_slow_exit_function_of_isolated_process(start_with, notes):
    """Trace exporters send their last spans in an exit function, which takes a while."""
    job = tasks.isolated_noop.enqueue()
    worker = start_with("slow_exit_function")
    worker.wait_until(lambda: succeeded(job))
    job.refresh_from_db()
    worker.send(signal.SIGTERM)
    assert worker.exit_code() == 0
    assert f"atexit {job.result}" in notes()


@pytest.mark.promise("exit-functions-run")
def test_exit_function_that_hangs_delays_stop_by_seconds(start_with):
    job = tasks.isolated_noop.enqueue()
    worker = start_with("hanging_exit_function")
    worker.wait_until(lambda: succeeded(job))
    began = time.monotonic()
    worker.send(signal.SIGTERM)
    worker.exit_code(60)
    assert time.monotonic() - began < 40


@pytest.mark.promise("defect-alarm-kills-process")
def test_signal_from_job_keeps_worker_process(start):
    worker = start("--concurrency", "2")
    child = worker.wait_until_ready()
    for kind in ("alarm", "timers", "SIGUSR1", "SIGUSR2", "SIGVTALRM", "SIGPROF", "SIGIO", "SIGHUP"):
        jobs = [tasks.leave_alarm.enqueue(kind) for _ in range(2)]
        worker.wait_until(lambda jobs=jobs: succeeded(*jobs))
        time.sleep(1.5 if kind == "alarm" else 0.1)
        after = tasks.pid.enqueue()
        worker.wait_until(lambda after=after: succeeded(after))
        after.refresh_from_db()
        assert after.result == child, f"{kind}: {worker.said}"
