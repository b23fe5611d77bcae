"""A worker whose output cannot be written: closed streams, full disks, and a log pipe that nobody reads."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from django_pgqueue.models import Execution, Job
from tests import helpers
from tests.app import tasks
from tests.helpers import wait_until

from .harness import descendants, is_alive
from .test_isolation import succeeded

pytestmark = pytest.mark.process

CLOSED = {
    "stdout closed": ">&-",
    "stderr closed": "2>&-",
    "stdout full": ">/dev/full",
    "both full": ">/dev/full 2>&1",
    "all closed": "<&- >&- 2>&-",
}


@pytest.mark.promise("defect-closed-output")
@pytest.mark.parametrize("redirection", CLOSED.values(), ids=CLOSED)
def test_worker_without_output_works_and_stops_cleanly(start, redirection):
    jobs = [tasks.isolated_noop.enqueue(), tasks.noop.enqueue()]
    worker = start(prefix=("sh", "-c", f'exec "$@" {redirection}', "sh"))
    worker.wait_until(lambda: succeeded(*jobs))
    worker.send(signal.SIGTERM)
    assert worker.exit_code() == 0


@pytest.fixture
def full_pipe() -> Iterator[int]:
    """Return the writing end of a full pipe that nobody reads."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 512)
    os.set_blocking(writer, True)
    yield writer
    os.close(writer)
    os.close(reader)


@pytest.mark.promise("full-log-pipe")
def test_worker_with_full_log_pipe_completes_and_reruns_nothing(start, full_pipe, tmp_path):
    """The engine logs a line for each of these jobs, for some with a traceback. The jobs themselves log nothing."""
    jobs = [*[tasks.noop.enqueue() for _ in range(300)], *[tasks.isolated_noop.enqueue() for _ in range(3)]]
    failing = [tasks.fail.using(max_attempts=1).enqueue() for _ in range(20)]
    worker = start("--grace", "3", output=full_pipe, LEASE=12.0)
    worker.wait_until(lambda: succeeded(*jobs), 60)
    worker.wait_until(lambda: Job.objects.filter(state="dead").count() == len(failing))
    running = tasks.wait_for_file.enqueue(str(tmp_path / "end"), started=str(tmp_path / "started"))
    worker.wait_until((tmp_path / "started").exists)
    ends_at = helpers.lease_of(running)
    worker.wait_until(lambda: helpers.lease_of(running) > ends_at)
    (tmp_path / "end").touch()
    worker.send(signal.SIGTERM)
    assert worker.exit_code(30) == 0
    assert succeeded(*jobs, running)
    assert Execution.objects.count() == len(jobs) + len(failing) + 1


def seconds_until(condition: Callable[[], bool]) -> float:
    """Return how long a condition stays false, without the time in which the machine stalled.

    A pause of more than 0.1 s between two checks is a stall, and counts as 0.1 s.
    """
    seconds, checked_at = 0.0, time.monotonic()
    while not condition():
        time.sleep(0.01)
        before, checked_at = checked_at, time.monotonic()
        seconds += min(checked_at - before, 0.1)
        assert seconds < 10
    return seconds


@pytest.mark.promise("lease-end-bounds-process")
@pytest.mark.parametrize("kind", ["sleeps", "holds the interpreter", "isolated"])
def test_lease_end_with_full_log_pipe_ends_process_in_time(start, full_pipe, tmp_path, kind):
    started = tmp_path / "started"
    job = {
        "sleeps": lambda: tasks.sleep_uninterrupted.enqueue(60, str(started)),
        "holds the interpreter": lambda: tasks.hold_the_interpreter.enqueue(60, str(started)),
        "isolated": lambda: tasks.sleep_uninterrupted.enqueue(60, str(started)),
    }[kind]()
    options = ["--isolation", "process"] if kind == "isolated" else []
    worker = start("--concurrency", "1", *options, output=full_pipe, LEASE=2.0)
    worker.wait_until(started.exists)  # the start is written before the task runs
    [child] = worker.children
    family = descendants(child)[1:] if kind == "isolated" else [child, *descendants(child)]
    assert family
    worker.send(signal.SIGSTOP)
    assert seconds_until(lambda: not any(map(is_alive, family))) < 2.0 + 1.5
    worker.send(signal.SIGTERM)  # the supervisor must not start another process
    worker.send(signal.SIGCONT)
    assert worker.exit_code() == 0
    job.refresh_from_db()
    assert (job.state, job.crashes) == ("ready", 0)


def test_lease_end_without_stop_does_not_charge_job(start, full_pipe, tmp_path):
    """The supervisor reads from shared memory why the process ended."""
    started = tmp_path / "started"
    job = tasks.hold_the_interpreter.enqueue(4, str(started))
    worker = start("--concurrency", "1", output=full_pipe, LEASE=2.0)
    worker.wait_until(started.exists)
    [child] = worker.children
    worker.send(signal.SIGSTOP)
    wait_until(lambda: not is_alive(child), 10)
    worker.send(signal.SIGCONT)
    worker.wait_until(lambda: succeeded(job), 30)
    assert Execution.objects.filter(job=job).earliest("id").outcome == "released"
    assert Job.objects.get(pk=job.pk).crashes == 0
