"""Tests of cursors: an old open snapshot must not make claims more and more expensive.

VACUUM cannot remove the old versions of claimed rows while any transaction may still see them. Their index entries
stay, and a claim from the start of the lane reads all of them. A claim with a cursor begins where the last claim ended.
The test measures buffers, not time, over 100,000 jobs. Without the cursor the same measure grows, so the test can fail.

Jobs that come to lie behind a cursor must still be found: jobs that were committed late, and jobs that became ready
again.
"""

import pytest

from django_pgqueue import sql
from django_pgqueue.lifecycle import claims, completions, operator
from django_pgqueue.lifecycle.types import Cursor, Lane, Released
from tests import helpers
from tests.helpers import DEFAULT_LANE

JOBS, BATCH = 100_000, 500


def claim(connection, cursor, limit=BATCH):
    return claims.claim(
        connection, {DEFAULT_LANE: cursor}, limit=limit, free_slots=limit, worker_id=1, lease_seconds=60.0
    )


def buffers(connection, cursor, *, paused=(), lane=DEFAULT_LANE):
    """Return how many pages a claim of 10 jobs reads in the scan that picks the jobs.

    The pages that the claim writes do not count.
    """
    params = {
        "queue_names": [lane.queue_name],
        "priorities": [lane.priority],
        "skipped_ids": [],
        "paused_task_names": list(paused),
        "time_shift": "0 s",
        "after_ats": [cursor.run_after],
        "after_ids": [cursor.job_id],
        "limit": 10,
        "worker_id": 1,
        "lease_seconds": 60.0,
        "most_bytes": 1_000_000,
    }
    with helpers.transaction(connection):
        query = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql.claims.CLAIM}"
        [[answer]] = connection.execute(query, params).fetchall()
    return pages_of_picking(answer[0]["Plan"])


def pages_of_picking(plan):
    if plan.get("Subplan Name") == "CTE due":
        return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    return next((found for below in plan.get("Plans", ()) if (found := pages_of_picking(below)) is not None), None)


@pytest.mark.usefixtures("counted_pages")
def test_claim_with_cursor_old_snapshot_cost_stays_bounded(engine, second):
    helpers.make_jobs(engine, JOBS)
    engine.execute("ANALYZE pgqueue_job")
    with helpers.transaction(second, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"):
        assert helpers.scalar(second, "SELECT count(*) FROM pgqueue_job") == JOBS
        cursor, by_cursor, from_start = Cursor(), [], []
        while claimed := claim(engine, cursor):
            cursor = helpers.cursor_after(claimed)
            completions.succeed(engine, helpers.succeeded(*(job.key for job in claimed)))
            if claimed[-1].job_id % (JOBS // 10) == 0 and claimed[-1].job_id < JOBS:
                by_cursor.append(buffers(engine, cursor))
                from_start.append(buffers(engine, Cursor()))
        assert len(by_cursor) == 9
        assert max(by_cursor) <= 2 * by_cursor[0]
        assert from_start[-1] > 10 * by_cursor[-1]
        assert from_start[-1] > 4 * from_start[0]
    assert helpers.scalar(engine, "SELECT count(*) FROM pgqueue_job WHERE state <> 'succeeded'") == 0


def test_cursor_repeated_claims_follow_due_order(engine):
    first = helpers.make_jobs(engine, 10)
    taken, cursor = [], Cursor()
    while claimed := claim(engine, cursor, limit=3):
        cursor = helpers.cursor_after(claimed)
        taken += [job.job_id for job in claimed]
    assert taken == first
    assert claim(engine, Cursor()) == []


@pytest.mark.promise("late-commit-behind-cursor-is-found")
def test_claim_from_start_finds_late_commits(engine, second):
    with helpers.transaction(second):
        late = helpers.make_jobs(second, 3)
        helpers.make_jobs(engine, 5)
        cursor = helpers.cursor_after(claim(engine, Cursor()))
        second.execute("COMMIT")
    assert claim(engine, cursor) == []
    assert [job.job_id for job in claim(engine, Cursor())] == late


@pytest.mark.parametrize("way", ["released", "priority", "moved earlier"])
def test_claim_from_start_finds_jobs_behind_cursor(engine, way):
    job_ids = helpers.make_jobs(engine, 5)
    later = helpers.make_job(engine, delay_seconds=3600.0)
    claimed = claim(engine, Cursor())
    cursor = helpers.cursor_after(claimed)
    if way == "released":
        back = job_ids[1]
        completions.release(engine, [Released(claimed[1].key)])
    else:
        back = later
        engine.execute(
            "UPDATE pgqueue_job SET run_after = statement_timestamp() - interval '1 h' WHERE id = %s", [later]
        )
    assert claim(engine, cursor) == []
    assert [job.job_id for job in claim(engine, Cursor())] == [back]


def test_claim_with_cursor_finds_retried_job(engine, job_in):
    retried = job_in("dead")
    helpers.make_jobs(engine, 3)
    cursor = helpers.cursor_after(claim(engine, Cursor()))
    operator.retry(engine, [retried.job_id])
    assert [job.job_id for job in claim(engine, cursor)] == [retried.job_id]


def test_cursor_of_one_lane_does_not_affect_other_lane(engine):
    other = Lane("other", 0)
    helpers.make_jobs(engine, 2)
    cursor = helpers.cursor_after(claim(engine, Cursor()))
    early = helpers.make_job(engine, queue_name="other")
    engine.execute("UPDATE pgqueue_job SET run_after = run_after - interval '1 h' WHERE id = %s", [early])
    cursors = {DEFAULT_LANE: cursor, other: Cursor()}
    [job] = claims.claim(engine, cursors, limit=5, free_slots=5, worker_id=1, lease_seconds=60.0)
    assert (job.job_id, job.queue_name) == (early, "other")
