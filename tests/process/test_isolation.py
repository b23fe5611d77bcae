"""Jobs in processes of their own: what they do to those is their own affair."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from django.contrib.auth.models import Group

from django_pgqueue.models import Execution, Job
from tests.app import tasks
from tests.helpers import wait_until

pytestmark = pytest.mark.process


def succeeded(*jobs: Job) -> bool:
    return Job.objects.filter(pk__in=[job.pk for job in jobs], state="succeeded").count() == len(jobs)


def result_of(job: Job) -> object:
    job.refresh_from_db()
    return job.result


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("how", ["segfault", "exit 0", "exit 1", "abort", "kill", "close everything"])
def test_a_crash_is_charged_to_that_job_alone(start, tmp_path, how):
    may_end, started = tmp_path / "may end", tmp_path / "started"
    neighbours = [
        tasks.wait_for_file.enqueue(str(may_end), started=str(started)),
        tasks.isolated_pid.enqueue(str(may_end)),
    ]
    worker = start()
    worker.wait_until(started.exists)
    guilty = tasks.die.enqueue(how)
    worker.wait_until(lambda: Job.objects.filter(pk=guilty.pk, state="dead").exists())
    guilty.refresh_from_db()
    assert (guilty.attempt, guilty.crashes) == (3, 3)
    executions = Execution.objects.filter(job=guilty)
    assert set(executions.values_list("outcome", flat=True)) == {"crashed"}
    if how == "segfault":
        assert executions[0].error == "the process of its own that it ran in died (signal SIGSEGV)"
        for execution in executions:
            assert (execution.finished_at - execution.started_at).total_seconds() < 1
    may_end.touch()
    worker.wait_until(lambda: succeeded(*neighbours))
    for job in neighbours:
        job.refresh_from_db()
        assert (job.attempt, job.crashes) == (1, 0)
    assert len(worker.children) == 1


def test_a_process_is_used_again_and_closed_when_something_stays_in_it(start):
    first = [tasks.isolated_pid.enqueue() for _ in range(3)]
    worker = start("--concurrency", "1")
    worker.wait_until(lambda: succeeded(*first))
    [pid] = {result_of(job) for job in first}
    assert pid not in (worker.process.pid, *worker.children)
    outside = tasks.pid.enqueue()
    worker.wait_until(lambda: succeeded(outside))
    assert result_of(outside) == worker.children[0]
    leaving = tasks.leave_a_thread.enqueue()
    worker.wait_until(lambda: succeeded(leaving))
    assert result_of(leaving) == pid
    after = tasks.isolated_pid.enqueue()
    worker.wait_until(lambda: succeeded(after))
    assert result_of(after) != pid
    worker.wait_until(lambda: not is_alive(pid))


def test_every_kind_of_task_works_there(start):
    added = tasks.isolated_async_add.enqueue(1, 2)
    written = tasks.isolated_create_group.enqueue("isolated")
    failing = tasks.isolated_fail.enqueue("as asked")
    worker = start("--drain")
    assert worker.has_drained()
    assert result_of(added) == 3
    group, pid = result_of(written)  # type: ignore[misc]
    assert Group.objects.filter(pk=group, name="isolated").delete()[0] == 1
    assert pid not in (worker.process.pid, os.getpid())
    failing.refresh_from_db()
    execution = Execution.objects.get(job=failing)
    assert (failing.state, execution.exception_class, execution.error) == ("dead", "builtins.RuntimeError", "as asked")
    assert "in isolated_fail" in execution.traceback


def test_all_jobs_are_isolated_by_option(start):
    jobs = [tasks.pid.enqueue(), tasks.async_add.enqueue(1, 2)]
    worker = start("--isolation", "process")
    worker.wait_until(lambda: succeeded(*jobs))
    assert result_of(jobs[0]) not in (worker.process.pid, *worker.children)


def test_a_job_that_has_crashed_a_worker_is_isolated_from_then_on(start):
    job = tasks.die_once.enqueue()
    worker = start(LEASE=60.0)
    worker.wait_until(lambda: succeeded(job))
    assert result_of(job) not in (worker.process.pid, *worker.children)
    job.refresh_from_db()
    assert (job.attempt, job.crashes, job.isolated) == (2, 1, True)
    children = worker.children
    assert job.retry()
    worker.wait_until(lambda: Job.objects.filter(pk=job.pk, state="succeeded", attempt=2, crashes=1).exists())
    assert worker.children == children, "its crash of the first attempt, after an operator's retry, hit the worker"


def test_an_endless_loop_in_c_is_killed_at_its_timeout_with_its_stack(start):
    job = tasks.loop_in_c.enqueue()
    worker = start("--drain")
    assert worker.has_drained()
    job.refresh_from_db()
    assert (job.state, job.attempt, job.crashes) == ("dead", 2, 0)
    for execution in Execution.objects.filter(job=job):
        assert execution.exception_class == "django_pgqueue.exceptions.TaskTimeout"
        assert "in loop_in_c" in execution.traceback
        assert (execution.finished_at - execution.started_at).total_seconds() < 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_processes_end_with_their_worker(start, tmp_path, number):
    """Also one that is stopped just then, and so runs no code of its own."""
    may_end, started = tmp_path / "may end", tmp_path / "started"
    job = tasks.isolated_pid.enqueue(str(may_end), started=str(started))
    worker = start("--grace", "0.5")
    worker.wait_until(started.exists)
    [child] = worker.children
    below = descendants(child)
    assert len(below) == 2
    os.kill(below[-1], signal.SIGSTOP)
    worker.send(number) if number == signal.SIGTERM else os.kill(child, number)
    wait_until(lambda: not any(map(is_alive, below)))
    if number == signal.SIGTERM:
        assert worker.exit_code() == 0
        job.refresh_from_db()
        assert (job.state, job.attempt, job.crashes) == ("ready", 0, 0)


def descendants(pid: int) -> list[int]:
    found: list[int] = []
    path = Path(f"/proc/{pid}/task/{pid}/children")
    for child in path.read_text().split() if path.exists() else []:
        found += [int(child), *descendants(int(child))]
    return found
