"""Jobs that spoil shared state, change their own rows, flood their queue or cannot be claimed (F70 to F82b)."""

from __future__ import annotations

import json
from typing import Any

from tests import helpers
from tests.tools.faults.app_names import REFUSED, SPOILED, STATEMENTS
from tests.tools.faults.catalogue import fault
from tests.tools.faults.run import TASKS, Run

from . import counted


def result_of(run: Run, job: int) -> Any:
    """Return the stored result of a job."""
    return run.job(job)["result"]


@fault(
    "F70",
    "arguments that cannot be stored",
    invariant="enqueue() refuses them before anything is written",
    expected=f"{len(REFUSED)} of {len(REFUSED)} refused",
)
def bad_arguments(run: Run) -> str:
    [job] = run.enqueue("leaks.enqueue_what_is_refused")
    run.worker()
    run.wait_until_done()
    refused = result_of(run, job)
    assert refused == list(REFUSED), f"not refused: {set(REFUSED) - set(refused or [])}"
    assert run.scalar("SELECT count(*) FROM pgqueue_job") == 1
    return f"{len(REFUSED)} of {len(REFUSED)} refused, 0 rows written"


@fault(
    "F72",
    "a job closes its connection, loses its session, or leaves a transaction open or aborted (also F73)",
    invariant=(
        "the worker writes the job's completion over another connection; the next job finds a clean one; a job whose "
        "transaction was aborted does not succeed"
    ),
    expected="the job with the aborted transaction is dead, the others succeed; nothing is left behind",
    quick=True,
)
def spoiled_connections(run: Run) -> str:
    return _spoil(run, SPOILED, dead=("aborted",))


@fault(
    "F74",
    "a job leaves session settings, a temporary table, a lock, a LISTEN or a cursor on its connection",
    invariant="the next job finds a clean connection",
    expected="nothing is left behind",
)
def leaked_session(run: Run) -> str:
    return _spoil(run, STATEMENTS)


def _spoil(run: Run, kinds: tuple[str, ...], dead: tuple[str, ...] = ()) -> str:
    """Use one slot, so that each inspection runs on the spoiled thread. Jobs of the kinds in `dead` must be dead."""
    [first] = run.enqueue("leaks.look")
    inspections = []
    for kind in kinds:
        [spoilt] = run.enqueue("leaks.spoil", what=kind)
        inspections += [(kind, spoilt, run.enqueue("leaks.look")[0])]
    run.worker("--concurrency", "1")
    run.wait_until_done()
    clean = result_of(run, first)
    for kind, spoilt, inspection in inspections:
        assert run.job(spoilt)["state"] == ("dead" if kind in dead else "succeeded"), kind
        found = result_of(run, inspection)
        assert found == clean, f"{kind}: {found} instead of {clean}"
    return f"{len(kinds) - len(dead)} of {len(kinds)} succeeded, {len(dead)} dead; nothing left behind"


@fault(
    "F75",
    "jobs leak open files, threads and child processes; one closes stdout and stderr",
    invariant=(
        "`--max-jobs` limits leaks; replacing a process charges no job; without leaks the number of open files does "
        "not grow"
    ),
    expected="0 charged; no more open files after 900 jobs than after 600",
)
def leaked_resources(run: Run) -> str:
    run.worker("--queues", "sound")
    counts = []
    for _ in range(3):  # the first round opens a connection for each thread
        for task in ("plain", "atomic", "coroutine"):
            run.enqueue(task, 100, queue_name="sound")
        run.wait_until_done()
        [count] = run.enqueue("leaks.count_files", queue_name="sound")
        run.wait_until_done()
        counts.append(result_of(run, count))
    assert counts[2] <= counts[1], f"open files after 300, 600 and 900 jobs: {counts}"
    run.worker("--queues", "leaking", "--max-jobs", "50")
    leaking = run.enqueue("leaks.leak", 200, queue_name="leaking")
    run.enqueue("leaks.close_output", queue_name="leaking")
    run.enqueue("plain", 20, queue_name="leaking")
    run.wait_until_done(60)
    most = max(result_of(run, job) for job in leaking)
    assert set(run.outcomes()) <= {"succeeded", "released"}, run.outcomes()
    assert most < 500, most
    files = f"{counts[0]} open files after 300 sound jobs, {counts[2]} after 900"
    return f"{files}; {most} at most with 5 leaked by each job; 0 charged"


@fault(
    "F77",
    "jobs delete, cancel and retry their own rows; rows are deleted by SQL while their jobs run",
    invariant="the completion reports that the job is gone; the worker continues",
    expected="0 processes lost, 0 executions left open",
    quick=True,
)
def own_rows(run: Run) -> str:
    go = run.where / "go"
    gone = [run.enqueue("leaks.change_own_row", how=how)[0] for how in ("delete", "delete by sql")]
    kept = [run.enqueue("leaks.change_own_row", how=how)[0] for how in ("cancel", "retry", "run_now")]
    outside = [*run.enqueue("plain", until=str(go)), *run.enqueue("atomic", until=str(go))]
    worker = run.worker()
    [child] = worker.children
    run.wait_until(lambda: len(run.journal("start")) >= 7)
    run.meddle("DELETE FROM pgqueue_job WHERE id = ANY(%s)", [outside], jobs=outside, act="delete")
    go.touch()
    run.wait_until(lambda: not run.scalar("SELECT count(*) FROM pgqueue_execution WHERE outcome IS NULL"))
    run.enqueue("plain", 20)
    run.wait_until_done()
    assert worker.children == [child]
    assert {run.job(job)["state"] for job in kept} == {"succeeded"}
    assert not any(run.job(job) for job in (*gone, *outside))
    assert not run.scalar("SELECT count(*) FROM fault_effect WHERE kind = 'atomic'")
    return (
        "4 rows deleted while their jobs ran: 0 executions left open, 0 atomic effects;"
        " 3 jobs changed their own row and succeeded"
    )


@fault(
    "F78",
    "a job enqueues 8,000 children and itself again",
    invariant="jobs of other queues run in between",
    expected="99 of 100 jobs of another queue are claimed within 1.5 s, because a new lane is seen after 1 s",
)
def multiplying(run: Run) -> str:
    run.enqueue("leaks.multiply", children=8_000)
    run.worker("--concurrency", "8")
    children = "SELECT count(*) FROM pgqueue_job WHERE queue_name = 'children' AND state = 'ready'"
    run.wait_until(lambda: run.scalar(children) > 5_000)
    others: list[int] = []
    for _ in range(100):
        others += run.enqueue("plain", queue_name="other")
    left = run.scalar(children)
    assert left > 1000, "the children were gone before the others came"
    waits = (
        "SELECT extract(epoch FROM claimed_at - enqueued_at)::float8 FROM pgqueue_execution"
        " JOIN pgqueue_job job ON job.id = job_id WHERE job_id = ANY(%s) ORDER BY 1"
    )
    run.wait_until(lambda: len(run.sql(waits, [others])) >= 100)
    latencies = [row[0] for row in run.sql(waits, [others])]
    assert latencies[98] < 5.0, latencies[98]
    run.sql(
        "DELETE FROM pgqueue_job WHERE queue_name = 'children' AND state = 'ready'"
    )  # recorded below, before the check
    removed = run.sql("SELECT job_id FROM fault_event WHERE place = 'job' AND op = 'DELETE'")
    run.note("operator", act="delete", jobs=[row[0] for row in removed])
    run.wait_until_done()
    return f"99 of 100 claimed within {latencies[98]:.2f} s while {left} children waited"


@fault(
    "F82",
    "a row makes the claim itself fail",
    invariant="the worker sets only this row aside, and records the reason; the queue continues",
    expected="199 of 199 others succeed; the bad job is dead",
    quick=True,
)
def unclaimable(run: Run) -> str:
    before = run.enqueue("plain", 50)
    [culprit] = run.enqueue("once")
    after = run.enqueue("plain", 149)
    run.sql(
        "ALTER TABLE pgqueue_job ADD CONSTRAINT bad CHECK (state <> 'running' OR task_name NOT LIKE '%%once') NOT VALID"
    )
    worker = run.worker()
    run.wait_until_done()
    assert run.states() == {"dead": 1, "succeeded": len(before) + len(after)}, run.states()
    assert run.job(culprit)["state"] == "dead"
    lines = worker.said.count("cannot be claimed")
    return f"199 of 199 others succeeded; the bad job is dead; log lines about it: {lines}"


HOSTILE = {
    "a list": "[]",
    "a number": "5",
    "no arguments": "{}",
    "arguments that are no list": '{"args": 5, "kwargs": {}}',
    "5,000 digits": json.dumps({"args": [], "kwargs": {}})[:-1] + ', "x": ' + "9" * 5000 + "}",
    "10,000 levels": '{"args": [' + "[" * 10_000 + "]" * 10_000 + '], "kwargs": {}}',
    "a NUL": '{"args": [], "kwargs": {"tag": "\\u0000"}}',
    "a surrogate": '{"args": [], "kwargs": {"tag": "\\ud800"}}',
    "an argument too many": '{"args": [1, 2, 3, 4, 5, 6], "kwargs": {}}',
}
NAMES = (
    "os.system",
    "this.s",
    "subprocess.run",
    "tests.tools.faults.app.tasks",
    "'; DROP TABLE pgqueue_job; --",
    " ",
    "\u202e",
)


@fault(
    "F82b",
    "rows not written by the package: unreadable arguments, names that are not tasks",
    invariant="a row affects only itself; no module is imported because a row names it",
    expected="all good jobs succeed; the bad jobs wait, except those whose arguments can be read",
    quick=True,
)
def hostile_rows(run: Run) -> str:
    bad = [helpers.make_job(run.connection, task_name=TASKS + "plain", arguments=[text]) for text in HOSTILE.values()]
    bad += [helpers.make_job(run.connection, task_name=name) for name in NAMES]
    good = [*run.enqueue("plain", 50), *run.enqueue("plain", 1, queue_name="'; DROP TABLE pgqueue_job; --")]
    worker = run.worker()
    [child] = worker.children
    done = "SELECT count(*) FROM pgqueue_job WHERE id = ANY(%s) AND state = 'succeeded'"
    run.wait_until(lambda: run.scalar(done, [good]) == len(good))
    run.wait_until(lambda: not run.scalar("SELECT count(*) FROM pgqueue_job WHERE state = 'running'"))
    assert worker.children == [child]
    assert "Zen of Python" not in worker.said, "a module was imported because a row named it"
    harmless = {bad[list(HOSTILE).index(kind)] for kind in ("a NUL", "a surrogate", "5,000 digits", "no arguments")}
    ran = {one["job"] for one in run.journal("start")} & set(bad) - harmless
    assert not ran, f"bodies were entered: {ran}"
    states = run.sql("SELECT state, count(*) FROM pgqueue_job WHERE id = ANY(%s) GROUP BY 1 ORDER BY 1", [bad])
    return f"{len(good)} of {len(good)} good jobs succeeded; {len(bad)} bad rows: {counted(dict(states))}"
