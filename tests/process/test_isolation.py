"""Isolated jobs: whatever a job does to its process, it affects no other job and not the worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from django.contrib.auth.models import Group
from django.db import connection

from django_pgqueue.models import Execution, Job
from tests import helpers
from tests.app import tasks
from tests.helpers import wait_until

from .harness import descendants, environment, is_alive

pytestmark = pytest.mark.process


def succeeded(*jobs: Job) -> bool:
    return Job.objects.filter(pk__in=[job.pk for job in jobs], state="succeeded").count() == len(jobs)


def result_of(job: Job) -> object:
    job.refresh_from_db()
    return job.result


@pytest.mark.promise("lost-isolated-process-jobs-return")
def test_isolated_crash_charges_only_the_crashed_job(start, tmp_path):
    """One worker runs crashing jobs one after another, each with a different way to crash."""
    may_end, started = tmp_path / "may end", tmp_path / "started"
    neighbours = [
        tasks.wait_for_file.enqueue(str(may_end), started=str(started)),
        tasks.isolated_pid.enqueue(str(may_end)),
    ]
    worker = start()
    worker.wait_until(started.exists)
    for how in ("segfault", "exit 0", "exit 1", "abort", "kill", "close everything"):
        guilty = tasks.die.enqueue(how)
        worker.wait_until(lambda job=guilty: Job.objects.filter(pk=job.pk, state="dead").exists())
        guilty.refresh_from_db()
        assert (guilty.attempt, guilty.crashes) == (3, 3), how
        executions = Execution.objects.filter(job=guilty)
        assert set(executions.values_list("outcome", flat=True)) == {"crashed"}, how
        if how == "segfault":
            assert executions[0].error == "the job's isolated process died (signal SIGSEGV)"
            assert min(each.finished_at - each.started_at for each in executions) < timedelta(seconds=1)
    may_end.touch()
    worker.wait_until(lambda: succeeded(*neighbours))
    for job in neighbours:
        job.refresh_from_db()
        assert (job.attempt, job.crashes) == (1, 0)
    assert len(worker.children) == 1


def test_isolated_process_is_reused_until_a_job_leaks(start):
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


def test_isolated_task_of_each_kind_works(start):
    added = tasks.isolated_async_add.enqueue(1, 2)
    written = tasks.isolated_create_group.enqueue("isolated")
    failing = tasks.isolated_fail.enqueue("as asked")
    worker = start("--until-empty")
    assert worker.has_drained()
    assert result_of(added) == 3
    group, pid = result_of(written)
    assert Group.objects.filter(pk=group, name="isolated").delete()[0] == 1
    assert pid not in (worker.process.pid, os.getpid())
    failing.refresh_from_db()
    execution = Execution.objects.get(job=failing)
    assert (failing.state, execution.exception_class, execution.error) == ("dead", "builtins.RuntimeError", "as asked")
    assert "in isolated_fail" in execution.traceback


@pytest.mark.quick
def test_isolation_option_isolates_all_jobs(start):
    jobs = [tasks.pid.enqueue(), tasks.async_pid.enqueue()]
    worker = start("--isolation", "process")
    worker.wait_until(lambda: succeeded(*jobs))
    assert not {result_of(job) for job in jobs} & {worker.process.pid, *worker.children}


@pytest.mark.promise("crashed-job-runs-isolated")
def test_job_after_crash_runs_isolated_from_then_on(start):
    job = tasks.die_once.enqueue()
    worker = start(LEASE=60.0)
    worker.wait_until(lambda: succeeded(job))
    assert result_of(job) not in (worker.process.pid, *worker.children)
    job.refresh_from_db()
    assert (job.attempt, job.crashes, job.isolated) == (2, 1, True)
    children = worker.children
    assert job.retry()
    worker.wait_until(lambda: Job.objects.filter(pk=job.pk, state="succeeded", attempt=2, crashes=1).exists())
    assert worker.children == children, "after an operator's retry, a crash must not end the worker process"


def test_worker_process_crash_does_not_charge_isolated_job(start, tmp_path):
    may_end, started = tmp_path / "may end", tmp_path / "started"
    isolated = tasks.isolated_pid.enqueue(str(may_end), started=str(started))
    worker = start(LEASE=60.0)
    worker.wait_until(started.exists)
    guilty = tasks.die_once.enqueue()
    worker.wait_until(lambda: Execution.objects.filter(job=guilty, outcome="crashed").exists())
    may_end.touch()
    worker.wait_until(lambda: succeeded(isolated, guilty))
    isolated.refresh_from_db()
    assert (isolated.attempt, isolated.crashes, isolated.isolated) == (1, 0, False)


def test_isolated_loop_in_c_is_killed_at_timeout_with_stack(start):
    job = tasks.loop_in_c.enqueue()
    worker = start("--until-empty")
    assert worker.has_drained()
    job.refresh_from_db()
    assert (job.state, job.attempt, job.crashes) == ("dead", 2, 0)
    executions = Execution.objects.filter(job=job)
    for execution in executions:
        assert execution.exception_class == "django_pgqueue.exceptions.TaskTimeout"
    # A process that the machine stalls at its timeout cannot write its stack in time.
    assert any("in loop_in_c" in execution.traceback for execution in executions)
    assert min(each.finished_at - each.started_at for each in executions) < timedelta(seconds=3)


def test_isolated_process_with_changed_state_is_replaced(start):
    worker = start("--concurrency", "1")
    for what in ("directory", "umask", "alarm", "handler"):
        leaving = tasks.leave_behind.enqueue(what)
        after = tasks.isolated_pid.enqueue()
        worker.wait_until(lambda jobs=(leaving, after): succeeded(*jobs))
        assert result_of(leaving) != result_of(after), what


def test_isolated_process_killed_while_idle_charges_no_job(start):
    worker = start("--concurrency", "1")
    for _ in range(2):
        job = tasks.isolated_pid.enqueue()
        worker.wait_until(lambda job=job: succeeded(job))
        pid = result_of(job)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda pid=pid: not Path(f"/proc/{pid}").exists())
    assert set(Execution.objects.values_list("outcome", flat=True)) == {"succeeded"}


def test_fork_by_task_copy_returns_no_result(start):
    """A task forks, and the copy returns from the task too.

    The copy's answer would count as the job's or as the next job's answer. In a thread, the copy would run for ever.
    """
    worker = start("--concurrency", "1")
    jobs = [
        task.enqueue(f"job {number}")
        for number in range(2)
        for task in (tasks.fork_and_come_back, tasks.fork_and_come_back_in_a_thread)
    ]
    worker.wait_until(lambda: succeeded(*jobs))
    assert [result_of(job) for job in jobs] == ["job 0", "job 0", "job 1", "job 1"]
    assert set(Group.objects.filter(name__startswith="job ").values_list("name", flat=True)) == {"job 0", "job 1"}
    Group.objects.filter(name__startswith="job ").delete()


def test_isolated_process_not_reading_frees_slot_at_timeout(start, tmp_path):
    """The argument is larger than the socket's buffer, and nothing reads it.

    One isolated process is stopped. Another has ended, but a process that it forked keeps its socket open.
    """
    may_end = tmp_path / "may end"
    worker = start("--concurrency", "1")
    first = tasks.isolated_pid.enqueue()
    worker.wait_until(lambda: succeeded(first))
    os.kill(result_of(first), signal.SIGSTOP)
    stuck = tasks.isolated_length.enqueue("x" * 250_000)
    worker.wait_until(lambda: Job.objects.filter(pk=stuck.pk, state="dead").exists())
    assert Execution.objects.get(job=stuck).exception_class == "django_pgqueue.exceptions.TaskTimeout"
    leaving = tasks.fork_and_leave.enqueue(str(may_end))
    worker.wait_until(lambda: succeeded(leaving))
    os.kill(result_of(leaving)[0], signal.SIGKILL)
    wait_until(lambda: not is_alive(result_of(leaving)[0]))  # on a busy host, it may still take the next job
    after = tasks.isolated_length.enqueue("x" * 250_000)
    worker.wait_until(lambda: succeeded(after))
    may_end.touch()


def test_program_of_isolated_job_is_killed_at_timeout(start, tmp_path):
    path = tmp_path / "pid"
    job = tasks.run_a_program.enqueue(str(path))
    worker = start("--until-empty")
    assert worker.has_drained()
    assert Execution.objects.get(job=job).exception_class == "django_pgqueue.exceptions.TaskTimeout"
    program = int(path.read_text())
    wait_until(lambda: not is_alive(program))


def test_killed_fork_server_is_replaced_with_worker_process(start):
    worker = start("--concurrency", "1")
    [child] = [worker.wait_until_ready()]
    [fork_server] = descendants(child)
    os.kill(fork_server, signal.SIGKILL)
    job = tasks.isolated_pid.using(max_attempts=1).enqueue()
    worker.wait_until(lambda: succeeded(job))
    assert [child] != worker.children
    assert "died" not in worker.said
    assert "or its fork server is gone)" in worker.said


START_PROCESS_SCRIPT = """
import os, signal, time
import django
django.setup()
from django_pgqueue.worker.runtime.shared_memory import ProcessState
from django_pgqueue.worker.isolation.fork_server import ForkServer
os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
fork_server = ForkServer("default", ProcessState(1))  # kept: with it the processes end that it has made
fork_server.start()
process = fork_server.start_process()
deadline = time.monotonic() + 10
while os.getpgid(process.pid) != process.pid and time.monotonic() < deadline:
    time.sleep(0.01)
print(os.getpgid(process.pid) == process.pid)
"""


@pytest.mark.promise("defect-fork-on-python-3-12")
@pytest.mark.django_db
def test_fork_server_fork_may_reset_wakeup_descriptor():
    """From Python 3.12 on, asyncio makes each forked process do this."""
    run = [sys.executable, "-c", START_PROCESS_SCRIPT]
    done = subprocess.run(run, env=environment(None), capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "True\n", f"the isolated process must start: {done.stderr}"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_isolated_processes_end_when_their_worker_ends(start, tmp_path, number):
    """This includes a stopped process, which runs no code of its own."""
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


@pytest.mark.parametrize("whose", ["of all", "of the isolated process"])
def test_isolated_job_after_connection_loss_succeeds_first_try(start, whose):
    """The isolated process has sent no query since then, so it cannot have noticed the loss."""
    worker = start("--concurrency", "1", LEASE=60.0)
    first = tasks.isolated_create_group.using(max_attempts=1).enqueue("first")
    worker.wait_until(lambda: succeeded(first))
    with helpers.connect() as session:
        which = "application_name LIKE 'pgqueue%%' OR" if whose == "of all" else ""
        query = (
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> ALL (%s) AND ({which} "
            "application_name = '') AND datname = current_database()"
        )
        assert session.execute(query, [[session.info.backend_pid, own_backend()]]).fetchall()
    second = tasks.isolated_create_group.using(max_attempts=1).enqueue("second")
    worker.wait_until(lambda: Job.objects.filter(pk=second.pk).exclude(finished_at=None).exists())
    second.refresh_from_db()
    Group.objects.all().delete()
    assert (second.state, second.attempt) == ("succeeded", 1), Execution.objects.get(job=second).error
    assert result_of(second)[1] == result_of(first)[1], "both jobs must run in the same isolated process"


def own_backend() -> int:
    return int(connection.connection.info.backend_pid)


@pytest.mark.promise("isolated-programs-end-with-process")
@pytest.mark.parametrize("dies", ["worker", "worker and supervisor", "isolated process"])
def test_program_of_isolated_job_ends_when_its_process_dies(start, tmp_path, dies):
    path = tmp_path / "pid"
    tasks.wait_for_a_program.enqueue(str(path))
    worker = start(LEASE=60.0)
    worker.wait_until(path.exists)
    program = int(path.read_text())
    [child] = worker.children
    _, isolated_process, _ = descendants(child)
    assert is_alive(program)
    if dies == "worker and supervisor":
        worker.send(signal.SIGKILL)
    os.kill(isolated_process if dies == "isolated process" else child, signal.SIGKILL)
    wait_until(lambda: not is_alive(program))
    wait_until(lambda: not is_alive(isolated_process))


def test_isolated_processes_end_when_their_fork_server_is_killed(start, tmp_path):
    may_end, started = tmp_path / "may end", tmp_path / "started"
    tasks.isolated_pid.enqueue(str(may_end), started=str(started))
    worker = start()
    worker.wait_until(started.exists)
    fork_server, isolated_process = descendants(worker.children[0])
    os.kill(fork_server, signal.SIGKILL)
    wait_until(lambda: not is_alive(isolated_process))


def test_fork_server_outlives_signals_while_its_worker_lives(start):
    worker = start("--concurrency", "1")
    child = worker.wait_until_ready()
    [fork_server] = descendants(child)
    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
        os.kill(fork_server, number)
    job = tasks.isolated_pid.enqueue()
    worker.wait_until(lambda: succeeded(job))
    assert worker.children == [child]
