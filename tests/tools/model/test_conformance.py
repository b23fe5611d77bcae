"""The statements do what the model says.

The tests run the acts of the model one by one on PostgreSQL, and compare the tables with the model after each act. They
take every kind of step that the model knows at least once, on a shortest path. Random walks take the steps in other
orders. The tests also put the weaker fences into the real statements, which then have to violate the same invariants
as the model.
"""

import random
from collections.abc import Iterator

import pytest
from django.test import override_settings

from django_pgqueue.lifecycle import completions, leases, operator, pruning, rescues
from django_pgqueue.lifecycle.types import ExecutionKey, Failed, OpenExecution, Released, TransitionStatus
from django_pgqueue.states import Outcome, State
from django_pgqueue.worker.execution import retry_policy
from tests import helpers
from tests.statements import STATEMENTS, replace_statement
from tests.tools.model import protocol
from tests.tools.model.__main__ import under
from tests.tools.model.protocol import Act, Rules, World

pytestmark = pytest.mark.slow

WORKER_IDS = {"A": 1, "B": 2}
FENCE = "execution.outcome IS NULL"
SECOND_FENCE = "          AND job.execution_id = execution.id\n"
OTHER_FENCES = {
    "none": "true",
    "state": "job.state = 'running'",
    "attempt": "job.state = 'running' AND job.attempt = execution.attempt",
    "worker": "job.state = 'running' AND EXISTS (SELECT FROM pgqueue_execution AS other "
    "WHERE other.job_id = job.id AND other.outcome IS NULL AND other.worker_id = execution.worker_id)",
}
STATES = [State.READY, State.RUNNING, State.SUCCEEDED, State.DEAD, State.CANCELLED]


def slot_number(act: Act) -> int:
    assert isinstance(act.place, int)
    return act.place


class Replay:
    """One job in the database, on which the acts of the model are run."""

    def __init__(self, engine, rules: Rules) -> None:
        helpers.clear_tables(engine)
        engine.execute("CREATE TEMPORARY TABLE IF NOT EXISTS effect (job_id bigint)")
        engine.execute("DELETE FROM effect")
        self.engine = engine
        self.rules = rules
        self.job_id = helpers.make_job(engine, max_attempts=rules.max_attempts)
        self.world = World()
        self.ids: list[int] = []
        """The ids of the executions, in the order of their numbers in the model."""

    def follow(self, act: Act, after: World) -> None:
        """Run the act; compare the status that it returns and the rows that it leaves with the model."""
        before, self.world = self.world, after
        status = getattr(self, act.name.replace(" ", "_"), lambda before, act: None)(before, act)
        assert status == act.fate, act
        if act.name == "retry":
            self.engine.execute("DELETE FROM effect")
        assert self.tables() == self.model(), act

    def model(self):
        world = self.world
        job = None if world.state == protocol.GONE else (world.state, world.attempt, world.crashes, world.asked)
        rows = [
            (
                WORKER_IDS[execution.worker],
                execution.attempt,
                execution.outcome,
                execution.started if execution.outcome is None else None,
            )
            for execution in world.executions
        ]
        return job, rows

    def tables(self):
        job = helpers.job_row(self.engine, self.job_id)
        rows = helpers.rows_of(self.engine, "pgqueue_execution").values()
        effects = helpers.scalar(self.engine, "SELECT count(*) FROM effect")
        assert effects == self.world.effects
        return (
            job and (job["state"], job["attempt"], job["crashes"], job["cancel_requested_at"] is not None),
            [
                (row["worker_id"], row["attempt"], row["outcome"], row["started_at"] is not None)
                if row["outcome"] is None
                else (row["worker_id"], row["attempt"], row["outcome"], None)
                for row in rows
            ],
        )

    # -------------------------------------------------------------- the acts

    def claim(self, before: World, act: Act) -> None:
        ahead = act.way == "ahead"
        worker_id = WORKER_IDS[protocol.WORKERS[slot_number(act)]]
        [claimed] = helpers.claim_all(self.engine, limit=1, free_slots=0 if ahead else 1, worker_id=worker_id)
        self.ids.append(claimed.execution_id)

    def beat(self, before: World, act: Act) -> None:
        slot = before.slots[slot_number(act)]
        worker_id = WORKER_IDS[protocol.WORKERS[slot_number(act)]]
        leases.extend(self.engine, [worker_id], lease_seconds=60.0)
        leases.note_started(self.engine, [worker_id], [self.ids[slot.execution - 1]])

    def end(self, before: World, act: Act) -> None:
        if act.way == Outcome.SUCCEEDED and not self.rules.atomic and self.world.effects > before.effects:
            self.engine.execute("INSERT INTO effect VALUES (%s)", [self.job_id])

    def send(self, before: World, act: Act) -> TransitionStatus:
        slot = before.slots[slot_number(act)]
        return self.write(self.ids[slot.execution - 1], Outcome(slot.doing), before)

    def write(self, execution_id: int, ending: Outcome, before: World) -> TransitionStatus:
        if ending is Outcome.SUCCEEDED:
            return completions.succeed(self.engine, helpers.succeeded(self.key(execution_id)))[execution_id].status
        if ending is Outcome.RELEASED:
            return completions.release(self.engine, [Released(self.key(execution_id))])[execution_id].status
        return completions.fail(self.engine, [self.failure(execution_id, ending)])[execution_id].status

    def key(self, execution_id: int) -> ExecutionKey:
        return helpers.key_of(self.engine, execution_id)

    def failure(self, execution_id: int, ending: Outcome) -> Failed:
        row = helpers.execution_row(self.engine, execution_id)
        job = helpers.job_row(self.engine, self.job_id)
        if row is None or job is None:
            return Failed(self.key(execution_id), ending, 0.0, None, 0.0)
        most = self.rules.max_attempts
        if ending is Outcome.CRASHED:
            execution = OpenExecution(
                execution_id, 0, helpers.NOOP, "", job["attempt"], most, job["crashes"], True, 0.0
            )
            delay = retry_policy.delay_after_crash(execution)
        else:
            delay = None if row["attempt"] >= most else 0.0
        return Failed(self.key(execution_id), ending, delay and 0.0, None, 0.0)

    def commit(self, before: World, act: Act) -> TransitionStatus | None:
        if act.way == "failed":
            return None
        with helpers.transaction(self.engine):
            self.engine.execute("INSERT INTO effect VALUES (%s)", [self.job_id])
            status = self.write(self.ids[before.slots[slot_number(act)].execution - 1], Outcome.SUCCEEDED, before)
            if status is TransitionStatus.DONE:
                self.engine.execute("COMMIT")
        return status

    def rescue(self, before: World, act: Act) -> None:
        helpers.end_lease(self.engine)
        done = rescues.rescue(
            self.engine, lambda execution: retry_policy.delay_after_crash(execution) and 0.0, error="lost"
        )
        assert [result.status for _, result in done] == [TransitionStatus.DONE]

    def cancel(self, before: World, act: Act) -> None:
        assert operator.cancel(self.engine, [self.job_id]) == {self.job_id: State(self.world.state)}

    def retry(self, before: World, act: Act) -> None:
        assert operator.retry(self.engine, [self.job_id]) == {self.job_id: State.READY}

    def prune(self, before: World, act: Act) -> None:
        assert pruning.prune(self.engine, State(before.state), 0.0).removed == 1


def walk(engine, rules: Rules, acts: list[Act]) -> None:
    replay = Replay(engine, rules)
    for act in acts:
        after = next(world for other, world in protocol.steps(replay.world, rules) if other == act)
        replay.follow(act, after)


def kind(before: World, act: Act, after: World) -> tuple[object, ...]:
    """Return what distinguishes kinds of steps for the database."""
    return act.name, act.way, act.fate, before.state, after.state, after.crashes - before.crashes


def ways() -> Iterator[tuple[Rules, list[Act]]]:
    """Yield a shortest path for each kind of step, which ends with that step."""
    seen = set()
    for found in under("execution"):
        rules = found.rules
        for world, edges in found.edges.items():
            for act, after in edges:
                if (key := (rules.atomic, *kind(world, act, after))) not in seen:
                    seen.add(key)
                    yield rules, [*found.trace(world), act]


@pytest.fixture(autouse=True)
def crash_budget():
    """Use the crash budget of the model."""
    with override_settings(PGQUEUE={"CRASH_BUDGET": 2}):
        yield


def test_statements_each_kind_of_step_matches_the_model(engine):
    count = 0
    for rules, acts in ways():
        with override_settings(PGQUEUE={"CRASH_BUDGET": rules.crash_budget}):
            walk(engine, rules, acts)
        count += 1
    assert count > 150


@pytest.mark.parametrize("atomic", [True, False])
def test_statements_random_walks_match_the_model(engine, atomic):
    rules = Rules(atomic=atomic, max_attempts=4, give_backs=2, retries=1)
    for seed in range(30):
        choose = random.Random(seed)
        replay = Replay(engine, rules)
        for _ in range(30):
            steps = list(protocol.steps(replay.world, rules))
            if not steps:
                break
            act, after = choose.choice(steps)
            if act.name != "prune" or choose.random() < 0.1:
                replay.follow(act, after)


@pytest.mark.parametrize("fence", OTHER_FENCES)
def test_statements_weaker_fence_violate_as_the_model_does(engine, monkeypatch, fence):
    for name in ("SUCCEED", "FAIL", "RELEASE"):
        text = STATEMENTS[name]
        assert text.count(FENCE) == text.count(SECOND_FENCE) == 1
        replace_statement(monkeypatch, name, text.replace(FENCE, OTHER_FENCES[fence]).replace(SECOND_FENCE, ""))
    followed = 0
    for found in under(fence, most=500):
        followed += len(found.violations)
        with override_settings(PGQUEUE={"CRASH_BUDGET": found.rules.crash_budget}):
            for acts in found.violations.values():
                walk(engine, found.rules, acts)
    assert followed >= 5


def test_replay_changed_statement_raises(engine, monkeypatch):
    counted = STATEMENTS["RELEASE"].replace("greatest(job.attempt - 1, 0)", "job.attempt")
    replace_statement(monkeypatch, "RELEASE", counted)
    replay = Replay(engine, Rules(give_backs=1))
    with pytest.raises(AssertionError):
        for name in ("claim", "give back", "send"):
            steps = protocol.steps(replay.world, replay.rules)
            replay.follow(*next((act, after) for act, after in steps if act.name == name))
