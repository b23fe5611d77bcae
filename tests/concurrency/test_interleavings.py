"""Two sessions whose transactions overlap at random, and a history that the tables themselves write.

A Hypothesis machine lets two connections begin, act, commit and roll back in any order, so that each acts while the
other holds locks and uncommitted rows. Some acts are stopped between their snapshot and their locks (the gates of
conftest) while the other one commits. Nothing may wait: both have a short `lock_timeout`, and any error is a failure.

Triggers of the test write down each change of a job's state, with the statement that made it. When both transactions
are over, that history may hold only edges of `states.TRANSITIONS`, no execution may have ended twice, whatever a worker
was told must be so, and the invariants of the whole tables hold.
"""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from psycopg.types.json import Jsonb

from django_pgqueue import lifecycle
from django_pgqueue.lifecycle import Cancelled, ExecutionKey, Released, TransitionStatus, operator
from django_pgqueue.states import FINISHED, TRANSITIONS, Outcome, State, TransitionName
from tests import helpers
from tests.test_stateful import WRONG

Do = Callable[[Any], None]
WHO = st.sampled_from([0, 1])
LEASES = st.sampled_from([-1.0, 60.0])
"""Seconds: over at once, or for long."""
STATEMENTS = {
    "succeed": "SUCCEED",
    "discard": "SUCCEED_AND_DISCARD",
    "fail": "FAIL",
    "crash": "FAIL",
    "release": "RELEASE",
    "snooze": "RELEASE",
    "obey": "END_CANCELLED",
    "claim": "CLAIM",
    "beat": "EXTEND",
    "rescue": "RESCUE",
    "cancel": "CANCEL",
    "retry": "RETRY",
    "run_now": "RUN_NOW",
}
ACTS = st.sampled_from([*STATEMENTS, *["claim"] * 4, *["enqueue"] * 2, "prune", "set_aside"])
"""What opens comes more often than what ends, or soon there would be nothing left to meet at."""
ENDINGS = {
    "succeed": Outcome.SUCCEEDED,
    "discard": Outcome.SUCCEEDED,
    "fail": Outcome.FAILED,
    "crash": Outcome.CRASHED,
    "release": Outcome.RELEASED,
    "snooze": Outcome.SNOOZED,
    "obey": Outcome.CANCELLED,
}
ACT_OF = {"succeed_and_discard": TransitionName.SUCCEED, "prune_task": TransitionName.PRUNE}
"""Statements whose name is not their act's; `release` is `snooze` too, and their edges are the same."""

HISTORY = """
CREATE TABLE history (id bigserial, statement text, job_id bigint, execution_id bigint, old text, new text);
CREATE FUNCTION note_job() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO history (statement, job_id, old, new) VALUES
        (substring(current_query() from 'pgqueue:(\\w+)'), coalesce(NEW.id, OLD.id), OLD.state, NEW.state);
    RETURN NULL;
END $$;
CREATE FUNCTION note_execution() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO history (statement, execution_id, old, new) VALUES
        (substring(current_query() from 'pgqueue:(\\w+)'), NEW.id, OLD.outcome, NEW.outcome);
    RETURN NULL;
END $$;
CREATE TRIGGER history AFTER INSERT OR UPDATE OR DELETE ON pgqueue_job FOR EACH ROW EXECUTE FUNCTION note_job();
CREATE TRIGGER history AFTER UPDATE ON pgqueue_execution FOR EACH ROW WHEN (OLD.outcome IS DISTINCT FROM NEW.outcome)
EXECUTE FUNCTION note_execution();
"""
NO_HISTORY = "DROP TABLE IF EXISTS history; DROP FUNCTION IF EXISTS note_job, note_execution CASCADE"
COUNTS = """
SELECT job.id, job.attempt, count(execution.id), job.crashes, count(*) FILTER (WHERE execution.outcome = 'crashed')
FROM pgqueue_job AS job
LEFT JOIN pgqueue_execution AS execution
    ON execution.job_id = job.id AND execution.id > coalesce((%(fresh)s::jsonb ->> job.id::text)::bigint, 0)
   AND execution.outcome IS DISTINCT FROM 'released' AND execution.outcome IS DISTINCT FROM 'snoozed'
GROUP BY job.id
HAVING job.attempt <> count(execution.id)
    OR job.crashes > count(*) FILTER (WHERE execution.outcome = 'crashed')
"""


class Sessions(RuleBasedStateMachine):
    """`self.open[who]`: what a session's transaction will have told once it commits, or None if it has none."""

    connections: tuple[Any, Any]
    watcher: Any
    gates: Any

    @initialize(count=st.integers(1, 3), most=st.sampled_from([1, 2, 10]), lease=LEASES)
    def begin_history(self, count: int, most: int, lease: float) -> None:
        self.open: list[list[Callable[[], None]] | None] = [None, None]
        self.told: dict[int, Outcome] = {}
        self.known: dict[int, ExecutionKey] = {}
        self.fresh: dict[int, int] = {}
        helpers.clear_tables(self.watcher)
        self.watcher.execute("DELETE FROM history")
        self.jobs = helpers.make_jobs(self.watcher, count, max_attempts=most)
        self.claim(0, self.watcher, 1, lease)

    def teardown(self) -> None:
        for who in (0, 1):
            self.connections[who].rollback()

    # ------------------------------------------------------------------ transactions

    @rule(who=WHO)
    def begin(self, who: int) -> None:
        if self.open[who] is None:
            self.connections[who].execute("BEGIN")
            self.open[who] = []

    @rule(who=WHO, keep=st.booleans())
    def end(self, who: int, keep: bool) -> None:
        noted = self.open[who]
        if noted is not None:
            self.connections[who].execute("COMMIT" if keep else "ROLLBACK")
            self.open[who] = None
            for note in noted if keep else ():
                note()

    def note(self, who: int, what: Callable[[], None]) -> None:
        """Remember what was told, at once or when the transaction has committed."""
        noted = self.open[who]
        what() if noted is None else noted.append(what)

    # ------------------------------------------------------------------ acts

    @rule(what=st.lists(st.tuples(WHO, ACTS), min_size=1, max_size=6), data=st.data())
    def act(self, what: list[tuple[int, str]], data: st.DataObject) -> None:
        for who, name in what:
            self.plan(who, name, data)(self.connections[who])

    @rule(who=WHO, name=st.sampled_from([*STATEMENTS]), between=st.lists(ACTS, min_size=1, max_size=3), data=st.data())
    def act_with_a_gap(self, who: int, name: str, between: list[str], data: st.DataObject) -> None:
        """The other session acts, and commits, between this act's snapshot and its locks."""
        self.end(who, True)  # the gate is held until the transaction ends, and would keep the next one out
        do, other = self.plan(who, name, data), 1 - who
        plans = [self.plan(other, one, data) for one in between]
        connection = self.connections[who]
        with self.gates(STATEMENTS[name], connection, lambda: do(connection), must_wait=False) as waiting:
            for plan in plans:
                plan(self.connections[other])
            self.end(other, True)
        waiting.result()

    def plan(self, who: int, name: str, data: st.DataObject) -> Do:
        """Draw what the act needs, and return the act."""
        job_id = data.draw(st.sampled_from(self.jobs[-2:]), label="job")
        execution_id = data.draw(st.sampled_from([*sorted(self.known)[-3:], 0]), label="execution")
        if name in ENDINGS:
            return lambda connection: self.finish(who, connection, name, execution_id)
        if name in ("cancel", "retry", "run_now"):
            return lambda connection: self.operate(who, connection, name, job_id)
        lease = data.draw(LEASES, label="lease")
        limit = data.draw(st.integers(1, 3), label="limit")
        plans: dict[str, Do] = {
            "claim": lambda connection: self.claim(who, connection, limit, lease),
            "enqueue": lambda connection: self.enqueue(who, connection),
            "beat": lambda connection: self.beat(connection, who, lease),
            "rescue": lambda connection: self.rescue(who, connection),
            "prune": self.prune,
            "set_aside": lambda connection: self.set_aside(connection, job_id),
        }
        return plans[name]

    def claim(self, who: int, connection: Any, limit: int, lease: float) -> None:
        claimed = helpers.claim_all(connection, limit=limit, worker_id=who, lease_seconds=lease)
        assert len({one.job_id for one in claimed}) == len(claimed) <= limit
        assert not {one.execution_id for one in claimed} & set(self.known)
        self.known.update({one.execution_id: one.key for one in claimed})

    def enqueue(self, who: int, connection: Any) -> None:
        job_id = helpers.make_job(connection, max_attempts=2)
        self.jobs.append(job_id)

    def beat(self, connection: Any, who: int, lease: float) -> None:
        lifecycle.extend(connection, [who], lease_seconds=lease)

    def prune(self, connection: Any) -> None:
        for state in sorted(FINISHED):
            lifecycle.prune(connection, state, 0.0)

    def set_aside(self, connection: Any, job_id: int) -> None:
        lifecycle.set_aside(connection, job_id, worker_id=1, exception_class="X", error="cannot be read")

    def finish(self, who: int, connection: Any, name: str, execution_id: int) -> None:
        key = self.known.get(execution_id, ExecutionKey(execution_id, 0.0))
        again = helpers.failed(key, 0.0 if execution_id % 2 else None, "crashed" if name == "crash" else "failed")
        acts: dict[str, Callable[[], Any]] = {
            "succeed": lambda: lifecycle.succeed(connection, helpers.succeeded(key)),
            "discard": lambda: lifecycle.succeed_and_discard(connection, [key]),
            "fail": lambda: lifecycle.fail(connection, self.last(connection, again)),
            "crash": lambda: lifecycle.fail(connection, self.last(connection, again)),
            "release": lambda: lifecycle.release(connection, [Released(key)]),
            "snooze": lambda: lifecycle.snooze(connection, [Released(key, 0.0)]),
            "obey": lambda: lifecycle.end_cancelled(connection, [Cancelled(key, None, 0.0)]),
        }
        told = acts[name]()[execution_id]
        if told.status is TransitionStatus.DONE:
            self.note(who, lambda: self.ended(execution_id, ENDINGS[name]))

    def last(self, connection: Any, failed: list[lifecycle.Failed]) -> list[lifecycle.Failed]:
        """The policy's part: no attempt after the last."""
        row = connection.execute(
            "SELECT job.max_attempts <= execution.attempt FROM pgqueue_execution AS execution "
            "JOIN pgqueue_job AS job ON job.id = job_id WHERE execution.id = %s",
            [failed[0].key.execution_id],
        ).fetchone()
        return [failed[0]._replace(delay_seconds=None)] if row and row[0] else failed

    def rescue(self, who: int, connection: Any) -> None:
        done = lifecycle.rescue(
            connection, lambda held: None if held.attempt >= held.max_attempts else 0.0, error="its worker was lost"
        )
        for held, _ in done:
            self.note(who, lambda one=held.execution_id: self.ended(one, Outcome.CRASHED))  # type: ignore[misc]

    def operate(self, who: int, connection: Any, name: str, job_id: int) -> None:
        changed = getattr(lifecycle, name)(connection, [job_id])
        if name == "retry" and changed:
            query = "SELECT coalesce(max(id), 0) FROM pgqueue_execution WHERE job_id = %s"
            last = helpers.scalar(connection, query, [job_id])
            self.note(who, lambda: self.fresh.update({job_id: last}))

    def ended(self, execution_id: int, outcome: Outcome) -> None:
        assert execution_id not in self.told, f"{execution_id} ended twice: {self.told[execution_id]}, then {outcome}"
        self.told[execution_id] = outcome

    # ------------------------------------------------------------------ what must hold once both are over

    @invariant()
    def all_is_well(self) -> None:
        if not hasattr(self, "open") or self.open != [None, None]:
            return
        assert self.watcher.execute(WRONG).fetchall() == []
        fresh = Jsonb({str(job_id): last for job_id, last in self.fresh.items()})
        assert self.watcher.execute(COUNTS, {"fresh": fresh}).fetchall() == []
        self.history_is_allowed()
        rows = helpers.rows_of(self.watcher, "pgqueue_execution")
        for execution_id, outcome in self.told.items():
            assert execution_id not in rows or rows[execution_id]["outcome"] == outcome

    def history_is_allowed(self) -> None:
        query = "SELECT statement, job_id, old, new FROM history ORDER BY id"
        for statement, job_id, old, new in self.watcher.execute(query).fetchall():
            if job_id is None:
                assert old is None, f"an execution that had ended as {old} ended again as {new}"
            elif statement is not None:
                act = ACT_OF.get(statement) or TransitionName(statement.removesuffix("_many"))
                edges = TRANSITIONS[old and State(old)]
                assert (new and State(new)) in edges.get(act, ()), (act, old, new)
        self.watcher.execute("DELETE FROM history")


@pytest.fixture
def history(watcher):
    """Triggers that write down what happens to jobs and executions."""
    watcher.execute(NO_HISTORY)
    watcher.execute(HISTORY)
    yield watcher
    watcher.execute(NO_HISTORY)


@pytest.mark.timeout(400)  # as test_stateful.py
def test_however_two_transactions_overlap_nothing_waits_and_nothing_is_wrong(
    engine, second, history, gates, monkeypatch, request
):
    monkeypatch.setattr(operator, "LOCK_WAIT_SECONDS", 0.0)
    for connection in (engine, second):
        connection.execute("SET lock_timeout = '5s'")
    Sessions.connections, Sessions.watcher, Sessions.gates = (engine, second), history, gates
    examples = request.config.getoption("--stateful-examples") or settings().max_examples // 5
    run_state_machine_as_test(Sessions, settings=settings(max_examples=examples, stateful_step_count=30))
