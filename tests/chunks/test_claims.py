"""Test when a chunk is claimed, which jobs it has, and how a fetcher waits for it."""

from __future__ import annotations

import pytest
from django.db import connection

from django_pgqueue.db.statements import clock
from django_pgqueue.ground.served_queues import ServedQueues
from django_pgqueue.lifecycle import chunks, limits, pauses
from django_pgqueue.lifecycle import claims as lifecycle_claims
from django_pgqueue.lifecycle.chunks import ChunkRule
from django_pgqueue.lifecycle.types import Cursor, Lane, ReadyPlace
from django_pgqueue.models import Execution, Job
from django_pgqueue.states import Pausable
from django_pgqueue.tasks import registry
from django_pgqueue.worker.slots.queue_slots import QueueSlots
from tests import helpers
from tests.worker.test_fetcher import make_fetcher, take

from . import tasks

__all__ = ["make_fetcher"]

KEY = "+tests.chunks.tasks.double"
LANE = Lane("default", 0, chunk_key=KEY)
ADD = (
    "INSERT INTO pgqueue_job (task_name, arguments, limit_key, run_after) "
    "SELECT substr(%(key)s, 2), json_build_object('args', json_build_array(number), 'kwargs', '{}'::json), %(key)s, "
    "statement_timestamp() + make_interval(secs => %(delay)s) FROM generate_series(1, %(count)s) AS number RETURNING id"
)


@pytest.fixture(autouse=True)
def reset_clock():
    yield
    clock.shift_seconds = 0.0


def add(session, count=1, *, key=KEY, delay=0.0):
    with session.cursor() as cursor:
        cursor.execute(ADD, {"key": key, "count": count, "delay": delay})
        return [job_id for (job_id,) in cursor.fetchall()]


def claim(session, size=3, wait=0.0, **options):
    options = {"worker_id": 1, "lease_seconds": 30.0, **options}
    return chunks.claim_chunk(session, LANE, ChunkRule(size, wait), **options)


def ids(claimed):
    return [] if claimed.first is None else [job.job_id for job in claimed.first.members]


@pytest.mark.django_db
class TestClaim:
    def test_chunk_is_claimed_when_it_is_full(self):
        jobs = add(connection, 2)
        waiting = claim(connection, wait=60.0)
        assert waiting.first is None
        assert 58 < waiting.due_seconds <= 60
        assert not Execution.objects.exists()
        jobs += add(connection, 2)
        assert ids(claim(connection, wait=60.0)) == jobs[:3]
        executions = Execution.objects.order_by("id")
        assert [(each.job_id, each.attempt, each.limit_key) for each in executions] == [
            (job, 1, None) for job in jobs[:3]
        ]
        assert {each.started_at == each.claimed_at for each in executions} == {True}
        assert set(Job.objects.filter(state="running").values_list("id", flat=True)) == set(jobs[:3])

    def test_chunk_is_claimed_when_its_first_job_has_waited(self):
        first = add(connection, 1)
        clock.shift_seconds = 59.0
        second = add(connection, 1, delay=59.0)
        assert ids(claim(connection, wait=60.0)) == []
        clock.shift_seconds = 60.1
        assert ids(claim(connection, wait=60.0)) == first + second

    def test_jobs_that_are_due_later_do_not_fill_a_chunk(self):
        now = add(connection, 2)
        add(connection, 2, delay=1.0)
        assert claim(connection, wait=60.0).first is None
        assert ids(claim(connection)) == now
        assert claim(connection) == (None, None)

    def test_jobs_are_in_the_order_in_which_they_are_due(self):
        late, early = add(connection, 1, delay=-5.0), add(connection, 1, delay=-10.0)
        assert ids(claim(connection)) == early + late

    def test_job_that_crashed_a_process_is_claimed_alone(self):
        jobs = add(connection, 4)
        Job.objects.filter(pk=jobs[1]).update(isolated=True)
        assert [ids(claim(connection, 4)) for _ in range(3)] == [jobs[:1], jobs[1:2], jobs[2:]]

    def test_chunk_ends_where_its_arguments_are_too_large(self):
        jobs = add(connection, 3)
        size = len('{"args" : [1], "kwargs" : {}}')
        assert ids(claim(connection, max_bytes=2 * size)) == jobs[:2]
        assert ids(claim(connection, max_bytes=1)) == jobs[2:]

    def test_cursor_and_skipped_jobs_are_left_out(self):
        jobs = add(connection, 4)
        assert ids(claim(connection, skipped_ids=[jobs[0]], paused_tasks=["other"])) == jobs[1:]
        assert ids(claim(connection, paused_tasks=[tasks.double.name])) == []
        later = add(connection, 1)
        job = Job.objects.get(pk=jobs[0])
        assert ids(claim(connection, cursor=Cursor(job.run_after, job.pk))) == later

    def test_find_returns_when_each_chunk_is_due(self):
        rules = {KEY: ChunkRule(3, 60.0), "+other": ChunkRule(2, 10.0), "+none": ChunkRule(1, 0.0)}
        add(connection, 3)
        add(connection, 1, key="+other", delay=5.0)
        add(connection, 1, key="two:a")
        found = limits.scan_keys(connection, rules, limit=9).found
        seconds = [each.full_seconds and round(each.full_seconds) for each in found]
        assert [(each.place, round(each.due_seconds), full) for each, full in zip(found, seconds, strict=True)] == [
            (ReadyPlace("default", 0, "+other"), 5, 15),
            (ReadyPlace("default", 0, KEY), 0, 0),
            (ReadyPlace("default", 0, "two:a"), 0, None),
        ]
        Job.objects.filter(pk=Job.objects.filter(limit_key=KEY).first().pk)._raw_delete("default")
        [_, first, _] = limits.scan_keys(connection, rules, limit=9).found
        assert 58 < first.full_seconds <= 60

    def test_other_claims_do_not_see_jobs_of_chunks(self):
        add(connection, 2)
        lane = Lane("default", 0)
        options = {"limit": 9, "free_slots": 9, "worker_id": 1, "lease_seconds": 30.0}
        assert lifecycle_claims.claim(connection, helpers.lanes_from_start(lane), **options) == []


def test_two_workers_do_not_split_a_chunk(engine, new_connection):
    """The second worker sees all jobs, but the first one has locked those that it claims."""
    add(engine, 5)
    other = new_connection()
    with engine.transaction():
        assert len(ids(claim(engine, wait=60.0))) == 3
        assert ids(claim(other, wait=60.0)) == []
    assert helpers.scalar(engine, "SELECT count(*) FROM pgqueue_job WHERE state = 'running'") == 3


# ------------------------------------------------------------------ the fetcher


def sizes(fetcher):
    return [len(job.members) for job in fetcher.pool.submitted]


def test_chunk_takes_one_slot_and_is_not_prefetched(engine, make_fetcher):
    add(engine, 9)
    helpers.make_jobs(engine, 5, priority=-1)
    fetcher = make_fetcher(capacity=2)
    fetcher.claim_size.rate.per_second = lambda: 1000.0
    fetcher.tick()
    fetcher.tick()
    assert sizes(fetcher) == [3, 3]  # and no job that would take the slot of the third chunk
    assert len(fetcher.in_flight.known_before(float("inf"))) == 6
    take(fetcher, 1)
    fetcher.tick()
    assert sizes(fetcher) == [3, 3]


def test_chunk_takes_one_slot_of_its_queue(engine, make_fetcher):
    add(engine, 9)
    slots = QueueSlots(ServedQueues.of_queue_options({"default": 2}))
    fetcher = make_fetcher("default", capacity=5, queue_slots=slots)
    fetcher.tick()
    assert sizes(fetcher) == [3, 3]
    for job in fetcher.pool.submitted:
        fetcher.in_flight.start(job.execution_id, 0, wait=False)
    fetcher.tick()
    assert sizes(fetcher) == [3, 3]
    fetcher.in_flight.end(fetcher.pool.submitted[0].execution_id)
    fetcher.tick()
    assert sizes(fetcher) == [3, 3, 3]


def test_free_slots_get_their_chunks_in_one_transaction(engine, make_fetcher, monkeypatch):
    claims, claim_chunk = [], chunks.claim_chunk
    monkeypatch.setattr(
        chunks,
        "claim_chunk",
        lambda *args, **options: claims.append(claim_chunk(*args, **options)) or claims[-1],
    )
    jobs = add(engine, 8)
    fetcher = make_fetcher(capacity=4)
    fetcher.tick()
    assert [ids(each) for each in claims] == [jobs[:3], jobs[3:6], jobs[6:]]  # the last one is not full
    assert [job.job_id for job in fetcher.pool.submitted] == [jobs[0], jobs[3], jobs[6]]
    assert helpers.scalar(engine, "SELECT count(DISTINCT xmin::text) FROM pgqueue_execution") == 1
    assert helpers.scalar(engine, "SELECT count(DISTINCT claimed_at) FROM pgqueue_execution") == 3


def test_row_of_a_later_chunk_does_not_divide_the_first(engine, make_fetcher):
    jobs = add(engine, 6)
    fetcher = make_fetcher(capacity=2)
    with helpers.users_trigger(engine, f"OLD.id = {jobs[4]} AND NEW.state = 'running'"):
        fetcher.tick()
    assert sizes(fetcher) == [3]
    assert helpers.state_of(engine, jobs[4]) == "ready"


def test_fetcher_serves_chunks_and_plain_jobs_in_turns(engine, make_fetcher):
    add(engine, 12)
    helpers.make_jobs(engine, 12)
    fetcher, kinds = make_fetcher(capacity=1), []
    fetcher.claim_size.rate.per_second = lambda: 0.0
    for _ in range(6):
        fetcher.tick()
        kinds += [job.others is not None for job in take(fetcher)]
    assert sorted(kinds) == [False] * 3 + [True] * 3


def test_idle_fetcher_sleeps_until_the_chunk_is_due(engine, make_fetcher):
    add(engine, 1, key="+tests.chunks.tasks.patient")
    fetcher = make_fetcher()
    fetcher._idle_steps = 99
    fetcher.may_sleep(1000.0)
    assert 55 < fetcher.tick() <= 60
    assert fetcher.empty_scans == 0
    add(engine, 99, key="+tests.chunks.tasks.patient")
    fetcher.lanes.scan_again()
    fetcher.tick()
    assert sizes(fetcher) == [100]


def test_worker_until_empty_waits_for_its_chunks(engine, make_fetcher):
    add(engine, 1, key="+tests.chunks.tasks.patient")
    fetcher = make_fetcher()
    for _ in range(3):
        fetcher.tick()
    assert fetcher.empty_scans == 0
    clock.shift_seconds = 61.0
    helpers.wait_until(lambda: (fetcher.tick(), fetcher.pool.submitted)[1])
    take(fetcher)
    helpers.wait_until(lambda: (fetcher.tick(), fetcher.empty_scans)[1])


def test_paused_queue_and_task_have_no_chunks(engine, make_fetcher):
    add(engine, 3)
    for kind, name in (("queue", "default"), ("task", tasks.double.name)):
        pauses.pause(engine, Pausable(kind), name)
        fetcher = make_fetcher()
        fetcher.tick()
        assert not fetcher.pool.submitted
        pauses.resume(engine, Pausable(kind), name)
    fetcher = make_fetcher()
    fetcher.tick()
    assert sizes(fetcher) == [3]


def test_row_that_cannot_be_claimed_is_set_aside(engine, make_fetcher):
    jobs = add(engine, 3)
    fetcher = make_fetcher()
    claimed = []
    with helpers.users_trigger(engine, f"OLD.id = {jobs[1]} AND NEW.state = 'running'"):
        for _ in range(8):
            fetcher.tick()
            claimed += [member.job_id for job in take(fetcher) for member in job.members]
    assert claimed == [jobs[0], jobs[2]]
    assert helpers.state_of(engine, jobs[1]) == "dead"


def test_process_without_such_tasks_runs_no_statement(engine, make_fetcher, monkeypatch):
    monkeypatch.setattr(registry, "_chunk_keys", {})
    monkeypatch.setattr(limits, "scan_keys", None)
    add(engine, 3)
    helpers.make_jobs(engine, 1)
    fetcher = make_fetcher()
    fetcher.tick()
    assert sizes(fetcher) == [1]
