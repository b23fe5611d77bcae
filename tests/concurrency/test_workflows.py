"""Workflows with several sessions: each job is advanced once, no end is missed, and a retry restores what it should."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from functools import partial

import pytest
from django.db import transaction

from django_pgqueue import chain
from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.exceptions import JobLocked
from django_pgqueue.lifecycle import bulk_acts, claims, completions, graphs
from django_pgqueue.lifecycle import operator as lifecycle_operator
from django_pgqueue.lifecycle.bulk_acts import Selection
from django_pgqueue.lifecycle.types import Claimed
from django_pgqueue.states import State
from tests import helpers
from tests.app import tasks
from tests.worker.test_bulk_acts import request

SESSIONS = 8
ROUNDS = 40
"""1,000 rounds pass too; they take less than a minute."""


def states(engine: EngineConnection, job_ids: Sequence[int]) -> list[str]:
    return [str(helpers.state_of(engine, job_id)) for job_id in job_ids]


def end_job(session: EngineConnection, claimed: Claimed, *, dies: bool = False) -> None:
    if dies:
        completions.fail(session, helpers.failed(claimed.key, None))
    else:
        completions.succeed(session, helpers.succeeded(claimed.key))


def advance(session: EngineConnection, job_id: int) -> list[graphs.AdvancedJob]:
    """Advance the dependents of a job as a worker does: again while another session has locked one."""
    advanced = graphs.advance(session, [job_id])
    jobs = advanced.jobs
    while advanced.locked_ids:
        advanced = graphs.advance(session, (), advanced.locked_ids)
        jobs += advanced.jobs
    return jobs


def at_once(calls: Sequence[Callable[[], object]]) -> None:
    """Make all calls at the same moment, each in a thread of its own."""
    barrier = threading.Barrier(len(calls))

    def call(one: Callable[[], object]) -> None:
        barrier.wait(30)
        one()

    for running in [helpers.Background(partial(call, one)) for one in calls]:
        running.result()


# ------------------------------------------------------------------ many sessions


@pytest.mark.slow
@pytest.mark.promise("workflow-advance-once")
@pytest.mark.parametrize("policy", ["cancel", "ignore"])
def test_sessions_end_dependencies_at_once_dependents_advance_once(engine, new_connection, policy):
    """Each session ends some of the dependencies and then advances the dependents. Some dependencies die."""
    sessions = [new_connection() for _ in range(SESSIONS)]
    chance = random.Random(4711)
    for number in range(ROUNDS):
        helpers.clear_tables(engine)
        engine.execute("DELETE FROM pgqueue_dependency")
        needs = helpers.make_nodes(engine, 2 * SESSIONS)
        dependents = helpers.make_nodes(engine, 3, needs=needs, policy=policy)
        last = helpers.make_nodes(engine, 1, needs=dependents, policy=policy)
        claimed = helpers.claim_all(engine)
        dead = {each.job_id for each in claimed if number % 2 and chance.random() < 0.1}
        moved: list[int] = []

        def work(session: EngineConnection, share: Sequence[Claimed]) -> None:
            for each in share:
                end_job(session, each, dies=each.job_id in dead)  # noqa: B023 -- ends within the round
                moved.extend(job.job_id for job in advance(session, each.job_id))  # noqa: B023 -- as above

        at_once([partial(work, session, claimed[place::SESSIONS]) for place, session in enumerate(sessions)])
        if dead and policy == "cancel":
            assert states(engine, dependents + last) == ["cancelled"] * 4, f"round {number}"
            assert sorted(moved) == dependents + last
        else:
            assert states(engine, dependents + last) == ["ready"] * 3 + ["waiting"], f"round {number}"
            assert sorted(moved) == dependents


@pytest.mark.slow
@pytest.mark.promise("workflow-retry-restores")
def test_sessions_retry_and_advance_at_once_nothing_stays_cancelled(engine, new_connection):
    """An operator retries a dead job while a worker cancels its dependents. Both orders end in the same states."""
    worker, operator = new_connection(), new_connection()
    for number in range(3 * ROUNDS):
        helpers.clear_tables(engine)
        engine.execute("DELETE FROM pgqueue_dependency")
        [first] = helpers.make_nodes(engine)
        [second] = helpers.make_nodes(engine, needs=[first])
        third = helpers.make_nodes(engine, 3, needs=[second])
        end_job(engine, helpers.claim_one(engine), dies=True)
        at_once([partial(advance, worker, first), partial(lifecycle_operator.retry, operator, [first])])
        assert states(engine, [first, second, *third]) == ["ready"] + ["waiting"] * 4, f"round {number}"


# ------------------------------------------------------------------ two sessions, in the orders that matter


@pytest.mark.promise("workflow-advance-once")
@pytest.mark.parametrize("first_looks", ["before the commit", "after the commit"])
def test_two_dependencies_end_at_once_the_later_commit_advances(engine, second, first_looks):
    """The first session looks before or after the second one commits. One of both sees both ends."""
    needs = helpers.make_nodes(engine, 2)
    [dependent] = helpers.make_nodes(engine, needs=needs)
    one, two = helpers.claim_all(engine)
    end_job(engine, one)
    second.execute("BEGIN")
    end_job(second, two)
    if first_looks == "before the commit":
        assert advance(engine, one.job_id) == []
        second.execute("COMMIT")
    else:
        second.execute("COMMIT")
        assert [job.job_id for job in advance(engine, one.job_id)] == [dependent]
    advance(second, two.job_id)
    assert helpers.state_of(engine, dependent) == "ready"


@pytest.mark.promise("workflow-retry-restores")
def test_retry_waits_for_a_session_that_cancels_the_dependent(engine, second):
    """The worker has locked the dependent and decided to cancel it. The retry restores it afterwards."""
    [first] = helpers.make_nodes(engine)
    [dependent] = helpers.make_nodes(engine, needs=[first])
    end_job(engine, helpers.claim_one(engine), dies=True)
    second.execute("BEGIN")
    advance(second, first)
    retrying = helpers.Background(lambda: lifecycle_operator.retry(engine, [first]))
    assert helpers.state_of(second, dependent) == "cancelled"
    second.execute("COMMIT")
    assert retrying.result() == {first: "ready"}
    assert helpers.state_of(engine, dependent) == "waiting"


@pytest.mark.promise("workflow-retry-restores")
def test_advance_does_not_cancel_behind_a_retry(engine, second):
    """The worker has found the dependent. Before it locks it, an operator retries the dead job."""
    [first] = helpers.make_nodes(engine)
    [dependent] = helpers.make_nodes(engine, needs=[first])
    end_job(engine, helpers.claim_one(engine), dies=True)
    found, _, _ = graphs.find_dependents(second, {first: 0})
    lifecycle_operator.retry(engine, [first])
    assert graphs.advance(second, (), found).jobs == []
    assert states(engine, [first, dependent]) == ["ready", "waiting"]


@pytest.mark.promise("workflow-retry-restores")
def test_retry_between_the_snapshot_and_the_lock_of_a_worker(engine, second, gates):
    """The worker has begun to lock the dependent because of the dead job, and decides after the retry."""
    [first] = helpers.make_nodes(engine)
    [dependent] = helpers.make_nodes(engine, needs=[first])
    end_job(engine, helpers.claim_one(engine), dies=True)
    with gates("LOCK_WAITING", engine, lambda: graphs.advance(engine, [first])) as advancing:
        lifecycle_operator.retry(second, [first])
    assert advancing.result().jobs == []
    assert states(second, [first, dependent]) == ["ready", "waiting"]


@pytest.mark.promise("workflow-advance-once")
def test_cancel_beside_the_last_end_is_left_to_the_sweep(engine, second):
    """The operator has not committed when the worker looks, and did not see the worker's commit when he looked."""
    needs = helpers.make_nodes(engine, 2)
    [dependent] = helpers.make_nodes(engine, needs=needs, policy="ignore")
    claimed = claims.claim_one(engine, needs[0], worker_id=1, lease_seconds=60.0)
    assert claimed is not None
    with second.transaction():
        lifecycle_operator.cancel(second, [needs[1]])
        end_job(engine, claimed)
        assert advance(engine, needs[0]) == []
    assert helpers.state_of(engine, dependent) == "waiting"
    found = graphs.find_missed(engine).job_ids
    assert [job.job_id for job in graphs.advance(engine, (), found).jobs] == [dependent]
    assert helpers.state_of(engine, dependent) == "ready"


@pytest.mark.promise("workflow-advance-once")
def test_two_sweeps_find_a_job_and_one_advances_it(engine, second):
    [first] = helpers.make_nodes(engine)
    [dependent] = helpers.make_nodes(engine, needs=[first])
    end_job(engine, helpers.claim_one(engine))
    found = [graphs.find_missed(session).job_ids for session in (engine, second)]
    assert found == [[dependent], [dependent]]
    with engine.transaction():
        assert len(graphs.advance(engine, (), found[0]).jobs) == 1
        assert graphs.advance(second, (), found[1]).locked_ids == {dependent}
    assert graphs.advance(second, (), found[1]) == graphs.Advanced([], set(), [])


@pytest.mark.promise("workflow-retry-restores")
def test_retry_one_by_one_keeps_the_order_of_dependencies(engine):
    """The database refuses one of the jobs, so the others are retried one by one."""
    [first] = helpers.make_nodes(engine)
    [dependent] = helpers.make_nodes(engine, needs=[first])
    [refused] = helpers.make_nodes(engine)
    lifecycle_operator.cancel(engine, [first, dependent, refused])
    with helpers.users_trigger(engine, f"NEW.id = {refused}"):
        assert lifecycle_operator.retry(engine, [first, dependent, refused]) == {first: "ready", dependent: "waiting"}
    assert states(engine, [first, dependent, refused]) == ["ready", "waiting", "cancelled"]


def test_advance_leaves_a_locked_dependent_for_later(engine, second):
    [first] = helpers.make_nodes(engine)
    [dependent] = helpers.make_nodes(engine, needs=[first])
    end_job(engine, helpers.claim_one(engine))
    with helpers.transaction(second, f"SELECT id FROM pgqueue_job WHERE id = {dependent} FOR UPDATE"):
        advanced = graphs.advance(engine, [first])
        assert (advanced.jobs, advanced.locked_ids) == ([], {dependent})
    assert [job.job_id for job in advance(engine, first)] == [dependent]


def test_retry_with_a_locked_dependent_changes_nothing(engine, second, monkeypatch):
    monkeypatch.setattr(graphs, "LOCK_SECONDS", 0.05)
    [first] = helpers.make_nodes(engine)
    [dependent] = helpers.make_nodes(engine, needs=[first])
    end_job(engine, helpers.claim_one(engine), dies=True)
    advance(engine, first)
    with (
        helpers.transaction(second, f"SELECT id FROM pgqueue_job WHERE id = {dependent} FOR UPDATE"),
        pytest.raises(JobLocked, match=f"job {dependent} is locked"),
    ):
        lifecycle_operator.retry(engine, [first])
    assert states(engine, [first, dependent]) == ["dead", "cancelled"]


@pytest.mark.promise("defect-locked-dependent-stops-retry")
@pytest.mark.parametrize("is_act", [False, True])
def test_retry_of_many_leaves_only_the_job_with_the_locked_dependent(engine, second, is_act):
    """A bulk act would otherwise repeat the same page until the lock is gone."""
    first, free = helpers.make_nodes(engine, 2)
    [dependent] = helpers.make_nodes(engine, needs=[first])
    for _ in range(2):
        end_job(engine, helpers.claim_one(engine), dies=True)
    advance(engine, first)
    asked = [first, free]
    with helpers.transaction(second, f"SELECT id FROM pgqueue_job WHERE id = {dependent} FOR UPDATE"):
        if is_act:
            audit_id = request(engine, "retry", Selection(job_ids=tuple(asked)))
            batch = bulk_acts.execute_batch(engine, audit_id)
            assert batch is not None
            assert (set(batch.changed), batch.outcome) == ({free}, "done")
        else:
            assert lifecycle_operator.retry(engine, asked, lock_seconds=0.05) == {free: State.READY}
    assert states(engine, [first, dependent, free]) == ["dead", "cancelled", "ready"]


@pytest.mark.parametrize("cancelled_first", [True, False])
def test_operator_cancels_a_dependent_while_it_becomes_ready(engine, second, cancelled_first):
    """Whoever comes first, the job is cancelled: a cancellation of a ready job cancels it too."""
    [first] = helpers.make_nodes(engine)
    [dependent] = helpers.make_nodes(engine, needs=[first])
    end_job(engine, helpers.claim_one(engine))
    if cancelled_first:
        found, _, _ = graphs.find_dependents(second, {first: 0})
        lifecycle_operator.cancel(engine, [dependent])
        assert graphs.advance(second, (), found).jobs == []
    else:
        advance(second, first)
        lifecycle_operator.cancel(engine, [dependent])
    assert helpers.state_of(engine, dependent) == "cancelled"


def test_cancel_in_a_transaction_cancels_dependents_in_it(committing, engine):
    """Nobody else sees the cancellations before the commit, and a rollback undoes all of them."""
    workflow = chain(tasks.add.s(1)).then(tasks.add, 1).then(tasks.add, 1).enqueue()
    first = workflow.nodes[0].job
    with transaction.atomic():
        first.cancel()
        assert set(workflow.jobs.values_list("state", flat=True)) == {"cancelled"}
        assert states(engine, workflow.job_ids) == ["ready", "waiting", "waiting"]
        transaction.set_rollback(True)
    assert states(engine, workflow.job_ids) == ["ready", "waiting", "waiting"]


@pytest.mark.promise("workflow-advance-once")
@pytest.mark.parametrize(
    ("policy", "state"),
    [("cancel", "ready"), ("ignore", "running"), ("cancel", "waiting"), ("block", "dead"), ("block", "cancelled")],
)
def test_advance_decides_again_under_the_lock(engine, policy, state):
    """The dependency has changed since the dependent was found, for example by a retry."""
    [first] = helpers.make_nodes(engine)
    [dependent] = helpers.make_nodes(engine, needs=[first], policy=policy)
    ended = "now()" if state in ("dead", "cancelled") else "NULL"
    engine.execute(f"UPDATE pgqueue_job SET state = %s, finished_at = {ended} WHERE id = %s", [state, first])
    assert graphs.advance(engine, (), [dependent]).jobs == []
    assert helpers.state_of(engine, dependent) == "waiting"
