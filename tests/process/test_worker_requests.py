"""A real worker answers the requests of operators: it writes the stacks of its jobs, and stops."""

from __future__ import annotations

import pytest

from django_pgqueue.control import workers as worker_control
from django_pgqueue.models import Execution, Job, Worker, WorkerRequest
from django_pgqueue.states import RequestKind
from tests.app import tasks

pytestmark = pytest.mark.process


def test_worker_requests_stacks_and_stop_are_answered(start, tmp_path):
    """The next heartbeat and the next poll are minutes away, so only the notification can bring the answers."""
    release, started = tmp_path / "release", [tmp_path / name for name in ("thread", "loop", "process")]
    jobs = [
        tasks.wait_for_file.enqueue(str(release), started=str(started[0])),
        tasks.await_file.enqueue(str(release), started=str(started[1])),
        tasks.wait_apart.enqueue(str(release), str(started[2])),
    ]
    worker = start("--concurrency", "3", LEASE=600.0, POLL_INTERVAL=600.0, GRACE=30.0)
    worker.wait_until(lambda: all(path.exists() for path in started))
    registered = Worker.objects.get()
    assert registered.supervisor_pid == worker.process.pid

    def ask(kind, execution_id=0):
        asked = worker_control.request(registered.pk, kind, "default", execution_id=execution_id, by="ada")
        answered = WorkerRequest.objects.filter(pk=asked.request_id, answered_at__isnull=False)
        return worker.wait_until(answered.first).answer

    for job, function in zip(jobs, ("wait_for_file", "await_file", "wait_apart"), strict=True):
        stack = ask(RequestKind.STACK, Execution.objects.get(job_id=job.pk).pk)
        assert "tests/app/tasks.py" in stack and function in stack
        assert "thread_slot.py" not in stack and str(release) not in stack
    everything = ask(RequestKind.STACK)
    assert all(f"Job {job.pk} ({job.task_name}), attempt 1" in everything for job in jobs)
    assert "claims no more jobs" in ask(RequestKind.STOP)
    release.touch()
    assert worker.process.wait(20) == 0
    assert {Job.objects.get(pk=job.pk).state for job in jobs} == {"succeeded"}
