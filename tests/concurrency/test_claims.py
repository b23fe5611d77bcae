"""What a claim locks, and which rows it takes when they change under it.

Holds what design §4 claims: a claim locks exactly what it returns, whatever the planner would rather do and with
custom and generic plans alike; each row is judged again after its lock, and every column comes from the locked row;
a row that somebody holds is passed over; behind the free slots no job on its last attempt is taken.
"""

import pytest

from django_pgqueue import lifecycle
from django_pgqueue.lifecycle import Lane
from tests import helpers

HIGH, MIDDLE, LOW = Lane("default", 9), Lane("default", 5), Lane("default", 0)
PLANNER = ["jit", "enable_nestloop", "enable_indexscan", "enable_bitmapscan", "enable_material"]


@pytest.fixture
def three_lanes(engine):
    for lane, count in ((HIGH, 10), (MIDDLE, 10), (LOW, 1000)):
        helpers.make_jobs(engine, count, priority=lane.priority)
    engine.execute("ANALYZE pgqueue_job")


def unlocked(connection):
    """How many jobs no other session holds locked."""
    return helpers.scalar(connection, "SELECT count(*) FROM (SELECT FROM pgqueue_job FOR UPDATE SKIP LOCKED) AS free")


@pytest.mark.promise("claim-locks-what-it-returns")
@pytest.mark.parametrize("plan", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("setting", [None, *PLANNER, "all"])
def test_a_claim_locks_exactly_what_it_returns(engine, second, three_lanes, plan, setting):
    engine.prepare_threshold = 0
    turned_off = PLANNER if setting == "all" else [setting] if setting else []
    with helpers.transaction(engine, f"SET LOCAL plan_cache_mode = {plan}"):
        for name in turned_off:
            engine.execute(f"SET LOCAL {name} = off")
        claimed = helpers.claim_all(engine, HIGH, MIDDLE, LOW, limit=15)
        assert [one.priority for one in claimed] == [9] * 10 + [5] * 5
        assert unlocked(second) == 1020 - 15


@pytest.mark.parametrize("plan", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("setting", [None, "enable_seqscan", "enable_hashjoin", "enable_mergejoin"])
def test_with_the_planner_a_pooler_leaves_us_a_limit_holds_too(engine, second, three_lanes, plan, setting):
    """A pooler that refuses the connection's options leaves the server's defaults."""
    engine.prepare_threshold = 0
    with helpers.transaction(engine, f"SET LOCAL plan_cache_mode = {plan}"):
        for name in ("enable_seqscan", "enable_hashjoin", "enable_mergejoin"):
            engine.execute(f"SET LOCAL {name} = {'off' if name == setting else 'on'}")
        assert len(helpers.claim_all(engine, HIGH, MIDDLE, LOW, limit=15)) == 15
        assert unlocked(second) == 1020 - 15


@pytest.mark.parametrize("analysed", [False, True])
def test_a_limit_of_ten_takes_ten_of_501(engine, analysed):
    if analysed:
        engine.execute("ANALYZE pgqueue_job")  # while it is empty: the planner expects one row
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
        ("limit_key = 'key'", False),
        ("attempt = 3", True),
        ('arguments = \'{"args":[7],"kwargs":{}}\'', True),
        ("max_attempts = 4, crashes = 2, task_name = 'other'", True),
    ],
)
def test_a_row_that_changed_before_its_lock_is_judged_and_returned_as_it_is_now(engine, second, gates, change, taken):
    job_id = helpers.make_job(engine)
    with gates("CLAIM", engine, lambda: helpers.claim_all(engine)) as claiming:
        second.execute(f"UPDATE pgqueue_job SET {change} WHERE id = %s", [job_id])
        before = helpers.job_row(second, job_id)
    claimed = claiming.result()
    after = helpers.job_row(second, job_id)
    if not taken:
        assert (claimed, after) == ([], before)
        return
    [one] = claimed
    assert one.arguments == helpers.scalar(second, "SELECT arguments::text FROM pgqueue_job")
    assert one.attempt == after["attempt"] == before["attempt"] + 1
    assert helpers.execution_row(second, one.execution_id)["attempt"] == one.attempt
    for name in ("task_name", "max_attempts", "crashes"):
        assert getattr(one, name) == before[name]


def test_a_claim_inside_the_window_of_a_claim_leaves_nothing_to_take_twice(engine, second, gates):
    helpers.make_jobs(engine, 10)
    with gates("CLAIM", engine, lambda: helpers.claim_all(engine, limit=10)) as claiming:
        first = helpers.claim_all(second, limit=7, worker_id=2)
    taken = [one.job_id for one in [*first, *claiming.result()]]
    assert sorted(taken) == sorted(set(taken))
    assert helpers.scalar(second, "SELECT count(*) FROM pgqueue_execution") == len(taken)


def test_locked_jobs_are_passed_over_at_once(impatient, second):
    job_ids = helpers.make_jobs(impatient, 10)
    with helpers.transaction(second):
        second.execute("SELECT FROM pgqueue_job WHERE id = ANY(%s) FOR UPDATE", [job_ids[:5]])
        assert [one.job_id for one in helpers.claim_all(impatient, limit=3)] == job_ids[5:8]
        assert lifecycle.next_in_line(impatient, helpers.lanes_from_start()) == job_ids[8]
    assert [one.job_id for one in helpers.claim_all(impatient)] == [*job_ids[:5], *job_ids[8:]]


@pytest.mark.quick
@pytest.mark.promise("claims-never-share-a-job")
def test_two_uncommitted_claims_share_nothing(impatient, second):
    helpers.make_jobs(impatient, 10)
    with helpers.transaction(second):
        first = {one.job_id for one in helpers.claim_all(second, limit=6)}
        rest = {one.job_id for one in helpers.claim_all(impatient)}
        assert (len(first), len(rest)) == (6, 4)
        assert not first & rest
        second.execute("COMMIT")


def test_a_claim_that_rolls_back_took_nothing(engine, second):
    helpers.make_jobs(engine, 3)
    before = helpers.everything(second)
    with helpers.transaction(engine):
        assert len(helpers.claim_all(engine)) == 3
    assert helpers.everything(second) == before


def test_a_job_on_its_last_attempt_is_claimed_only_into_a_free_slot(engine):
    helpers.make_jobs(engine, 4)
    last = helpers.make_job(engine, max_attempts=1)
    helpers.make_jobs(engine, 4)
    assert len(helpers.claim_all(engine, free_slots=2)) == 4
    assert helpers.claim_all(engine, free_slots=0) == []
    taken = helpers.claim_all(engine, free_slots=1)
    assert [one.job_id for one in taken] == [last, *range(last + 1, last + 5)]
    rows = helpers.rows_of(engine, "pgqueue_execution")
    assert rows[taken[0].execution_id]["started_at"] is not None
    assert {rows[one.execution_id]["started_at"] for one in taken[1:]} == {None}


def test_what_a_claim_passes_over_at_its_cut_stays_free(engine, second):
    helpers.make_job(engine, max_attempts=1)
    with helpers.transaction(engine):
        assert helpers.claim_all(engine, free_slots=0) == []
        engine.execute("COMMIT")
    assert unlocked(second) == 1


def test_lanes_are_strict_in_the_order_given_and_due_first_inside(engine):
    late = helpers.make_job(engine, priority=9, queue_name="b")
    early = helpers.make_job(engine, priority=-5, queue_name="a")
    engine.execute("UPDATE pgqueue_job SET run_after = run_after - interval '1 h' WHERE id = %s", [early])
    again = helpers.make_job(engine, priority=9, queue_name="b")
    engine.execute("UPDATE pgqueue_job SET run_after = run_after - interval '2 h' WHERE id = %s", [again])
    claimed = helpers.claim_all(engine, Lane("b", 9), Lane("a", -5))
    assert [one.job_id for one in claimed] == [again, late, early]


def test_lanes_are_found_due_or_not_and_say_when_they_are(engine):
    assert lifecycle.scan_lanes(engine).due_in == {}
    for queue, priority, delay in (("b", 0, 100), ("a", 5, 50), ("a", -5, 0), ("a", 100, 500), ("c", 0, 0)):
        helpers.make_job(engine, queue_name=queue, priority=priority, delay_seconds=delay)
    helpers.claim_all(engine, Lane("c", 0))
    wanted = [Lane("a", 100), Lane("a", 5), Lane("a", -5), Lane("b", 0)]
    helpers.make_job(engine, queue_name="a", priority=5, delay_seconds=70)
    found = lifecycle.scan_lanes(engine).due_in
    assert [*found] == wanted
    assert [*found.values()] == [pytest.approx(seconds, abs=5) for seconds in (500, 50, 0, 100)]
    assert found[Lane("a", -5)] <= 0


def test_skipped_ids_are_passed_over(engine):
    first, other = helpers.make_jobs(engine, 2)
    lanes = helpers.lanes_from_start()
    assert lifecycle.next_in_line(engine, lanes) == first
    assert lifecycle.next_in_line(engine, lanes, skipped_ids=[first]) == other
    assert [one.job_id for one in helpers.claim_all(engine, skipped_ids=[first])] == [other]


def test_unknown_seconds_grow_from_the_first_worker_that_did_not_know(engine):
    helpers.make_job(engine)
    one = helpers.claim_one(engine)
    assert one.unknown_seconds is None
    lifecycle.release(engine, [lifecycle.Released(one.key)], unknown=True)
    engine.execute("UPDATE pgqueue_job SET unknown_since = unknown_since - interval '100 s'")
    again = helpers.claim_one(engine)
    assert again.unknown_seconds == pytest.approx(100, abs=5)
    lifecycle.release(engine, [lifecycle.Released(again.key)], unknown=True)
    assert helpers.claim_one(engine).unknown_seconds == pytest.approx(100, abs=5)


def test_a_lane_is_claimed_in_order_whatever_the_plan(engine):
    """Through a pooler the planner's options are not a worker's, and no index need give the order."""
    engine.execute("SET enable_indexscan = off; SET enable_seqscan = on")
    ids = [helpers.make_job(engine, delay_seconds=-60.0 * number) for number in range(10)]
    assert [claimed.job_id for claimed in helpers.claim_all(engine, limit=3)] == ids[:-4:-1]
