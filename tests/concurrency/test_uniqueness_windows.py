"""Tests of uniqueness windows: a key adds one job per period, independent of the state of that job."""

from __future__ import annotations

import json

import pytest

from django_pgqueue import sql
from django_pgqueue.db import statements
from django_pgqueue.lifecycle import completions, operator, ranges, unique
from tests import helpers

KEY = "order:7"
PERIOD_SECONDS = 3600.0
OTHER_CALL = '{"args":[8],"kwargs":{}}'


@pytest.fixture
def later(monkeypatch):
    """Return a function that moves the clock of all sessions of this process by `PERIOD_SECONDS`."""
    return lambda: monkeypatch.setattr(statements.clock, "shift_seconds", PERIOD_SECONDS)


def wait_for_other_session(watcher, connection):
    helpers.wait_for_lock(watcher, connection.info.backend_pid)


# ------------------------------------------------------------------ how long a key stays taken


def test_window_open_adds_no_job_until_it_ends(engine, later):
    first = helpers.enqueue_for_period(engine, KEY)
    assert len(first) == 1
    assert helpers.enqueue_for_period(engine, KEY) == []
    assert helpers.enqueue_for_period(engine, "order:8")
    assert helpers.enqueue_for_period(engine, KEY, task_name="tests.app.tasks.add"), (
        "the same key of another task is free"
    )
    later()
    assert unique.open_windows(engine, helpers.NOOP, [KEY]) == {}
    second = helpers.enqueue_for_period(engine, KEY)
    assert unique.open_windows(engine, helpers.NOOP, [KEY, "x"]) == {KEY: second[0]}
    assert helpers.enqueue_for_period(engine, KEY) == []


def runs(engine):
    completions.succeed(engine, helpers.succeeded(helpers.claim_one(engine).key))


def is_gone_with_its_success(engine):
    completions.succeed_and_discard(engine, [helpers.claim_one(engine).key])


def dies_and_is_retried(engine):
    claimed = helpers.claim_one(engine)
    completions.fail(engine, helpers.failed(claimed.key, None))
    assert operator.retry(engine, [claimed.job_id]) == {claimed.job_id: "ready"}


def is_rescued(engine):
    helpers.claim_one(engine)
    helpers.end_lease(engine)
    helpers.rescue(engine)


def is_cancelled(engine):
    [[job_id]] = engine.execute("SELECT id FROM pgqueue_job").fetchall()
    operator.cancel(engine, [job_id])


@pytest.mark.promise("uniqueness-window-independent-of-state")
@pytest.mark.parametrize("what", [runs, is_gone_with_its_success, dies_and_is_retried, is_rescued, is_cancelled])
def test_window_job_changes_state_stays_open(engine, what):
    job_ids = helpers.enqueue_for_period(engine, KEY)
    what(engine)
    assert helpers.enqueue_for_period(engine, KEY) == []
    assert unique.open_windows(engine, helpers.NOOP, [KEY]) == {KEY: job_ids[0]}


# ------------------------------------------------------------------ races


@pytest.mark.promise("uniqueness-window-sessions")
@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
@pytest.mark.parametrize("is_over", [False, True], ids=["new", "over"])
def test_enqueue_key_uncommitted_waits_for_its_outcome(engine, second, watcher, later, end, is_over):
    if is_over:
        helpers.enqueue_for_period(engine, KEY)
        later()
    second.execute("BEGIN")
    first = helpers.enqueue_for_period(second, KEY)
    waiting = helpers.Background(lambda: helpers.enqueue_for_period(engine, KEY))
    wait_for_other_session(watcher, engine)
    second.execute(end)
    added = waiting.result()
    assert len(added) == (end == "ROLLBACK")
    assert unique.open_windows(engine, helpers.NOOP, [KEY]) == {KEY: (added or first)[0]}


@pytest.mark.promise("uniqueness-window-sessions")
@pytest.mark.parametrize("is_over", [False, True], ids=["new", "over"])
def test_enqueue_eight_sessions_add_one_job_per_key(new_connection, engine, later, is_over):
    if is_over:
        helpers.enqueue_for_period(engine, KEY)
        later()
    calls = [
        helpers.Background(lambda connection=connection: helpers.enqueue_for_period(connection, KEY, "b", "a"))
        for connection in [new_connection() for _ in range(8)]
    ]
    assert sum(len(call.result()) for call in calls) == 3


def test_enqueue_key_taken_blocks_no_other_session(engine, second):
    """A skipped call must not lock the window until its transaction ends.

    Many calls ask for a key that stays taken for long, each in a transaction with other work. They would block
    each other.
    """
    helpers.enqueue_for_period(engine, KEY, "other")
    second.execute("BEGIN")
    assert helpers.enqueue_for_period(second, KEY) == []
    assert helpers.enqueue_for_period(engine, "other", KEY) == [], "a skipped call must not wait for a lock"
    second.execute("COMMIT")


def test_replace_job_being_claimed_leaves_it_unchanged(engine, second, watcher):
    [job_id] = helpers.enqueue_for_period(engine, KEY)
    second.execute("BEGIN")
    helpers.claim_one(second)
    replacing = helpers.Background(lambda: helpers.replace_for_period(engine, KEY, call=OTHER_CALL))
    wait_for_other_session(watcher, engine)
    second.execute("COMMIT")
    assert replacing.result() == []
    assert helpers.job_row(engine, job_id)["arguments"] == {"args": [], "kwargs": {}}


def test_replace_beside_replacement_last_one_wins(engine, second, watcher):
    [job_id] = helpers.enqueue_for_period(engine, KEY)
    second.execute("BEGIN")
    assert helpers.replace_for_period(second, KEY, call='{"args":[7],"kwargs":{}}') == [job_id]
    replacing = helpers.Background(lambda: helpers.replace_for_period(engine, KEY, call=OTHER_CALL, priority=9))
    wait_for_other_session(watcher, engine)
    second.execute("COMMIT")
    assert replacing.result() == [job_id]
    row = helpers.job_row(engine, job_id)
    assert (row["arguments"], row["priority"], row["state"]) == (json.loads(OTHER_CALL), 9, "ready")


@pytest.mark.promise("enqueue-many-no-deadlock")
def test_replace_many_locks_jobs_in_the_order_of_their_ids(engine, second, watcher):
    """The call waits for the first job. If it had locked the second one, a call that has the first could deadlock."""
    [first] = helpers.enqueue_for_period(engine, "b")
    [last] = helpers.enqueue_for_period(engine, "a")
    second.execute("BEGIN")
    second.execute("SELECT FROM pgqueue_job WHERE id = %s FOR UPDATE", [first])
    replacing = helpers.Background(lambda: helpers.replace_for_period(engine, "a", "b"))
    wait_for_other_session(watcher, engine)
    watcher.execute("SELECT FROM pgqueue_job WHERE id = %s FOR UPDATE NOWAIT", [last])
    second.execute("COMMIT")
    assert sorted(replacing.result()) == [first, last]


# ------------------------------------------------------------------ pruning of windows that have ended


def test_prune_windows_window_reopened_is_kept(engine, second, later):
    helpers.enqueue_for_period(engine, "a", "b", "c")
    later()
    kept = helpers.enqueue_for_period(engine, "d")
    second.execute("BEGIN")
    kept += helpers.enqueue_for_period(second, "a")
    assert unique.prune_windows(engine, limit=1) == 1
    assert unique.prune_windows(engine) == 1
    second.execute("COMMIT")
    assert unique.prune_windows(engine) == 0
    assert sorted(
        row[0] for row in engine.execute("SELECT job_id FROM pgqueue_uniqueness_window").fetchall()
    ) == sorted(kept)


@pytest.mark.parametrize(
    ("statement", "params", "index"),
    [
        (
            sql.unique.OPEN_WINDOWS,
            {"task_name": helpers.NOOP, "unique_keys": [KEY], "job_ids": []},
            "pgqueue_uniqueness_window_key",
        ),
        (sql.unique.PRUNE_WINDOWS, {"limit": 1000, **ranges.ALL._asdict()}, "pgqueue_uniqueness_window_ends"),
    ],
)
def test_window_statements_use_an_index(engine, statement, params, index):
    for batch in range(10):
        helpers.enqueue_for_period(engine, *(f"{batch}:{number}" for number in range(500)))
    engine.execute("ANALYZE pgqueue_uniqueness_window")
    explained = engine.execute(f"EXPLAIN {statement}", {**params, "time_shift": "0 s"}).fetchall()
    assert index in "\n".join(row[0] for row in explained)
