"""Tests of unique keys: one job at a time has a key, and a taken key blocks no change of a job's state."""

from __future__ import annotations

import pytest

from django_pgqueue import sql
from django_pgqueue.lifecycle import claims, completions, expiry, operator, unique
from django_pgqueue.lifecycle.types import Cancelled, Released
from django_pgqueue.states import Outcome
from tests import helpers

KEY = "order:7"
OTHER_CALL = '{"args":[8],"kwargs":{}}'


def wait_for_other_session(watcher, connection):
    helpers.wait_for_lock(watcher, connection.info.backend_pid)


def key_of(engine, job_id):
    return helpers.job_row(engine, job_id)["unique_key"]


# ------------------------------------------------------------------ how long a key stays taken


@pytest.mark.parametrize("ready_only", [False, True])
def test_enqueue_key_of_ready_job_adds_no_job(engine, ready_only):
    assert helpers.enqueue_unique(engine, KEY, ready_only=ready_only)
    assert helpers.enqueue_unique(engine, KEY, ready_only=ready_only) is None
    assert helpers.enqueue_unique(engine, "order:8", ready_only=ready_only)
    assert helpers.enqueue_unique(engine, KEY, ready_only=ready_only, task_name="tests.app.tasks.add"), (
        "the same key of another task is free"
    )


@pytest.mark.parametrize("ready_only", [False, True])
def test_enqueue_key_of_running_job_follows_ready_only(engine, ready_only):
    helpers.enqueue_unique(engine, KEY, ready_only=ready_only)
    claimed = helpers.claim_one(engine)
    assert bool(helpers.enqueue_unique(engine, KEY, ready_only=ready_only)) is ready_only
    completions.succeed(engine, helpers.succeeded(claimed.key))
    assert bool(helpers.enqueue_unique(engine, KEY, ready_only=ready_only)) is not ready_only


def lost_with_its_worker(engine, claimed):
    helpers.end_lease(engine)
    helpers.rescue(engine, None)


ENDS = {
    "succeeded": lambda engine, claimed: completions.succeed(engine, helpers.succeeded(claimed.key)),
    "gone": lambda engine, claimed: completions.succeed_and_discard(engine, [claimed.key]),
    "dead": lambda engine, claimed: completions.fail(engine, helpers.failed(claimed.key, None)),
    "lost with its worker": lost_with_its_worker,
    "stopped": lambda engine, claimed: completions.end_cancelled(
        engine, [Cancelled(claimed.key, *helpers.AGES, "as asked")]
    ),
}


@pytest.mark.promise("unique-key-free-at-end")
@pytest.mark.parametrize("end", ENDS)
def test_unique_key_job_ended_is_free(engine, end):
    """In another job queue package, a job whose worker was lost kept its key for ever."""
    helpers.enqueue_unique(engine, KEY)
    claimed = helpers.claim_one(engine)
    assert helpers.enqueue_unique(engine, KEY) is None
    ENDS[end](engine, claimed)
    assert helpers.enqueue_unique(engine, KEY)


def set_aside(engine, job_id):
    claims.set_aside(engine, job_id, worker_id=1, exception_class="X", error="cannot be read")


def expire(engine, job_id):
    engine.execute("UPDATE pgqueue_job SET expires_at = statement_timestamp()")
    expiry.expire(engine, worker_id=1, error="too late")


@pytest.mark.promise("unique-key-free-at-end")
@pytest.mark.parametrize("ready_only", [False, True])
@pytest.mark.parametrize("end", [lambda engine, job_id: operator.cancel(engine, [job_id]), set_aside, expire])
def test_unique_key_job_ended_before_start_is_free(engine, end, ready_only):
    job = helpers.enqueue_unique(engine, KEY, ready_only=ready_only)
    end(engine, job.job_id)
    assert helpers.enqueue_unique(engine, KEY, ready_only=ready_only)


# ------------------------------------------------------------------ races


@pytest.mark.quick
@pytest.mark.promise("unique-two-sessions")
def test_enqueue_key_uncommitted_waits_and_adds_no_job(engine, second, watcher):
    second.execute("BEGIN")
    first = helpers.enqueue_unique(second, KEY)
    waiting = helpers.Background(lambda: helpers.enqueue_unique(engine, KEY))
    wait_for_other_session(watcher, engine)
    second.execute("COMMIT")
    assert waiting.result() is None
    assert unique.holders(engine, helpers.NOOP, [KEY]) == {KEY: first.job_id}


@pytest.mark.promise("unique-rollback")
def test_enqueue_key_rolled_back_adds_job(engine, second, watcher):
    """The second call waits for the first transaction, which rolls back.

    With uniqueness by an advisory lock, the job of the second call was lost here.
    """
    second.execute("BEGIN")
    helpers.enqueue_unique(second, KEY)
    waiting = helpers.Background(lambda: helpers.enqueue_unique(engine, KEY))
    wait_for_other_session(watcher, engine)
    second.execute("ROLLBACK")
    assert waiting.result() is not None


def replaces_one(connection, call: str):
    return helpers.enqueue_unique(connection, KEY, replace=True, arguments=call)


def replaces_many(connection, call: str):
    return unique.enqueue_many_unique(connection, [helpers.unique_job(KEY, call, on_conflict="replace")])


of_both_kinds = pytest.mark.parametrize("replace", [replaces_one, replaces_many])


@of_both_kinds
def test_replace_job_being_claimed_leaves_it_unchanged(engine, second, watcher, replace):
    job = helpers.enqueue_unique(engine, KEY)
    second.execute("BEGIN")
    helpers.claim_one(second)
    replacing = helpers.Background(lambda: replace(engine, OTHER_CALL))
    wait_for_other_session(watcher, engine)
    second.execute("COMMIT")
    assert not replacing.result()
    assert helpers.job_row(engine, job.job_id)["arguments"] == {"args": [], "kwargs": {}}


@of_both_kinds
def test_replace_running_job_does_not_block_completion(engine, second, replace):
    helpers.enqueue_unique(engine, KEY)
    claimed = helpers.claim_one(engine)
    second.execute("BEGIN")
    assert not replace(second, OTHER_CALL)
    completions.succeed(engine, helpers.succeeded(claimed.key))
    assert helpers.job_row(engine, claimed.job_id)["state"] == "succeeded"
    second.execute("COMMIT")


@pytest.mark.promise("unique-two-sessions")
def test_enqueue_same_key_eight_sessions_add_one_job(new_connection):
    calls = [
        helpers.Background(lambda connection=connection: helpers.enqueue_unique(connection, KEY))
        for connection in [new_connection() for _ in range(8)]
    ]
    assert sum(call.result() is not None for call in calls) == 1


# ------------------------------------------------------------------ replace


def test_replace_ready_job_resets_its_attempts(engine):
    job = helpers.enqueue_unique(engine, KEY, delay_seconds=60.0)
    operator.run_now(engine, [job.job_id])
    completions.fail(engine, helpers.failed(helpers.claim_one(engine).key, 600.0))
    replaced = helpers.enqueue_unique(engine, KEY, replace=True, arguments=OTHER_CALL, delay_seconds=5.0, priority=9)
    assert replaced.job_id == job.job_id
    row = helpers.job_row(engine, job.job_id)
    assert (row["state"], row["attempt"], row["priority"]) == ("ready", 0, 9)
    assert row["arguments"] == {"args": [8], "kwargs": {}}
    assert row["run_after"] == replaced.run_after


# ------------------------------------------------------------------ a taken key blocks no transition


def back_by_release(engine, keys):
    return completions.release(engine, [Released(key) for key in keys])


def back_by_snooze(engine, keys):
    return completions.snooze(engine, [Released(key, 1.0) for key in keys])


def back_by_failure(engine, keys):
    return completions.fail(engine, [row for key in keys for row in helpers.failed(key)])


def back_by_crash(engine, keys):
    return completions.fail(engine, [row for key in keys for row in helpers.failed(key, 0.0, Outcome.CRASHED)])


def back_by_rescue(engine, keys):
    helpers.end_lease(engine)
    return helpers.rescue(engine)


@pytest.mark.promise("unique-returning-job")
@pytest.mark.parametrize("back", [back_by_release, back_by_snooze, back_by_failure, back_by_crash, back_by_rescue])
def test_return_to_ready_key_taken_clears_only_that_key(engine, back):
    helpers.enqueue_unique(engine, KEY, ready_only=True)
    plain = helpers.make_job(engine)
    helpers.enqueue_unique(engine, "order:8")
    claimed = helpers.claim_all(engine)
    assert len(claimed) == 3
    newer = helpers.enqueue_unique(engine, KEY, ready_only=True)
    results = back(engine, sorted(job.key for job in claimed))
    assert {result.state for result in results.values()} == {"ready"}
    keys = {job.job_id: key_of(engine, job.job_id) for job in claimed}
    assert sorted(keys.values(), key=str) == [None, None, "order:8"]
    assert keys[plain] is None
    assert key_of(engine, newer.job_id) == KEY
    assert helpers.enqueue_unique(engine, "order:8") is None, (
        "the second job must keep its key while it runs and when it is ready again"
    )


def dead_with_key(engine, key=KEY):
    job = helpers.enqueue_unique(engine, key)
    completions.fail(engine, helpers.failed(helpers.claim_one(engine).key, None))
    return job.job_id


@pytest.mark.promise("unique-operator-retry")
@pytest.mark.parametrize("running", [False, True])
def test_retry_key_taken_skips_only_that_job(engine, running):
    dead, other = dead_with_key(engine), dead_with_key(engine, "order:8")
    helpers.enqueue_unique(engine, KEY)
    if running:
        helpers.claim_one(engine)
    assert operator.retry(engine, [dead, other]) == {other: "ready"}
    assert operator.retry(engine, [dead], alone=True) == {}
    assert helpers.state_of(engine, dead) == "dead"


@pytest.mark.promise("unique-operator-retry")
def test_retry_dead_jobs_with_one_key_retries_latest(engine):
    dead = [dead_with_key(engine) for _ in range(3)]
    plain = helpers.make_job(engine)
    operator.cancel(engine, [plain])
    assert operator.retry(engine, [*dead, plain]) == {dead[-1]: "ready", plain: "ready"}
    assert operator.retry(engine, dead) == {}


@pytest.mark.parametrize("running", [False, True])
def test_retry_many_with_keys_sends_one_statement(engine, monkeypatch, running):
    """The fallback of one statement per job has the same result.

    It is only needed if another session takes a key in between.
    """
    dead = [*(dead_with_key(engine) for _ in range(3)), dead_with_key(engine, "order:8")]
    helpers.enqueue_unique(engine, "order:8")
    if running:
        helpers.claim_one(engine)
    sent, original = [], operator.execute_with_retry
    monkeypatch.setattr(operator, "execute_with_retry", lambda *given: sent.append(given[1]) or original(*given))
    assert operator.retry(engine, dead) == {dead[2]: "ready"}
    assert sent == [sql.operator.RETRY]


@pytest.mark.promise("unique-operator-retry")
@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_retry_key_being_enqueued_waits_for_its_outcome(engine, second, watcher, end):
    dead, other = dead_with_key(engine), dead_with_key(engine, "order:8")
    second.execute("BEGIN")
    helpers.enqueue_unique(second, KEY)
    retrying = helpers.Background(lambda: operator.retry(engine, [dead, other]))
    wait_for_other_session(watcher, engine)
    second.execute(end)
    wanted = {other: "ready"} if end == "COMMIT" else {other: "ready", dead: "ready"}
    assert retrying.result() == wanted


# ------------------------------------------------------------------ many at once


def many(engine, *keys, replace=False):
    on_conflict = "replace" if replace else "skip"
    jobs = [helpers.unique_job(key, on_conflict=on_conflict, max_attempts=1) for key in keys]
    return unique.enqueue_many_unique(engine, jobs)


def test_enqueue_many_taken_or_repeated_keys_are_skipped(engine):
    existing = helpers.enqueue_unique(engine, "a")
    added = many(engine, "a", "b", None, "b", None, "c")
    assert [key for _, key in added] == ["b", None, None, "c"]
    assert unique.holders(engine, helpers.NOOP, ["a", "b", "x"]) == {"a": existing.job_id, "b": added[0][0]}


def test_replace_many_repeated_key_changes_one_job(engine):
    existing = helpers.enqueue_unique(engine, "a", delay_seconds=60.0)
    changed = {key: job_id for job_id, key in many(engine, "a", "b", "a", None, None, replace=True)}
    assert changed["a"] == existing.job_id
    assert set(changed) == {"a", "b", None}
    assert helpers.scalar(engine, "SELECT count(*) FROM pgqueue_job") == 4, (
        "each of the two calls without a key adds a job"
    )


def test_replace_many_running_job_is_left_unchanged(engine):
    helpers.enqueue_unique(engine, "a")
    before = helpers.job_row(engine, helpers.claim_one(engine).job_id)
    assert [key for _, key in many(engine, "a", "b", replace=True)] == ["b"]
    assert helpers.job_row(engine, before["id"]) == before


def test_holders_same_key_of_two_tasks_are_separate(engine):
    mine = helpers.enqueue_unique(engine, KEY)
    other = helpers.enqueue_unique(engine, KEY, task_name="tests.app.tasks.add")
    assert unique.holders(engine, helpers.NOOP, [KEY]) == {KEY: mine.job_id}
    assert unique.holders(engine, "tests.app.tasks.add", [KEY]) == {KEY: other.job_id}


def test_holders_query_uses_unique_index(engine):
    helpers.make_jobs(engine, 5000)
    helpers.enqueue_unique(engine, KEY)
    engine.execute("ANALYZE pgqueue_job")
    params = {"task_name": helpers.NOOP, "unique_keys": [KEY]}
    plan = "\n".join(row[0] for row in engine.execute(f"EXPLAIN {sql.unique.HOLDERS}", params).fetchall())
    assert "pgqueue_job_unique" in plan
