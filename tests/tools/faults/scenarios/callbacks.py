"""Hanging and raising application code, dead service threads, a completer without a connection (F90 to F92)."""

from __future__ import annotations

import json

from django_pgqueue.worker.completion.receiver_thread import CALLBACK_SECONDS
from tests.process.harness import Worker
from tests.tools.faults.catalogue import fault
from tests.tools.faults.run import Run

HOSTILE = ["tests.app.hostile"]
SERVICES = ("completer", "fetcher", "maintenance")
STARVED = "starved_role"
SESSIONS = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s"


@fault(
    "F90",
    "signal receivers hang, raise SystemExit or raise CancelledError",
    invariant="no completion, heartbeat or claim waits for a receiver",
    expected="all jobs end, 0 leases lost; the worker exits within 5 s + 2 s of SIGTERM",
    quick=True,
)
def receivers(run: Run) -> str:
    for name in ("hang", "exit", "cancel"):
        run.enqueue("plain", 20, queue_name=name)
        run.worker("--queues", name, variables={"PGQUEUE_TEST_RECEIVER": name}, TASK_MODULES=HOSTILE)
    took = run.wait_until_done()
    assert took < CALLBACK_SECONDS, "the jobs waited until a hanging receiver was abandoned"
    for worker in run.workers:
        assert run.stop(worker, within=15) == 0
    assert run.outcomes() == {"succeeded": 60}
    return f"60 of 60 jobs ended in {took:.1f} s, 0 leases lost"


@fault(
    "F91",
    f"the thread of a service dies: {', '.join(SERVICES)}",
    invariant="the process logs which thread died, exits and is replaced; no job is charged",
    expected="the process is replaced within the check interval of 1 s + 1 s; 0 charged",
)
def dead_services(run: Run) -> str:
    worker = run.worker(LEASE=10.0)
    slowest = 0.0
    for name in SERVICES:
        [child] = worker.children
        [job] = run.enqueue("services.end_service", name=name, done=str(run.where / name))
        run.wait_for("start", kind="end_service", job=job)
        slowest = max(slowest, run.wait_until(lambda old=child: worker.children not in ([old], []), 15))  # type: ignore[misc]
        run.wait_until_done()
        assert f"its service pgqueue-{name} has ended" in worker.said
        assert run.job(job)["crashes"] == 0
    return f"{len(SERVICES)} of {len(SERVICES)} processes replaced after {slowest:.1f} s at most; 0 charged"


@fault(
    "F92",
    "no connection is left for a worker's completer",
    invariant="this worker stops claiming and reports it; a healthy worker runs the jobs",
    expected="health status 'completions stuck'; 0 jobs claimed by this worker; all jobs succeed",
    quick=True,
)
def starved_completer(run: Run) -> str:
    _make_role(run)
    path = run.where / "health.json"
    # A process that cannot write for a lease is replaced. This one lives until the end, so its claims can be counted.
    starved = run.worker("--health-file", str(path), database=run.settings | {"USER": STARVED}, LEASE=120.0)
    run.enqueue("plain", 2)
    run.wait_until_done()
    run.wait_until(lambda: run.sql(SESSIONS, ["pgqueue:fetcher (listens)"]), what="the worker to listen")
    run.wait_until(lambda: _is_starved(run), what="a completion that the completer cannot write")
    run.wait_until(lambda: json.loads(path.read_text())["status"] == "completions stuck", 20)
    before, done = _claimed_by(run, starved), run.states()["succeeded"]
    run.enqueue("plain", 200)
    run.worker()
    run.wait_until(lambda: run.states()["succeeded"] >= done + 200)
    claimed = _claimed_by(run, starved) - before
    assert claimed == 0, claimed
    run.sql(f"ALTER ROLE {STARVED} CONNECTION LIMIT -1")
    run.wait_until_done()
    assert run.states() == {"succeeded": done + 201}
    assert "crashed" not in run.outcomes()
    return f"{claimed} jobs claimed by this worker; 200 of 200 run by the other"


def _is_starved(run: Run) -> bool:
    """End the completer's connection, allow no other one, and return whether the next success stays unwritten.

    With a limit of 1 the completer could take the place of another lost connection. It may have opened another one just
    before the limit applied: then that one writes the success, and is ended by the next try.
    """
    run.sql(f"ALTER ROLE {STARVED} CONNECTION LIMIT 0")
    run.sql(f"SELECT pg_terminate_backend(pid) FROM ({SESSIONS}) AS session", ["pgqueue:completer"])
    [job] = run.enqueue("plain")
    run.wait_until(lambda: run.job(job)["state"] != "ready", what="the job to be claimed")
    try:
        run.wait_until(lambda: run.job(job)["state"] == "succeeded", 2)
    except AssertionError:
        return True
    return False


def _make_role(run: Run) -> None:
    run.sql(f"CREATE ROLE {STARVED} LOGIN")
    run.at_end(lambda: _drop_role(run))
    run.sql(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {STARVED}")
    run.sql(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {STARVED}")


def _drop_role(run: Run) -> None:
    with run.connect() as session:
        session.execute(f"DROP OWNED BY {STARVED}")
        session.execute(f"DROP ROLE {STARVED}")


def _claimed_by(run: Run, worker: Worker) -> int:
    """Return how many executions the only process of this worker has opened."""
    return int(
        run.scalar(
            "SELECT count(*) FROM pgqueue_execution"
            " WHERE worker_id IN (SELECT id FROM pgqueue_worker WHERE pid = ANY(%s))",
            [worker.children],
        )
    )
