"""Tests with many sessions at once, for a few seconds: each job runs once, no job is lost, and no session deadlocks.

- Eight threads share 5,000 jobs while another session edits rows and the threads release some jobs.
- A user's bulk UPDATE runs beside completions in any order. Every deadlock is reported instead of retried.
- Workers run at the stricter isolation levels that a database may have as its default.
"""

import random
import threading
from collections import Counter
from functools import partial

import psycopg
import pytest

from django_pgqueue.db.errors import TRANSIENT
from django_pgqueue.lifecycle import completions, execute, leases
from django_pgqueue.lifecycle.types import Lane, Released, TransitionStatus
from tests import helpers

LANES = [Lane("default", 9), Lane("default", 5), Lane("default", 0)]


class Crowd:
    """Workers in threads that claim jobs and release or complete them, until every job has succeeded."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self.lock = threading.Lock()
        self.claims: list[tuple[int, int]] = []
        self.done: Counter[int] = Counter()
        self.released = 0
        self.retries = 0

    def is_over(self) -> bool:
        with self.lock:
            return sum(self.done.values()) >= self.jobs

    def work(self, connection, worker_id: int, seed: int) -> None:
        chance = random.Random(seed)
        while not self.is_over():
            try:
                self._round(connection, worker_id, chance)
            except TRANSIENT:  # the loops of a worker try again too
                self.retries += 1

    def _round(self, connection, worker_id: int, chance: random.Random) -> None:
        limit = chance.choice((1, 7, 50, 200))
        claimed = helpers.claim_all(connection, *LANES, limit=limit, worker_id=worker_id)
        with self.lock:
            self.claims += [(each.job_id, each.execution_id) for each in claimed]
        job_of = {each.execution_id: each.job_id for each in claimed}
        key_of = {each.execution_id: each.key for each in claimed}
        chance.shuffle(claimed)
        to_release = [each.execution_id for each in claimed if chance.random() < 0.1]
        to_complete = [each for each in job_of if each not in to_release]
        while to_release:
            releases = self._retry_transient(
                completions.release, connection, [Released(key_of[each]) for each in to_release]
            )
            to_release = [each for each, (status, _) in releases.items() if status is TransitionStatus.LOCKED]
            self._count(released=sum(status is TransitionStatus.DONE for status, _ in releases.values()))
        while to_complete:
            results = self._retry_transient(
                completions.succeed, connection, helpers.succeeded(*[key_of[each] for each in to_complete])
            )
            assert {status for status, _ in results.values()} <= {TransitionStatus.DONE, TransitionStatus.LOCKED}
            to_complete = [each for each, (status, _) in results.items() if status is TransitionStatus.LOCKED]
            self._count(done=[job_of[each] for each, (status, _) in results.items() if status is TransitionStatus.DONE])

    def _retry_transient(self, transition, *args):
        while True:
            try:
                return transition(*args)
            except TRANSIENT:
                self.retries += 1

    def _count(self, released: int = 0, done: list[int] = []) -> None:  # noqa: B006 -- the default list is never changed
        with self.lock:
            self.released += released
            self.done.update(done)


@pytest.fixture
def work_through(engine, new_connection):
    """Return a function that lets workers run all jobs while the functions in `meanwhile` run beside them.

    The function then checks what must be true of every such run.
    """

    def work_through(jobs, workers, meanwhile=(), setup=""):
        for lane in LANES:
            helpers.make_jobs(engine, jobs // len(LANES) + 1, priority=lane.priority)
        total = helpers.scalar(engine, "SELECT count(*) FROM pgqueue_job")
        crowd = Crowd(total)
        threads = []
        for number in range(workers):
            connection = new_connection()
            if setup:
                connection.execute(setup)
            threads.append(helpers.Background(partial(crowd.work, connection, number, number)))
        beside = [helpers.Background(partial(function, new_connection(), crowd)) for function in meanwhile]
        for thread in [*threads, *beside]:
            thread.result(60)
        assert set(crowd.done.values()) == {1}
        assert len(crowd.done) == total
        assert len(crowd.claims) == total + crowd.released
        assert len({execution_id for _, execution_id in crowd.claims}) == len(crowd.claims)
        by_outcome = dict(engine.execute("SELECT outcome, count(*) FROM pgqueue_execution GROUP BY 1").fetchall())
        assert by_outcome.pop("succeeded") == total
        assert by_outcome.pop("released", 0) == crowd.released
        assert by_outcome == {}
        assert (
            helpers.scalar(engine, "SELECT count(*) FROM pgqueue_job WHERE state <> 'succeeded' OR attempt <> 1") == 0
        )
        return crowd

    return work_through


def edit(connection, crowd):
    """Change ready rows as a user would, 20 at a time."""
    while not crowd.is_over():
        connection.execute(
            "UPDATE pgqueue_job SET run_after = run_after - interval '1 ms' WHERE id IN (SELECT id FROM pgqueue_job "
            "WHERE state = 'ready' ORDER BY random() LIMIT 20 FOR UPDATE SKIP LOCKED)"
        )


def bulk_update(connection, crowd):
    """Run a user's UPDATE, which changes rows in random order and waits for locked rows."""
    connection.execute("SET deadlock_timeout = '20ms'")
    while not crowd.is_over():
        connection.execute(
            "UPDATE pgqueue_job SET max_attempts = max_attempts WHERE id IN "
            "(SELECT id FROM pgqueue_job WHERE state IN ('ready', 'running') ORDER BY random() LIMIT 400)"
        )


def send_heartbeats(connection, crowd):
    while not crowd.is_over():
        leases.extend(connection, [0, 1], lease_seconds=60.0)


@pytest.mark.promise("claims-never-share-a-job")
def test_eight_workers_edited_rows_run_each_job_once(work_through):
    crowd = work_through(5000, 8, [edit])
    assert crowd.released > 0


def test_bulk_update_beside_workers_causes_no_deadlock(work_through, monkeypatch):
    """Every deadlock fails this test.

    With `TRIES = 1`, no transition is retried after a deadlock. The user's statement is never retried.
    """
    monkeypatch.setattr(execute, "TRIES", 1)
    crowd = work_through(15_000, 3, [bulk_update, send_heartbeats], setup="SET deadlock_timeout = '20ms'")
    assert crowd.retries == 0


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_workers_strict_default_isolation_run_each_job_once(work_through, isolation):
    work_through(300, 3, [send_heartbeats], setup=f"SET default_transaction_isolation = '{isolation}'")


def test_updates_in_opposite_orders_deadlock(engine, second):
    """The server detects deadlocks. Without this check, the absence of deadlocks in the other tests proves nothing."""
    job_ids = helpers.make_jobs(engine, 2)
    for connection in (engine, second):
        connection.execute("SET deadlock_timeout = '20ms'")
    update = "UPDATE pgqueue_job SET max_attempts = 5 WHERE id = %s"
    with helpers.transaction(engine), helpers.transaction(second):
        engine.execute(update, [job_ids[0]])
        second.execute(update, [job_ids[1]])
        crossing = helpers.Background(lambda: engine.execute(update, [job_ids[1]]))
        with pytest.raises(psycopg.errors.DeadlockDetected):
            second.execute(update, [job_ids[0]])
            crossing.result()
        second.execute("ROLLBACK")
        crossing.thread.join(10)
