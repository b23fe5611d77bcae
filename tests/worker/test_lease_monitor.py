"""What the watch over running jobs does in moments that no test can bring about from outside."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import psycopg
import pytest

from django_pgqueue import lifecycle
from django_pgqueue.worker.claiming import lease_monitor
from django_pgqueue.worker.claiming.claim_counter import ClaimCounter
from django_pgqueue.worker.claiming.lease_monitor import LeaseMonitor
from django_pgqueue.worker.execution.events import FOREGROUND
from django_pgqueue.worker.runtime.connection import Link
from django_pgqueue.worker.slots.inflight import InFlight, Prefetched, Running
from tests import helpers


@pytest.fixture
def watch():
    """One that holds something, hears notifications, and compares nothing for a while."""
    link = SimpleNamespace(use=lambda: contextlib.nullcontext())
    in_flight = InFlight(1)
    in_flight.running[1] = Running(SimpleNamespace(), 0.0, 0)
    pool = SimpleNamespace(ask_to_cancel=set)
    own = LeaseMonitor(link, in_flight, SimpleNamespace(ids=set), pool, None, 1, ClaimCounter(), FOREGROUND)
    own.set_listens(listens=True)
    own._compare_at = float("inf")
    return own


@pytest.mark.parametrize("fails", [False, True])
def test_a_look_that_failed_or_found_what_is_not_here_yet_is_done_again(watch, monkeypatch, fails):
    """The answer of a claim may be under way."""
    looks = []

    def look(connection, worker_ids, *, first_id):
        looks.append(worker_ids)
        if len(looks) == 1 and fails:
            raise psycopg.OperationalError
        return [(1, 99)] if len(looks) == 1 else []

    watch.pool.ask_to_cancel = lambda ids: set()
    monkeypatch.setattr(lifecycle, "cancel_requests", look)
    watch.poll_requests_soon()
    with contextlib.suppress(psycopg.OperationalError):
        watch.tick()
    watch.tick()
    watch.tick()
    assert len(looks) == 2


def test_what_waits_for_a_slot_is_given_back_at_once(watch, monkeypatch):
    claimed, given = SimpleNamespace(execution_id=2), []
    watch.in_flight.waiting[2] = Prefetched(claimed, 0.0)
    watch.pool.ask_to_cancel = set
    monkeypatch.setattr(lifecycle, "cancel_requests", lambda *args, **options: [(1, 2)])
    monkeypatch.setattr(lease_monitor, "release_executions", lambda connection, held, reactions: given.extend(held))
    watch.poll_requests_soon()
    watch.tick()
    assert given == [claimed]
    assert not watch.in_flight.waiting


@pytest.mark.parametrize("fails", [False, True])
def test_a_word_that_comes_during_a_look_is_answered_by_another(watch, monkeypatch, fails):
    """It may be of a request that the look's statement came too early to see."""
    looks = []

    def look(connection, worker_ids, *, first_id):
        looks.append((worker_ids, first_id))
        if len(looks) == 1:
            watch.poll_requests_soon()
            if fails:
                raise psycopg.OperationalError
        return []

    monkeypatch.setattr(lifecycle, "cancel_requests", look)
    watch.poll_requests_soon()
    with contextlib.suppress(psycopg.OperationalError):
        watch.tick()
    watch.tick()
    watch.tick()
    assert looks == [([1], 1)] * 2


def test_a_job_that_is_just_being_started_is_told_at_the_next_look(watch, monkeypatch):
    """It has left the hand, and its slot does not run it yet: nobody was there to tell."""
    monkeypatch.setattr(lifecycle, "cancel_requests", lambda *args, **options: [(1, 1)])
    asked, told = [], [set(), {1}]

    def ask_to_cancel(ids):
        asked.append(ids)
        return told[len(asked) - 1]

    watch.pool.ask_to_cancel = ask_to_cancel
    watch.poll_requests_soon()
    for _ in range(4):
        watch.tick()
    assert asked == [{1}, {1}]


@pytest.fixture
def real_watch(committing):
    """One that compares a hand with the executions of worker 1 in the database."""
    link = Link("default", "heartbeat")
    interrupted: list[set[int]] = []
    pool = SimpleNamespace(interrupt=interrupted.append, interrupted=interrupted)
    yield LeaseMonitor(link, InFlight(9), SimpleNamespace(ids=set), pool, None, 1, ClaimCounter(), FOREGROUND)
    link.close()


def open_ids(engine):
    return [one.execution_id for one in lifecycle.open_executions(engine, 1)]


@pytest.mark.promise("no-release-during-claim")
def test_watch_releases_nothing_of_claim_under_way(engine, real_watch):
    """However long the answer takes: this process may hold these jobs at any moment, and start them."""
    helpers.make_job(engine)
    with real_watch.claims.claim_under_way():
        claimed = helpers.claim_one(engine)
        for _ in range(5):
            real_watch._compare()
        assert open_ids(engine) == [claimed.execution_id]
        real_watch.in_flight.add([claimed])
    real_watch._compare()
    real_watch._compare()
    assert open_ids(engine) == [claimed.execution_id]


def test_watch_releases_jobs_of_claim_whose_reply_was_lost(engine, real_watch):
    helpers.make_job(engine)
    with contextlib.suppress(psycopg.OperationalError), real_watch.claims.claim_under_way():
        claimed = helpers.claim_one(engine)
        real_watch._compare()
        raise psycopg.OperationalError
    assert open_ids(engine) == [claimed.execution_id]
    real_watch._compare()
    assert open_ids(engine) == []
    assert helpers.state_of(engine, claimed.job_id) == "ready"


def test_watch_releases_stray_execution_although_claims_go_on(engine, real_watch):
    """A later claim, which is under way at the second look, cannot bring what was open at the first."""
    helpers.make_job(engine)
    claimed = helpers.claim_one(engine)
    with real_watch.claims.claim_under_way():
        real_watch._compare()
    with real_watch.claims.claim_under_way():
        real_watch._compare()
    assert open_ids(engine) == []
    assert helpers.job_row(engine, claimed.job_id)["attempt"] == 0


def test_watch_after_ids_restart_interrupts_the_old_execution(engine, real_watch):
    """Another execution of this worker has its id now: the job that runs here is lost all the same."""
    helpers.make_job(engine)
    old = helpers.claim_one(engine)
    real_watch.in_flight.add([old])
    real_watch.in_flight.start(old.execution_id, 0, wait=False)
    real_watch._compare()
    assert real_watch.pool.interrupted == []
    helpers.empty_tables(engine)
    helpers.make_job(engine)
    assert helpers.claim_one(engine).execution_id == old.execution_id
    real_watch._compare()
    assert real_watch.pool.interrupted == [{old.execution_id}]


def test_watch_releases_nothing_of_claim_that_ends_during_a_look(engine, real_watch):
    """The jobs come into the hand after the watch has looked there, and before it looks which claims have ended."""

    class EndsJustNow(ClaimCounter):
        @property
        def begun(self):
            real_watch.in_flight.add([claimed])
            self.ended = 1
            return 1

        @begun.setter
        def begun(self, count):
            pass

    helpers.make_job(engine)
    with real_watch.claims.claim_under_way():
        claimed = helpers.claim_one(engine)
        real_watch._compare()
        real_watch.claims = EndsJustNow()
        real_watch._compare()
    assert open_ids(engine) == [claimed.execution_id]
