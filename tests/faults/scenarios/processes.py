"""Workers that are killed, stopped and signalled: F01 to F10."""

from __future__ import annotations

import signal
import time

from tests.faults.catalogue import fault
from tests.faults.run import Run


@fault(
    "F09",
    "SIGSTOP past the lease, then SIGCONT (a zombie)",
    invariant="its late end does not count; effects in the job's transaction happen once",
    expected="rescued within lease + rescue + 1 s; 0 late ends accepted",
    quick=True,
)
def zombie(run: Run) -> str:
    plain, atomic = (
        run.enqueue("plain", 2, until=str(run.where / "go")),
        run.enqueue("atomic", 2, until=str(run.where / "go")),
    )
    stopped = run.worker()
    run.wait_for("start", 4)
    stopped.send_all(signal.SIGSTOP)
    began = time.monotonic()
    other = run.worker()
    run.wait_until(lambda: run.outcomes().get("crashed") == 4, 20)
    took = time.monotonic() - began
    run.wait_for("start", 8)
    (run.where / "go").touch()
    stopped.send_all(signal.SIGCONT)
    run.wait_until_done()
    assert run.states() == {"succeeded": 4}
    assert [run.outcomes_of(job) for job in (*plain, *atomic)] == [["crashed", "succeeded"]] * 4
    effects = run.scalar("SELECT count(*) FROM fault_effect WHERE kind = 'atomic'")
    assert effects == 2, f"{effects} atomic effects of 2 jobs"
    run.stop(other)
    return f"rescued after {took:.1f} s, 4 of 4 late ends refused, {effects} atomic effects of 2 jobs"
