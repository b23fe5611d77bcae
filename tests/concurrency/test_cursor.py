"""A snapshot that somebody holds open must not make claims dearer and dearer.

Claimed rows cannot be vacuumed while any transaction may still see them, so their index entries stay, and a claim from
the lane's start walks all of them. With the cursor it begins where the last claim ended. Measured in buffers, not by a
clock, over 100,000 jobs; and without the cursor the same measure grows, so the test can fail.

What a cursor passes by must be found again: jobs that committed late, and jobs that came back.
"""

import pytest

from django_pgqueue import lifecycle, sql
from django_pgqueue.lifecycle import Cursor
from tests import helpers
from tests.helpers import DEFAULT_LANE

JOBS, BATCH = 100_000, 500


def claim(connection, cursor, limit=BATCH):
    return lifecycle.claim(
        connection, {DEFAULT_LANE: cursor}, limit=limit, free_slots=limit, worker_id=1, lease_seconds=60.0
    )


def buffers(connection, cursor, *, paused=(), lane=DEFAULT_LANE):
    """How many pages a claim of 10 touches, with its own writes left out: those of the scan that picks."""
    params = {
        "queue_names": [lane.queue_name],
        "priorities": [lane.priority],
        "skipped_ids": [],
        "paused_task_names": list(paused),
        "time_shift_seconds": 0.0,
        "after_ats": [cursor.run_after],
        "after_ids": [cursor.job_id],
        "limit": 10,
        "free_slots": 10,
        "worker_id": 1,
        "lease_seconds": 60.0,
        "ahead_bytes": lifecycle.AHEAD_BYTES,
    }
    with helpers.transaction(connection):
        query = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql.claims.CLAIM}"
        [[answer]] = connection.execute(query, params).fetchall()
    return picking(answer[0]["Plan"])


def picking(plan):
    if plan.get("Subplan Name") == "CTE picked":
        return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    return next((found for below in plan.get("Plans", ()) if (found := picking(below)) is not None), None)


@pytest.fixture
def without_autovacuum(engine):
    """What it does meanwhile would make the measure depend on luck."""
    engine.execute("ALTER TABLE pgqueue_job SET (autovacuum_enabled = off)")
    yield
    engine.execute("ALTER TABLE pgqueue_job RESET (autovacuum_enabled)")


@pytest.mark.usefixtures("without_autovacuum")
def test_under_a_held_snapshot_the_last_claims_cost_what_the_first_did(engine, second):
    helpers.make_jobs(engine, JOBS)
    engine.execute("ANALYZE pgqueue_job")
    with helpers.transaction(second, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"):
        assert helpers.scalar(second, "SELECT count(*) FROM pgqueue_job") == JOBS
        cursor, by_cursor, from_start = Cursor(), [], []
        while claimed := claim(engine, cursor):
            cursor = helpers.cursor_after(claimed)
            lifecycle.succeed(engine, helpers.succeeded(*(one.key for one in claimed)))
            if claimed[-1].job_id % (JOBS // 10) == 0 and claimed[-1].job_id < JOBS:
                by_cursor.append(buffers(engine, cursor))
                from_start.append(buffers(engine, Cursor()))
        assert len(by_cursor) == 9
        assert max(by_cursor) <= 2 * by_cursor[0]
        assert from_start[-1] > 10 * by_cursor[-1]
        assert from_start[-1] > 4 * from_start[0]
    assert helpers.scalar(engine, "SELECT count(*) FROM pgqueue_job WHERE state <> 'succeeded'") == 0


def test_a_cursor_goes_on_behind_its_last_job_in_the_order_due(engine):
    first = helpers.make_jobs(engine, 10)
    taken, cursor = [], Cursor()
    while claimed := claim(engine, cursor, limit=3):
        cursor = helpers.cursor_after(claimed)
        taken += [one.job_id for one in claimed]
    assert taken == first
    assert claim(engine, Cursor()) == []


@pytest.mark.promise("late-commit-behind-cursor-is-found")
def test_jobs_that_committed_late_are_found_from_the_start(engine, second):
    with helpers.transaction(second):
        late = helpers.make_jobs(second, 3)
        helpers.make_jobs(engine, 5)
        cursor = helpers.cursor_after(claim(engine, Cursor()))
        second.execute("COMMIT")
    assert claim(engine, cursor) == []
    assert [one.job_id for one in claim(engine, Cursor())] == late


@pytest.mark.parametrize("way", ["released", "priority", "moved earlier"])
def test_jobs_that_came_back_behind_the_cursor_are_found_from_the_start(engine, way):
    job_ids = helpers.make_jobs(engine, 5)
    later = helpers.make_job(engine, delay_seconds=3600.0)
    claimed = claim(engine, Cursor())
    cursor = helpers.cursor_after(claimed)
    if way == "released":
        back = job_ids[1]
        lifecycle.release(engine, [lifecycle.Released(claimed[1].key)])
    else:
        back = later
        engine.execute(
            "UPDATE pgqueue_job SET run_after = statement_timestamp() - interval '1 h' WHERE id = %s", [later]
        )
    assert claim(engine, cursor) == []
    assert [one.job_id for one in claim(engine, Cursor())] == [back]


def test_jobs_that_were_retried_are_ahead_of_any_cursor(engine, job_in):
    one = job_in("dead")
    helpers.make_jobs(engine, 3)
    cursor = helpers.cursor_after(claim(engine, Cursor()))
    lifecycle.retry(engine, [one.job_id])
    assert [again.job_id for again in claim(engine, cursor)] == [one.job_id]


def test_a_cursor_of_one_lane_says_nothing_of_another(engine):
    other = lifecycle.Lane("other", 0)
    helpers.make_jobs(engine, 2)
    cursor = helpers.cursor_after(claim(engine, Cursor()))
    early = helpers.make_job(engine, queue_name="other")
    engine.execute("UPDATE pgqueue_job SET run_after = run_after - interval '1 h' WHERE id = %s", [early])
    cursors = {DEFAULT_LANE: cursor, other: Cursor()}
    [one] = lifecycle.claim(engine, cursors, limit=5, free_slots=5, worker_id=1, lease_seconds=60.0)
    assert (one.job_id, one.queue_name) == (early, "other")
