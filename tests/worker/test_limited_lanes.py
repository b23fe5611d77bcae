"""Test how a fetcher claims limited jobs: in turns with plain jobs and among keys, and when it tries again."""

from __future__ import annotations

import time
from types import MappingProxyType

import pytest

from django_pgqueue import control
from django_pgqueue.declared.limits import Limit
from django_pgqueue.lifecycle import completions
from django_pgqueue.lifecycle import limits as lifecycle_limits
from django_pgqueue.tasks import registry
from django_pgqueue.worker.claiming import fetcher as fetcher_module
from django_pgqueue.worker.claiming import lanes as lanes_module
from django_pgqueue.worker.claiming.fetcher import EndedLimits
from django_pgqueue.worker.claiming.limited import limited_lanes
from django_pgqueue.worker.completion.completer import Completer
from django_pgqueue.worker.runtime.connection import Link
from tests import helpers
from tests.concurrency.limits import add
from tests.worker.test_completer import report
from tests.worker.test_fetcher import drain, make_fetcher, take

__all__ = ["make_fetcher"]

LIMITS = {
    limit.name: limit
    for limit in (
        Limit("two", key="{key}", concurrency=2),
        Limit("fair", key="{key}"),
        Limit("rate", key="{key}", rate="50/s"),
        Limit("one", key="{key}", ordered=True, on_dead="block"),
    )
}


@pytest.fixture(autouse=True)
def known_limits(monkeypatch):
    monkeypatch.setattr(registry, "_limits", MappingProxyType(LIMITS))


def finish(connection, jobs):
    completions.succeed(connection, helpers.succeeded(*(job.key for job in jobs)))


def test_fetcher_drains_limited_and_plain_jobs(engine, make_fetcher):
    expected = add(engine, "fair:a", 30) + add(engine, "two:a", 9) + helpers.make_jobs(engine, 30)
    fetcher, claimed = make_fetcher(capacity=4), []

    def turn():
        fetcher.tick()
        jobs = take(fetcher)
        finish(engine, jobs)
        fetcher.lanes.limited.note_ended({job.limit_key for job in jobs if job.limit_key})
        claimed.extend(job.job_id for job in jobs)
        return len(claimed) >= len(expected)

    helpers.wait_until(turn)
    assert sorted(claimed) == sorted(expected)


def test_circle_over_busy_keys_goes_on_without_rests(engine, make_fetcher):
    """Keys without a free slot delay the keys behind them by milliseconds."""
    engine.execute(
        "INSERT INTO pgqueue_job (task_name, arguments, limit_key) "
        "SELECT 'noop', '{}', 'one:' || n FROM generate_series(1000, 1499) n"
    )
    engine.execute(
        "INSERT INTO pgqueue_job (task_name, arguments, state, attempt, worker_id, execution_id, limit_key) "
        "SELECT 'noop', '{}', 'running', 1, 1, n, 'one:' || n FROM generate_series(1000, 1499) n"
    )
    [job_id] = add(engine, "two:a")
    fetcher, sleeps = make_fetcher(), []
    fetcher.may_sleep(30.0)
    while not (claimed := take(fetcher)):
        fetcher._idle_steps = 4  # no short interval of an idle fetcher hides a rest
        sleeps.append(fetcher.tick())
    assert [job.job_id for job in claimed] == [job_id]
    assert sum(sleeps) < 0.1


def test_keys_that_wait_are_visited_now_and_then_while_other_jobs_are_due(engine, make_fetcher, monkeypatch):
    monkeypatch.setattr(limited_lanes, "KEYS", 2)
    monkeypatch.setattr(limited_lanes.Pacing, "after", lambda self, took_seconds: 3600.0 if took_seconds else 0.0)
    for number in range(10, 20):
        add(engine, f"one:{number}", order=2)
    engine.execute("UPDATE pgqueue_job SET state = 'dead', finished_at = now() WHERE limit_key <> 'one:19'")
    for number in range(10, 19):
        add(engine, f"one:{number}", order=2)  # blocked by the dead jobs
    visits = []
    lock_keys = lifecycle_limits.lock_keys
    monkeypatch.setattr(lifecycle_limits, "lock_keys", lambda *args: visits.append(1) or lock_keys(*args))
    helpers.make_jobs(engine, 90)
    fetcher, claimed = make_fetcher(capacity=10), []
    while len(claimed) < 60:
        fetcher.tick()
        claimed += take(fetcher)
    assert len(visits) == 1
    assert {job.limit_key for job in claimed} == {None}
    helpers.wait_until(lambda: fetcher.tick() is not None and "one:19" in [job.limit_key for job in take(fetcher)])


def test_limited_lanes_take_turns_with_plain_lanes_of_their_priority(engine, make_fetcher):
    add(engine, "fair:a", 40)
    helpers.make_jobs(engine, 40)
    helpers.make_job(engine, priority=9)
    fetcher = make_fetcher(capacity=1)
    kinds = []
    for _ in range(9):
        fetcher.tick()
        kinds += [job.priority or bool(job.limit_key) for job in take(fetcher, 1)]
    assert kinds[0] == 9
    assert 3 <= sum(kind is True for kind in kinds[1:]) <= 5


@pytest.mark.promise("limit-turns")
@pytest.mark.parametrize("starts_per_second", [0.0, 10.0, 20.0, 40.0])
@pytest.mark.parametrize("is_reversed", [False, True])
def test_small_key_waits_for_one_round_behind_a_large_one(
    engine, make_fetcher, monkeypatch, starts_per_second, is_reversed
):
    """A claim takes 1 to 5 jobs, so some claims take more jobs of one key than of the other."""
    claim_keys = lifecycle_limits.claim_keys

    def claim_in_order(*args, **options):  # the statement returns the results of keys in any order
        claim = claim_keys(*args, **options)
        return claim._replace(results=sorted(claim.results, reverse=is_reversed))

    monkeypatch.setattr(lifecycle_limits, "claim_keys", claim_in_order)
    add(engine, "fair:large", 500)
    small = add(engine, "fair:small", 3)
    fetcher = make_fetcher(capacity=1)
    fetcher.claim_size.rate.per_second = lambda: starts_per_second
    claimed = []
    while not set(small) <= set(claimed):
        fetcher.tick()
        claimed += [job.job_id for job in take(fetcher)]
    assert len(claimed[: claimed.index(small[-1])]) <= 2 * len(small)


def test_keys_that_a_full_claim_has_left_come_before_all_others(engine, make_fetcher):
    """The first claim takes a job of one key, and leaves the others. Each key has its turn in the same round."""
    for number in range(10, 30):
        add(engine, f"fair:{number}", 3)
    fetcher, keys = make_fetcher(capacity=1), []
    fetcher.claim_size.rate.per_second = lambda: 0.0
    while len(keys) < 40:
        fetcher.tick()
        keys += [job.limit_key for job in take(fetcher)]
    assert len(set(keys[:20])) == len(set(keys[20:40])) == 20


def test_keys_with_a_rate_take_turns_without_prefetched_jobs(engine, make_fetcher, monkeypatch):
    """Each claim leaves a job of the key that it has claimed from, because no slot is free for it."""
    limits = {**LIMITS, "burst": Limit("burst", key="{key}", rate="1/h", burst=100)}
    monkeypatch.setattr(registry, "_limits", MappingProxyType(limits))
    for key in "abc":
        add(engine, f"burst:{key}", 20)
    fetcher, keys = make_fetcher(capacity=1), []
    fetcher.claim_size.rate.per_second = lambda: 10.0
    while len(keys) < 30:
        fetcher.tick()
        keys += [job.limit_key for job in take(fetcher)]
    assert [keys[:30].count(f"burst:{key}") for key in "abc"] == [10, 10, 10]


def test_ended_job_lets_its_key_be_claimed_at_once(engine, make_fetcher, monkeypatch):
    monkeypatch.setattr(limited_lanes, "BUSY_SECONDS", 3600.0)  # so that the rest does not end during the test
    add(engine, "two:a", 5)
    fetcher = make_fetcher(capacity=4)
    fetcher.may_sleep(3600.0)
    fetcher.tick()
    [first, _] = take(fetcher)
    fetcher.tick()
    assert not fetcher.pool.submitted
    assert fetcher.lanes.limited.later.others_due_at > time.monotonic() + 3000
    finish(engine, [first])
    fetcher.lanes.limited.note_ended(["two:a"])
    fetcher.tick()
    assert len(take(fetcher)) == 1


def test_completer_tells_the_fetcher_which_keys_have_a_free_slot(engine, make_fetcher):
    add(engine, "two:a", 3)
    fetcher = make_fetcher(capacity=4)
    link = Link("default", "completer")
    ended_limits = EndedLimits(fetcher.lanes.limited, fetcher.polls, fetcher.in_flight)
    completer = Completer(link, on_written=ended_limits.note)
    fetcher.tick()
    [job, _] = take(fetcher)
    node = job._replace(limit_key=None, in_graph=True)
    assert ended_limits.is_awaited(report(job)) and ended_limits.is_awaited(report(node))
    assert not ended_limits.is_awaited(report(node._replace(in_graph=None)))
    fetcher.in_flight.waiting[0] = None
    for each in job, node:
        assert not ended_limits.is_awaited(report(each)), "a prefetched job takes the slot"
    fetcher.in_flight.waiting.clear()
    fetcher.tick()
    completer.hand_over(report(job))
    completer.tick()
    link.close()
    fetcher.tick()
    assert len(take(fetcher)) == 1


def test_freed_keys_are_claimed_from_without_a_scan_one_by_one(engine, make_fetcher, monkeypatch):
    add(engine, "two:a", 3)
    add(engine, "two:b", 3)
    fetcher = make_fetcher()
    fetcher.tick()
    jobs = take(fetcher)
    fetcher.tick()
    assert len(jobs) == 4
    monkeypatch.setattr(fetcher.lanes, "_scan", None)
    fetcher.lanes._age_limit_seconds, fetcher.lanes._rest.seconds = 3600.0, 0.0  # no scan is due during the test
    finish(engine, jobs[:2])  # of both keys
    fetcher.lanes.limited.note_ended(["two:a", "two:b"])
    fetcher.tick()
    [first] = take(fetcher)
    fetcher.tick()
    [second] = take(fetcher)
    assert {first.limit_key, second.limit_key} == {"two:a", "two:b"}


def test_freed_key_of_a_queue_that_was_just_paused_is_left(engine, make_fetcher):
    add(engine, "two:a", 3)
    fetcher = make_fetcher()
    fetcher.tick()
    jobs = take(fetcher)
    fetcher.tick()
    control.pause("default", reason="", by="")
    fetcher.lanes.scan_again()
    finish(engine, jobs)
    fetcher.lanes.limited.note_ended(["two:a"])
    fetcher.tick()
    assert not fetcher.pool.submitted


def test_key_freed_before_its_queue_was_paused_is_left(engine, make_fetcher):
    """The key was freed when no slot was free, for example, so its lane was not visited before the pause."""
    add(engine, "two:a", 3)
    fetcher = make_fetcher()
    fetcher.tick()
    jobs = take(fetcher)
    fetcher.tick()
    finish(engine, jobs)
    fetcher.lanes.limited.note_ended(["two:a"])
    assert fetcher.lanes.limited.free_ended()
    control.pause("default", reason="", by="")
    fetcher.lanes.scan_again()
    fetcher.tick()
    assert not fetcher.pool.submitted


def test_freed_key_of_a_paused_queue_is_left_without_notification(engine, make_fetcher):
    """A scan has found the pause, and the key still waits in the lane of the paused queue."""
    add(engine, "two:a", 3)
    fetcher = make_fetcher()
    fetcher.tick()
    jobs = take(fetcher)
    fetcher.tick()
    control.pause("default", reason="", by="")
    helpers.wait_until(lambda: fetcher.tick() is not None and "default" in fetcher.lanes.keyed._paused_queues)
    finish(engine, jobs)
    fetcher.lanes.limited.note_ended(["two:a"])
    fetcher.tick()
    assert not fetcher.pool.submitted
    control.resume("default")
    helpers.wait_until(lambda: fetcher.tick() is not None and fetcher.pool.submitted)


def test_slot_freed_by_another_worker_is_used_within_a_second(engine, make_fetcher, monkeypatch):
    clock = helpers.Clock(monkeypatch, fetcher_module, lanes_module)
    add(engine, "two:a", 3)
    other, fetcher = make_fetcher(), make_fetcher()
    fetcher.may_sleep(60.0)  # notifications arrive
    other.tick()
    jobs = take(other)
    assert fetcher.tick() <= 1.0
    assert not fetcher.pool.submitted
    finish(engine, jobs)
    freed_at = clock.now
    while fetcher.tick() is not None and not fetcher.pool.submitted:
        clock.pass_by(0.05)
        assert clock.now - freed_at < 1.0


def test_idle_fetcher_sleeps_until_the_next_token(engine, make_fetcher):
    add(engine, "rate:a", 2)
    fetcher = make_fetcher()
    fetcher._idle_steps = 99
    fetcher.tick()
    assert len(take(fetcher)) == 1
    sleeps = [fetcher.tick() for _ in range(3)]
    assert all(0.0 <= seconds <= 0.021 for seconds in sleeps)
    helpers.wait_until(lambda: (fetcher.tick(), fetcher.pool.submitted)[1])


@pytest.mark.parametrize("waiting", ["newer:a", "hour:a"])
def test_job_of_another_key_does_not_wait_for_a_resting_lane(engine, make_fetcher, monkeypatch, waiting):
    """The lane has only jobs of a limit that this process does not know, or of a key that waits for a token."""
    limits = {**LIMITS, "hour": Limit("hour", key="{key}", rate="1/h")}
    monkeypatch.setattr(registry, "_limits", MappingProxyType(limits))
    add(engine, waiting, 2)
    fetcher = make_fetcher()
    fetcher.may_sleep(60.0)  # notifications arrive
    for _ in range(3):
        fetcher.tick()
        take(fetcher)
    add(engine, "fair:a")
    fetcher._announced = True
    helpers.wait_until(lambda: (fetcher.tick(), fetcher.pool.submitted)[1])


def test_unknown_limit_is_left_to_other_workers(engine, make_fetcher):
    add(engine, "newer:a", 2)
    [known] = add(engine, "fair:a")
    assert [job.job_id for job in drain(make_fetcher(), engine)] == [known]


def test_worker_until_empty_waits_for_tokens_but_not_for_blocked_keys(engine, make_fetcher):
    first, _ = add(engine, "one:a", 2, order=2)
    rated = add(engine, "rate:a", 5)
    fetcher = make_fetcher()
    fetcher.tick()
    jobs = {job.job_id: job for job in take(fetcher)}
    completions.fail(engine, helpers.failed(jobs.pop(first).key, None))
    finish(engine, jobs.values())
    claimed = [*jobs, *(job.job_id for job in drain(fetcher, engine))]
    assert sorted(claimed) == rated


def test_row_that_cannot_be_claimed_does_not_stop_its_key(engine, make_fetcher):
    first, second = add(engine, "two:a", 2)
    [other] = add(engine, "two:b")
    with helpers.users_trigger(engine, f"OLD.id = {first} AND NEW.state = 'running'"):
        claimed = [job.job_id for job in drain(make_fetcher(), engine)]
    assert sorted(claimed) == [second, other]
    assert helpers.state_of(engine, first) == "dead"


def test_keys_and_weights_that_no_code_writes_stop_no_other_key(engine, make_fetcher):
    unknown = ["~", "~two:a", "\U0010ffff", ":", " two:a", "'; DROP TABLE pgqueue_job; --", "x" * 200]
    for key in unknown:
        add(engine, key)
    keys = ["fair:", "fair:~", "fair:\n", "fair:\U0010ffff" + "~" * 190, "two:a:b"]
    expected = [add(engine, key, weight=2**31 - 1, order=-7)[0] for key in keys]
    assert sorted(job.job_id for job in drain(make_fetcher(), engine)) == expected
    waiting = engine.execute("SELECT limit_key FROM pgqueue_job WHERE state = 'ready'").fetchall()
    assert sorted(key for [key] in waiting) == sorted(unknown)
