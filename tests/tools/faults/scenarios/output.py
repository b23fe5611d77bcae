"""Workers whose log output is never read (F94, F95)."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Final

from tests import helpers
from tests.tools.faults.catalogue import fault
from tests.tools.faults.run import Run

WITH_FULL_PIPE: Final = """
import fcntl, os, sys
reader, writer = os.pipe()
fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
os.write(writer, b"x" * 4096)
os.set_inheritable(reader, True)
os.dup2(writer, 2)
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""A script that starts a program whose stderr is a full pipe that is never read."""


@fault(
    "F94",
    "the log pipe is full and is never read",
    invariant="jobs that log nothing complete, and a stop runs none of them again",
    expected="0 more executions than jobs; exit code 0 within the grace (2 s) + 6 s",
    quick=True,
)
def full_pipe(run: Run) -> str:
    jobs = [*run.enqueue("plain", 200), *run.enqueue("failing", 20, before=2), *run.enqueue("alone", 4)]
    worker = run.worker(prefix=(sys.executable, "-c", WITH_FULL_PIPE), ready=False)
    run.wait_until_done()
    began = time.monotonic()
    assert run.stop(worker) == 0
    took = time.monotonic() - began
    assert took < 8, took
    assert run.states() == {"succeeded": len(jobs)}
    assert run.outcomes() == {"succeeded": len(jobs), "failed": 20}
    return f"{len(jobs)} of {len(jobs)} jobs ended once; exit code 0 after {took:.1f} s"


@fault(
    "F95",
    "the leases end while the worker process and the supervisor are stopped (SIGSTOP) and cannot act",
    invariant="the fork server kills the process when its leases end; its job is not charged",
    expected="the process is gone within lease (2 s) + 1 s",
    quick=True,
)
def lease_ends_in_stopped_process(run: Run) -> str:
    [job] = run.enqueue("plain", 1, seconds=60)
    worker = run.worker(prefix=(sys.executable, "-c", WITH_FULL_PIPE), ready=False)
    run.wait_for("start", 1)
    [child] = worker.children
    worker.send(signal.SIGSTOP)
    os.kill(child, signal.SIGSTOP)
    began = time.monotonic()
    helpers.wait_until(lambda: _is_dead(child), 10)
    took = time.monotonic() - began
    assert took < 3.0, took
    worker.send(signal.SIGTERM)  # otherwise it would start another process
    worker.send(signal.SIGCONT)
    assert worker.exit_code() == 0
    assert run.job(job)["crashes"] == 0
    return f"gone after {took:.2f} s; not charged"


def _is_dead(pid: int) -> bool:
    """Return whether a process has ended. Its stopped parent has not yet reaped it."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
        return stat.read().rpartition(")")[2].split()[0] == "Z"
