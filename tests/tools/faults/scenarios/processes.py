"""Killed and frozen workers (F01, F02, F03, F09, F10). Workers that are asked to stop are in `stopping`."""

from __future__ import annotations

import os
import signal
import time

from django_pgqueue.lifecycle import operator as lifecycle_operator
from django_pgqueue.states import State
from tests import helpers
from tests.process.harness import Worker, descendants
from tests.tools.faults.catalogue import fault
from tests.tools.faults.run import Run

from . import counted

POINTS = {
    "claim.sent": "claim.sent",
    "claim.committed": "claim.committed",
    "start": "start",
    "body.mid": "body.mid:2",
    "body.done": "body.done:2",
    "finish.sent": "finish.sent",
    "finish.committed": "finish.committed",
    "atomic.finished": "atomic.finished",
    "beat.sent": "beat.sent",
    "rescue.mid": "rescue.mid",
    "release.committed": "release.committed",
}


@fault(
    "F01",
    f"the host is lost at each of {len(POINTS)} points in a job's life",
    invariant="every job ends; each atomic effect exists once",
    expected="another worker starts the lost jobs within lease + rescue + poll = 2.5 s",
    quick=True,
)
def lost_at_each_point(run: Run) -> str:
    """Use one worker and one queue for each point. When all are lost, a sound worker runs the jobs."""
    go = str(run.where / "go")
    doomed = {}
    for name, when in POINTS.items():
        waits = {"until": go} if name in ("beat.sent", "release.committed") else {}
        for task in ("plain", "atomic"):
            run.enqueue(task, 3, queue_name=name, **waits)
        point, _, number = when.partition(":")
        failpoint = f"{point}:killall:{number or 1}"
        doomed[name] = run.worker("--queues", name, "--grace", "0.2", failpoint=failpoint, ready=False)
    starts = {job["job"] for job in run.journal("start")}
    run.wait_until(lambda: len({one["job"] for one in run.journal("start")}) > len(starts), 30)
    releasing = doomed["release.committed"]
    # On a loaded machine, this worker may release a prefetched job, and be lost then, before the signal.
    run.wait_until(lambda: _running_in(run, "release.committed") == 4 or releasing.process.poll() is not None, 30)
    if releasing.process.poll() is None:
        releasing.send(signal.SIGTERM)
    run.wait_for("failpoint", len(POINTS), 30)
    (run.where / "go").touch()
    run.worker()
    run.wait_until_done()
    assert run.states() == {"succeeded": 6 * len(POINTS)}
    return f"{len(POINTS)} of {len(POINTS)} points; {_lost(run)}"


def _running_in(run: Run, queue: str) -> int:
    return int(run.scalar("SELECT count(*) FROM pgqueue_job WHERE queue_name = %s AND state = 'running'", [queue]))


def _lost(run: Run) -> str:
    outcomes = run.outcomes()
    latest = run.scalar(
        "SELECT max(extract(epoch FROM finished_at - greatest(execution.lease_expires_at, worker.lease_expires_at)))"
        " FROM pgqueue_execution AS execution LEFT JOIN pgqueue_worker AS worker ON worker.id = worker_id"
        " WHERE outcome = 'crashed'"
    )
    return (
        f"{outcomes.get('crashed', 0)} executions lost, rescued {float(latest or 0):.2f} s after their leases at most"
    )


@fault(
    "F01b",
    "the replies to a claim, a completion, a heartbeat, a release and a rescue are lost after each has committed",
    invariant="a repeated statement finds the work done: nothing is charged, nothing ends twice",
    expected="0 attempts charged, except those of the lost host",
    quick=True,
)
def replies_lost(run: Run) -> str:
    go = run.where / "go"
    jobs = [*run.enqueue("plain", 40, seconds=0.05), *run.enqueue("atomic", 20, seconds=0.05)]
    points = ("claim", "finish", "beat", "release")
    worker = run.worker(
        failpoint=",".join(f"{point}.committed:close:2" for point in points[:3]) + ",release.committed:close"
    )
    run.wait_until_done()
    held = run.enqueue("plain", 4, until=str(go))
    run.wait_until(lambda: run.states().get("running") == 4)
    run.wait_for("failpoint", 3)
    assert run.stop(worker) == 0
    lost = run.enqueue("plain", 2, queue_name="lost")
    run.worker("--queues", "lost", failpoint="body.mid:killall", ready=False)
    run.wait_for("failpoint", 5)
    go.touch()
    run.worker(failpoint="rescue.committed:close:*")
    run.wait_until_done()
    assert {run.job(job)["attempt"] for job in (*jobs, *held)} == {1}
    assert max(run.job(job)["crashes"] for job in lost) == 1
    fired = sorted({one["name"] for one in run.journal("failpoint")})
    assert len(fired) == 6, fired
    return f"{', '.join(fired)}: 0 of {len(jobs) + len(held)} charged; {counted(run.outcomes())}"


@fault(
    "F02",
    "SIGKILL of one worker process while its supervisor lives",
    invariant="only jobs that had started in it are charged; the process is replaced",
    expected="the executions are closed within 0.5 s: at the end of the process, and not at the end of the lease",
    quick=True,
)
def child_killed(run: Run) -> str:
    go = run.where / "go"
    running = run.enqueue("plain", 2, until=str(go))
    worker = run.worker("--concurrency", "2", LEASE=30.0)
    run.wait_for("start", 2)
    [child] = worker.children
    os.kill(child, signal.SIGSTOP)
    waiting = run.enqueue("plain", 100)
    # Claim its neighbours without starting them, as its fetcher would: the same statement, the same worker id.
    worker_id = run.scalar("SELECT max(worker_id) FROM pgqueue_execution")
    assert len(helpers.claim_all(run.connection, limit=100, free_slots=0, worker_id=worker_id)) == 100
    began = time.monotonic()
    os.kill(child, signal.SIGKILL)
    run.wait_until(lambda: run.outcomes().get("crashed", 0) >= 2, 10)
    took = time.monotonic() - began
    run.wait_until(lambda: set(worker.children) - {child}, 10)
    go.touch()
    run.wait_until_done()
    charged = {row[0] for row in run.sql("SELECT id FROM pgqueue_job WHERE crashes > 0")}
    assert charged == set(running), f"charged: {charged}, running: {running}"
    assert {run.job(job)["attempt"] for job in waiting} == {1}
    return f"closed after {took:.2f} s; 2 of 2 started jobs charged, 0 of {len(waiting)} prefetched ones"


@fault(
    "F02b",
    "SIGKILL of the supervisor alone",
    invariant=(
        "the worker processes stop by themselves and release what they cannot complete; no process continues without "
        "a supervisor"
    ),
    expected="all processes are gone within the lease; nothing charged",
    quick=True,
)
def supervisor_killed(run: Run) -> str:
    # With a lease of 4 s, a process under load could lack the time for the release: it waits 2 s for its jobs first.
    jobs = run.enqueue("plain", 2, until=str(run.where / "go"))
    took = _kill_supervisor(run, run.worker(LEASE=8.0), 2)
    assert run.states() == {"ready": 2}, run.states()
    assert run.outcomes() == {"released": 2}
    (run.where / "go").touch()
    worker = run.worker(LEASE=8.0)
    run.wait_until_done()
    assert {run.job(job)["attempt"] for job in jobs} == {1}
    # An interrupted job reports its release itself. This one swallows the interruption, so its process releases it.
    [unmoved] = run.enqueue("deadly.unmoved")
    _kill_supervisor(run, worker, 5)
    assert (run.job(unmoved)["state"], run.job(unmoved)["attempt"]) == ("ready", 0)
    assert run.outcomes() == {"released": 3, "succeeded": 2}
    with run.connect() as operator:  # it never ends by itself
        assert lifecycle_operator.cancel(operator, [unmoved]) == {unmoved: State.CANCELLED}
    return f"gone after {took:.1f} s; 3 of 3 released without counting the attempt"


def _kill_supervisor(run: Run, worker: Worker, starts: int) -> float:
    """Kill the supervisor when so many bodies have started in all; return the seconds until its process is gone."""
    run.wait_for("start", starts)
    [child] = worker.children
    worker.send(signal.SIGKILL)
    began = time.monotonic()
    run.wait_until(lambda: not _lives(child), 10, "the orphaned process to end")
    return time.monotonic() - began


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
        return stat.read().rpartition(")")[2].split()[0] != "Z"


@fault(
    "F03",
    "SIGKILL of supervisor and processes together, as when the host is lost",
    invariant="another worker rescues the jobs",
    expected="the jobs start again within lease + rescue + poll = 2.5 s",
)
def all_killed(run: Run) -> str:
    go = run.where / "go"
    run.enqueue("plain", 2, until=str(go))
    run.enqueue("atomic", 2, until=str(go))
    lost = run.worker()
    run.wait_for("start", 4)
    other = run.worker()
    began = time.monotonic()
    lost.send_all(signal.SIGKILL)
    run.wait_for("start", 8)
    took = time.monotonic() - began
    go.touch()
    run.wait_until_done()
    assert run.outcomes() == {"crashed": 4, "succeeded": 4}
    run.stop(other)
    return f"started again after {took:.1f} s at most"


@fault(
    "F09",
    "SIGSTOP for longer than the lease, then SIGCONT (a zombie worker)",
    invariant="the worker's late completion does not count; effects in the job's transaction exist once",
    expected="the job is rescued within lease + rescue = 4.3 s; 0 late completions accepted",
    quick=True,
)
def zombie(run: Run) -> str:
    """Stop two processes just before they send a completion.

    The supervisors continue first, so leases seem to hold, and the comparison that would interrupt the jobs is broken:
    only the fence can refuse the completions. The fork servers are stopped too, because they kill a process that
    continues after its leases have ended.
    """
    points = {"plain": "finish.sent:stop,watch.sent:raise:*", "atomic": "atomic.sent:stop,watch.sent:raise:*"}
    jobs = [run.enqueue(task, queue_name=task)[0] for task in points]
    zombies = [run.worker("--queues", task, failpoint=point, ready=False, LEASE=4.0) for task, point in points.items()]
    children = [run.wait_until_stopped(one) for one in zombies]
    fork_servers = [pid for child in children for pid in descendants(child)]
    for pid in fork_servers:
        os.kill(pid, signal.SIGSTOP)
    for one in zombies:
        one.send(signal.SIGSTOP)
    began = time.monotonic()
    other = run.worker()
    run.wait_until(lambda: run.outcomes().get("crashed") == 2, 20)
    took = time.monotonic() - began
    run.wait_until_done()
    instant = run.scalar("SELECT clock_timestamp()")
    for one in zombies:
        one.send(signal.SIGCONT)
    run.wait_until(lambda: run.scalar(HEARTBEATS, [instant]) == 3, 10, "all three supervisors to send a heartbeat")
    for pid in (*children, *fork_servers):
        os.kill(pid, signal.SIGCONT)
    run.wait_until(lambda: _refused(run) == 2, 10, "two late completions to be refused")
    for one in (*zombies, other):
        run.stop(one)
    assert _refused(run) == 2, run.journal("ack")
    assert [run.outcomes_of(job) for job in jobs] == [["crashed", "succeeded"]] * 2
    effects = run.scalar("SELECT count(*) FROM fault_effect WHERE kind = 'atomic'")
    assert effects == 1, f"{effects} atomic effects of 1 job"
    return f"rescued after {took:.1f} s; 2 of 2 late completions refused; {effects} atomic effect of 1 job"


HEARTBEATS = "SELECT count(DISTINCT supervisor_pid) FROM pgqueue_worker WHERE last_heartbeat_at > %s"


def _refused(run: Run) -> int:
    """Return how many executions had a late completion that found them closed.

    The completion is a success, or a failure if the server has ended the atomic task's transaction after 10 s.
    """
    fates = [fate for one in run.journal("ack") for fate in one["fates"].items()]
    return len({execution for execution, fate in fates if fate == "lost"})


@fault(
    "F09b",
    "SIGSTOP of one process for longer than the lease while its supervisor lives",
    invariant="the supervisor extends the leases, because the process may continue; no job runs twice",
    expected="0 executions lost",
)
def child_stopped(run: Run) -> str:
    run.enqueue("plain", 4, seconds=0.5)
    worker = run.worker()
    run.wait_for("start", 4)
    [child] = worker.children
    os.kill(child, signal.SIGSTOP)
    other = run.worker()
    time.sleep(4)  # two leases
    assert run.outcomes() == {"open": 4}
    os.kill(child, signal.SIGCONT)
    run.wait_until_done()
    run.stop(other)
    assert run.outcomes() == {"succeeded": 4}
    return "0 of 4 executions lost in two leases"


@fault(
    "F10",
    "SIGSTOP for half a lease",
    invariant="no job loses its lease, and no attempt is counted",
    expected="0 more executions than jobs",
    quick=True,
)
def short_stop(run: Run) -> str:
    run.enqueue("plain", 8, seconds=0.2)
    worker, other = run.worker(LEASE=4.0), run.worker(LEASE=4.0)
    worker.send_all(signal.SIGSTOP)
    time.sleep(2)
    worker.send_all(signal.SIGCONT)
    run.wait_until_done()
    run.stop(other)
    assert set(run.outcomes()) <= {"succeeded", "released"}
    assert run.scalar("SELECT max(attempt) FROM pgqueue_job") == 1
    return f"{sum(run.outcomes().values()) - 8} more executions than jobs"
