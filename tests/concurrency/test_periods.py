"""Unique keys for a period: one job each, whatever becomes of it, until the period is over."""

from __future__ import annotations

import json

import pytest

from django_pgqueue import lifecycle, sql
from django_pgqueue.db import statements
from tests import helpers

KEY = "order:7"
PERIOD_SECONDS = 3600.0
OTHER_CALL = '{"args":[8],"kwargs":{}}'


@pytest.fixture
def later(monkeypatch):
    """Move the clock of all sessions here to the end of a period that begins now."""
    return lambda: monkeypatch.setattr(statements.clock, "shift_seconds", PERIOD_SECONDS)


def waits_for_another(watcher, connection):
    helpers.wait_for_lock(watcher, connection.info.backend_pid)


# ------------------------------------------------------------------ how long a key is held


def test_for_its_period_there_is_no_other_and_then_there_is(engine, later):
    first = helpers.enqueue_for_period(engine, KEY)
    assert len(first) == 1
    assert helpers.enqueue_for_period(engine, KEY) == []
    assert helpers.enqueue_for_period(engine, "order:8")
    assert helpers.enqueue_for_period(engine, KEY, task_name="tests.app.tasks.add"), "another task's"
    later()
    assert lifecycle.holds(engine, helpers.NOOP, [KEY]) == {}
    second = helpers.enqueue_for_period(engine, KEY)
    assert lifecycle.holds(engine, helpers.NOOP, [KEY, "x"]) == {KEY: second[0]}
    assert helpers.enqueue_for_period(engine, KEY) == []


def runs(engine):
    lifecycle.succeed(engine, helpers.succeeded(helpers.claim_one(engine).key))


def is_gone_with_its_success(engine):
    lifecycle.succeed_and_discard(engine, [helpers.claim_one(engine).key])


def dies_and_is_retried(engine):
    claimed = helpers.claim_one(engine)
    lifecycle.fail(engine, helpers.failed(claimed.key, None))
    assert lifecycle.retry(engine, [claimed.job_id]) == {claimed.job_id: "ready"}


def is_rescued(engine):
    helpers.claim_one(engine)
    helpers.end_lease(engine)
    helpers.rescue(engine)


def is_cancelled(engine):
    [[job_id]] = engine.execute("SELECT id FROM pgqueue_job").fetchall()
    lifecycle.cancel(engine, [job_id])


@pytest.mark.promise("uniqueness-window-independent-of-state")
@pytest.mark.parametrize("what", [runs, is_gone_with_its_success, dies_and_is_retried, is_rescued, is_cancelled])
def test_whatever_becomes_of_the_job_the_key_is_held_and_no_act_is_stuck_on_it(engine, what):
    job_ids = helpers.enqueue_for_period(engine, KEY)
    what(engine)
    assert helpers.enqueue_for_period(engine, KEY) == []
    assert lifecycle.holds(engine, helpers.NOOP, [KEY]) == {KEY: job_ids[0]}


# ------------------------------------------------------------------ races


@pytest.mark.promise("uniqueness-window-sessions")
@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
@pytest.mark.parametrize("is_over", [False, True], ids=["new", "over"])
def test_of_two_at_once_the_second_waits_for_the_end_of_the_first(engine, second, watcher, later, end, is_over):
    if is_over:
        helpers.enqueue_for_period(engine, KEY)
        later()
    second.execute("BEGIN")
    first = helpers.enqueue_for_period(second, KEY)
    waiting = helpers.Background(lambda: helpers.enqueue_for_period(engine, KEY))
    waits_for_another(watcher, engine)
    second.execute(end)
    added = waiting.result()
    assert len(added) == (end == "ROLLBACK")
    assert lifecycle.holds(engine, helpers.NOOP, [KEY]) == {KEY: (added or first)[0]}


@pytest.mark.promise("uniqueness-window-sessions")
@pytest.mark.parametrize("is_over", [False, True], ids=["new", "over"])
def test_many_sessions_at_once_make_one_job(new_connection, engine, later, is_over):
    if is_over:
        helpers.enqueue_for_period(engine, KEY)
        later()
    calls = [
        helpers.Background(lambda connection=connection: helpers.enqueue_for_period(connection, KEY, "b", "a"))
        for connection in [new_connection() for _ in range(8)]
    ]
    assert sum(len(call.result()) for call in calls) == 3


def test_who_was_left_out_holds_up_nobody(engine, second):
    """A key that is held for long is asked for by many, each in a transaction with other work to do."""
    helpers.enqueue_for_period(engine, KEY, "other")
    second.execute("BEGIN")
    assert helpers.enqueue_for_period(second, KEY) == []
    assert helpers.enqueue_for_period(engine, "other", KEY) == [], "and waits for no lock"
    second.execute("COMMIT")


def test_a_replacement_waits_for_a_claim_and_leaves_what_runs_alone(engine, second, watcher):
    [job_id] = helpers.enqueue_for_period(engine, KEY)
    second.execute("BEGIN")
    helpers.claim_one(second)
    replacing = helpers.Background(lambda: helpers.replace_for_period(engine, KEY, call=OTHER_CALL))
    waits_for_another(watcher, engine)
    second.execute("COMMIT")
    assert replacing.result() == []
    assert helpers.job_row(engine, job_id)["arguments"] == {"args": [], "kwargs": {}}


def test_a_replacement_that_meets_another_is_the_last(engine, second, watcher):
    [job_id] = helpers.enqueue_for_period(engine, KEY)
    second.execute("BEGIN")
    assert helpers.replace_for_period(second, KEY, call='{"args":[7],"kwargs":{}}') == [job_id]
    replacing = helpers.Background(lambda: helpers.replace_for_period(engine, KEY, call=OTHER_CALL, priority=9))
    waits_for_another(watcher, engine)
    second.execute("COMMIT")
    assert replacing.result() == [job_id]
    row = helpers.job_row(engine, job_id)
    assert (row["arguments"], row["priority"], row["state"]) == (json.loads(OTHER_CALL), 9, "ready")


# ------------------------------------------------------------------ what is over is forgotten


def test_holds_that_are_over_are_forgotten_but_for_one_that_is_being_taken_anew(engine, second, later):
    helpers.enqueue_for_period(engine, "a", "b", "c")
    later()
    kept = helpers.enqueue_for_period(engine, "d")
    second.execute("BEGIN")
    kept += helpers.enqueue_for_period(second, "a")
    assert lifecycle.prune_holds(engine, limit=1) == 1
    assert lifecycle.prune_holds(engine) == 1
    second.execute("COMMIT")
    assert lifecycle.prune_holds(engine) == 0
    assert sorted(row[0] for row in engine.execute("SELECT job_id FROM pgqueue_hold").fetchall()) == sorted(kept)


@pytest.mark.parametrize(
    ("statement", "params", "index"),
    [
        (sql.unique.HOLDS, {"task_name": helpers.NOOP, "unique_keys": [KEY], "job_ids": []}, "pgqueue_hold_of"),
        (sql.unique.PRUNE_HOLDS, {"limit": 1000}, "pgqueue_hold_over"),
    ],
)
def test_holds_are_found_by_an_index(engine, statement, params, index):
    for batch in range(10):
        helpers.enqueue_for_period(engine, *(f"{batch}:{number}" for number in range(500)))
    engine.execute("ANALYZE pgqueue_hold")
    explained = engine.execute(f"EXPLAIN {statement}", {**params, "time_shift_seconds": 0.0}).fetchall()
    assert index in "\n".join(row[0] for row in explained)
