"""Machines without memory, processes, processor time or the right time (F12 to F18)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.tools.faults.catalogue import fault
from tests.tools.faults.needs import faketime_library
from tests.tools.faults.run import Run


@contextmanager
def cgroup(controller: str, name: str, **limits: str) -> Iterator[Path]:
    """Yield a control group (version 1) with limits; move its processes back to the root at the end."""
    home = Path("/sys/fs/cgroup", controller, f"pgqueue-{os.getpid()}-{name}")
    home.mkdir()
    try:
        for limit, value in limits.items():
            (home / f"{controller}.{limit}").write_text(value)
        yield home
    finally:
        for pid in (home / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (home.parent / "cgroup.procs").write_text(pid)
        for _ in range(100):
            with contextlib.suppress(OSError):
                home.rmdir()
                break
            time.sleep(0.05)


def inside(home: Path) -> list[str]:
    """Return the start of a command that runs the rest in a control group."""
    return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(home / "cgroup.procs")]


@fault(
    "F12",
    "the kernel kills a process that uses too much memory, again and again",
    invariant="the crash budget ends that job; all other jobs succeed",
    expected="3 crashes, then dead; 60 of 60 others succeed",
    needs=("root", "memory cgroup"),
)
def out_of_memory(run: Run) -> str:
    with cgroup("memory", run.name, limit_in_bytes="300M") as home:
        [poison] = run.enqueue("poison.swallow_memory")
        others = run.enqueue("plain", 60)
        worker = run.worker(prefix=inside(home))
        run.wait_until_done(60)
        assert run.job(poison)["state"] == "dead"
        assert run.outcomes_of(poison) == ["crashed"] * 3
        assert {run.job(job)["state"] for job in others} == {"succeeded"}
        run.stop(worker)
    return "3 crashes, then dead; 60 of 60 others succeeded"


@fault(
    "F13",
    "MemoryError under a limit of the address space",
    invariant="the job fails like any other; the process survives",
    expected="attempts + 1, 0 crashes",
)
def memory_error(run: Run) -> str:
    [job] = run.enqueue("poison.too_large", max_attempts=2)
    others = run.enqueue("plain", 20)
    worker = run.worker(prefix=["sh", "-c", 'ulimit -v 4000000 && exec "$0" "$@"'])
    child = worker.children[0]
    run.wait_until_done()
    assert run.outcomes_of(job) == ["failed", "failed"]
    assert worker.children == [child]
    assert {run.job(other)["state"] for other in others} == {"succeeded"}
    return "2 failures, 0 crashes; the process survived"


@fault(
    "F14",
    "no new process can be started",
    invariant="the supervisor continues, retries at its interval, and recovers",
    expected="at most 1 attempt a second; nothing lost",
    needs=("root", "pids cgroup"),
)
def no_processes(run: Run) -> str:
    with cgroup("pids", run.name) as home:
        worker = run.worker(prefix=inside(home))
        (home / "pids.max").write_text("1")
        os.kill(worker.children[0], signal.SIGKILL)
        jobs = run.enqueue("plain", 20)
        run.wait_until(lambda: worker.said.count("Resource temporarily unavailable") >= 3, 30)
        assert worker.process.poll() is None
        (home / "pids.max").write_text("max")
        run.wait_until_done()
        run.stop(worker)
    assert run.states() == {"succeeded": len(jobs)}
    return f"{worker.said.count('Resource temporarily unavailable')} attempts, then {len(jobs)} of {len(jobs)} jobs"


@fault(
    "F16",
    "no processor time: four busy loops beside a worker of the lowest priority",
    invariant="no lease is lost",
    expected="0 executions lost of 100 with a lease of 60 s",
    exclusive=True,
)
def starved(run: Run) -> str:
    run.worker(prefix=["nice", "-n", "19"], LEASE=60.0)
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    try:
        run.enqueue("plain", 50, seconds=0.05)
        run.enqueue("atomic", 50, seconds=0.05)
        time.sleep(8)
        during = run.states().get("succeeded", 0)
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    run.wait_until_done()
    assert set(run.outcomes()) <= {"succeeded", "released"}, run.outcomes()
    return f"0 lost; {during} of 100 had ended after 8 s"


FAKETIME = {"FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1", "FAKETIME_NO_CACHE": "1"}


def with_clock(**settings: str) -> dict[str, str]:
    """Return the environment of a process whose wall clock is wrong."""
    return {"LD_PRELOAD": str(faketime_library()), **FAKETIME, **settings}


@fault(
    "F17",
    "the clocks of two workers are an hour ahead and an hour behind",
    invariant="nothing depends on a worker's clock",
    expected="0 early starts, 0 leases lost",
    needs=("faketime",),
)
def wrong_clocks(run: Run) -> str:
    run.worker(variables=with_clock(FAKETIME="+1h"))
    run.worker(variables=with_clock(FAKETIME="-1h"))
    run.enqueue("plain", 20, seconds=0.1, delay_seconds=1.5)
    run.enqueue("atomic", 20, seconds=0.1)
    run.enqueue("failing", 10, before=2)
    run.enqueue("plain", 2, seconds=3)
    run.wait_until_done()
    assert set(run.outcomes()) <= {"succeeded", "failed", "released"}, run.outcomes()
    skews = {round(one["wall"] - time.time(), -2) for one in run.journal("start")}
    assert skews == {3600.0, -3600.0}, f"the clocks were not wrong, or one worker did it all: {skews}"
    spread = run.scalar("SELECT max(abs(extract(epoch FROM finished_at - statement_timestamp()))) FROM pgqueue_job")
    assert spread < 60, f"a worker's clock got into a row: {spread} s"
    return "52 jobs, 0 early starts, 0 leases lost; no time of a worker's clock in any row"


@fault(
    "F18",
    "the wall clock of a worker jumps an hour ahead, then two hours back, while jobs run",
    invariant="nothing depends on a worker's wall clock",
    expected="0 leases lost, 0 early starts",
    needs=("faketime",),
)
def clock_jumps(run: Run) -> str:
    stamp = run.where / "time"
    stamp.write_text("+0")
    run.worker(variables=with_clock(FAKETIME_TIMESTAMP_FILE=str(stamp)))
    run.enqueue("plain", 4, seconds=4)
    run.enqueue("atomic", 20, seconds=0.1, delay_seconds=2)
    run.wait_for("start", 4)
    for shift in ("+3600", "-3600"):
        stamp.write_text(shift)
        time.sleep(1)
    run.wait_until_done()
    skews = {round(one["wall"] - time.time(), -2) for one in run.journal("end")}
    assert -3600.0 in skews, f"the clock did not jump: {skews}"
    assert set(run.outcomes()) <= {"succeeded", "released"}, run.outcomes()
    return "24 jobs, 0 early starts, 0 leases lost"
