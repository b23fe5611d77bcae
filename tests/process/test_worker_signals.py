"""The signals about workers and their processes, and `job_released` and `job_snoozed`, in real workers."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter

import pytest

from django_pgqueue.models import Execution, Job
from tests.app import tasks

from .harness import is_alive
from .test_isolation import succeeded

pytestmark = pytest.mark.process


def lines_of(lines: list[str], name: str) -> list[list[str]]:
    """Return the words after the name, for each line of a signal."""
    return [line.split()[1:] for line in lines if line.split()[0] == name]


def stop(worker, seconds: float) -> float:
    """Stop a worker and return how many seconds that took. Fail if that exceeds `seconds`, or if the exit code is 1."""
    began = time.monotonic()
    worker.send(signal.SIGTERM)
    assert worker.exit_code(seconds) == 0, worker.said
    return time.monotonic() - began


@pytest.mark.promise("worker-signals-once")
def test_worker_signals_are_sent_once_in_each_process(start_with, notes):
    """Neither the supervisor nor the fork server runs a receiver. The pids of the processes in the notes show that."""
    worker = start_with("worker_signals", "--processes", "2", "--concurrency", "2")
    worker.wait_until(lambda: len(lines_of(notes(), "worker_process_started")) == 2)
    isolated = [tasks.isolated_pid.enqueue() for _ in range(2)]
    plain = [tasks.pid.enqueue() for _ in range(4)]
    worker.wait_until(lambda: succeeded(*isolated, *plain))
    children = set(map(str, worker.children))
    isolated_pids = {str(Job.objects.get(pk=job.pk).result) for job in isolated}
    stop(worker, 15)
    lines = notes()
    supervisor = str(worker.process.pid)
    for name in ("worker_started", "worker_stopping"):
        [(pid, process, thread)] = lines_of(lines, name)
        assert pid == supervisor
        assert process not in {supervisor, *children}
        assert thread == "MainThread"
    for name, thread in (("worker_process_started", "pgqueue-callbacks"), ("worker_process_stopping", "pgqueue-exit")):
        sent = lines_of(lines, name)
        assert Counter(pid for kind, pid, _ in sent if kind == "worker") == dict.fromkeys(children, 1)
        assert Counter(pid for kind, pid, _ in sent if kind == "isolated") == dict.fromkeys(isolated_pids, 1)
        assert {thread for kind, _, thread in sent if kind == "worker"} == {thread}
    for pid in {*children, *isolated_pids} & {words[0] for words in lines_of(lines, "job_started")}:
        events = [line.split()[0] for line in lines if pid in line.split()]
        assert events[0] == "worker_process_started"
        assert events[-1] == "worker_process_stopping"
        assert set(events[1:-1]) == {"job_started"}


def test_replaced_processes_until_empty_send_each_signal_once(start_with, notes):
    """A process is replaced after a job. The worker stops when no job is left, without a signal to stop."""
    jobs = [tasks.spin_a_while.enqueue(0.3) for _ in range(4)]
    worker = start_with("worker_signals", "--until-empty", "--max-jobs", "1", "--concurrency", "1")
    assert worker.has_drained()
    assert succeeded(*jobs)
    processes = []
    for name in ("worker_process_started", "worker_process_stopping"):
        sent = Counter(pid for _, pid, _ in lines_of(notes(), name))
        assert set(sent.values()) == {1}
        processes.append(set(sent))
    assert processes[0] == processes[1]
    assert len(processes[0]) >= 2
    names = [line.split()[0] for line in notes()]
    assert names.count("worker_started") == names.count("worker_stopping") == 1
    assert names[-1] == "worker_stopping"


def test_killed_worker_process_sends_no_stop(start_with, notes):
    worker = start_with("worker_signals")
    worker.wait_until(lambda: lines_of(notes(), "worker_process_started") and len(worker.children) == 1)
    [first] = worker.children  # before, a helper process that has just been forked counts too
    os.kill(first, signal.SIGKILL)
    worker.wait_until(lambda: len(lines_of(notes(), "worker_process_started")) == 2 and len(worker.children) == 1)
    [second] = worker.children
    stop(worker, 15)
    assert [words[1] for words in lines_of(notes(), "worker_process_started")] == [str(first), str(second)]
    assert [words[1] for words in lines_of(notes(), "worker_process_stopping")] == [str(second)]


def test_killed_supervisor_sends_no_worker_stopping(start_with, notes):
    worker = start_with("worker_signals")
    worker.wait_until(lambda: lines_of(notes(), "worker_process_started") and lines_of(notes(), "worker_started"))
    [child] = worker.children
    worker.send(signal.SIGKILL)
    worker.wait_until(lambda: not is_alive(child))
    assert not lines_of(notes(), "worker_stopping")
    assert [words[1] for words in lines_of(notes(), "worker_process_stopping")] == [str(child)]


@pytest.mark.promise("worker-receivers-bounded", "hanging-code-blocks-only-its-owner")
@pytest.mark.parametrize("how", ["hangs", "raises", "exits"])
def test_broken_start_receivers_delay_jobs_at_most(start_with, notes, how):
    """The hooks shorten the limit of 30 s to 2 s."""
    hooks = [f"broken_receiver:{name}:{how}" for name in ("worker_started", "worker_process_started")]
    jobs = [tasks.noop.enqueue(), tasks.isolated_noop.enqueue()]
    worker = start_with(",".join([*hooks, "worker_signals"]))
    worker.wait_until(lambda: succeeded(*jobs), 40)
    stop(worker, 30)
    errors = worker.said.count("worker_process_started have not returned after 2 s")
    assert errors == (2 if how == "hangs" else 0)  # one of each process
    kinds = [words[0] for words in lines_of(notes(), "worker_process_started")]
    assert "isolated" in kinds, "the receivers after the broken one are called; those of the worker only after 30 s"
    if how != "hangs":
        assert sorted(kinds) == ["isolated", "worker"]
        assert worker.said.count(f"{how} raised") == 3
        assert len(lines_of(notes(), "worker_started")) == 1


@pytest.mark.promise("worker-receivers-bounded")
@pytest.mark.parametrize("how", ["hangs", "raises", "exits"])
def test_broken_stop_receivers_delay_stop_at_most(start_with, notes, how):
    """The receivers of each process have 2 s. Its `atexit` functions run also after a receiver that hangs."""
    hooks = [f"broken_receiver:{name}:{how}" for name in ("worker_stopping", "worker_process_stopping")]
    job = tasks.isolated_noop.enqueue()
    worker = start_with(",".join([*hooks, "worker_signals", "exit_functions:0.5"]), LEASE=30.0)  # a stop ends with it
    worker.wait_until(lambda: succeeded(job))
    [child] = worker.children
    isolated_pid = Job.objects.get(pk=job.pk).result
    seconds = stop(worker, 40)
    assert seconds < (20 if how == "hangs" else 15)
    for pid in (child, isolated_pid):
        assert notes().count(f"atexit {pid}") == 1
    if how == "hangs":
        assert "the receivers of worker_stopping have not returned" in worker.said
    else:
        assert len(lines_of(notes(), "worker_process_stopping")) == 2
        assert len(lines_of(notes(), "worker_stopping")) == 1


def test_stop_during_start_receivers_is_not_delayed(start_with, notes):
    job = tasks.noop.enqueue()
    worker = start_with("slow_start_receiver")
    worker.wait_until(notes)
    assert stop(worker, 40) < 20
    assert "the process is ending: did not send 1 signal" in worker.said, "it must end by itself, and not be killed"
    assert Job.objects.get(pk=job.pk).state == "ready"
    assert not Execution.objects.filter(job=job).exists()


def test_slow_start_receiver_does_not_shorten_timeout_of_isolated_job(start_with, notes):
    """The receiver hangs for 6 s, the limit in this test. The timeout of the job is 4 s."""
    job = tasks.isolated_with_timeout.enqueue()
    worker = start_with("broken_receiver:worker_process_started:hangs:6")
    worker.wait_until(lambda: Job.objects.get(pk=job.pk).finished_at, 60)
    assert Execution.objects.get(job=job).outcome == "succeeded"


@pytest.mark.parametrize("task", ["wait_for_file", "sleep_uninterrupted"])
def test_stop_past_grace_sends_job_released(start_with, notes, tmp_path, task):
    """`LeaseLost` ends the first task. The second one is in C code, and its process releases it as its last step."""
    started = tmp_path / "started"
    job = {
        "wait_for_file": lambda: tasks.wait_for_file.enqueue(str(tmp_path / "never"), started=str(started)),
        "sleep_uninterrupted": lambda: tasks.sleep_uninterrupted.enqueue(60, str(started)),
    }[task]()
    worker = start_with("job_signals", "--grace", "0.5")
    worker.wait_until(started.exists)
    stop(worker, 15)
    assert lines_of(notes(), "job_released") == [[str(job.pk), "None"]]
    assert not lines_of(notes(), "job_snoozed")
    assert Execution.objects.get(job=job).outcome == "released"


def test_snooze_sends_job_snoozed(start_with, notes):
    job = tasks.raise_directive.enqueue("snooze", 3600)
    assert start_with("job_signals", "--until-empty").has_drained()
    assert lines_of(notes(), "job_snoozed") == [[str(job.pk), "3600.0"]]
    assert not lines_of(notes(), "job_released")
