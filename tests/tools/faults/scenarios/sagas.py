"""Compensations: workers killed between an end and what undoes its steps (F144)."""

from __future__ import annotations

import time
from typing import Any, Final

from tests.tools.faults.catalogue import fault
from tests.tools.faults.run import Run

from .workflows import SLACK_SECONDS, SWEEP_SECONDS

NAMES: Final = ("atomic 1", "plain 2", "plain 3")
UNDONE: Final = """
SELECT kind FROM public.fault_effect WHERE kind LIKE 'undo %' ORDER BY id
"""


def failing_tale(run: Run) -> int:
    """Enqueue a job of three steps that fails behind them."""
    steps: list[dict[str, Any]] = [{"do": "step", "name": name, "undo": True} for name in NAMES]
    [job] = run.flow("tale", plan=[*steps, {"do": "fail"}])
    return job


def undone(run: Run) -> list[str]:
    """Return which compensations have run, in the order of their effects."""
    return [row[0] for row in run.sql(UNDONE)]


def in_reverse(job: int) -> list[str]:
    """Return what `undone()` should be."""
    return [f"undo {job} {name}" for name in reversed(NAMES)]


@fault(
    "F144",
    "a worker is killed between the last failure of a job and its first compensation, and two more "
    "around the next ones",
    invariant="each of the three compensations is enqueued and runs exactly once, in reverse order",
    expected="a sweep finds each within 10 s + 5 s; the steps ran once",
)
def killed_before_each_compensation(run: Run) -> str:
    job = failing_tale(run)
    waits = []
    run.worker(failpoint="compensate.sent:killall", ready=False).exit_code()
    assert (run.job(job)["state"], undone(run)) == ("dead", [])
    waits.append(found(run, "compensate.sent:killall:2", 1))
    assert undone(run) == in_reverse(job)[:1]
    waits.append(found(run, "compensate.committed:killall", 1))
    began = time.monotonic()
    run.worker()
    run.wait_until(lambda: len(undone(run)) == 3, SWEEP_SECONDS + SLACK_SECONDS, "the last compensation")
    waits.append(time.monotonic() - began)
    run.wait_until_done()
    assert undone(run) == in_reverse(job)
    assert len(run.journal("step", job=job)) == len(NAMES), "a step ran twice"
    jobs = run.scalar("SELECT count(*) FROM pgqueue_job WHERE headers ->> 'pgqueue_compensates' = %s", [str(job)])
    assert jobs == len(NAMES)
    return (
        f"{jobs} of {len(NAMES)} compensations in reverse order, found after {', '.join(f'{w:.1f}' for w in waits)} s"
    )


def found(run: Run, failpoint: str, ran: int) -> float:
    """Start a worker that sweeps and is killed then; return how long it lived."""
    for fired in run.where.glob("fired-*"):
        fired.unlink()
    began = time.monotonic()
    run.worker(failpoint=failpoint, ready=False).exit_code(SWEEP_SECONDS + 2 * SLACK_SECONDS)
    assert len(undone(run)) >= ran, undone(run)
    return time.monotonic() - began
