"""Networks between worker and server that drop, reset, lose or slow packets, and partitions (F28 to F34, F42b)."""

from __future__ import annotations

import time
from typing import Final

from tests.process.harness import Worker
from tests.tools.faults import failpoints
from tests.tools.faults.catalogue import fault
from tests.tools.faults.netns import IN, OUT, Net, across
from tests.tools.faults.run import Run

from . import counted
from .database import assert_only_counted, enqueue_load, resumed, wait_until_busy

NEEDS: Final = ("root", "namespaces", "nft")
LOST: Final = ("server closed the connection", "timed out", "no answer from PostgreSQL", "connection is lost", "reset")
"""Parts of the log lines in which a worker reports that a connection of its own is lost."""


def seconds_until_noticed(run: Run, worker: Worker, seen: int, who: str = "") -> float:
    """Wait until a service of the worker logs that its connection is lost; return the seconds that this took.

    `seen` is the length of the log before the fault: a loss that is noticed at once is logged only once.
    """

    def said() -> bool:
        lines = worker.said[seen:].splitlines()
        return any(f"pgqueue-{who}" in line and any(words in line for words in LOST) for line in lines)

    return run.wait_until(said, 60, f"the fault to be noticed:\n{worker.said[-2000:]}")


@fault(
    "F28",
    "a black hole between the server and an idle worker",
    invariant="the worker's listener notices it, reconnects, and receives notifications again",
    expected="the worker notices it within 12 s; with the system's defaults it takes two hours",
    needs=NEEDS,
)
def hole_while_idle(run: Run) -> str:
    net = across(run)
    worker = run.worker(prefix=net.prefix, LEASE=60.0, POLL_INTERVAL=300.0)
    time.sleep(1.5)  # its last polls are over, and only the listener uses the network
    seen = len(worker.said)
    net.cut()
    noticed = seconds_until_noticed(run, worker, seen, "listener")
    net.heal()
    healed = time.monotonic()
    run.enqueue("plain", 20)
    run.wait_until_done(60)
    assert noticed < 20, noticed
    return f"noticed after {noticed:.1f} s; a job ran {resumed(run, healed):.1f} s after the network was back"


@fault(
    "F29",
    "a black hole while statements run",
    invariant="the worker notices it; nothing is lost; no job is charged while its worker's leases hold",
    expected="the worker notices it within 12 s",
    needs=NEEDS,
)
def hole_while_busy(run: Run) -> str:
    net = across(run)
    jobs = enqueue_load(run, seconds=0.1)
    worker = run.worker(prefix=net.prefix, LEASE=60.0)
    wait_until_busy(run)
    seen = len(worker.said)
    net.cut()
    noticed = seconds_until_noticed(run, worker, seen)
    net.heal()
    healed = time.monotonic()
    run.wait_until_done(60)
    assert_only_counted(run, jobs)
    assert noticed < 20, noticed
    return (
        f"noticed after {noticed:.1f} s; {jobs} of {jobs} jobs, 0 charged;"
        f" work continued {resumed(run, healed):.1f} s after the network was back"
    )


@fault(
    "F30",
    "every connection is reset and new ones are refused, for 3 s",
    invariant="no job is lost or charged",
    expected="the worker notices it within 1 s; work continues within 2 s after the end of the fault",
    needs=NEEDS,
)
def resets(run: Run) -> str:
    net = across(run)
    jobs = enqueue_load(run, seconds=0.1)
    worker = run.worker(prefix=net.prefix, LEASE=30.0)
    wait_until_busy(run)
    seen = len(worker.said)
    net.rule(OUT, "reject with tcp reset")
    noticed = seconds_until_noticed(run, worker, seen)
    time.sleep(3)
    net.heal()
    healed = time.monotonic()
    run.wait_until_done(60)
    assert_only_counted(run, jobs)
    return (
        f"noticed after {noticed:.2f} s; {jobs} of {jobs} jobs, 0 charged;"
        f" work continued {resumed(run, healed):.1f} s after the network was back"
    )


@fault(
    "F33",
    "30 % of the packets are lost, in both directions",
    invariant="jobs run more slowly, and no invariant is violated",
    expected="0 violations; all jobs end",
    needs=NEEDS,
)
def lossy(run: Run) -> str:
    net = across(run)
    run.worker(prefix=net.prefix, LEASE=30.0)
    for direction in (OUT, IN):
        net.rule(direction, "numgen random mod 100 < 30 drop")
    jobs = len(run.enqueue("plain", 20) + run.enqueue("atomic", 10) + run.enqueue("coroutine", 10))
    took = run.wait_until_done(240)
    assert run.states() == {"succeeded": jobs}, run.states()
    return f"{jobs} of {jobs} jobs in {took:.0f} s; {counted(run.outcomes())}"


@fault(
    "F34",
    "a network with 64 kbit/s",
    invariant="heartbeats have a separate connection, so no lease is lost",
    expected="0 leases lost with a lease of 6 s",
    needs=(*NEEDS, "tbf"),
)
def slow_line(run: Run) -> str:
    net = across(run)
    run.worker(prefix=net.prefix, LEASE=6.0)
    net.slow("64kbit")
    jobs = enqueue_load(run, seconds=0.05)
    took = run.wait_until_done(240)
    assert_only_counted(run, jobs)
    return f"{jobs} of {jobs} jobs in {took:.0f} s, 0 charged; {counted(run.outcomes())}"


def _parted(run: Run, task: str) -> tuple[Net, Worker, float]:
    """Cut off a worker that runs 4 jobs for longer than its leases, and let another worker run them too."""
    net = across(run)
    go = run.where / "go"
    far = run.worker(prefix=net.prefix, LEASE=4.0)
    run.enqueue("plain", 12, seconds=0.3)  # the work after a slot's first job would hang
    run.wait_until_done()
    run.enqueue(task, 4, until=str(go))
    run.wait_for("start", 16)
    run.worker(LEASE=4.0)
    time.sleep(2)  # a new worker rescues nothing for two heartbeats
    if task == "plain":  # effects written now need no network after the cut
        run.wait_until(lambda: run.scalar("SELECT count(*) FROM fault_effect") == 16, what="4 effects")
    net.cut()
    cut = time.monotonic()
    go.touch()
    run.wait_for("start", 20)
    taken_over = time.monotonic() - cut
    run.wait_until_done()
    return net, far, taken_over


@fault(
    "F28b",
    "a partition for longer than the lease: the bodies end on the far side and run again on the near one",
    invariant="the server refuses the late completions",
    expected="another worker takes over 4 of 4 jobs within lease + rescue; 4 of 4 late completions are refused",
    needs=NEEDS,
)
def partition(run: Run) -> str:
    net, far, taken_over = _parted(run, "plain")
    net.heal()
    far.wait_until(lambda: far.said.count("does not count") == 4, 60)
    assert run.outcomes() == {"crashed": 4, "succeeded": 16}, run.outcomes()
    _works_again(run, far)
    return f"4 of 4 taken over after {taken_over:.1f} s, with a lease of 4 s; 4 of 4 late completions refused"


@fault(
    "F28c",
    "a partition for longer than the lease, with atomic tasks whose completion hangs on the far side",
    invariant="the tasks are interrupted before the leases end, or the process exits; each effect exists once",
    expected="another worker takes over 4 of 4 jobs within lease + rescue; 4 effects",
    needs=NEEDS,
)
def partition_of_atomic_tasks(run: Run) -> str:
    net, far, taken_over = _parted(run, "atomic")
    far.wait_until(lambda: "the leases" in far.said, 20)
    net.heal()
    _works_again(run, far)
    effects = run.scalar("SELECT count(*) FROM fault_effect WHERE kind = 'atomic'")
    assert effects == 4, effects
    assert run.outcomes()["crashed"] == 4, run.outcomes()
    how = "exited" if "the leases have expired" in far.said else "interrupted its jobs"
    return f"4 of 4 taken over after {taken_over:.1f} s, with a lease of 4 s; 4 effects; the far process {how}"


def _works_again(run: Run, worker: Worker) -> None:
    """Wait until the worker that was cut off runs jobs again."""
    before = set(worker.children)
    run.enqueue("plain", 60, seconds=0.2)
    run.wait_until(lambda: {one["pid"] for one in run.journal("start")[-40:]} & {*before, *worker.children})
    run.wait_until_done()


def _one_way(run: Run, direction: str) -> str:
    net = across(run)
    jobs = enqueue_load(run, seconds=0.1)
    worker = run.worker(prefix=net.prefix, LEASE=60.0)
    wait_until_busy(run)
    seen = len(worker.said)
    net.rule(direction, "drop")
    noticed = seconds_until_noticed(run, worker, seen)
    net.heal()
    healed = time.monotonic()
    run.wait_until_done(90)
    assert_only_counted(run, jobs)
    came = resumed(run, healed)
    return (
        f"noticed after {noticed:.1f} s; {jobs} of {jobs} jobs, 0 charged;"
        f" work continued {came:.1f} s after the network was back; {counted(run.outcomes())}"
    )


@fault(
    "F29b",
    "only the replies are lost: the server does what the worker requests, and the worker does not receive the reply",
    invariant="each write counts once; claims whose reply was lost are released",
    expected="the worker notices it within 12 s; 0 charged",
    needs=NEEDS,
)
def replies_lost(run: Run) -> str:
    return _one_way(run, IN)


@fault(
    "F29c",
    "only the requests are lost",
    invariant="the worker notices it; nothing is lost; no job is charged while its worker's leases hold",
    expected="the worker notices it within 12 s; 0 charged",
    needs=NEEDS,
)
def requests_lost(run: Run) -> str:
    return _one_way(run, OUT)


@fault(
    "F42b",
    "a host is lost between an atomic task's completion and its commit: the server keeps its session and its locks",
    invariant="the server does not wait for a lost host; the job runs again; its effect exists once",
    expected="another worker takes the job over within lease + rescue + the 10 s that the server waits for a commit",
    needs=NEEDS,
)
def half_open(run: Run) -> str:
    net = across(run)
    [job] = run.enqueue("atomic")
    far = run.worker(
        prefix=net.prefix, LEASE=4.0, failpoint="atomic.finished:sleep", variables={failpoints.SECONDS: "8"}
    )
    run.wait_for("failpoint")
    net.cut()
    run.worker(LEASE=4.0)
    cut = time.monotonic()
    far.end()  # the black hole swallows the packets that close the connections
    run.wait_until_done(90)
    took = time.monotonic() - cut
    assert run.outcomes_of(job) == ["crashed", "succeeded"]
    return f"taken over after {took:.1f} s, with a lease of 4 s; outcomes: {', '.join(run.outcomes_of(job))}"


@fault(
    "F29d",
    "a black hole for a job's own connection, which waits for a long query; the worker's connections are spared",
    invariant="the job fails and is retried, although its lease is extended all the time",
    expected="the job's connection fails within two leases of 6 s; with the system's defaults it takes two hours",
    needs=NEEDS,
)
def hole_for_a_job(run: Run) -> str:
    net = across(run)
    [job] = run.enqueue("pooled.first_query_waits", max_attempts=3)
    run.worker(prefix=net.prefix, LEASE=6.0)
    waiting = (
        "SELECT client_port FROM pg_stat_activity WHERE query LIKE '%%pg_sleep(600)%%' AND pid <> pg_backend_pid()"
    )
    run.wait_until(lambda: run.sql(waiting), what="the query")
    port = run.scalar(waiting)
    net.rule(OUT, f"tcp sport {port} drop")
    net.rule(IN, f"tcp dport {port} drop")
    took = run.wait_until_done(60)
    assert run.outcomes_of(job) == ["failed", "succeeded"]
    return f"retried and succeeded within {took:.1f} s"
