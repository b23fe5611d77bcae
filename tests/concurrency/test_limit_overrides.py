"""Tests of claims under overrides and pauses of limits: which values count, and races with an operator."""

from __future__ import annotations

from types import MappingProxyType

import pytest

from django_pgqueue import sql
from django_pgqueue.db.statements import clock
from django_pgqueue.declared.limit_policies import KeyPolicy, Override, policy_of
from django_pgqueue.declared.limits import Limit
from django_pgqueue.lifecycle import claims, completions, limit_overrides, limits, pauses
from django_pgqueue.lifecycle.types import ExecutionKey
from django_pgqueue.states import Pausable
from django_pgqueue.stats import queries
from django_pgqueue.tasks import registry
from tests import helpers
from tests.concurrency.limits import LANE, OPTIONS, LimitedWorker, add, found
from tests.concurrency.limits import claim as claim_declared
from tests.test_sql import all_lanes, nodes, rows_read

LIMITS = {
    limit.name: limit
    for limit in (
        Limit("ten", key="{key}", concurrency=10),
        Limit("fair", key="{key}"),
        Limit("one", key="{key}", ordered=True),
        Limit("rate", key="{key}", rate="1/h", burst=5),
    )
}


@pytest.fixture(autouse=True)
def known_limits(monkeypatch):
    monkeypatch.setattr(registry, "_limits", MappingProxyType(LIMITS))


def override(connection, limit_key, **given):
    with connection.transaction():
        limit_overrides.override(connection, limit_key, given)


def policy(connection, limit_key):
    controls = limit_overrides.controls_of(connection, [limit_key])
    return controls.policy_of(limit_key, LIMITS[limit_key.partition(":")[0]])


# ------------------------------------------------------------------ which values count


@pytest.mark.promise("limit-change-obeyed")
def test_override_of_key_counts_before_the_one_of_its_limit(engine):
    jobs = add(engine, "ten:a", 9)
    others = add(engine, "ten:b", 9)
    override(engine, "ten", concurrency=1)
    override(engine, "ten:a", concurrency=3)
    assert LimitedWorker().take(engine) == [jobs[0], others[0], *jobs[1:3]]


def test_override_sets_only_its_fields(engine):
    override(engine, "rate", burst=2)
    override(engine, "rate:a", share=7, rate="5/m")
    assert policy(engine, "rate:a") == KeyPolicy(None, "5/m", 12.0, 2, 7, is_ordered=False)
    assert policy(engine, "rate:b") == KeyPolicy(None, "1/h", 3600.0, 2, 1, is_ordered=False)
    assert policy(engine, "ten:a") == policy_of(LIMITS["ten"])


def test_override_of_ordered_limit_keeps_one_job_at_a_time(engine):
    first, _ = add(engine, "one:a", 2, order=1)
    engine.execute("INSERT INTO pgqueue_limit_override (limit_key, concurrency) VALUES ('one', 5)")
    assert policy(engine, "one:a").concurrency == 1
    assert LimitedWorker().take(engine) == [first]


def test_override_adds_a_concurrency_while_jobs_run(engine):
    """The first claim counted nothing, so what it learned must not hide the running jobs from the next count."""
    jobs = add(engine, "fair:a", 5)
    lanes = LimitedWorker()
    assert [lanes.take(engine, limit=1) for _ in range(3)] == [[job] for job in jobs[:3]]
    override(engine, "fair", concurrency=4)
    assert lanes.take(engine) == jobs[3:4]


def test_override_adds_a_rate(engine):
    jobs = add(engine, "fair:a", 5)
    override(engine, "fair:a", rate="1/h", burst=2)
    lanes = LimitedWorker()
    assert (lanes.take(engine), lanes.take(engine)) == (jobs[:2], [])


def test_job_heavier_than_lowered_values_runs_alone(engine):
    [heavy], [light] = add(engine, "ten:a", weight=9), add(engine, "ten:a")
    [costly, _] = add(engine, "rate:a", 2, weight=5)
    override(engine, "ten", concurrency=2)
    override(engine, "rate", burst=3)
    lanes = LimitedWorker()
    assert sorted(lanes.take(engine)) == [heavy, costly]
    assert lanes.take(engine) == []
    completions.succeed(engine, helpers.succeeded(ExecutionKey(*execution_of(engine, heavy))))
    assert LimitedWorker().take(engine) == [light]


def execution_of(connection, job_id):
    return connection.execute(
        "SELECT id, floor(1000 * date_part('epoch', claimed_at))::bigint FROM pgqueue_execution WHERE job_id = %s",
        [job_id],
    ).fetchone()


def test_rate_and_burst_that_no_one_checked_together_are_made_smaller(engine):
    """An override of the limit and one of the key together would need more years than the database has."""
    override(engine, "rate", rate="1/999d")
    override(engine, "rate:a", burst=1_000_000_000)
    job, *_ = add(engine, "rate:a", 2)
    assert job in LimitedWorker().take(engine)


def test_expired_override_counts_for_nothing(engine, monkeypatch):
    jobs = add(engine, "ten:a", 9)
    with engine.transaction():
        limit_overrides.override(engine, "ten:a", {"concurrency": 1}, for_seconds=60)
    lanes = LimitedWorker()
    assert (lanes.take(engine), lanes.take(engine)) == (jobs[:1], [])
    monkeypatch.setattr(clock, "shift_seconds", 61.0)
    assert lanes.take(engine) == jobs[1:]


def test_second_override_keeps_fields_unless_the_first_has_expired(engine, monkeypatch):
    override(engine, "rate", burst=2, share=3)
    with engine.transaction():
        limit_overrides.override(engine, "rate", {"burst": 4}, for_seconds=60)
    assert policy(engine, "rate")[3:5] == (4, 3)
    monkeypatch.setattr(clock, "shift_seconds", 61.0)
    override(engine, "rate", rate="2/h")
    assert policy(engine, "rate")[1:5] == ("2/h", 1800.0, 5, 1)


def test_override_without_any_field_left_is_removed(engine):
    override(engine, "ten", concurrency=2)
    override(engine, "ten", concurrency=None)
    assert helpers.scalar(engine, "SELECT count(*) FROM pgqueue_limit_override") == 0
    assert not limit_overrides.restore(engine, "ten")


def test_prune_removes_overrides_that_ended_long_ago(engine):
    for name, for_seconds in (("old", 0), ("later", 600), ("always", None)):
        with engine.transaction():
            limit_overrides.override(engine, name, {"share": 2}, for_seconds=for_seconds)
    engine.execute("UPDATE pgqueue_limit_override SET valid_until = '2001-01-01' WHERE limit_key = 'old'")
    limit_overrides.prune_overrides(engine, 3600.0)
    left = "SELECT string_agg(limit_key, ' ' ORDER BY limit_key) FROM pgqueue_limit_override"
    assert helpers.scalar(engine, left) == "always later"


# ------------------------------------------------------------------ pauses


@pytest.mark.promise("limit-pause")
@pytest.mark.parametrize("name", ["ten", "ten:a"])
def test_paused_key_is_left_out_and_others_go_on(engine, name):
    jobs, [other] = add(engine, "ten:a", 2), add(engine, "ten-b:a")
    [of_fair] = add(engine, "fair:a")
    pauses.pause(engine, Pausable.LIMIT, name)
    lanes = LimitedWorker()
    assert lanes.take(engine) == [of_fair]
    assert pauses.resume(engine, Pausable.LIMIT, name)
    assert lanes.take(engine) == jobs
    assert other not in jobs


def test_pause_of_key_that_has_ended_by_itself_counts_for_nothing(engine, monkeypatch):
    jobs = add(engine, "ten:a", 2)
    pauses.pause(engine, Pausable.LIMIT, "ten:a", for_seconds=60)
    assert LimitedWorker().take(engine) == []
    monkeypatch.setattr(clock, "shift_seconds", 61.0)
    assert LimitedWorker().take(engine) == jobs


@pytest.mark.parametrize("kind", [Pausable.QUEUE, Pausable.TASK])
def test_pause_of_queue_or_task_with_the_name_of_a_key_pauses_no_key(engine, kind):
    [job] = add(engine, "ten")
    pauses.pause(engine, kind, "ten")
    override(engine, "ten", share=2)
    assert LimitedWorker().take(engine) == [job]


def test_pause_of_limit_pauses_no_queue_or_task_with_its_name(engine):
    pauses.pause(engine, Pausable.LIMIT, "default")
    pauses.pause(engine, Pausable.LIMIT, helpers.NOOP)
    [job] = helpers.make_jobs(engine, 1)
    _, paused_queues, paused_tasks, _ = claims.scan_lanes(engine)
    assert (paused_queues, paused_tasks) == ((), ())
    assert [claimed.job_id for claimed in helpers.claim_all(engine, helpers.DEFAULT_LANE)] == [job]


def test_lane_with_only_paused_keys_rests_until_the_pause_ends(engine):
    add(engine, "ten:a", 2)
    pauses.pause(engine, Pausable.LIMIT, "ten", for_seconds=0.4)
    lanes = LimitedWorker()
    lanes.take(engine)
    assert 0 < lanes.rest_seconds <= 0.4
    pauses.pause(engine, Pausable.LIMIT, "ten")
    lanes.take(engine)
    assert 0.5 < lanes.rest_seconds <= 0.9
    assert not lanes.keyed.have_waiting


def test_keys_of_a_paused_limit_keep_no_other_key_waiting(engine):
    for number in range(250):
        add(engine, f"fair:{number}")
    [job], _ = add(engine, "ten:a"), add(engine, "fair0")  # the latter is no limit of this process
    pauses.pause(engine, Pausable.LIMIT, "fair")
    lanes, claimed = LimitedWorker(), []
    lanes.scan(engine)
    while lanes.keyed.limited.has_keys(LANE):
        claimed += lanes.claim(engine, limit=100, **OPTIONS)
    assert [each.job_id for each in claimed] == [job]


# ------------------------------------------------------------------ races and costs


@pytest.mark.promise("limit-lowered")
def test_lowered_limit_starts_nothing_until_fewer_run(engine, second):
    add(engine, "ten:a", 20)
    begun = claim_declared(engine, LIMITS["ten"])
    assert len(begun.claimed) == 10
    override(second, "ten:a", concurrency=2)
    first, other = LimitedWorker(), LimitedWorker()
    for count in range(8):
        assert (first.take(engine), other.take(second)) == ([], []), count
        completions.succeed(engine, helpers.succeeded(begun.claimed[count].key))
    assert (first.take(engine), other.take(second)) == ([], [])
    completions.succeed(engine, helpers.succeeded(begun.claimed[8].key))
    assert len(first.take(engine) + other.take(second)) == 1


def test_pause_commits_while_a_claim_holds_the_lock_of_the_key(engine, second, gates):
    """The pause waits for no claim. The claim that has read before it is the last one."""
    add(engine, "ten:a", 4)
    override(engine, "ten:a", concurrency=3)
    lanes = LimitedWorker()
    lanes.scan(engine)
    with gates("CLAIM_KEYS", engine, lambda: lanes.claim(engine, limit=1, **OPTIONS)) as claiming:
        assert not found(second)[0].is_locked
        pauses.pause(second, Pausable.LIMIT, "ten:a")
    assert len(claiming.result()) == 1
    assert (lanes.take(engine), LimitedWorker().take(second)) == ([], [])


@pytest.mark.promise("limit-change-obeyed")
def test_pause_committed_after_the_lock_is_obeyed(engine, second, monkeypatch):
    add(engine, "ten:a", 4)
    override(engine, "ten:a", concurrency=3)
    lock = limits.lock_keys

    def lock_then_pause(*args):
        keys = lock(*args)
        pauses.pause(second, Pausable.LIMIT, "ten:a")
        return keys

    monkeypatch.setattr(limits, "lock_keys", lock_then_pause)
    assert LimitedWorker().take(engine) == []


FIELDS = {"concurrency": 7, "rate": "2/h", "burst": 2, "share": 3}


@pytest.mark.parametrize("first", FIELDS)
def test_two_operators_override_one_key_and_no_field_is_lost(engine, second, first):
    others = {name: value for name, value in FIELDS.items() if name != first}
    with engine.transaction():
        limit_overrides.override(engine, "rate", {first: FIELDS[first]})
        other = helpers.Background(lambda: override(second, "rate", **others))
        helpers.wait_until(lambda: is_waiting_for_lock(engine))
    other.result()
    assert policy(engine, "rate") == KeyPolicy(7, "2/h", 1800.0, 2, 3, is_ordered=False)


def is_waiting_for_lock(connection):
    return helpers.scalar(connection, "SELECT count(*) FROM pg_locks WHERE NOT granted") > 0


def test_claims_read_no_overrides_while_there_are_none(engine, monkeypatch):
    reads = []
    read = limit_overrides.controls_of
    monkeypatch.setattr(limit_overrides, "controls_of", lambda *args: reads.append(args) or read(*args))
    lanes = LimitedWorker()
    for _ in range(2):
        add(engine, "ten:a")
        assert lanes.take(engine) and not reads
    override(engine, "ten", concurrency=5)
    add(engine, "ten:a")
    assert lanes.take(engine) and len(reads) == 1


def test_override_is_audited_with_its_values_before_and_after(engine):
    override(engine, "ten", concurrency=2)
    with engine.transaction():
        limit_overrides.override(engine, "ten", {"share": 3}, changed_by="ada", reason="incident")
        limit_overrides.restore(engine, "ten", changed_by="bob")
    query = "SELECT action, done_by, reason, filter->'before', filter->'after', outcome FROM pgqueue_audit ORDER BY id"
    assert engine.execute(query).fetchall() == [
        ("override limit", "", "", None, {"concurrency": 2}, "done"),
        ("override limit", "ada", "incident", {"concurrency": 2}, {"concurrency": 2, "share": 3}, "done"),
        ("restore limit", "bob", "", {"concurrency": 2, "share": 3}, None, "done"),
    ]


@pytest.mark.parametrize(("limit_key", "left"), [("rate:a", {"rate:b", "rates:a"}), ("rate", {"rates:a"})])
def test_end_holds_frees_a_key_or_all_keys_of_a_limit(engine, limit_key, left):
    for key in ("rate:a", "rate:a", "rate:b", "rates:a"):
        engine.execute(
            "INSERT INTO pgqueue_limit_state (limit_key, full_at, held_until) "
            "VALUES (%s, now(), now() + interval '1 h')",
            [key],
        )
    [job] = add(engine, "rate:a")
    assert LimitedWorker().take(engine) == []
    assert limit_overrides.end_holds(engine, limit_key) == 3 - len(left)
    held = "SELECT DISTINCT limit_key FROM pgqueue_limit_state WHERE held_until IS NOT NULL"
    assert {key for (key,) in engine.execute(held)} == left
    assert limit_overrides.end_holds(engine, "rate:a") == 0
    assert LimitedWorker().take(engine) == [job]


def test_policy_of_ignores_fields_that_are_not_set():
    limit = LIMITS["rate"]
    expected = KeyPolicy(None, "1/h", 3600.0, 5, 1, is_ordered=False)
    assert policy_of(limit, None, None) == policy_of(limit, Override()) == expected


@pytest.mark.parametrize("statement", [sql.claims.LANES, sql.limit_overrides.KEY_CONTROLS, queries.OPEN_PAUSES])
def test_thousands_of_paused_keys_are_not_read_for_others(engine, statement):
    engine.execute(
        "INSERT INTO pgqueue_pause (kind, name) SELECT 'limit', 'fair:' || n FROM generate_series(1, 5000) AS n"
    )
    engine.execute("ANALYZE pgqueue_pause")
    pauses.pause(engine, Pausable.QUEUE, "mail")
    pauses.pause(engine, Pausable.TASK, "app.t")
    params = {"time_shift": "0 s", "names": "{fair:7,fair}", **all_lanes(engine)}
    [[[plan]]] = engine.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", params, prepare=False).fetchall()
    of_pauses = [node for node in nodes(plan["Plan"]) if node.get("Relation Name") == "pgqueue_pause"]
    assert of_pauses and sum(rows_read(node) for node in of_pauses) <= 3
