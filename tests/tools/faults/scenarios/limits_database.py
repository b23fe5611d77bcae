"""Restarts and failovers while limit keys are saturated, held keys, and operators at work (F122 to F126)."""

from __future__ import annotations

import signal
import time
from functools import partial

from django_pgqueue.lifecycle import bulk_acts, operator
from tests import helpers
from tests.tools.faults.catalogue import fault
from tests.tools.faults.lives import BY_OPERATOR
from tests.tools.faults.run import Run
from tests.tools.faults.standby import replicated

from . import counted
from .database import resumed
from .failover import acknowledged, present
from .limits import enqueue_mix, started

BULK = 3000
DOWN_SECONDS = 3.0


@fault(
    "F122",
    "the server restarts, then crashes and stays down for a while, while all keys are saturated",
    invariant="no limit is exceeded across the outages; no slot and no token is lost",
    expected="all jobs succeed, and 0 are charged",
    exclusive=True,
)
def restarts_of_saturated_keys(run: Run) -> str:
    jobs = enqueue_mix(run, seconds=0.1)
    workers = [run.worker(LEASE=30.0), run.worker(LEASE=30.0)]
    ups: list[float] = []
    for how, down in (("fast", 0.0), ("immediate", DOWN_SECONDS)):
        run.wait_until(lambda: run.states().get("succeeded", 0) >= 20 * (1 + len(ups)), what="the workers to be busy")
        run.server.cluster.stop(how)
        time.sleep(down)
        run.server.cluster.start()
        ups.append(time.monotonic())
    run.wait_until_done(90)
    assert run.states() == {"succeeded": jobs}, run.states()
    assert not run.scalar("SELECT sum(crashes) FROM pgqueue_job"), run.outcomes()
    assert all(worker.process.poll() is None for worker in workers)
    return f"{jobs} of {jobs} jobs, 0 charged; work continued {resumed(run, ups[-1]):.1f} s after the server was back"


@fault(
    "F123",
    "failover to a synchronous standby while an application enqueues jobs with limits and all keys are saturated",
    invariant="what is open and spent is known to the new primary: no limit is exceeded across the failover",
    expected="0 acknowledged enqueues lost; all jobs end",
    exclusive=True,
)
def failover_of_saturated_keys(run: Run) -> str:
    pair = replicated(run)
    run.configure("synchronous_standby_names", "*")
    run.wait_until(lambda: run.sql("SELECT pid FROM pg_stat_replication WHERE sync_state = 'sync'"))
    workers = [run.worker(LEASE=30.0), run.worker(LEASE=30.0)]
    kinds = ("slotted", "rated", "in_order", "throttled")
    producers = [run.producer("--seconds", "10", "--per-second", "15", "--task", kind) for kind in kinds]
    run.wait_for("enqueue-returned", 200)
    pair.fail_over()
    up = time.monotonic()
    run.wait_for("start", 1 + len(run.journal("start")))
    first = resumed(run, up)
    for producer in producers:
        producer.wait(60)
    run.wait_until_done(120)
    lost = acknowledged(run) - present(run)
    assert not lost, f"{len(lost)} acknowledged enqueues lost"
    assert not run.scalar("SELECT sum(crashes) FROM pgqueue_job"), run.outcomes()
    assert all(worker.process.poll() is None for worker in workers)
    starts = run.scalar("SELECT count(*) FROM pgqueue_execution WHERE limit_key IS NOT NULL")
    return (
        f"{len(acknowledged(run))} acknowledged, 0 lost; {starts} starts; first job {first:.1f} s after the promotion"
    )


@fault(
    "F124",
    "two operators retry the dead jobs of blocked ordered keys at the same time, and the host is lost as they run",
    invariant="the jobs of each key run in order, one at a time; the later ones wait for the dead one",
    expected="0 later jobs start before the retry; then all in order",
)
def retry_of_blocking_jobs(run: Run) -> str:
    go = run.where / "go"
    dead = [run.enqueue("limited.blocking", 1, key=key, unless=str(go), max_attempts=2)[0] for key in "abc"]
    later = [job for key in "abc" for job in run.enqueue("limited.blocking", 4, key=key, seconds=0.05)]
    worker = run.worker()
    run.wait_until(lambda: run.states().get("dead") == len(dead), what="the first jobs to die")
    run.enqueue("plain", 20, seconds=0.05)
    run.wait_until(lambda: run.states().get("succeeded") == 20)
    early = started(run) & set(later)
    assert not early, f"{early} have started behind a dead job"
    go.touch()
    run.note(BY_OPERATOR, act="retry", jobs=dead)
    clicks = [helpers.Background(partial(operator.retry, run.connect(), dead)) for _ in range(2)]
    retried = [job for click in clicks for job in click.result()]
    run.sql("NOTIFY pgqueue")
    run.wait_until(lambda: started(run) & set(later), what="a later job to start")
    worker.send_all(signal.SIGKILL)
    run.worker()
    run.wait_until_done()
    assert sorted(retried) == dead, retried
    assert run.states() == {"succeeded": len(dead) + len(later) + 20}, run.states()
    return f"{len(early)} started before the retry; {len(later)} in order after it; {counted(run.outcomes())}"


NEXT_AFTER_HOLD = """
SELECT extract(epoch FROM min(execution.claimed_at) - hold.begins)::float8
FROM (SELECT min(finished_at) AS begins FROM pgqueue_execution WHERE outcome = 'snoozed') AS hold
JOIN pgqueue_execution AS execution
    ON execution.limit_key = 'held:held' AND execution.claimed_at > hold.begins + interval '0.2 s'
GROUP BY hold.begins
"""
"""A claim that was under way when the hold was committed does not count."""


@fault(
    "F125",
    "tasks raise Throttled; one worker is killed before that is written, the other just after",
    invariant="the end of the attempt and the hold of its key are written together or not at all",
    expected="before: no hold, the job is rescued; after: 0 starts in the hold, although the worker is gone",
    quick=True,
)
def throttled_and_killed(run: Run) -> str:
    run.rules = run.rules._replace(obey_seconds=0.2)
    go = run.where / "go"
    unheld = run.enqueue("limited.throttled", 1, key="lost", queue_name="lost", until=str(go), after=30.0)
    held = run.enqueue("limited.throttled", 3, key="held", queue_name="held", until=str(go), after=4.0)
    for queue, point in (("lost", "finish.sent"), ("held", "finish.committed")):
        run.worker("--queues", queue, "--concurrency", "1", failpoint=f"{point}:killall", ready=False)
    run.wait_for("failpoint", 2)
    go.touch()
    holds = run.sql("SELECT limit_key, extract(epoch FROM held_until - now())::float8 FROM pgqueue_limit_state")
    assert [key for key, _ in holds] == ["held:held"], holds
    began = time.monotonic()
    run.worker()
    run.wait_until(lambda: run.job(unheld[0])["state"] == "succeeded", 8, "the lost job to be rescued")
    rescued = time.monotonic() - began
    run.wait_until_done()
    waited = run.scalar(NEXT_AFTER_HOLD)
    assert 3.99 <= waited < 6, waited
    assert run.outcomes_of(unheld[0]) == ["crashed", "succeeded"]
    [throttled] = run.sql("SELECT job_id FROM pgqueue_execution WHERE outcome = 'snoozed'")
    assert throttled[0] in held
    assert run.job(throttled[0])["attempt"] == 1
    return f"no hold, rescued after {rescued:.1f} s; held for 4 s, next start {waited:.2f} s after it began"


CHANGED_TWICE = """
SELECT job_id FROM fault_event WHERE place = 'job' AND old->>'state' = 'dead' AND new->>'state' = 'ready'
GROUP BY job_id HAVING count(*) > 1
"""


@fault(
    "F126",
    "workers are lost in the transaction of a batch of a bulk act, and after its commit",
    invariant="each job is retried exactly once; the act's record has each job once",
    expected=f"{BULK:,} of {BULK:,} jobs retried once and recorded once",
)
def bulk_act_loses_its_workers(run: Run) -> str:
    ids = run.enqueue("failing", BULK, max_attempts=1, before=1, queue_name="parked")
    run.meddle("UPDATE pgqueue_job SET state = 'dead', finished_at = now() WHERE id = ANY (%s)", [ids], jobs=ids)
    run.note(BY_OPERATOR, act="retry", jobs=ids)
    selection = bulk_acts.Selection("dead")
    seen = bulk_acts.preview(run.connection, "retry", selection)
    assert seen.chosen == BULK, seen
    with run.connect() as holder, holder.transaction():
        holder.execute("LOCK TABLE pgqueue_audit_job IN ACCESS EXCLUSIVE MODE")
        act = bulk_acts.request_act(run.connection, "retry", selection, previewed_at=seen.at, total=BULK)
        first = run.worker("--queues", "nothing", LEASE=8.0)
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%%pgqueue:%%'"
        run.wait_until(lambda: run.scalar(waits), 20, "a batch to wait for the locked table")
        first.send_all(signal.SIGKILL)
        run.wait_until(lambda: not run.scalar(waits), 20, "the session of the lost worker to end")
        retried = run.states().get("ready", 0)
        assert retried == 0, f"{retried} jobs retried without a record"
    run.worker("--queues", "nothing", failpoint="batch.committed:killall:2", ready=False, LEASE=8.0)
    run.wait_for("failpoint")
    partly = run.states().get("ready", 0)
    run.worker(LEASE=8.0)
    run.wait_until_done(90)
    done = run.scalar("SELECT count(*) FROM pgqueue_audit_job WHERE audit_id = %s", [act])
    twice = run.sql(CHANGED_TWICE)
    executions = run.scalar("SELECT count(*) FROM pgqueue_execution")
    assert 0 < partly < BULK, partly
    assert not twice, twice
    assert (run.states(), done, executions) == ({"succeeded": BULK}, BULK, BULK), (run.states(), done, executions)
    return f"0 after the first loss, {partly:,} after the second; {done:,} of {BULK:,} retried once and recorded once"
