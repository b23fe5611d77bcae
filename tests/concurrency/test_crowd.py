"""Many sessions at once, for a few seconds: nothing is run twice, nothing is lost, nobody deadlocks.

Eight threads share 5,000 jobs while rows are edited and given back; a user's bulk UPDATE runs against finishes in any
order, with every deadlock reported instead of retried; and the same at isolation levels that a database may have for
its default.
"""

import random
import threading
from collections import Counter
from functools import partial

import psycopg
import pytest

from django_pgqueue import lifecycle
from django_pgqueue.db.errors import TRANSIENT
from django_pgqueue.lifecycle import Lane, Released, TransitionStatus, execute
from tests import helpers

LANES = [Lane("default", 9), Lane("default", 5), Lane("default", 0)]


class Crowd:
    """Workers in threads that claim, give back or finish until every job has succeeded."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self.lock = threading.Lock()
        self.handed_out: list[tuple[int, int]] = []
        self.done: Counter[int] = Counter()
        self.given_back = 0
        self.again = 0

    def is_over(self) -> bool:
        with self.lock:
            return sum(self.done.values()) >= self.jobs

    def work(self, connection, worker_id: int, seed: int) -> None:
        chance = random.Random(seed)
        while not self.is_over():
            try:
                self._round(connection, worker_id, chance)
            except TRANSIENT:  # what the worker's loops do: come again
                self.again += 1

    def _round(self, connection, worker_id: int, chance: random.Random) -> None:
        limit = chance.choice((1, 7, 50, 200))
        claimed = helpers.claim_all(connection, *LANES, limit=limit, worker_id=worker_id)
        with self.lock:
            self.handed_out += [(one.job_id, one.execution_id) for one in claimed]
        job_of = {one.execution_id: one.job_id for one in claimed}
        key_of = {one.execution_id: one.key for one in claimed}
        chance.shuffle(claimed)
        back = [one.execution_id for one in claimed if chance.random() < 0.1]
        left = [one for one in job_of if one not in back]
        while back:
            moved = self._persist(lifecycle.release, connection, [Released(key_of[one]) for one in back])
            back = [one for one, (fate, _) in moved.items() if fate is TransitionStatus.LOCKED]
            self._count(given_back=sum(fate is TransitionStatus.DONE for fate, _ in moved.values()))
        while left:
            fates = self._persist(lifecycle.succeed, connection, helpers.succeeded(*[key_of[one] for one in left]))
            assert {fate for fate, _ in fates.values()} <= {TransitionStatus.DONE, TransitionStatus.LOCKED}
            left = [one for one, (fate, _) in fates.items() if fate is TransitionStatus.LOCKED]
            self._count(done=[job_of[one] for one, (fate, _) in fates.items() if fate is TransitionStatus.DONE])

    def _persist(self, act, *args):
        while True:
            try:
                return act(*args)
            except TRANSIENT:
                self.again += 1

    def _count(self, given_back: int = 0, done: list[int] = []) -> None:  # noqa: B006 -- never changed
        with self.lock:
            self.given_back += given_back
            self.done.update(done)


@pytest.fixture
def work_through(engine, new_connection):
    """Let workers work jobs off, `meanwhile` running beside them; then check what must hold of any such day."""

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
        beside = [helpers.Background(partial(act, new_connection(), crowd)) for act in meanwhile]
        for thread in [*threads, *beside]:
            thread.result(60)
        assert set(crowd.done.values()) == {1}
        assert len(crowd.done) == total
        assert len(crowd.handed_out) == total + crowd.given_back
        assert len({execution_id for _, execution_id in crowd.handed_out}) == len(crowd.handed_out)
        by_outcome = dict(engine.execute("SELECT outcome, count(*) FROM pgqueue_execution GROUP BY 1").fetchall())
        assert by_outcome.pop("succeeded") == total
        assert by_outcome.pop("released", 0) == crowd.given_back
        assert by_outcome == {}
        assert (
            helpers.scalar(engine, "SELECT count(*) FROM pgqueue_job WHERE state <> 'succeeded' OR attempt <> 1") == 0
        )
        return crowd

    return work_through


def edit(connection, crowd):
    """Somebody touches ready rows, a few at a time."""
    while not crowd.is_over():
        connection.execute(
            "UPDATE pgqueue_job SET run_after = run_after - interval '1 ms' WHERE id IN (SELECT id FROM pgqueue_job "
            "WHERE state = 'ready' ORDER BY random() LIMIT 20 FOR UPDATE SKIP LOCKED)"
        )


def bulk_update(connection, crowd):
    """A user's statement, in an order of its own, waiting for whatever is locked."""
    connection.execute("SET deadlock_timeout = '20ms'")
    while not crowd.is_over():
        connection.execute(
            "UPDATE pgqueue_job SET max_attempts = max_attempts WHERE id IN "
            "(SELECT id FROM pgqueue_job WHERE state IN ('ready', 'running') ORDER BY random() LIMIT 400)"
        )


def beat(connection, crowd):
    while not crowd.is_over():
        lifecycle.extend(connection, [0, 1], lease_seconds=60.0)


@pytest.mark.promise("claims-never-share-a-job")
def test_eight_workers_do_5000_jobs_once_each_while_rows_are_edited_and_given_back(work_through):
    crowd = work_through(5000, 8, [edit])
    assert crowd.given_back > 0


def test_a_users_bulk_update_makes_no_deadlock(work_through, monkeypatch):
    """With every deadlock reported: no act is tried again here, and the user's statement never was."""
    monkeypatch.setattr(execute, "TRIES", 1)
    crowd = work_through(15_000, 3, [bulk_update, beat], setup="SET deadlock_timeout = '20ms'")
    assert crowd.again == 0


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_jobs_are_done_once_each_whatever_isolation_the_database_has_for_default(work_through, isolation):
    work_through(300, 3, [beat], setup=f"SET default_transaction_isolation = '{isolation}'")


def test_two_users_in_opposite_orders_do_deadlock(engine, second):
    """So that a day without deadlocks means something: the server does look for them."""
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
