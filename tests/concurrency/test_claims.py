"""Tests of which rows a claim locks, and of rows that change while it runs.

The tests check the rules of design §4:

- A claim locks exactly the jobs that it returns, with every plan, custom or generic, that the planner can choose.
- A claim checks each row again after it has locked it, and reads every column from the locked row.
- A claim skips locked rows.
- A claim does not prefetch a job on its last attempt: it claims such a job only into a free slot.
"""

import pytest

from django_pgqueue.lifecycle import claims, completions
from django_pgqueue.lifecycle.types import Lane, Released
from tests import helpers

HIGH, MIDDLE, LOW = Lane("default", 9), Lane("default", 5), Lane("default", 0)
PLANNER = ["jit", "enable_nestloop", "enable_indexscan", "enable_bitmapscan", "enable_material"]


@pytest.fixture
def three_lanes(engine):
    for lane, count in ((HIGH, 10), (MIDDLE, 10), (LOW, 1000)):
        helpers.make_jobs(engine, count, priority=lane.priority)
    engine.execute("ANALYZE pgqueue_job")


def unlocked(connection):
    """Return the number of jobs that no other session has locked."""
    return helpers.scalar(connection, "SELECT count(*) FROM (SELECT FROM pgqueue_job FOR UPDATE SKIP LOCKED) AS free")


@pytest.mark.promise("claim-locks-what-it-returns")
@pytest.mark.parametrize("plan", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("setting", [None, *PLANNER, "all"])
def test_claim_any_plan_locks_only_returned_jobs(engine, second, three_lanes, plan, setting):
    engine.prepare_threshold = 0
    turned_off = PLANNER if setting == "all" else [setting] if setting else []
    with helpers.transaction(engine, f"SET LOCAL plan_cache_mode = {plan}"):
        for name in turned_off:
            engine.execute(f"SET LOCAL {name} = off")
        claimed = helpers.claim_all(engine, HIGH, MIDDLE, LOW, limit=15)
        assert [job.priority for job in claimed] == [9] * 10 + [5] * 5
        assert unlocked(second) == 1020 - 15


@pytest.mark.parametrize("plan", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("setting", [None, "enable_seqscan", "enable_hashjoin", "enable_mergejoin"])
def test_claim_with_server_planner_defaults_respects_limit(engine, second, three_lanes, plan, setting):
    """A connection pooler can refuse the planner options of the connection.

    The session then has the defaults of the server, and the limit of a claim must hold with these too.
    """
    engine.prepare_threshold = 0
    with helpers.transaction(engine, f"SET LOCAL plan_cache_mode = {plan}"):
        for name in ("enable_seqscan", "enable_hashjoin", "enable_mergejoin"):
            engine.execute(f"SET LOCAL {name} = {'off' if name == setting else 'on'}")
        assert len(helpers.claim_all(engine, HIGH, MIDDLE, LOW, limit=15)) == 15
        assert unlocked(second) == 1020 - 15


@pytest.mark.parametrize("analysed", [False, True])
def test_claim_limit_ten_of_501_jobs_claims_ten(engine, analysed):
    if analysed:
        engine.execute("ANALYZE pgqueue_job")  # the table is empty now, so the planner expects one row
    helpers.make_jobs(engine, 501)
    assert len(helpers.claim_all(engine, limit=10)) == 10
    assert helpers.scalar(engine, "SELECT count(*) FROM pgqueue_job WHERE state = 'running'") == 10
    assert helpers.scalar(engine, "SELECT count(*) FROM pgqueue_execution") == 10


@pytest.mark.parametrize(
    ("change", "taken"),
    [
        ("state = 'cancelled', finished_at = statement_timestamp()", False),
        ("run_after = statement_timestamp() + interval '1 h'", False),
        ("priority = 5", False),
        ("queue_name = 'other'", False),
        ("attempt = 3", True),
        ('arguments = \'{"args":[7],"kwargs":{}}\'', True),
        ("max_attempts = 4, crashes = 2, task_name = 'other'", True),
    ],
)
def test_claim_row_changed_before_lock_uses_current_row(engine, second, gates, change, taken):
    job_id = helpers.make_job(engine)
    with gates("CLAIM", engine, lambda: helpers.claim_all(engine)) as claiming:
        second.execute(f"UPDATE pgqueue_job SET {change} WHERE id = %s", [job_id])
        before = helpers.job_row(second, job_id)
    claimed = claiming.result()
    after = helpers.job_row(second, job_id)
    if not taken:
        assert (claimed, after) == ([], before)
        return
    [job] = claimed
    assert job.arguments == helpers.scalar(second, "SELECT arguments::text FROM pgqueue_job")
    assert job.attempt == after["attempt"] == before["attempt"] + 1
    assert helpers.execution_row(second, job.execution_id)["attempt"] == job.attempt
    for name in ("task_name", "max_attempts", "crashes"):
        assert getattr(job, name) == before[name]


def test_claim_row_limited_before_lock_is_not_claimed(engine, second, gates):
    """The database refuses a value in the reserved column. An older row can have one."""
    with helpers.without_row_checks(engine):
        job_id = helpers.make_job(engine)
        with gates("CLAIM", engine, lambda: helpers.claim_all(engine)) as claiming:
            second.execute("UPDATE pgqueue_job SET limit_key = 'key' WHERE id = %s", [job_id])
        assert claiming.result() == helpers.claim_all(engine) == []
        assert helpers.state_of(engine, job_id) == "ready"


def test_claim_during_another_claim_claims_no_job_twice(engine, second, gates):
    helpers.make_jobs(engine, 10)
    with gates("CLAIM", engine, lambda: helpers.claim_all(engine, limit=10)) as claiming:
        first = helpers.claim_all(second, limit=7, worker_id=2)
    taken = [job.job_id for job in [*first, *claiming.result()]]
    assert sorted(taken) == sorted(set(taken))
    assert helpers.scalar(second, "SELECT count(*) FROM pgqueue_execution") == len(taken)


def test_claim_locked_jobs_are_skipped_without_waiting(impatient, second):
    job_ids = helpers.make_jobs(impatient, 10)
    with helpers.transaction(second):
        second.execute("SELECT FROM pgqueue_job WHERE id = ANY(%s) FOR UPDATE", [job_ids[:5]])
        assert [job.job_id for job in helpers.claim_all(impatient, limit=3)] == job_ids[5:8]
        assert claims.next_in_line(impatient, helpers.lanes_from_start()) == job_ids[8]
    assert [job.job_id for job in helpers.claim_all(impatient)] == [*job_ids[:5], *job_ids[8:]]


@pytest.mark.quick
@pytest.mark.promise("claims-never-share-a-job")
def test_claim_beside_uncommitted_claim_shares_no_job(impatient, second):
    helpers.make_jobs(impatient, 10)
    with helpers.transaction(second):
        first = {job.job_id for job in helpers.claim_all(second, limit=6)}
        rest = {job.job_id for job in helpers.claim_all(impatient)}
        assert (len(first), len(rest)) == (6, 4)
        assert not first & rest
        second.execute("COMMIT")


def test_claim_rolled_back_changes_nothing(engine, second):
    helpers.make_jobs(engine, 3)
    before = helpers.everything(second)
    with helpers.transaction(engine):
        assert len(helpers.claim_all(engine)) == 3
    assert helpers.everything(second) == before


def test_claim_last_attempt_needs_free_slot(engine):
    helpers.make_jobs(engine, 4)
    last = helpers.make_job(engine, max_attempts=1)
    helpers.make_jobs(engine, 4)
    assert len(helpers.claim_all(engine, free_slots=2)) == 4
    assert helpers.claim_all(engine, free_slots=0) == []
    taken = helpers.claim_all(engine, free_slots=1)
    assert [job.job_id for job in taken] == [last, *range(last + 1, last + 5)]
    rows = helpers.rows_of(engine, "pgqueue_execution")
    assert rows[taken[0].execution_id]["started_at"] is not None
    assert {rows[job.execution_id]["started_at"] for job in taken[1:]} == {None}


def test_claim_skipped_last_attempt_stays_unlocked(engine, second):
    helpers.make_job(engine, max_attempts=1)
    with helpers.transaction(engine):
        assert helpers.claim_all(engine, free_slots=0) == []
        engine.execute("COMMIT")
    assert unlocked(second) == 1


def test_claim_several_lanes_follows_lane_then_due_order(engine):
    late = helpers.make_job(engine, priority=9, queue_name="b")
    early = helpers.make_job(engine, priority=-5, queue_name="a")
    engine.execute("UPDATE pgqueue_job SET run_after = run_after - interval '1 h' WHERE id = %s", [early])
    earliest = helpers.make_job(engine, priority=9, queue_name="b")
    engine.execute("UPDATE pgqueue_job SET run_after = run_after - interval '2 h' WHERE id = %s", [earliest])
    claimed = helpers.claim_all(engine, Lane("b", 9), Lane("a", -5))
    assert [job.job_id for job in claimed] == [earliest, late, early]


def test_scan_lanes_due_and_later_returns_seconds_until_due(engine):
    assert claims.scan_lanes(engine).due_in == {}
    for queue, priority, delay in (("b", 0, 100), ("a", 5, 50), ("a", -5, 0), ("a", 100, 500), ("c", 0, 0)):
        helpers.make_job(engine, queue_name=queue, priority=priority, delay_seconds=delay)
    helpers.claim_all(engine, Lane("c", 0))
    wanted = [Lane("a", 100), Lane("a", 5), Lane("a", -5), Lane("b", 0)]
    helpers.make_job(engine, queue_name="a", priority=5, delay_seconds=70)
    found = claims.scan_lanes(engine).due_in
    assert [*found] == wanted
    assert [*found.values()] == [pytest.approx(seconds, abs=5) for seconds in (500, 50, 0, 100)]
    assert found[Lane("a", -5)] <= 0


def test_claim_skipped_ids_are_not_claimed(engine):
    first, other = helpers.make_jobs(engine, 2)
    lanes = helpers.lanes_from_start()
    assert claims.next_in_line(engine, lanes) == first
    assert claims.next_in_line(engine, lanes, skipped_ids=[first]) == other
    assert [job.job_id for job in helpers.claim_all(engine, skipped_ids=[first])] == [other]


def test_unknown_seconds_second_release_counts_from_first(engine):
    helpers.make_job(engine)
    first = helpers.claim_one(engine)
    assert first.unknown_seconds is None
    completions.release(engine, [Released(first.key)], unknown=True)
    engine.execute("UPDATE pgqueue_job SET unknown_since = unknown_since - interval '100 s'")
    second = helpers.claim_one(engine)
    assert second.unknown_seconds == pytest.approx(100, abs=5)
    completions.release(engine, [Released(second.key)], unknown=True)
    assert helpers.claim_one(engine).unknown_seconds == pytest.approx(100, abs=5)


def test_claim_without_index_scan_keeps_due_order(engine):
    """Through a pooler a session may lack the worker's planner options, and no index then provides the order.

    The claim must sort the jobs itself.
    """
    engine.execute("SET enable_indexscan = off; SET enable_seqscan = on")
    ids = [helpers.make_job(engine, delay_seconds=-60.0 * number) for number in range(10)]
    assert [claimed.job_id for claimed in helpers.claim_all(engine, limit=3)] == ids[:-4:-1]
