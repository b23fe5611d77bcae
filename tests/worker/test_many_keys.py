"""Test a fetcher beside many lanes and keys that wait: what it costs to start another job, and what it remembers.

The tests count statements, so they do not depend on the speed of the machine.
"""

from __future__ import annotations

from collections import Counter
from types import MappingProxyType

import pytest

from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.declared.limits import Limit
from django_pgqueue.lifecycle import completions
from django_pgqueue.tasks import registry
from django_pgqueue.worker.claiming import lanes as lanes_module
from django_pgqueue.worker.claiming.limited import key_pages, limited_lanes
from tests import helpers
from tests.chunks.tasks import double
from tests.concurrency.limits import add
from tests.worker.test_fetcher import make_fetcher, take

pytestmark = pytest.mark.slow

__all__ = ["make_fetcher"]

LIMITS = {
    limit.name: limit
    for limit in (
        Limit("hour", key="{key}", rate="1/h"),
        Limit("fair", key="{key}"),
        Limit("one", key="{key}", concurrency=1),
    )
}
MANY = 900
"""Three pages of keys."""
CHUNK_KEY = f"+{double.name}"


@pytest.fixture(autouse=True)
def known_limits(monkeypatch):
    monkeypatch.setattr(registry, "_limits", MappingProxyType(LIMITS))
    monkeypatch.setattr(registry, "_chunk_keys", MappingProxyType({CHUNK_KEY: double}))


@pytest.fixture
def statements(monkeypatch):
    """Return the names of the statements that engine connections run."""
    names = []
    monkeypatch.setattr(
        EngineConnection, "record_statement", staticmethod(lambda text, seconds: names.append(text.split()[1]))
    )
    return names


def add_many(engine, limit_key, queue_name, count=MANY):
    """Add one job for each number `n`, in the queue and with the key that SQL computes from `n`."""
    engine.execute(
        "INSERT INTO pgqueue_job (task_name, arguments, limit_key, queue_name) "
        f'SELECT %s, \'{{"args":[1],"kwargs":{{}}}}\', {limit_key}, {queue_name} FROM generate_series(1000, %s) n',
        [double.name if limit_key.startswith("'+") else helpers.NOOP, 999 + count],
    )


def use_tokens(engine, keys):
    """Let keys of `hour` wait for an hour."""
    engine.execute(
        "INSERT INTO pgqueue_limit_state (limit_key, full_at) "
        f"SELECT DISTINCT limit_key, now() + interval '1 hour' FROM pgqueue_job WHERE limit_key LIKE '{keys}'"
    )


def settle(fetcher):
    """Tick until a whole circle has found nothing to claim or to visit."""
    pages = fetcher.lanes.keyed
    pages._circle._renew_until = 0.0
    helpers.wait_until(
        lambda: fetcher.tick() is not None and pages._circle.is_complete and not (pages._due or pages._others), 60.0
    )
    assert not fetcher.pool.submitted


def ticks_until_claimed(fetcher, job_ids):
    """Announce jobs, and tick until the fetcher has claimed them. Return how many ticks that took."""
    claimed, ticks = [], 0
    fetcher.polls.poll_soon()
    while not set(job_ids) <= set(claimed):
        assert ticks < 100, "the job was not claimed"
        fetcher.tick()
        ticks += 1
        claimed += [member.job_id for job in take(fetcher) for member in job.members]
    return ticks


# ------------------------------------------------------------------ another job beside many that wait


@pytest.mark.parametrize(
    ("limit_key", "queue_name"),
    [("'hour:same'", "'queue-' || n"), ("'hour:' || n", "'queue-' || n"), ("'hour:' || n", "'default'")],
)
@pytest.mark.parametrize("kind", ["plain", "new key", "chunk"])
def test_job_beside_many_waiting_keys_starts_at_once(engine, make_fetcher, statements, limit_key, queue_name, kind):
    add_many(engine, limit_key, queue_name)
    use_tokens(engine, "hour:%")
    fetcher = make_fetcher()
    fetcher.may_sleep(3600.0)
    settle(fetcher)
    if kind == "plain":
        job_ids = [helpers.make_job(engine, queue_name="zz")]
    elif kind == "new key":
        job_ids = add(engine, "hour:new", queue_name="zz")
    else:
        job_ids = add(engine, CHUNK_KEY, 3, queue_name="zz", task_name=double.name)
    fetcher.lanes.keyed._newest_at = fetcher.lanes.keyed._page_at = fetcher.lanes._rest.seconds = 0.0
    statements.clear()
    assert ticks_until_claimed(fetcher, job_ids) == 1
    assert len(statements) <= 9, statements


def test_key_that_waits_is_visited_once_for_all_its_lanes(engine, make_fetcher, statements):
    add_many(engine, "'hour:same'", "'queue-' || n")
    use_tokens(engine, "hour:%")
    fetcher = make_fetcher()
    fetcher.may_sleep(3600.0)
    settle(fetcher)
    assert Counter(statements)["pgqueue:claim_keys"] == 1


def test_plain_jobs_are_claimed_before_all_new_keys_are_visited(engine, make_fetcher, statements, monkeypatch):
    """Each key waits for a token of its own, so each needs a visit. Plain jobs wait for the visits of one claim only.

    Visits that find nothing get a tenth of the time. The test makes the pause after them longer than itself.
    """
    monkeypatch.setattr(limited_lanes.Pacing, "after", lambda self, took_seconds: 3600.0 if took_seconds else 0.0)
    add_many(engine, "'hour:' || n", "'queue-' || n")
    use_tokens(engine, "hour:%")
    helpers.make_jobs(engine, 100)
    fetcher, claimed = make_fetcher(capacity=10), []
    while len(claimed) < 100:
        fetcher.tick()
        claimed += take(fetcher)
    assert Counter(statements)["pgqueue:claim_keys"] <= key_pages.UNSURE_LANES


# ------------------------------------------------------------------ the cost of a drain


@pytest.mark.parametrize(("limit_key", "most"), [(f"'{CHUNK_KEY}'", 1.3), ("'fair:' || n", 2.3), ("'fair:same'", 2.3)])
@pytest.mark.parametrize("count", [90, MANY])
def test_drain_of_many_lanes_costs_the_same_for_each_job(engine, make_fetcher, statements, limit_key, most, count):
    add_many(engine, limit_key, "'queue-' || n", count)
    fetcher, claimed = make_fetcher(capacity=10), []
    fetcher.claim_size.rate.per_second = lambda: 0.0
    statements.clear()
    for _ in range(20 * count):
        if len(claimed) >= count:
            break
        fetcher.tick()
        jobs = [member for job in take(fetcher) for member in job.members]
        claimed += [job.job_id for job in jobs]
        completions.succeed(engine, helpers.succeeded(*(job.key for job in jobs)))
    counts = Counter(statements)
    counts.pop("pgqueue:succeed", None)
    assert len(set(claimed)) == len(claimed) == count
    assert sum(counts.values()) <= most * count + 10, counts


# ------------------------------------------------------------------ turns


def test_lanes_of_all_kinds_take_turns_although_jobs_are_prefetched(engine, make_fetcher, statements):
    helpers.make_jobs(engine, 3000)
    add(engine, "fair:a", 3000)
    add(engine, CHUNK_KEY, 3000, task_name=double.name)
    fetcher = make_fetcher(capacity=10)
    fetcher.claim_size.rate.per_second = lambda: 500.0  # so that the fetcher prefetches 50 jobs
    turns = Counter()
    for _ in range(60):
        fetcher.tick()
        jobs = take(fetcher)
        turns.update({job.limit_key or job.chunk_key or "" for job in jobs})
        completions.succeed(engine, helpers.succeeded(*(member.key for job in jobs for member in job.members)))
    assert max(turns.values()) - min(turns.values()) <= 2, turns
    assert len(turns) == 3


# ------------------------------------------------------------------ memory


def test_keys_without_jobs_are_forgotten(engine, make_fetcher, monkeypatch):
    """Each key has had one job, and had no free slot meanwhile."""
    clock = helpers.Clock(monkeypatch, lanes_module)
    add_many(engine, "'one:' || n", "'default'", 300)
    fetcher, count = make_fetcher(capacity=10), 0
    while count < 300:
        fetcher.tick()
        jobs = take(fetcher)
        count += len(jobs)
        completions.succeed(engine, helpers.succeeded(*(job.key for job in jobs)))
        clock.pass_by(0.1)
    limited = fetcher.lanes.limited
    for _ in range(10):
        clock.pass_by(1.0)
        fetcher.tick()
    assert len(limited._waits) <= 10
    assert not limited._lanes and not limited._freed


def test_due_keys_that_are_remembered_are_bounded(engine, make_fetcher, monkeypatch):
    monkeypatch.setattr(limited_lanes, "MOST_KEYS", 50)
    monkeypatch.setattr(key_pages, "PAGE_KEYS", 50)
    monkeypatch.setattr(limited_lanes, "KEYS", 10)
    add_many(engine, "'fair:' || n", "'default'", 200)
    fetcher, claimed, counts = make_fetcher(capacity=5), [], []

    def turn():
        fetcher.tick()
        counts.extend(len(keys.others) for keys in fetcher.lanes.limited._lanes.values())
        claimed.extend(take(fetcher))
        return len(claimed) >= 200

    helpers.wait_until(turn, 60.0)
    assert 50 <= max(counts) <= 60


def test_waiting_keys_that_are_remembered_are_bounded(engine, make_fetcher, monkeypatch):
    monkeypatch.setattr(limited_lanes, "MOST_KEYS", 50)
    monkeypatch.setattr(key_pages, "PAGE_KEYS", 50)
    add_many(engine, "'hour:' || n", "'default'", 200)
    use_tokens(engine, "hour:%")
    fetcher = make_fetcher()
    for _ in range(50):
        fetcher.tick()
        assert len(fetcher.lanes.limited._waits) <= 50
    [wanted] = add(engine, "hour:0")
    fetcher.lanes.keyed._newest_at = 0.0
    assert ticks_until_claimed(fetcher, [wanted]) < 20
