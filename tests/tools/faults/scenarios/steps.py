"""Durable steps: kills between a function and its step, and at an event; PgBouncer (F136, F137, F140 to F143)."""

from __future__ import annotations

import os
import signal
import time
from typing import Any, Final

from tests.tools.faults.catalogue import fault
from tests.tools.faults.pooler import through_pooler
from tests.tools.faults.run import Run

from .machine import with_clock
from .pooling import NEEDS, assert_unprepared
from .workflows import SLACK_SECONDS, SWEEP_SECONDS

SEND: Final = "INSERT INTO pgqueue_event (name, key, sent_at) VALUES ('go', %s, now())"
SUSPENDED: Final = "SELECT count(*) FROM pgqueue_step WHERE kind = 'event' AND finished_at IS NULL"


def effects(run: Run) -> dict[str, int]:
    """Return how often each effect has happened."""
    return dict(run.sql("SELECT kind, count(*) FROM public.fault_effect GROUP BY kind ORDER BY kind"))


@fault(
    "F136",
    "a worker is killed after it has suspended a job and before it looks for the event; nobody else looks",
    invariant="the sweep of another worker finds the event that was committed meanwhile",
    expected="the job succeeds within 60 s + 5 s, each step runs once",
)
def killed_before_the_look(run: Run) -> str:
    [job] = run.enqueue("stepped.waits", key="7")
    run.worker(failpoint="suspend.committed:killall", ready=False)
    run.wait_for("failpoint")
    run.wait_until(lambda: run.scalar(SUSPENDED) == 1)
    run.sql(SEND, ["7"])  # by SQL: no sender wakes the job
    run.worker()
    took = run.wait_until_done(65)
    assert run.job(job)["state"] == "succeeded"
    assert effects(run) == {"first": 1, "second": 1}
    return f"the sweep found the event after {took:.1f} s; each step ran once"


@fault(
    "F137",
    "PgBouncer in transaction mode, 3 server connections, and jobs that sleep and wait for events",
    invariant="steps, suspensions and sweeps rely on no session state; each atomic step takes effect once",
    expected="all jobs succeed, each effect once",
    needs=NEEDS,
)
def steps_through_pooler(run: Run) -> str:
    through_pooler(run, default_pool_size="3")
    jobs = run.enqueue("stepped.waits", 20, key="7", nap_seconds=0.2)
    workers = [run.worker(LEASE=8.0), run.worker(LEASE=8.0)]
    run.wait_until(lambda: run.scalar(SUSPENDED) == len(jobs))
    run.sql(SEND, ["7"])
    took = run.wait_until_done(65)
    assert run.states() == {"succeeded": len(jobs)}
    assert effects(run) == {"first": len(jobs), "second": len(jobs)}
    for worker in workers:
        assert_unprepared(worker)
    return f"{len(jobs)} of {len(jobs)} jobs in {took:.1f} s, each effect once"


# ------------------------------------------------------------------------------- a step and its function


def steps_of(*names: str, **options: Any) -> list[dict[str, Any]]:
    """Return the plan of a job of these steps."""
    return [{"do": "step", "name": name, **options} for name in names]


def runs(run: Run, job: int) -> dict[str, int]:
    """Return how often the function of each step has begun."""
    names = [one["name"] for one in run.journal("step", job=job)]
    return {name: names.count(name) for name in dict.fromkeys(names)}


@fault(
    "F140",
    "a worker is killed between the function of a step and its store",
    invariant="the function runs again, at most that one; the step before it does not",
    expected="2 runs of the second function, 1 of the others",
)
def killed_before_the_store(run: Run) -> str:
    [job] = run.flow("tale", plan=steps_of("plain 1", "plain 2", "plain 3"))
    run.worker(failpoint="step.sent:killall:2", ready=False).exit_code()
    began = time.monotonic()
    run.worker()
    run.wait_until_done()
    took = time.monotonic() - began
    assert run.outcomes_of(job) == ["crashed", "succeeded"]
    assert runs(run, job) == {"plain 1": 1, "plain 2": 2, "plain 3": 1}, runs(run, job)
    assert effects(run) == {"plain 1": 1, "plain 2": 2, "plain 3": 1}
    return f"runs of the three functions: 1, 2, 1; done {took:.1f} s after the kill"


@fault(
    "F140b",
    "as F140, with atomic steps, three times: before the store, after the store and before the commit, after the"
    " commit",
    invariant="the effect of each atomic step is there exactly once",
    expected="1 effect of each step; the third kill repeats no function",
)
def killed_in_an_atomic_step(run: Run) -> str:
    names = [f"atomic {number}" for number in range(1, 4)]
    jobs = []
    # The point after a commit is the body of the next function.
    for point in ("step.sent:killall:2", "step.stored:killall:2", "body.mid:killall:3"):
        for fired in run.where.glob("fired-*"):
            fired.unlink()
        [job] = run.flow("tale", plan=steps_of(*names))
        run.worker(failpoint=point, ready=False).exit_code()
        other = run.worker()
        run.wait_until(lambda: not run.unfinished(), what="the lost job to end")
        run.stop(other)
        jobs.append(job)
    run.wait_until_done()
    assert [runs(run, job)["atomic 2"] for job in jobs] == [2, 2, 1]
    assert effects(run) == dict.fromkeys(names, len(jobs)), effects(run)
    return f"{len(jobs)} of {len(jobs)} effects of each of 3 atomic steps; runs of the second function: 2, 2, 1"


# ------------------------------------------------------------------------------- events

SENDING: Final = {"do": "event", "name": "wait"}


@fault(
    "F141",
    "the process that sends an event is killed between its commit and the wake of the jobs that wait",
    invariant="the event is not lost: the sweep of a worker wakes the jobs, and each receives it once",
    expected="the jobs end within a minute + 5 s: the worker's last sweep may have found no wait",
)
def sender_killed(run: Run) -> str:
    plan = [*steps_of("atomic 1"), {**SENDING, "key": "7"}, *steps_of("atomic 2")]
    jobs = [run.flow("tale", plan=plan)[0] for _ in range(3)]
    run.worker()
    run.wait_until(lambda: run.scalar(SUSPENDED) == len(jobs), what="the jobs to wait")
    sender = run.producer("event", '{"key": "7"}', module="flow_producer", failpoint="wake.sent:kill")
    assert sender.wait(60) == -signal.SIGKILL
    began = time.monotonic()
    run.wait_until_done(65)
    took = time.monotonic() - began
    assert len(run.journal("received", payload="7")) == len(jobs)
    assert effects(run) == {"atomic 1": len(jobs), "atomic 2": len(jobs)}
    return f"the sweep found the event after {took:.1f} s; {len(jobs)} of {len(jobs)} jobs received it once"


@fault(
    "F142",
    "an event comes between a job's look for it and its suspension; then the worker is killed before it looks again",
    invariant="as F141: the sender has found no job that waits, and nobody else looks",
    expected="the job ends within 10 s + 5 s",
)
def early_event(run: Run) -> str:
    plan = [*steps_of("atomic 1"), {**SENDING, "key": "7"}, *steps_of("atomic 2")]
    [job] = run.flow("tale", plan=plan)
    worker = run.worker(failpoint="suspend.sent:stop,suspend.committed:killall", LEASE=30.0)
    pid = run.wait_until_stopped(worker)
    run.flow("event", key="7")
    os.kill(pid, signal.SIGCONT)
    worker.exit_code()
    assert run.outcomes_of(job) == ["suspended"]
    assert run.scalar("SELECT run_after > now() + interval '1 year' FROM pgqueue_job"), "somebody has woken the job"
    run.worker()
    took = run.wait_until_done(SWEEP_SECONDS + SLACK_SECONDS)
    assert run.outcomes_of(job) == ["suspended", "succeeded"]
    assert runs(run, job) == {"atomic 1": 1, "atomic 2": 1}
    return f"the sweep found the event after {took:.1f} s; each step ran once"


@fault(
    "F143",
    "jobs sleep for a month; all workers stop, and the clock of the next one is 31 days ahead",
    invariant="a sleep needs no process, and ends by the clock of the database; a worker's clock wakes nobody",
    expected="0 jobs wake within 5 s; all do when the database's month is over",
    needs=("faketime",),
)
def a_month(run: Run) -> str:
    plan = [*steps_of("atomic 1"), {"do": "sleep", "name": "nap", "seconds": 30 * 86400}, *steps_of("atomic 2")]
    jobs = [run.flow("tale", plan=plan)[0] for _ in range(3)]
    worker = run.worker()
    run.wait_until(lambda: run.outcomes() == {"suspended": len(jobs)})
    run.stop(worker)
    ahead = run.worker(variables=with_clock(FAKETIME="+31d"))
    run.act("run_now", jobs[:1])  # it sleeps on, because the step has its end from the database
    run.wait_until(lambda: run.outcomes() == {"suspended": len(jobs) + 1})
    time.sleep(5)
    assert run.outcomes() == {"suspended": len(jobs) + 1}, run.outcomes()
    run.stop(ahead)
    for table, column in (("pgqueue_job", "run_after"), ("pgqueue_step", "wake_at")):
        run.meddle(f"UPDATE {table} SET {column} = {column} - interval '30 days'", jobs=jobs)
    run.worker()
    run.wait_until_done()
    assert run.states() == {"succeeded": len(jobs)}
    assert effects(run) == {"atomic 1": len(jobs), "atomic 2": len(jobs)}
    return f"0 of {len(jobs)} jobs woke before, {len(jobs)} of {len(jobs)} after the month; each step ran once"
