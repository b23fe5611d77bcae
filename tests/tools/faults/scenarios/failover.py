"""Failover to a standby, and workers on a standby (F24 to F27c)."""

from __future__ import annotations

import time
from typing import Final

from django_pgqueue.db.engine_connection import EngineConnection
from tests import helpers
from tests.process.harness import Worker
from tests.tools.faults import journal, ticks
from tests.tools.faults.catalogue import fault
from tests.tools.faults.pooler import through_pooler
from tests.tools.faults.run import TASKS, Run
from tests.tools.faults.standby import Pair, replicated

from .database import ROLES, end_sessions, enqueue_load, resumed, wait_until_busy

PARKED: Final = "parked"
"""A queue that no worker serves until the scenario starts one for it."""


def acknowledged(run: Run) -> set[str]:
    """Return the tags whose enqueue was acknowledged by a commit."""
    return {one["tag"] for one in run.journal("enqueue-returned", answer="committed")}


def present(run: Run) -> set[str]:
    """Return the tags of the jobs in the table."""
    return {tag for [tag] in run.sql("SELECT arguments->'kwargs'->>'tag' FROM pgqueue_job")}


def admit_losses(run: Run) -> int:
    """Record in the history which acknowledged enqueues the failover lost; return their number."""
    lost = acknowledged(run) - present(run)
    for tag in lost:
        run.note("enqueue-returned", tag=tag, answer="unknown", lost="by failover")
    return len(lost)


@fault(
    "F24",
    "failover to an asynchronous standby that has fallen behind",
    invariant=(
        "enqueues that the standby never received are lost, and the suite counts them; everything else continues by "
        "itself"
    ),
    expected="4 of 18 acknowledged enqueues lost; running jobs are released and start again; 0 charged",
    exclusive=True,
)
def asynchronous(run: Run) -> str:
    pair = replicated(run)
    go = run.where / "go"
    running = run.enqueue("plain", 4, until=str(go))
    worker = run.worker("--queues", "default", LEASE=30.0)
    run.wait_for("start", 4)
    run.enqueue("plain", 10, queue_name=PARKED)
    pair.part()
    run.enqueue("plain", 4, queue_name=PARKED)
    pair.fail_over()
    up = time.monotonic()
    go.touch()
    lost = admit_losses(run)
    late = run.enqueue("plain", 5)
    run.wait_until(lambda: {run.job(job)["state"] for job in [*running, *late]} == {"succeeded"})
    first = resumed(run, up)
    run.worker("--queues", PARKED)
    run.wait_until_done()
    assert run.outcomes() == {"released": 4, "succeeded": 19}, run.outcomes()
    assert lost == 4, lost
    assert worker.process.poll() is None
    return f"{lost} of 18 acknowledged enqueues lost; first job {first:.1f} s after the promotion; 0 charged"


@fault(
    "F25",
    "failover to a synchronous standby while workers and an application are active",
    invariant="no acknowledged enqueue is lost",
    expected="0 lost; workers and application continue by themselves",
    exclusive=True,
)
def synchronous(run: Run) -> str:
    pair = replicated(run)
    run.configure("synchronous_standby_names", "*")
    run.wait_until(lambda: run.sql("SELECT pid FROM pg_stat_replication WHERE sync_state = 'sync'"))
    enqueue_load(run, seconds=0.1)
    workers = [run.worker(LEASE=30.0), run.worker(LEASE=30.0)]
    producer = run.producer("--seconds", "12", "--per-second", "20", "--task", "atomic")
    wait_until_busy(run, 40)
    run.wait_for("enqueue-returned", 250)
    pair.fail_over()
    up = time.monotonic()
    run.wait_for("start", 1 + len(run.journal("start")))
    first = resumed(run, up)
    producer.wait(60)
    run.wait_until_done(60)
    lost = acknowledged(run) - present(run)
    assert not lost, f"{len(lost)} acknowledged enqueues lost"
    assert not run.scalar("SELECT sum(crashes) FROM pgqueue_job"), run.outcomes()
    assert set(run.states()) == {"succeeded"}
    assert all(worker.process.poll() is None for worker in workers)
    assert not any("another installation" in worker.said for worker in workers)
    assert run.scalar("SELECT count(*) FROM pgqueue_installation") == 1
    unknown = len(run.journal("enqueue-returned", answer="unknown"))
    return (
        f"{len(acknowledged(run))} acknowledged, 0 lost, {unknown} unknown; first job {first:.1f} s after the promotion"
    )


@fault(
    "F25b",
    "failover to a synchronous standby, with unique jobs and a schedule that fires every second",
    invariant="each key has at most one live job, and each second has one job, across the failover",
    expected="0 acknowledged enqueues lost; no second without a job",
    exclusive=True,
)
def synchronous_with_keys(run: Run) -> str:
    pair = replicated(run)
    run.configure("synchronous_standby_names", "*")
    run.wait_until(lambda: run.sql("SELECT pid FROM pg_stat_replication WHERE sync_state = 'sync'"))
    each = ticks.add(run, "each second", "every 1 second", missed="all")
    for _ in range(2):
        run.worker(LEASE=30.0, SCHEDULE_INTERVAL=0.5)
    kinds = ("keyed", "periodic")
    producers = [run.producer("--seconds", "12", "--per-second", "20", "--task", kind) for kind in kinds]
    run.wait_for("enqueue-returned", 200)
    run.wait_until(lambda: len(ticks.of(run, each)) >= 3, what="three ticks")
    pair.fail_over()
    before = len(ticks.of(run, each))
    for producer in producers:
        producer.wait(60)
    run.wait_until(lambda: len(ticks.of(run, each)) >= before + 3, what="three ticks more")
    fired = ticks.stop(run, each)
    lost = acknowledged(run) - present(run)
    assert not lost, f"{len(lost)} acknowledged enqueues lost"
    seconds = (fired[-1] - fired[0]).total_seconds() + 1
    assert len(fired) == len(set(fired)) == seconds, f"{len(fired)} ticks in {seconds} seconds"
    there = len(run.journal("enqueue-returned", answer="duplicate"))
    enqueues = f"{len(acknowledged(run))} acknowledged, 0 lost, {there} returned an existing job"
    return f"{enqueues}; {len(fired)} jobs for {seconds:.0f} seconds"


@fault(
    "F25c",
    "failover to a synchronous standby behind PgBouncer, which is led to the standby after its promotion",
    invariant=(
        "the session of a supervisor survives in the pooler; no process ends again for a promotion that it has seen"
    ),
    expected="0 lost, 0 charged; each process ends at most once; all jobs enqueued afterwards succeed",
    needs=("pgbouncer",),
    exclusive=True,
)
def behind_a_pooler(run: Run) -> str:
    pair = replicated(run)
    run.settings = dict(pair.old.settings)
    pooler = through_pooler(run, server_login_retry="1")
    run.configure("synchronous_standby_names", "*")
    run.wait_until(lambda: run.sql("SELECT pid FROM pg_stat_replication WHERE sync_state = 'sync'"))
    workers = [run.worker(LEASE=60.0), run.worker(LEASE=60.0)]
    before = run.enqueue("plain", 30)
    run.wait_until(lambda: run.states() == {"succeeded": len(before)}, what="30 jobs to run on the first primary")
    pair.fail_over()
    pooler.lead_to(pair.new)
    up = time.monotonic()
    after = run.enqueue("plain", 30)
    run.wait_until(lambda: run.states() == {"succeeded": 60}, 60, "30 jobs to run on the new primary")
    first = resumed(run, up)
    run.wait_until_done()
    assert not run.scalar("SELECT sum(crashes) FROM pgqueue_job"), run.outcomes()
    assert all(worker.process.poll() is None for worker in workers)
    ended = [worker.said.count("the database was promoted") for worker in workers]
    assert max(ended) <= 1, ended
    ends = f"{sum(ended)} processes ended"
    return f"{len(after)} of {len(after)} jobs; {ends}; first job {first:.1f} s after the promotion"


@fault(
    "F27b",
    "a worker knows only a standby, before and after its promotion",
    invariant="the worker waits without busy retries, and works once the standby accepts writes",
    expected="at most 1 error a second in each loop; work starts after the promotion",
    exclusive=True,
)
def worker_on_a_standby(run: Run) -> str:
    return _on_standby(run, {})


@fault(
    "F27c",
    "a worker knows only a standby, before and after its promotion, with target_session_attrs=read-write",
    invariant="the worker waits without busy retries, and works once the standby accepts writes",
    expected="at most 1 error a second in each loop; work starts after the promotion",
    exclusive=True,
)
def worker_refused_by_a_standby(run: Run) -> str:
    return _on_standby(run, {"target_session_attrs": "read-write"})


def _on_standby(run: Run, options: dict[str, str]) -> str:
    pair = replicated(run)
    jobs = len(run.enqueue("plain", 20))
    pair.wait_until_followed()
    settings = pair.new.settings | {"OPTIONS": options}
    worker = run.worker(ready=False, database=settings, LEASE=30.0)
    worker.wait_until(lambda: "read-only" in worker.said, 30)
    began, before = time.monotonic(), worker.said.count("read-only")
    time.sleep(5)
    rate = (worker.said.count("read-only") - before) / (time.monotonic() - began)
    assert worker.process.poll() is None, worker.said
    pair.fail_over()
    up = time.monotonic()
    run.wait_until_done(60)
    assert run.states() == {"succeeded": jobs}
    return f"{rate:.1f} errors a second; first job {resumed(run, up):.1f} s after the promotion"


@fault(
    "F26",
    "the old primary comes back beside the new one and accepts writes",
    invariant="a worker that has used the new primary writes nothing to the old one; a worker that knows only the old"
    " one continues",
    expected="0 jobs run at the old primary by a worker that left it; jobs that ran on both sides are counted",
    exclusive=True,
)
def split_brain(run: Run) -> str:
    pair = replicated(run)
    elsewhere = run.where / "elsewhere"
    elsewhere.mkdir()
    both = len(run.enqueue("plain", 10, queue_name=PARKED))
    worker = run.worker("--queues", "default", LEASE=6.0)
    run.enqueue("plain", 5)
    run.wait_until(lambda: run.states().get("succeeded") == 5)
    pair.wait_until_followed()
    pair.fail_over()
    run.enqueue("plain", 5)
    run.wait_until(lambda: run.states().get("succeeded") == 10)
    pair.old.cluster.start()
    return _with_two(run, pair, worker, both)


def _with_two(run: Run, pair: Pair, worker: Worker, both: int) -> str:
    elsewhere = {journal.DIRECTORY: str(run.where / "elsewhere")}
    with pair.old.connect() as old:
        helpers.make_jobs(old, 5, task_name=f"{TASKS}plain")  # by an application that knows only the old one
        lone = run.worker("--queues", PARKED, database=pair.old.settings, variables=elsewhere)
        helpers.wait_until(lambda: _succeeded(old, PARKED) == both, 30)
        run.stop(lone)
        end_sessions(run, *ROLES)  # the worker must now choose a primary
        worker.wait_until(lambda: "timeline" in worker.said, 30)
        time.sleep(5)
        assert _succeeded(old, "default") == 5, "a worker that had left the old primary has worked there again"
    pair.old.cluster.stop("immediate")
    fenced = time.monotonic()
    run.enqueue("plain", 5)
    run.wait_until(lambda: run.states().get("succeeded") == 15)
    run.worker("--queues", PARKED)
    run.wait_until_done()
    warnings, again = worker.said.count("timeline"), resumed(run, fenced)
    return (
        f"{both} of {both} jobs of one queue ran on both sides, each side by its own worker; the worker that had"
        f" left the old primary wrote nothing there (log lines: {warnings}), and continued"
        f" {again:.1f} s after that was stopped"
    )


def _succeeded(session: EngineConnection, queue_name: str) -> int:
    query = "SELECT count(*) FROM pgqueue_job WHERE state = 'succeeded' AND queue_name = %s"
    return int(helpers.scalar(session, query, [queue_name]))


@fault(
    "F24b",
    (
        "failover to an asynchronous standby, while jobs run whose claims the standby never received: it assigns the "
        "same ids again"
    ),
    invariant="the completion of a lost execution does not count for another with the same id",
    expected="0 jobs succeed with the result of another",
    exclusive=True,
)
def ids_again(run: Run) -> str:
    pair = replicated(run)
    go = run.where / "go"
    elsewhere = run.where / "elsewhere"  # claims on the lost primary are not part of this history
    elsewhere.mkdir()
    far = {journal.DIRECTORY: str(elsewhere)}
    run.enqueue("plain", 1)
    run.worker("--until-empty").exit_code()
    pair.part()
    run.enqueue("pooled.told_apart", 96)
    held = run.enqueue("pooled.told_apart", 4, until=str(go))
    worker = run.worker(variables=far, LEASE=60.0)
    run.wait_until(
        lambda: run.states() == {"running": 4, "succeeded": 97}, what="4 jobs to run on the primary that will be lost"
    )
    pair.fail_over()
    lost = admit_losses(run)
    before = len(worker.said.splitlines())
    after = run.enqueue("pooled.told_apart", 150, until=str(run.where / "later"))
    run.worker("--concurrency", "200", LEASE=60.0)
    run.wait_for("start", 1 + 150 - 4)  # the first worker may claim 4 of them itself
    go.touch()
    ends = ("succeeded in", "does not count", "no longer belong to this worker", "the database was promoted")
    worker.wait_until(lambda: any(words in line for line in worker.said.splitlines()[before:] for words in ends), 40)
    time.sleep(3)
    early = run.sql("SELECT id FROM pgqueue_job WHERE id = ANY (%s) AND state <> 'running'", [after])
    (run.where / "later").touch()
    run.wait_until_done(60)
    assert not early, f"{len(early)} jobs were ended by the completion of another"
    return f"{lost} jobs lost with the primary, {len(held)} of them running; 0 of {len(after)} ended by another"
