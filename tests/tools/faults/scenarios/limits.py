"""Lost, frozen and stopped workers whose jobs have limits (F116 to F121). The checker proves the limits themselves."""

from __future__ import annotations

import os
import signal
import time
from typing import Any, Final

from tests.tools.faults.catalogue import fault
from tests.tools.faults.limits import SLOTS
from tests.tools.faults.run import Run

from . import counted
from .machine import with_clock

KEYS: Final = ("a", "b", "c")
LATER_SLOTS: Final = 3
assert SLOTS.concurrency == LATER_SLOTS


def started(run: Run) -> set[int]:
    """Return the jobs of which a body has begun."""
    return {one["job"] for one in run.journal("start")}


def enqueue_mix(run: Run, count: int = 12, **options: Any) -> int:
    """Enqueue jobs of each limit and key, and some without a limit; return their number."""
    for key in KEYS:
        for place, task in enumerate(("slotted", "rated", "in_order", "blocking", "throttled")):
            own = {} if task == "throttled" else {"before": 1 + (place % 2), "seconds": 0.02, **options}
            run.enqueue(f"limited.{task}", count, key=key, **own)
    run.enqueue("limited.slotted", 6, key="heavy", weight=2)
    run.enqueue("limited.rated", 6, key="heavy", weight=4)
    run.enqueue("plain", count)
    return 5 * len(KEYS) * count + 12 + count


@fault(
    "F116",
    "SIGKILL of the process whose jobs hold all slots of a key; then the host of the next ones is lost",
    invariant="a slot is free when its execution is closed, and not before; no slot is lost",
    expected="used again within 1 s of the first death, and within lease + rescue + 1 s = 3.3 s of the second",
    quick=True,
)
def slots_of_lost_workers(run: Run) -> str:
    go = run.where / "go"
    jobs = run.enqueue("limited.slotted", 9, key="a", until=str(go))
    worker = run.worker("--queues", "default")
    run.wait_for("start", 3)
    [child] = worker.children
    took = []
    for number, kill in ((6, lambda: os.kill(child, signal.SIGKILL)), (9, lambda: worker.send_all(signal.SIGKILL))):
        other = run.worker() if number == 9 else None
        began = time.monotonic()
        kill()
        run.wait_for("start", number)
        took.append(time.monotonic() - began)
    assert took[0] < 2, took
    assert took[1] < 6, took
    go.touch()
    run.wait_until_done()
    assert run.states() == {"succeeded": len(jobs)}
    assert other is not None
    assert run.stop(other) == 0
    return f"used again after {took[0]:.2f} s and {took[1]:.2f} s; {counted(run.outcomes())}"


@fault(
    "F117",
    "a host whose jobs hold all slots of a limit key is frozen for longer than its leases; then it continues",
    invariant="a lost lease frees no slot before its rescue; late completions free none a second time",
    expected="0 later starts in 2 s between lease and rescue; 0 late completions accepted; 3 executions open",
)
def slots_of_a_frozen_host(run: Run) -> str:
    first, second = run.where / "first", run.where / "second"
    run.enqueue("limited.slotted", 3, key="a", until=str(first))
    run.enqueue("limited.in_order", 1, key="a", until=str(first))
    frozen = run.worker("--queues", "default")
    run.wait_for("start", 4)
    later = run.enqueue("limited.slotted", 6, key="a", until=str(second), queue_name="later")
    later += run.enqueue("limited.in_order", 2, key="a", until=str(second), queue_name="later")
    frozen.send_all(signal.SIGSTOP)
    with run.connect() as holder, holder.transaction():
        holder.execute("SELECT FROM pgqueue_execution WHERE outcome IS NULL FOR UPDATE")  # so that nobody rescues them
        run.worker("--queues", "later")  # it rescues the jobs of the other queue, and takes the slots they held
        expired = (
            "SELECT count(*) FROM pgqueue_execution AS execution "
            "JOIN pgqueue_worker AS worker ON worker.id = worker_id "
            "WHERE greatest(execution.lease_expires_at, worker.lease_expires_at) < clock_timestamp()"
        )
        run.wait_until(lambda: run.scalar(expired) == 4, 10, "four leases to end")
        time.sleep(2)
        early = started(run) & set(later)
        assert not early, early
    run.wait_until(lambda: run.outcomes().get("crashed") == 4, 10, "four rescues")
    run.wait_until(lambda: len(started(run)) == 7, 10, "three later jobs to start")
    assert not started(run) & set(later[-2:]), "an ordered job has started before the first of its key has ended"
    first.touch()
    frozen.send_all(signal.SIGCONT)
    time.sleep(2)
    open_now = run.scalar("SELECT count(*) FROM pgqueue_execution WHERE outcome IS NULL AND limit_key = 'slots:a'")
    assert open_now == LATER_SLOTS, open_now
    lost = {str(row[0]) for row in run.sql("SELECT id FROM pgqueue_execution WHERE outcome = 'crashed'")}
    fates = [fate for one in run.journal("ack", act="succeed") for fate in one["fates"].items() if fate[0] in lost]
    accepted = [fate for fate in fates if fate[1] != "lost"]
    second.touch()
    run.worker()
    run.wait_until_done()
    assert not accepted, accepted
    counts = f"{len(early)} early starts; {len(accepted)} of {len(fates)} late completions accepted; {open_now} open"
    return f"{counts}; {counted(run.outcomes())}"


POINTS: Final = {
    "lock.sent": "kill",
    "lock.done": "kill",
    "admit.sent": "close",
    "admit.done": "killall",
    "claim.committed": "kill",
    "finish.sent": "kill",
    "finish.committed": "killall",
}


@fault(
    "F118",
    f"a worker is killed, or loses its connection, at each of {len(POINTS)} points of a claim of limited jobs",
    invariant="the locks of keys end with the session; nothing is claimed without being counted",
    expected="all jobs succeed; a sound worker goes on within 3 s",
)
def lost_between_lock_and_claim(run: Run) -> str:
    """Use a queue for each point, but the same keys, so that each loss could block the others."""
    jobs = 0
    for name, action in POINTS.items():
        for task in ("slotted", "rated", "in_order"):
            jobs += len(run.enqueue(f"limited.{task}", 3, key="a", queue_name=name))
        if name == "claim.committed":
            jobs += len(run.enqueue("plain", 1, queue_name=name))
        run.worker("--queues", name, failpoint=f"{name}:{action}", ready=False)
    run.wait_for("failpoint", len(POINTS), 40)
    began = time.monotonic()
    before = len(run.journal("start"))
    run.worker()
    run.wait_until(lambda: len(run.journal("start")) > before or not run.unfinished(), 10)
    took = time.monotonic() - began
    run.wait_until_done()
    assert run.states() == {"succeeded": jobs}, run.states()
    return (
        f"{len(POINTS)} of {len(POINTS)} points; {jobs} of {jobs} jobs; the next start {took:.1f} s after the last loss"
    )


@fault(
    "F119",
    "a worker process is stopped (SIGSTOP) after it has locked the keys of a claim, and before it claims",
    invariant="a worker that is frozen, or whose host is lost without a word, blocks no key for long",
    expected="the server ends its session after 5 s; another worker claims jobs of these keys within 6 s",
)
def frozen_between_lock_and_claim(run: Run) -> str:
    jobs = run.enqueue("limited.slotted", 4, key="a") + run.enqueue("limited.in_order", 4, key="a")
    frozen = run.worker(failpoint="lock.done:stop", ready=False, LEASE=60.0)
    pid = run.wait_until_stopped(frozen)
    began = time.monotonic()
    other = run.worker(LEASE=60.0)
    run.enqueue("plain")
    run.wait_for("start", 1)
    run.wait_until(lambda: run.states() == {"succeeded": len(jobs) + 1}, 20, "the jobs of the locked keys to end")
    took = time.monotonic() - began
    assert took < 9, took
    os.kill(pid, signal.SIGCONT)
    more = run.enqueue("limited.slotted", 6, key="a", seconds=0.2)
    run.wait_until_done()
    assert run.outcomes() == {"succeeded": len(jobs) + 1 + len(more)}, run.outcomes()
    assert frozen.process.poll() is None
    assert run.stop(other) == 0
    return f"{len(jobs)} jobs of the locked keys ended {took:.1f} s after the stop; the frozen process works again"


@fault(
    "F120",
    "SIGTERM with a grace of 0.3 s while jobs hold all slots of a key and the turn of an ordered one",
    invariant="released jobs free their slots and their turn, and count no attempt; a start after that spends tokens",
    expected="another worker starts them within 1 s of the release",
)
def release_at_stop(run: Run) -> str:
    go = run.where / "go"
    jobs = [*run.enqueue("limited.slotted", 5, key="a", until=str(go))]
    jobs += run.enqueue("limited.in_order", 3, key="a", until=str(go))
    jobs += run.enqueue("limited.rated", 3, key="a", weight=5, until=str(go))
    worker = run.worker("--grace", "0.3", "--concurrency", "8", LEASE=30.0)
    run.wait_for("start", 3 + 1 + 2)
    other = run.worker("--concurrency", "8", LEASE=30.0)
    assert run.stop(worker) == 0
    stopped, before = time.monotonic(), len(run.journal("start"))
    run.wait_for("start", before + 1)
    again = time.monotonic() - stopped
    go.touch()
    run.wait_until_done()
    assert run.stop(other) == 0
    assert run.scalar("SELECT max(attempt) FROM pgqueue_job") == 1
    assert run.states() == {"succeeded": len(jobs)}
    return f"started again {again:.2f} s after the exit; {counted(run.outcomes())}; 0 charged"


@fault(
    "F121",
    "the wall clocks of workers jump an hour ahead and an hour back while their jobs have limits",
    invariant="slots, tokens, holds and turns depend on the database's clock only",
    expected="all limits hold; 0 charged",
    needs=("faketime",),
)
def clocks_jump_under_limits(run: Run) -> str:
    stamp = run.where / "time"
    stamp.write_text("+0")
    for _ in range(2):
        run.worker(variables=with_clock(FAKETIME_TIMESTAMP_FILE=str(stamp)), LEASE=8.0)
    jobs = enqueue_mix(run)
    for shift in ("+3600", "-3600", "+0"):
        run.wait_for("start", 10 + len(run.journal("start")))
        stamp.write_text(shift)
    run.wait_until_done(60)
    skews = {round(one["wall"] - time.time(), -2) for one in run.journal("start")}
    assert {3600.0, -3600.0} & skews, f"the clocks did not jump: {skews}"
    assert run.states() == {"succeeded": jobs}, run.states()
    assert not run.scalar("SELECT sum(crashes) FROM pgqueue_job"), run.outcomes()
    return f"{jobs} of {jobs} jobs, 0 charged; {counted(run.outcomes())}"
