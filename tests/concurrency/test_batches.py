"""The ends of batches with several sessions: each callback is added once, and no end and no added job is missed."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from django.db import connection as django_connection
from django.db import transaction

from django_pgqueue import Batch, BatchFinished
from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.ends import batches as ends
from django_pgqueue.lifecycle import batches as lifecycle_batches
from django_pgqueue.lifecycle import claims, completions
from django_pgqueue.lifecycle.types import Claimed
from tests import helpers
from tests.app import tasks

SESSIONS = 8
ROUNDS = 40
"""1,000 rounds pass too; they take less than a minute."""


def batch_of(engine: EngineConnection, count: int, *, parent_id: int | None = None, is_closed: bool = True) -> int:
    """Create a batch with ready jobs, whose callbacks are jobs of the queue `callbacks`. Return its id."""
    names = ("success", "complete", "failure")
    row = {"task_name": helpers.NOOP, "queue_name": "callbacks", "priority": 0, "max_attempts": 3, "delay_seconds": 0}
    callbacks = {f"on_{name}": json.dumps({**row, "arguments": {"args": [name], "kwargs": {}}}) for name in names}
    made = lifecycle_batches.create_batch(engine, description="", parent_id=parent_id, callbacks=callbacks)
    if count:
        helpers.make_jobs(engine, count, batch_id=made.batch_id)
    if is_closed:
        lifecycle_batches.close_batch(engine, made.batch_id)
    return made.batch_id


def callbacks(engine: EngineConnection) -> list[str]:
    """Return the names of the callbacks that were added, sorted."""
    rows = engine.execute("SELECT arguments -> 'args' ->> 0 FROM pgqueue_job WHERE queue_name = 'callbacks' ORDER BY 1")
    return [row[0] for row in rows]


def settle(session: EngineConnection, batch_id: int) -> None:
    """Check a batch as a worker does: again while another session has locked it."""
    while ends.settle(session, [batch_id]).locked:
        pass


def end_job(session: EngineConnection, claimed: Claimed, *, dies: bool = False) -> None:
    if dies:
        completions.fail(session, helpers.failed(claimed.key, None))
    else:
        completions.succeed(session, helpers.succeeded(claimed.key))


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
@pytest.mark.promise("batch-callbacks-once")
def test_sessions_end_jobs_at_once_each_callback_once(engine, new_connection):
    """Each session ends its jobs and then checks the batch. Some jobs die. Meanwhile the outer batch is closed."""
    sessions = [new_connection() for _ in range(SESSIONS)]
    closer = new_connection()
    chance = random.Random(4711)
    for number in range(ROUNDS):
        helpers.clear_tables(engine)
        engine.execute("DELETE FROM pgqueue_batch")
        outer = batch_of(engine, 0, is_closed=False)
        batch_id = batch_of(engine, 3 * SESSIONS, parent_id=outer)
        claimed = helpers.claim_all(engine)
        dead = {each.job_id for each in claimed if number % 2 and chance.random() < 0.1}

        def work(session: EngineConnection, share: Sequence[Claimed]) -> None:
            for each in share:
                end_job(session, each, dies=each.job_id in dead)  # noqa: B023 -- ends within the round
                settle(session, batch_id)  # noqa: B023 -- as above

        at_once(
            [partial(work, session, claimed[place::SESSIONS]) for place, session in enumerate(sessions)]
            + [partial(lifecycle_batches.close_batch, closer, outer)]
        )
        settle(engine, outer)
        one = ["complete", "failure"] if dead else ["complete", "success"]
        assert callbacks(engine) == sorted(2 * one), f"round {number}"


@pytest.mark.slow
@pytest.mark.promise("batch-callbacks-once")
def test_ten_thousand_jobs_end_at_once_each_callback_once(engine, new_connection, request):
    """Eight sessions write 1,250 ends each, as workers do: in pieces, with a check after each piece.

    It runs one round. `--stateful-examples 1000` runs a thousand, in about half an hour.
    """
    sessions = [new_connection() for _ in range(SESSIONS)]
    for number in range(request.config.getoption("--stateful-examples") or 1):
        helpers.empty_tables(engine)
        batch_id = batch_of(engine, 10_000)
        claimed = helpers.claim_all(engine, limit=10_000)
        assert len(claimed) == 10_000
        dead = claimed[number % 10_000] if number % 2 else None

        def work(session: EngineConnection, share: Sequence[Claimed]) -> None:
            for place in range(0, len(share), 500):
                piece = [each.key for each in share[place : place + 500] if each is not dead]  # noqa: B023 -- ends within the round
                completions.succeed(session, helpers.succeeded(*piece))
                if dead is not None and dead in share[place : place + 500]:  # noqa: B023 -- as above
                    end_job(session, dead, dies=True)  # noqa: B023 -- as above
                settle(session, batch_id)  # noqa: B023 -- as above

        at_once([partial(work, session, claimed[place::SESSIONS]) for place, session in enumerate(sessions)])
        assert callbacks(engine) == (["complete", "success"] if dead is None else ["complete", "failure"]), number


@pytest.mark.slow
@pytest.mark.promise("batch-misses-no-job")
def test_sessions_add_jobs_while_the_batch_ends_none_is_missed(engine, new_connection):
    """A job is in the batch before it completes, or its `enqueue()` is refused."""
    sessions = [new_connection() for _ in range(4)]
    for _ in range(ROUNDS):
        helpers.clear_tables(engine)
        engine.execute("DELETE FROM pgqueue_batch")
        batch_id = batch_of(engine, 2)
        claimed = helpers.claim_all(engine)

        def add(session: EngineConnection) -> None:
            for _ in range(20):
                with session.transaction():
                    if lifecycle_batches.join_batch(session, batch_id):  # noqa: B023 -- ends within the round
                        return
                    [job_id] = helpers.make_jobs(session, batch_id=batch_id)  # noqa: B023 -- as above
                added = claims.claim_one(session, job_id, worker_id=1, lease_seconds=60.0)
                assert added is not None
                end_job(session, added)
                settle(session, batch_id)  # noqa: B023 -- as above

        def work(session: EngineConnection, each: Claimed) -> None:
            end_job(session, each)
            settle(session, batch_id)  # noqa: B023 -- as above

        at_once(
            [partial(work, session, each) for session, each in zip(sessions, claimed, strict=False)]
            + [partial(add, session) for session in sessions[2:]]
        )
        settle(engine, batch_id)
        assert callbacks(engine) == ["complete", "success"]
        late = "SELECT count(*) FROM pgqueue_job WHERE batch_id = %(id)s AND finished_at > (%(ended)s)"
        ended = helpers.scalar(engine, "SELECT completed_at FROM pgqueue_batch WHERE id = %s", [batch_id])
        assert helpers.scalar(engine, late, {"id": batch_id, "ended": ended}) == 0


# ------------------------------------------------------------------ two sessions, in the orders that matter


@pytest.mark.promise("batch-misses-no-job")
def test_batch_with_an_uncommitted_addition_does_not_complete(engine, second):
    batch_id = batch_of(engine, 1)
    end_job(engine, helpers.claim_one(engine))
    with helpers.transaction(second):
        assert lifecycle_batches.join_batch(second, batch_id) is False
        helpers.make_jobs(second, batch_id=batch_id)
        assert ends.settle(engine, [batch_id]).locked == {batch_id}
        second.execute("COMMIT")
    assert ends.settle(engine, [batch_id]).locked == set()
    assert callbacks(engine) == []
    end_job(engine, helpers.claim_one(engine))
    settle(engine, batch_id)
    assert callbacks(engine) == ["complete", "success"]


@pytest.mark.promise("batch-misses-no-job")
def test_batch_addition_before_the_lock_is_seen_after_it(engine, second, gates):
    """The other session adds a job between the snapshot of LOCK_BATCHES and its lock."""
    batch_id = batch_of(engine, 1)
    end_job(engine, helpers.claim_one(engine))
    with gates("LOCK_BATCHES", engine, lambda: ends.settle(engine, [batch_id])) as settling:
        second.execute("BEGIN")
        assert lifecycle_batches.join_batch(second, batch_id) is False
        helpers.make_jobs(second, batch_id=batch_id)
        second.execute("COMMIT")
    assert settling.result().changed == 0
    assert callbacks(second) == []


@pytest.mark.promise("batch-misses-no-job")
def test_batch_addition_waits_for_the_end_and_is_refused(engine, second, watcher):
    batch_id = batch_of(engine, 1)
    end_job(engine, helpers.claim_one(engine))
    with engine.transaction():
        lifecycle_batches.end_batches(engine, [batch_id])
        adding = helpers.Background(lambda: lifecycle_batches.join_batch(second, batch_id))
        helpers.wait_for_lock(watcher, second.info.backend_pid)
    assert adding.result() is True


def test_two_sessions_end_the_last_two_jobs_one_of_them_completes(engine, second):
    """Neither commit is visible to the other session when it checks, apart from its own."""
    batch_id = batch_of(engine, 2)
    first, last = helpers.claim_all(engine)
    with helpers.transaction(second):
        end_job(second, last)
        end_job(engine, first)
        settle(engine, batch_id)
        assert callbacks(engine) == []
        second.execute("COMMIT")
    settle(second, batch_id)
    assert callbacks(engine) == ["complete", "success"]


def test_batch_that_another_session_is_ending_is_left_locked(engine, second):
    batch_id = batch_of(engine, 0)
    with engine.transaction():
        assert lifecycle_batches.end_batches(engine, [batch_id])[batch_id]
        assert lifecycle_batches.end_batches(second, [batch_id]) == {batch_id: None}
    assert lifecycle_batches.end_batches(second, [batch_id]) == {batch_id: []}
    assert callbacks(engine) == ["complete", "success"]


def test_batch_that_the_database_refuses_to_end_does_not_stop_others(engine):
    batches = [batch_of(engine, 0) for _ in range(3)]
    with helpers.users_trigger(engine, f"NEW.id = {batches[1]}", table="pgqueue_batch"):
        settled = ends.settle(engine, batches)
    assert [batch_id for batch_id, _ in settled.refused] == [batches[1]]
    assert callbacks(engine) == ["complete", "complete", "success", "success"]
    assert helpers.sweep_ends(engine, "batches").changed == 2


CALL = '{"queue_name": "q", "task_name": "t", "arguments": {"args": []}'
SHIFTING = json.dumps('{"args":[],"kwargs":{}},{"args":[666],"kwargs":{}}')


@pytest.mark.parametrize(
    "call",
    [
        "{}",
        '{"task_name": 7}',
        '{"queue_name": "q", "task_name": "t"}',
        f'{{"queue_name": "q", "task_name": "t", "arguments": {SHIFTING}}}',
        CALL + ', "search_keys": {"a": 5}}',
        CALL + ', "limit_key": 5}',
        CALL + ', "priority": ' + "1" * 5000 + "}",
        CALL + ', "headers": ' + "[" * 1500 + "]" * 1500 + "}",
    ],
    ids=["empty", "number", "no arguments", "two values", "search key", "limit key", "digits", "depth"],
)
def test_batch_whose_callback_is_no_call_does_not_stop_others(engine, call):
    batches = [batch_of(engine, 0) for _ in range(3)]
    engine.execute("UPDATE pgqueue_batch SET on_complete = %s WHERE id = %s", [call, batches[1]])
    settled = ends.settle(engine, batches)
    assert [batch_id for batch_id, _ in settled.refused] == [batches[1]]
    assert callbacks(engine) == ["complete", "complete", "success", "success"]


# ------------------------------------------------------------------ applications


@pytest.mark.django_db(transaction=True)
def test_close_beside_the_last_completion_is_noticed_after_the_commit(engine):
    """The completion does not see that the batch is closed, and the closing transaction did not see the completion."""
    batch = Batch(on_complete=tasks.noop.using(queue_name="callbacks").s("complete")).open()
    tasks.add.using(batch=batch).enqueue(1)
    claimed = helpers.claim_one(engine)
    with transaction.atomic():
        batch.close()
        end_job(engine, claimed)
        settle(engine, batch.id or 0)
        assert callbacks(engine) == []
    assert callbacks(engine) == ["complete"]


@pytest.mark.django_db(transaction=True)
def test_enqueue_waits_for_the_end_of_the_batch_and_is_refused(engine, watcher):
    batch_id = batch_of(engine, 0)
    batch = Batch.get(batch_id)
    with engine.transaction():
        lifecycle_batches.end_batches(engine, [batch_id])
        adding = helpers.Background(lambda: enqueue_and_close(batch))
        query = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%%join_batch%%'"
        helpers.wait_until(lambda: watcher.execute(query).fetchone())
    with pytest.raises(BatchFinished):
        adding.result()
    assert helpers.scalar(engine, "SELECT count(*) FROM pgqueue_job WHERE batch_id IS NOT NULL") == 0


def enqueue_and_close(batch: Batch) -> None:
    try:
        tasks.add.using(batch=batch).enqueue(1)
    finally:
        django_connection.close()


@pytest.mark.django_db(transaction=True)
def test_transaction_with_an_old_snapshot_ends_no_batch(engine):
    """It would not see a job that was added since."""
    batch_id = batch_of(engine, 0)
    with transaction.atomic():
        with django_connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        result: Any = ends.settle(django_connection, [batch_id])
        assert result.locked == {batch_id}
    assert callbacks(engine) == []
