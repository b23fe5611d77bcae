"""Compensations with several sessions: each is added once, and an operator's retry comes before or after it."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.lifecycle import completions, operator, sagas, steps
from django_pgqueue.lifecycle.steps import EndedStep
from django_pgqueue.lifecycle.types import Lane, TransitionStatus
from django_pgqueue.states import State, StepKind
from tests import helpers

SESSIONS = 6
ROUNDS = 60


def call() -> str:
    """Return the stored call of a compensation."""
    row = {"task_name": helpers.NOOP, "queue_name": "undo", "priority": 0, "max_attempts": 3, "delay_seconds": 0}
    return json.dumps(row)


def arguments(name: str) -> str:
    return json.dumps({"args": [name], "kwargs": {}})


def dead_job(engine: EngineConnection, *names: str) -> int:
    """Return a dead job with finished steps that have compensations: jobs of the queue `undo`."""
    [job_id] = helpers.make_jobs(engine)
    claimed = helpers.claim_one(engine)
    for place, name in enumerate(names, 1):
        step = EndedStep(name, place, StepKind.STEP, None, 0.1, compensation=call())
        steps.store_step(engine, claimed.key, step._replace(compensation_arguments=arguments(name)))
    completions.fail(engine, helpers.failed(claimed.key, None))
    return job_id


def undone(engine: EngineConnection) -> list[str]:
    """Return the steps whose compensations were added, in the order of their ids."""
    rows = engine.execute("SELECT arguments -> 'args' ->> 0 FROM pgqueue_job WHERE queue_name = 'undo' ORDER BY id")
    return [row[0] for row in rows]


def at_once(calls: Sequence[Callable[[], object]]) -> None:
    """Make all calls at the same moment, each in a thread of its own."""
    barrier = threading.Barrier(len(calls))

    def call(one: Callable[[], object]) -> None:
        barrier.wait(30)
        one()

    for running in [helpers.Background(partial(call, one)) for one in calls]:
        running.result()


def compensate(session: EngineConnection, job_id: int) -> Any:
    return sagas.compensate(session, [job_id]).added


def succeed_undo(engine: EngineConnection) -> None:
    [claimed] = helpers.claim_all(engine, Lane("undo", 0))
    completions.succeed(engine, helpers.succeeded(claimed.key))


@pytest.mark.slow
@pytest.mark.promise("compensation-once")
def test_sessions_compensate_at_once_each_step_once(engine, new_connection):
    """Several workers and the sweep look at the same dead job at the same moment, after each compensation."""
    sessions = [new_connection() for _ in range(SESSIONS)]
    for _ in range(ROUNDS):
        job_id = dead_job(engine, "a", "b")
        for expected in (["b"], ["b", "a"], ["b", "a"]):
            at_once([partial(compensate, session, job_id) for session in sessions])
            assert undone(engine) == expected
            if helpers.scalar(engine, "SELECT count(*) FROM pgqueue_job WHERE queue_name = 'undo' AND state = 'ready'"):
                succeed_undo(engine)
        engine.execute("TRUNCATE pgqueue_job, pgqueue_execution, pgqueue_step")


@pytest.mark.slow
@pytest.mark.promise("no-retry-during-compensation")
def test_retry_beside_the_compensation_either_comes_first(engine, new_connection):
    """An attempt after the retry never sees the step as done if its compensation was added."""
    first, second = new_connection(), new_connection()
    chance, retried = random.Random(4711), 0
    for _ in range(ROUNDS):
        job_id = dead_job(engine, "a")
        calls = [partial(compensate, first, job_id), partial(operator.retry, second, [job_id])]
        chance.shuffle(calls)
        at_once(calls)
        is_retried = helpers.state_of(engine, job_id) == "ready"
        retried += is_retried
        loaded = [step.name for step in steps.load_steps(engine, job_id)]
        assert loaded == ([] if undone(engine) else ["a"])
        assert is_retried or undone(engine)
        engine.execute("TRUNCATE pgqueue_job, pgqueue_execution, pgqueue_step")


def test_compensate_waits_for_no_lock_and_the_sweep_finds_the_job(engine, second):
    job_id = dead_job(engine, "a")
    with helpers.transaction(second, f"SELECT FROM pgqueue_job WHERE id = {job_id} FOR UPDATE"):
        assert compensate(engine, job_id) == []
    assert sagas.pending_sagas(engine, 0, 10) == [job_id]
    assert len(compensate(engine, job_id)) == 1
    assert sagas.pending_sagas(engine, 0, 10) == []


def test_retry_with_an_old_snapshot_runs_the_undone_step_again(engine, second, gates):
    """Between the snapshot and the lock of the retry, a worker adds the compensation. The attempt loads no step."""
    job_id = dead_job(engine, "a")
    with gates("RETRY", engine, lambda: operator.retry(engine, [job_id])) as retrying:
        assert len(compensate(second, job_id)) == 1
    assert retrying.result() == {job_id: State.READY}
    assert steps.load_steps(engine, job_id) == []
    claimed = helpers.claim_one(engine)
    step = EndedStep(
        "a", 1.0, StepKind.STEP, None, 0.1, compensation=call(), compensation_arguments=arguments("a again")
    )
    assert steps.store_step(engine, claimed.key, step) is TransitionStatus.DONE
    completions.fail(engine, helpers.failed(claimed.key, None))
    assert len(compensate(engine, job_id)) == 1
    assert undone(engine) == ["a", "a again"]


@pytest.mark.promise("compensation-once")
def test_compensate_with_an_old_snapshot_undoes_no_earlier_step(engine, second, gates):
    """Between the snapshot and the lock, the job is retried, and its next attempt stores another step and dies."""
    job_id = dead_job(engine, "a")
    with gates("COMPENSATE", engine, lambda: compensate(engine, job_id)) as compensating:
        operator.retry(second, [job_id])
        claimed = helpers.claim_one(second)
        step = EndedStep("b", 2.0, StepKind.STEP, None, 0.1, compensation=call(), compensation_arguments=arguments("b"))
        steps.store_step(second, claimed.key, step)
        completions.fail(second, helpers.failed(claimed.key, None))
    assert compensating.result() == []
    [added] = compensate(engine, job_id)
    assert (added.compensated_id, undone(engine)) == (job_id, ["b"])


def test_compensate_leaves_unfinished_jobs_alone(engine):
    job_id = dead_job(engine, "a")
    assert operator.retry(engine, [job_id]) == {job_id: State.READY}
    assert compensate(engine, job_id) == []
    helpers.claim_one(engine)
    assert compensate(engine, job_id) == []
    assert undone(engine) == []


def test_compensate_many_jobs_in_one_statement(engine):
    job_ids = [dead_job(engine, "a", "b") for _ in range(3)]
    done = sagas.compensate(engine, job_ids)
    assert [each.compensated_id for each in done.added] == job_ids
    assert undone(engine) == ["b"] * 3


@pytest.mark.parametrize(
    "values",
    [
        "compensation = '{}'",
        "compensation_arguments = NULL",
        """compensation = (compensation::jsonb || '{"search_keys": 7}')::json""",
        """compensation = (compensation::jsonb || '{"max_attempts": 0}')::json""",
    ],
)
def test_compensation_that_is_no_call_is_refused_alone(engine, values):
    job_ids = [dead_job(engine, name) for name in "abc"]
    engine.execute(f"UPDATE pgqueue_step SET {values} WHERE job_id = {job_ids[1]}")
    done = sagas.compensate(engine, job_ids)
    assert ([job_id for job_id, _ in done.refused], sorted(undone(engine))) == (job_ids[1:2], ["a", "c"])


def test_pending_sagas_are_read_in_pages(engine):
    job_ids = [dead_job(engine, "a", "b") for _ in range(3)]
    assert sagas.pending_sagas(engine, 0, 2) == job_ids[:2]
    assert sagas.pending_sagas(engine, job_ids[1], 2) == job_ids[2:]
