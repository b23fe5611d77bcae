"""Workers that receive signals to stop (F04 to F08)."""

from __future__ import annotations

import os
import signal
import time

from tests.tools.faults.catalogue import fault
from tests.tools.faults.run import Run

from . import counted


@fault("F04", "SIGTERM while idle", invariant="the worker exits with code 0", expected="the worker is gone within 1 s")
def idle(run: Run) -> str:
    worker = run.worker()
    began = time.monotonic()
    assert run.stop(worker) == 0
    return f"exit code 0 after {time.monotonic() - began:.2f} s"


@fault(
    "F05",
    "SIGTERM while jobs run that end within the grace period",
    invariant="the jobs end, and each counts once",
    expected="0 more executions than jobs; exit code 0",
)
def within_grace(run: Run) -> str:
    jobs = [*run.enqueue("plain", 2, seconds=1), *run.enqueue("atomic", 1, seconds=1), *run.enqueue("coroutine")]
    worker = run.worker()
    run.wait_for("start", 4)
    code = run.stop(worker)
    assert code == 0
    assert run.states() == {"succeeded": len(jobs)}
    assert run.outcomes() == {"succeeded": len(jobs)}
    return f"{len(jobs)} of {len(jobs)} ended; exit code {code}"


@fault(
    "F06",
    "SIGTERM while jobs run that take longer than the grace period",
    invariant="the worker releases them before its exit, without counting the attempt; no job stays running",
    expected="the worker exits within grace (2 s) + 1 s; the jobs start again within 0.5 s of the exit",
    quick=True,
)
def beyond_grace(run: Run) -> str:
    go = run.where / "go"
    jobs = [*run.enqueue("plain", 2, until=str(go)), *run.enqueue("atomic", 2, until=str(go))]
    worker = run.worker()
    run.wait_for("start", 4)
    other = run.worker()
    began = time.monotonic()
    assert run.stop(worker) == 0
    took = time.monotonic() - began
    run.wait_for("start", 8)
    again = time.monotonic() - began - took
    go.touch()
    run.wait_until_done()
    run.stop(other)
    assert run.outcomes() == {"released": 4, "succeeded": 4}
    assert {(run.job(job)["attempt"], run.job(job)["crashes"]) for job in jobs} == {(1, 0)}
    return f"exit code 0 after {took:.1f} s; all started again {max(0.0, again):.2f} s later; attempts + 0"


@fault(
    "F07",
    "SIGINT, then SIGTERM",
    invariant="the second signal releases the jobs at once",
    expected="the worker exits within 0.5 s of the second signal, with code 0",
)
def second_signal(run: Run) -> str:
    run.enqueue("plain", 4, until=str(run.where / "go"))
    worker = run.worker("--grace", "30")
    run.wait_for("start", 4)
    worker.send(signal.SIGINT)
    run.wait_until(lambda: "grace" in worker.said)
    began = time.monotonic()
    worker.send(signal.SIGTERM)
    code = run.ended(worker)
    took = time.monotonic() - began
    assert code == 0
    assert run.states() == {"ready": 4}
    assert run.outcomes() == {"released": 4}
    return f"exit code {code} after {took:.2f} s"


@fault(
    "F07b",
    "a third signal",
    invariant="the worker exits at once, with a code other than 0; leases protect the remaining jobs",
    expected="exit code 130; another worker rescues the jobs and charges those that had started",
)
def third_signal(run: Run) -> str:
    go = run.where / "go"
    jobs = run.enqueue("plain", 4, until=str(go))
    worker = run.worker("--grace", "30", failpoint="release.sent:sleep")  # delays the end until after the third signal
    run.wait_for("start", 4)
    for _ in range(3):
        worker.send(signal.SIGTERM)
        time.sleep(0.2)
    code = run.ended(worker)
    assert code == 130, code
    go.touch()
    run.worker()
    run.wait_until_done()
    assert {run.job(job)["state"] for job in jobs} == {"succeeded"}
    return f"exit code {code}; {counted(run.outcomes())}"


@fault(
    "F07c",
    "SIGQUIT and SIGHUP, which the supervisor does not handle",
    invariant="the worker processes stop by themselves; nothing is lost",
    expected="nothing is charged",
)
def unhandled_signals(run: Run) -> str:
    go = run.where / "go"
    jobs = run.enqueue("plain", 4, until=str(go))
    for number, name in ((signal.SIGQUIT, "SIGQUIT"), (signal.SIGHUP, "SIGHUP")):
        begun = len(run.journal("start"))
        worker = run.worker(LEASE=4.0)
        run.wait_for("start", begun + 4)
        worker.send(number)
        run.ended(worker)
        run.wait_until(lambda: run.states() == {"ready": 4}, 10, f"all jobs to be released after {name}")
    go.touch()
    run.worker()
    run.wait_until_done()
    assert {(run.job(job)["attempt"], run.job(job)["crashes"]) for job in jobs} == {(1, 0)}
    return f"{counted(run.outcomes())}; 0 charged"


@fault(
    "F08",
    "SIGTERM just after a claim has committed",
    invariant="claimed jobs run within the grace, or are released without counting the attempt; no job stays running",
    expected="0 jobs running after the exit",
    quick=True,
)
def amid_a_claim(run: Run) -> str:
    go = run.where / "go"
    jobs = run.enqueue("plain", 20, until=str(go))
    worker = run.worker(failpoint="claim.committed:stop", ready=False)
    child = run.wait_until_stopped(worker)
    worker.send(signal.SIGTERM)
    run.wait_until(lambda: "grace" in worker.said)
    os.kill(child, signal.SIGCONT)
    assert run.ended(worker) == 0
    assert run.states() == {"ready": 20}, run.states()
    started = len(run.journal("start"))
    go.touch()
    run.worker()
    run.wait_until_done()
    assert {run.job(job)["attempt"] for job in jobs} == {1}
    return f"0 running after the exit; {started} of 20 had started; all released"
