"""A stateful test of two sessions whose transactions overlap at random, with a history that triggers record.

A Hypothesis state machine lets two connections begin, run transitions, commit and roll back in any order, so each of
them works while the other has locked rows and uncommitted rows. Some transitions stop between their snapshot and their
locks, at the gates of conftest.py, while the other session commits. No transition may wait: both sessions have a short
`lock_timeout`, and any error is a failure.

Triggers of the test record each change of a job's state, with the statement that made it. When both transactions have
ended, the test checks four rules:

- The history contains only edges of `states.TRANSITIONS`.
- No execution ended twice.
- Every result that a worker received is true.
- The invariants of all tables hold.
"""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from psycopg.types.json import Jsonb

from django_pgqueue.lifecycle import claims, completions, leases, operator, pruning, rescues, workers
from django_pgqueue.lifecycle.types import Cancelled, ExecutionKey, Failed, Released, TransitionStatus
from django_pgqueue.states import FINISHED, TRANSITIONS, Outcome, State, TransitionName
from tests import helpers
from tests.test_stateful import WRONG

Do = Callable[[Any], None]
WHO = st.sampled_from([0, 1])
LEASES = st.sampled_from([-1.0, 60.0])
"""Seconds: a lease that has already expired, or one that lasts for a minute."""
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
"""Claims and enqueues come more often than the rest. Otherwise the sessions would soon have no rows in common."""
ENDINGS = {
    "succeed": Outcome.SUCCEEDED,
    "discard": Outcome.SUCCEEDED,
    "fail": Outcome.FAILED,
    "crash": Outcome.CRASHED,
    "release": Outcome.RELEASED,
    "snooze": Outcome.SNOOZED,
    "obey": Outcome.CANCELLED,
}
ACT_OF = {"succeed_and_discard": TransitionName.SUCCEED, "remove": TransitionName.PRUNE}
"""Statements whose name is not the name of their transition.

The statement `release` also performs `snooze`, which has the same edges.
"""

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
    """Two sessions, 0 and 1.

    `self.open[who]` lists the callbacks to call when the open transaction of that session commits. It is None if the
    session has no open transaction.
    """

    connections: tuple[Any, Any]
    watcher: Any
    gates: Any

    @initialize(count=st.integers(1, 3), most=st.sampled_from([1, 2, 10]), lease=LEASES)
    def begin_history(self, count: int, most: int, lease: float) -> None:
        self.open: list[list[Callable[[], None]] | None] = [None, None]
        self.outcomes: dict[int, Outcome] = {}
        self.known: dict[int, ExecutionKey] = {}
        self.fresh: dict[int, int] = {}
        helpers.clear_tables(self.watcher)
        self.watcher.execute("DELETE FROM history")
        self.watcher.execute("DELETE FROM pgqueue_worker")
        for who in (0, 1):
            workers.register_worker(
                self.watcher, hostname="", pid=1, version="", queue_names="", concurrency=1, worker_id=who
            )
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
            for callback in noted if keep else ():
                callback()

    def when_committed(self, who: int, callback: Callable[[], None]) -> None:
        """Call `callback` now, or when the open transaction of this session has committed."""
        noted = self.open[who]
        callback() if noted is None else noted.append(callback)

    # ------------------------------------------------------------------ transitions

    @rule(what=st.lists(st.tuples(WHO, ACTS), min_size=1, max_size=6), data=st.data())
    def act(self, what: list[tuple[int, str]], data: st.DataObject) -> None:
        for who, name in what:
            self.plan(who, name, data)(self.connections[who])

    @rule(who=WHO, name=st.sampled_from([*STATEMENTS]), between=st.lists(ACTS, min_size=1, max_size=3), data=st.data())
    def act_with_a_gap(self, who: int, name: str, between: list[str], data: st.DataObject) -> None:
        """Stop a transition between its snapshot and its locks.

        The other session runs its own transitions in between, and commits.
        """
        self.end(who, True)  # an open transaction keeps its lock of the gate, which blocks the next use
        do, other = self.plan(who, name, data), 1 - who
        plans = [self.plan(other, each, data) for each in between]
        connection = self.connections[who]
        with self.gates(STATEMENTS[name], connection, lambda: do(connection), must_wait=False) as waiting:
            for plan in plans:
                plan(self.connections[other])
            self.end(other, True)
        waiting.result()

    def plan(self, who: int, name: str, data: st.DataObject) -> Do:
        """Draw what the transition needs, and return a function that runs it."""
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
            "beat": lambda connection: self.extend(connection, who, lease),
            "rescue": lambda connection: self.rescue(who, connection),
            "prune": self.prune,
            "set_aside": lambda connection: self.set_aside(connection, job_id),
        }
        return plans[name]

    def claim(self, who: int, connection: Any, limit: int, lease: float) -> None:
        claimed = helpers.claim_all(connection, limit=limit, worker_id=who, lease_seconds=lease)
        assert len({job.job_id for job in claimed}) == len(claimed) <= limit
        assert not {job.execution_id for job in claimed} & set(self.known)
        self.known.update({job.execution_id: job.key for job in claimed})

    def enqueue(self, who: int, connection: Any) -> None:
        job_id = helpers.make_job(connection, max_attempts=2)
        self.jobs.append(job_id)

    def extend(self, connection: Any, who: int, lease: float) -> None:
        leases.extend(connection, [who], lease_seconds=lease)

    def prune(self, connection: Any) -> None:
        for state in sorted(FINISHED):
            pruning.prune(connection, state, 0.0)

    def set_aside(self, connection: Any, job_id: int) -> None:
        claims.set_aside(connection, job_id, worker_id=1, exception_class="X", error="cannot be read")

    def finish(self, who: int, connection: Any, name: str, execution_id: int) -> None:
        key = self.known.get(execution_id, ExecutionKey(execution_id, 0.0))
        again = helpers.failed(key, 0.0 if execution_id % 2 else None, "crashed" if name == "crash" else "failed")
        transitions: dict[str, Callable[[], Any]] = {
            "succeed": lambda: completions.succeed(connection, helpers.succeeded(key)),
            "discard": lambda: completions.succeed_and_discard(connection, [key]),
            "fail": lambda: completions.fail(connection, self.without_retry_after_last(connection, again)),
            "crash": lambda: completions.fail(connection, self.without_retry_after_last(connection, again)),
            "release": lambda: completions.release(connection, [Released(key)]),
            "snooze": lambda: completions.snooze(connection, [Released(key, 0.0)]),
            "obey": lambda: completions.end_cancelled(connection, [Cancelled(key, None, 0.0)]),
        }
        result = transitions[name]()[execution_id]
        if result.status is TransitionStatus.DONE:
            self.when_committed(who, lambda: self.record_outcome(execution_id, ENDINGS[name]))

    def without_retry_after_last(self, connection: Any, failed: list[Failed]) -> list[Failed]:
        """Return the failure without a retry if this was the last attempt, as the retry policy does."""
        row = connection.execute(
            "SELECT job.max_attempts <= execution.attempt FROM pgqueue_execution AS execution "
            "JOIN pgqueue_job AS job ON job.id = job_id WHERE execution.id = %s",
            [failed[0].key.execution_id],
        ).fetchone()
        return [failed[0]._replace(delay_seconds=None)] if row and row[0] else failed

    def rescue(self, who: int, connection: Any) -> None:
        done = rescues.rescue(
            connection,
            lambda expired: None if expired.attempt >= expired.max_attempts else 0.0,
            error="its worker was lost",
        )
        for expired, _ in done:
            self.when_committed(who, lambda rescued=expired.execution_id: self.record_outcome(rescued, Outcome.CRASHED))  # type: ignore[misc]

    def operate(self, who: int, connection: Any, name: str, job_id: int) -> None:
        changed = getattr(operator, name)(connection, [job_id])
        if name == "retry" and changed:
            query = "SELECT coalesce(max(id), 0) FROM pgqueue_execution WHERE job_id = %s"
            last = helpers.scalar(connection, query, [job_id])
            self.when_committed(who, lambda: self.fresh.update({job_id: last}))

    def record_outcome(self, execution_id: int, outcome: Outcome) -> None:
        assert execution_id not in self.outcomes, (
            f"execution {execution_id} ended twice: {self.outcomes[execution_id]}, then {outcome}"
        )
        self.outcomes[execution_id] = outcome

    # ------------------------------------------------------------------ checks after both transactions have ended

    @invariant()
    def check_tables(self) -> None:
        if not hasattr(self, "open") or self.open != [None, None]:
            return
        assert self.watcher.execute(WRONG).fetchall() == []
        fresh = Jsonb({str(job_id): last for job_id, last in self.fresh.items()})
        assert self.watcher.execute(COUNTS, {"fresh": fresh}).fetchall() == []
        self.check_history()
        rows = helpers.rows_of(self.watcher, "pgqueue_execution")
        for execution_id, outcome in self.outcomes.items():
            assert execution_id not in rows or rows[execution_id]["outcome"] == outcome

    def check_history(self) -> None:
        query = "SELECT statement, job_id, old, new FROM history ORDER BY id"
        for statement, job_id, old, new in self.watcher.execute(query).fetchall():
            if job_id is None:
                assert old is None, f"an execution ended as {old} and ended again as {new}"
            elif statement is not None:
                transition = ACT_OF.get(statement) or TransitionName(statement.removesuffix("_many"))
                edges = TRANSITIONS[old and State(old)]
                assert (new and State(new)) in edges.get(transition, ()), (transition, old, new)
        self.watcher.execute("DELETE FROM history")


@pytest.fixture
def history(watcher):
    """Create triggers that record the changes of jobs and executions in the table `history`."""
    watcher.execute(NO_HISTORY)
    watcher.execute(HISTORY)
    yield watcher
    watcher.execute(NO_HISTORY)


@pytest.mark.timeout(400)  # the same as in test_stateful.py
def test_transitions_random_overlap_keep_invariants(engine, second, history, gates, monkeypatch, request):
    monkeypatch.setattr(operator, "LOCK_WAIT_SECONDS", 0.0)
    for connection in (engine, second):
        connection.execute("SET lock_timeout = '5s'")
    Sessions.connections, Sessions.watcher, Sessions.gates = (engine, second), history, gates
    examples = request.config.getoption("--stateful-examples") or settings().max_examples // 5
    run_state_machine_as_test(Sessions, settings=settings(max_examples=examples, stateful_step_count=30))
