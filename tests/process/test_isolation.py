"""Jobs in processes of their own: what they do to those is their own affair."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from django.contrib.auth.models import Group
from django.db import connection

from django_pgqueue.models import Execution, Job
from tests import helpers
from tests.app import tasks
from tests.helpers import wait_until

from .harness import descendants, environment

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


@pytest.mark.promise("lost-isolated-process-jobs-return")
def test_a_crash_is_charged_to_that_job_alone(start, tmp_path):
    """In one worker, one way to crash after the other."""
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
def test_all_jobs_are_isolated_by_option(start):
    jobs = [tasks.pid.enqueue(), tasks.async_add.enqueue(1, 2)]
    worker = start("--isolation", "process")
    worker.wait_until(lambda: succeeded(*jobs))
    assert result_of(jobs[0]) not in (worker.process.pid, *worker.children)


@pytest.mark.promise("crashed-job-runs-isolated")
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


def test_what_ends_the_worker_process_is_no_fault_of_isolated_jobs(start, tmp_path):
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


def test_an_endless_loop_in_c_is_killed_at_its_timeout_with_its_stack(start):
    job = tasks.loop_in_c.enqueue()
    worker = start("--until-empty")
    assert worker.has_drained()
    job.refresh_from_db()
    assert (job.state, job.attempt, job.crashes) == ("dead", 2, 0)
    for execution in Execution.objects.filter(job=job):
        assert execution.exception_class == "django_pgqueue.exceptions.TaskTimeout"
        assert "in loop_in_c" in execution.traceback
        assert (execution.finished_at - execution.started_at).total_seconds() < 3


def test_what_a_job_changes_in_its_process_reaches_no_other_job(start):
    worker = start("--concurrency", "1")
    for what in ("directory", "umask", "alarm", "handler"):
        leaving = tasks.leave_behind.enqueue(what)
        after = tasks.isolated_pid.enqueue()
        worker.wait_until(lambda jobs=(leaving, after): succeeded(*jobs))
        assert result_of(leaving) != result_of(after), what


def test_a_process_that_ends_while_it_is_idle_is_no_jobs_fault(start):
    worker = start("--concurrency", "1")
    for _ in range(2):
        job = tasks.isolated_pid.enqueue()
        worker.wait_until(lambda job=job: succeeded(job))
        pid = result_of(job)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda pid=pid: not Path(f"/proc/{pid}").exists())
    assert set(Execution.objects.values_list("outcome", flat=True)) == {"succeeded"}


def test_a_copy_that_a_task_has_forked_answers_for_nobody(start):
    """Its answer would be taken for the job's, or for the next one's; in a thread it would stay for ever."""
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


def test_a_process_that_does_not_read_holds_its_slot_no_longer_than_the_timeout(start, tmp_path):
    """More than fits into the socket: one cell is stopped, the other has ended and left its socket open elsewhere."""
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
    after = tasks.isolated_length.enqueue("x" * 250_000)
    worker.wait_until(lambda: succeeded(after), 5)
    may_end.touch()


def test_a_program_that_a_job_has_started_is_killed_with_it(start, tmp_path):
    path = tmp_path / "pid"
    job = tasks.run_a_program.enqueue(str(path))
    worker = start("--until-empty")
    assert worker.has_drained()
    assert Execution.objects.get(job=job).exception_class == "django_pgqueue.exceptions.TaskTimeout"
    program = int(path.read_text())
    wait_until(lambda: not is_alive(program))


def test_a_nursery_that_does_not_answer_is_replaced_with_its_worker(start):
    worker = start("--concurrency", "1")
    [child] = [worker.wait_until_ready()]
    [nursery] = descendants(child)
    os.kill(nursery, signal.SIGKILL)
    job = tasks.isolated_pid.using(max_attempts=1).enqueue()
    worker.wait_until(lambda: succeeded(job))
    assert [child] != worker.children
    assert "died" not in worker.said


MAKE_ONE = """
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


@pytest.mark.django_db
def test_a_fork_may_reset_the_wakeup_descriptor():
    """As asyncio has each do from Python 3.12 on."""
    run = [sys.executable, "-c", MAKE_ONE]
    done = subprocess.run(run, env=environment(None), capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "True\n", f"it has ended before it was one: {done.stderr}"


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


@pytest.mark.parametrize("whose", ["of all", "of the isolated process"])
def test_isolated_job_after_connection_loss_succeeds_first_try(start, whose):
    """Its process has asked the database nothing since, and cannot have noticed."""
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
    assert result_of(second)[1] == result_of(first)[1], "it was another process"


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
    _, cell, _ = descendants(child)
    assert is_alive(program)
    if dies == "worker and supervisor":
        worker.send(signal.SIGKILL)
    os.kill(cell if dies == "isolated process" else child, signal.SIGKILL)
    wait_until(lambda: not is_alive(program), 3)
    wait_until(lambda: not is_alive(cell), 3)


def test_isolated_processes_end_when_their_fork_server_is_killed(start, tmp_path):
    may_end, started = tmp_path / "may end", tmp_path / "started"
    tasks.isolated_pid.enqueue(str(may_end), started=str(started))
    worker = start()
    worker.wait_until(started.exists)
    nursery, cell = descendants(worker.children[0])
    os.kill(nursery, signal.SIGKILL)
    wait_until(lambda: not is_alive(cell), 3)


def test_fork_server_outlives_signals_while_its_worker_lives(start):
    worker = start("--concurrency", "1")
    child = worker.wait_until_ready()
    [nursery] = descendants(child)
    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
        os.kill(nursery, number)
    job = tasks.isolated_pid.enqueue()
    worker.wait_until(lambda: succeeded(job))
    assert worker.children == [child]
