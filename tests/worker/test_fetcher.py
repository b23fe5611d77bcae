"""Test which jobs the fetcher claims: in which order, and how many in advance.

The tests also check how soon the fetcher finds jobs that lie behind its cursors.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace

import psycopg
import pytest

from django_pgqueue import signals, sql
from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.db.notifications import CANCEL_REQUESTED, CHANNEL, PAUSES_CHANGED
from django_pgqueue.ground.waker import is_readable
from django_pgqueue.lifecycle import claims as lifecycle_claims
from django_pgqueue.lifecycle import completions, pauses
from django_pgqueue.lifecycle.claims import AHEAD_BYTES
from django_pgqueue.lifecycle.types import EPOCH, Claimed, Cursor, Released
from django_pgqueue.states import Pausable
from django_pgqueue.tasks import registry
from django_pgqueue.worker.claiming import claim_size
from django_pgqueue.worker.claiming import fetcher as module
from django_pgqueue.worker.claiming import lanes as lanes_module
from django_pgqueue.worker.claiming.claimer import Claimer
from django_pgqueue.worker.claiming.fetcher import Fetcher
from django_pgqueue.worker.claiming.lanes import Lanes
from django_pgqueue.worker.claiming.lease_monitor import ClaimCounter
from django_pgqueue.worker.claiming.next_scan import Pacing
from django_pgqueue.worker.claiming.waking.fetcher_sleep import NotificationWaker, PollRequests
from django_pgqueue.worker.execution.job_events import FOREGROUND
from django_pgqueue.worker.runtime.connection import Link
from django_pgqueue.worker.runtime.shared_connections import Preference, SharedConnections
from django_pgqueue.worker.slots.inflight import Full, InFlight
from tests import helpers

PACKAGE = str(Path(module.__file__).parents[2])
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"


class NoPool:
    """A pool that starts no jobs. The tests start and end the submitted jobs themselves."""

    def __init__(self, in_flight):
        self.in_flight = in_flight
        self.submitted = deque()

    def submit(self, jobs):
        self.submitted.extend(jobs)


class NoCompleter:
    is_full = is_behind = False


@pytest.fixture
def make_fetcher(committing, monkeypatch):
    """Return a function that makes a fetcher. Its scans begin at cursors only in tests that change `SLOW_SECONDS`."""
    monkeypatch.setattr(lanes_module, "SLOW_SECONDS", 60.0)
    links, wakers = [], []

    def make(*queue_names, capacity=10, on_requests=(), on_events=list, queue_slots=None):
        links.append(Link("default", "fetcher"))
        in_flight = InFlight(capacity, queue_slots=queue_slots)
        waker = NotificationWaker()
        wakers.append(waker)
        return Fetcher(
            links[-1],
            in_flight,
            NoPool(in_flight),
            NoCompleter(),
            Claimer(in_flight, Lanes(queue_names, queue_slots=queue_slots), 7, FOREGROUND),
            polls=PollRequests(waker),
            claims=ClaimCounter(),
            leases=SimpleNamespace(leases_hold=lambda: True),
            receivers=SimpleNamespace(is_behind=False),
            reactions=FOREGROUND,
            on_requests=dict(on_requests),
            on_events=on_events,
        )

    yield make
    for closable in (*links, *wakers):
        closable.close()


def take(fetcher, count=None):
    """Start and end the jobs that the fetcher has claimed, as slots that do not wait would. Return these jobs."""
    taken = []
    while fetcher.pool.submitted and (count is None or len(taken) < count):
        claimed = fetcher.pool.submitted.popleft()
        if fetcher.in_flight.start(claimed.execution_id, 0, wait=False):
            fetcher.in_flight.end(claimed.execution_id)
            taken.append(claimed)
    return taken


def drain(fetcher, finish_on=None):
    """Tick until no due job is left. Return all claimed jobs in order."""
    all_claimed = []
    while fetcher.empty_scans < 2:
        fetcher.tick()
        taken = take(fetcher)
        all_claimed += taken
        if finish_on is not None and taken:
            completions.succeed(finish_on, helpers.succeeded(*(job.key for job in taken)))
    return all_claimed


def test_fetcher_first_claim_fills_only_the_free_slots(engine, make_fetcher):
    helpers.make_jobs(engine, 100)
    fetcher = make_fetcher(capacity=10)
    fetcher.tick()
    assert len(fetcher.in_flight.waiting) == 10


def test_fetcher_fast_slots_get_prefetched_jobs_slow_do_not(engine, make_fetcher, monkeypatch):
    helpers.make_jobs(engine, 5000)
    clock = helpers.Clock(monkeypatch, module, claim_size)
    fetcher = make_fetcher(capacity=10)
    sizes = []
    for _ in range(30):
        fetcher.tick()
        sizes.append(len(take(fetcher)))
        clock.pass_by(0.006)
    assert max(sizes) > 50
    clock.pass_by(0.3)
    fetcher.claim_size.rate.per_second()
    assert fetcher.claim_size.now() <= 10 + 1


def test_fetcher_job_prefetched_over_1_s_is_released_uncounted(engine, make_fetcher, monkeypatch):
    clock = helpers.Clock(monkeypatch, module)
    helpers.make_jobs(engine, 5)
    fetcher = make_fetcher(capacity=5)
    fetcher.tick()
    assert len(fetcher.in_flight.waiting) == 5

    def released_count():
        fetcher.tick()
        return [row["outcome"] for row in helpers.rows_of(engine, "pgqueue_execution").values()].count("released")

    clock.pass_by(0.99)
    assert released_count() == 0
    clock.now = time.monotonic() + 1.0
    assert released_count() == 5
    rows = helpers.rows_of(engine, "pgqueue_job").values()
    assert {(row["state"], row["attempt"]) for row in rows} <= {("ready", 0), ("running", 1)}


def test_claim_last_attempt_jobs_fill_only_the_free_slots(engine, make_fetcher):
    helpers.make_jobs(engine, 20, max_attempts=1)
    claimed = lifecycle_claims.claim(
        engine, helpers.lanes_from_start(), limit=10, free_slots=3, worker_id=7, lease_seconds=60
    )
    assert len(claimed) == 3


LARGE = '{"args":["' + "x" * 250_000 + '"],"kwargs":{}}'


def test_fetcher_large_jobs_after_small_are_limited_by_size(engine, make_fetcher):
    helpers.make_jobs(engine, 3000)
    helpers.make_jobs(engine, 100, arguments=[LARGE] * 100)
    fetcher = make_fetcher(capacity=10)
    fetcher.claim_size.rate.per_second = lambda: 1e6  # so that only CLAIM_LIMIT and the size limit a claim
    claims = []
    while not claims or len(claims[-1]) == 500:
        fetcher.tick()
        claims.append(take(fetcher))
    assert sum(len(job.arguments) for job in claims[-1]) <= AHEAD_BYTES < 100 * len(LARGE)
    fetcher.tick()
    assert len(fetcher.in_flight.waiting) <= 10 + AHEAD_BYTES / len(LARGE)


def test_claim_jobs_over_the_size_limit_still_fill_the_slots(engine):
    helpers.make_jobs(engine, 5)
    cursors = helpers.lanes_from_start()
    options = {"limit": 5, "worker_id": 7, "lease_seconds": 60, "ahead_bytes": 1}
    assert len(lifecycle_claims.claim(engine, cursors, free_slots=2, **options)) == 2
    assert len(lifecycle_claims.claim(engine, cursors, free_slots=0, **options)) == 0
    assert len(lifecycle_claims.claim(engine, cursors, free_slots=3, **options)) == 3


def test_fetcher_queues_of_one_priority_take_turns(engine, make_fetcher):
    for queue_name in ("a", "b"):
        helpers.make_jobs(engine, 40, queue_name=queue_name)
    order = [job.queue_name for job in drain(make_fetcher(capacity=10), engine)]
    assert len(order) == 80
    assert {"a", "b"} <= set(order[:30])


@pytest.mark.parametrize("slow_seconds", [0.0, 60.0], ids=["scans from cursors", "whole scans"])
def test_fetcher_late_commit_behind_cursor_is_claimed_in_time(engine, second, make_fetcher, monkeypatch, slow_seconds):
    """The job's insert commits after later jobs were claimed. Only a claim from the start can find the job.

    By the test's clock each claim takes at least 20 ms. Fifty times as long is the second for which a job may lie
    behind a cursor.
    """
    monkeypatch.setattr(lanes_module, "SLOW_SECONDS", slow_seconds)
    clock = helpers.Clock(monkeypatch, module, reading_seconds=0.02)
    late = second
    late.execute("BEGIN")
    [late_id] = helpers.make_jobs(late, 1)
    helpers.make_jobs(engine, 3000)
    fetcher = make_fetcher(capacity=50)
    seen = 0
    while seen < 500:
        fetcher.tick()
        seen += len(take(fetcher))
    late.execute("COMMIT")
    committed_at, found = clock.now, []
    while late_id not in found:
        tick_at = clock.now
        fetcher.tick()
        found += [job.job_id for job in take(fetcher)]
        assert tick_at - committed_at < 1.0


def test_fetcher_released_job_behind_cursor_is_claimed_again(engine, make_fetcher):
    job_ids = helpers.make_jobs(engine, 50)
    fetcher = make_fetcher(capacity=10)
    claimed = drain(fetcher)
    assert [job.job_id for job in claimed] == job_ids
    completions.release(engine, [Released(claimed[0].key)])
    fetcher.restart_scans()
    assert [job.job_id for job in drain(fetcher)] == [job_ids[0]]


@pytest.mark.promise("bad-row-stops-no-queue")
def test_claim_failing_row_is_set_aside_and_others_are_claimed(engine, make_fetcher):
    good, bad, more = (helpers.make_job(engine) for _ in range(3))
    engine.execute(f"ALTER TABLE pgqueue_job ADD CONSTRAINT trap CHECK (state <> 'running' OR id <> {bad})")
    received = []

    def receive(**arguments):
        received.append((arguments["job_id"], arguments["error"]))

    signals.job_dead.connect(receive)
    try:
        claimed = drain(make_fetcher(), engine)
    finally:
        signals.job_dead.disconnect(receive)
        engine.execute("ALTER TABLE pgqueue_job DROP CONSTRAINT trap")
    assert [job.job_id for job in claimed] == [good, more]
    row = helpers.job_row(engine, bad)
    assert row["state"] == "dead"
    [execution] = [row for row in helpers.rows_of(engine, "pgqueue_execution").values() if row["job_id"] == bad]
    assert "cannot be claimed" in execution["error"]
    assert received == [(bad, execution["error"])]


def test_claim_failing_row_that_cannot_change_is_skipped(engine, make_fetcher):
    bad, good = (helpers.make_job(engine) for _ in range(2))
    engine.execute(f"ALTER TABLE pgqueue_job ADD CONSTRAINT trap CHECK (state = 'ready' OR id <> {bad})")
    try:
        claimed = drain(make_fetcher(), engine)
    finally:
        engine.execute("ALTER TABLE pgqueue_job DROP CONSTRAINT trap")
    assert [job.job_id for job in claimed] == [good]
    assert helpers.state_of(engine, bad) == "ready"


def test_fetcher_idle_polls_often_then_sleeps_until_due(engine, make_fetcher):
    fetcher = make_fetcher()
    fetcher.lanes.keyed._rest.after = lambda seconds: 0.0  # on a slow machine, a page of keys would be due earlier
    fetcher.may_sleep(30.0)
    assert [fetcher.tick() for _ in range(4)] == [0.005, 0.015, 0.06, 0.24]
    assert 20 < fetcher.tick() <= 30
    helpers.make_job(engine, delay_seconds=15.0)
    helpers.wait_until(lambda: 1 < fetcher.tick() <= 15)
    fetcher.polls.poll_soon()
    assert fetcher.tick() == 0.005


def test_in_flight_start_beyond_capacity_waits_or_raises():
    in_flight = InFlight(1)
    jobs = [Claimed(n, n, "t", "q", 0, EPOCH, "{}", 1, 1, 0, False, None, 0.0) for n in (1, 2)]
    in_flight.add(jobs)
    assert in_flight.start(1, 0, wait=False) == jobs[0]
    with pytest.raises(Full):
        in_flight.start(2, 1, wait=False)
    waiter = helpers.Background(lambda: in_flight.start(2, 1, wait=True))
    in_flight.end(1)
    assert waiter.result() == jobs[1]
    assert in_flight.start(2, 1, wait=False) is None


def test_fetcher_idle_sleeps_only_until_claim_from_start(engine, make_fetcher):
    """Slow claims from the start have long intervals. Jobs behind a cursor must not wait for a long poll as well."""
    fetcher = make_fetcher()
    fetcher.may_sleep(30.0)
    helpers.make_job(engine)
    drain(fetcher)
    fetcher._full_scan_at = time.monotonic() + 5.0
    fetcher._idle_steps = 4
    assert fetcher.tick() <= 5.0


def test_fetcher_announced_job_is_claimed_before_lane_scan(engine, make_fetcher, monkeypatch):
    fetcher = make_fetcher()
    monkeypatch.setattr(fetcher.lanes._rest, "after", lambda seconds: 0.0)
    helpers.make_job(engine)
    drain(fetcher)
    helpers.make_jobs(engine, 2)
    fetcher.polls.poll_soon()
    with monkeypatch.context() as without_lanes:
        without_lanes.delattr(lifecycle_claims, "scan_lanes")
        fetcher.tick()
    assert len(take(fetcher)) == 1
    assert len(drain(fetcher)) == 1
    helpers.make_job(engine, queue_name="another")
    fetcher.tick()
    assert len(take(fetcher)) == 1


def announced_job(fetcher, engine):
    """Make the fetcher idle after a job, and announce another one. Return the id of that one."""
    helpers.make_job(engine)
    drain(fetcher)
    fetcher.lanes._rest.seconds = 0.0
    job_id = helpers.make_job(engine)
    fetcher.polls.poll_soon()
    return job_id


def test_fetcher_announced_job_takes_one_statement(engine, make_fetcher, monkeypatch):
    """This statement claims the job, from the cursor at which the last claim ended."""
    fetcher, statements, claims = make_fetcher(), [], []
    announced_job(fetcher, engine)
    claim, cursors = fetcher.claimer.claim, fetcher.lanes.recent_lanes()
    monkeypatch.setattr(
        fetcher.claimer, "claim", lambda link, lanes, room: claims.append(lanes) or claim(link, lanes, room)
    )
    monkeypatch.setattr(EngineConnection, "record_statement", lambda statement, seconds: statements.append(statement))
    fetcher.tick()
    assert statements == [sql.claims.CLAIM]
    assert claims == [cursors] != [dict.fromkeys(cursors, Cursor())]
    assert len(take(fetcher)) == 1


def test_fetcher_announced_job_is_submitted_without_a_connection(engine, make_fetcher, monkeypatch):
    """A slot that wakes while the fetcher is still busy has to wait for the interpreter, and to wake again."""
    fetcher, in_use = make_fetcher(), []
    with closing(SharedConnections("default", ("fetcher", "completer"))) as connections:
        fetcher.link = connections.share(Preference.FIRST)
        announced_job(fetcher, engine)
        monkeypatch.setattr(fetcher.pool, "submit", lambda jobs: in_use.append(list(connections._used)))
        fetcher.tick()
    assert in_use == [[]]


def test_fetcher_announced_job_gets_the_interpreter_to_start(engine, make_fetcher):
    """The fetcher sleeps for a millisecond. Its next round would keep the interpreter from the thread of the slot."""
    fetcher = make_fetcher()
    announced_job(fetcher, engine)
    assert fetcher.tick() == module.START_SECONDS
    assert take(fetcher)


def test_fetcher_announced_job_that_has_started_delays_no_claim(engine, make_fetcher, monkeypatch):
    """A job that waits for the next scan is claimed right after an announced one, if the last scan is old."""
    fetcher = make_fetcher()
    announced_job(fetcher, engine)
    monkeypatch.setattr(
        fetcher.pool, "submit", lambda jobs: fetcher.in_flight.start(jobs[0].execution_id, 0, wait=False)
    )
    assert fetcher.tick() == 0.0


@contextmanager
def called():
    """Yield a list that gets the names of the package's functions that this thread calls."""
    names = []

    def note(frame, event, argument):
        if event == "call" and PACKAGE in frame.f_code.co_filename:
            names.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        yield names
    finally:
        sys.setprofile(None)


def test_fetcher_announced_job_takes_few_calls(engine, make_fetcher, monkeypatch):
    """Between two jobs the processor's caches get cold, so each call costs about 1 µs.

    The bounds are the counts on Python 3.11: from the notification to the claim's statement, and from its answer until
    the job is in flight. The stubs of this module hide the calls for leases and completions.
    """
    fetcher = make_fetcher()
    fetcher.claim_size.rate.per_second = lambda: 0.0  # it calls more functions after 5 ms
    monkeypatch.setattr(registry, "limits", dict)
    monkeypatch.setattr(registry, "chunk_keys", dict)
    with closing(SharedConnections("default", ("fetcher", "completer"), fetcher.polls.waker)) as connections:
        fetcher.link = connections.share(Preference.FIRST)
        announced_job(fetcher, engine)
        with fetcher.link.use() as connection:
            connection.execute(f"LISTEN {CHANNEL}")
        fetcher._sleep(0.0)
        fetcher.polls.take_urgent()
        engine.execute(f"NOTIFY {CHANNEL}")
        assert is_readable(connection.fileno(), 30.0)
        with called() as names:
            fetcher._sleep(30.0)
            fetcher.tick()
    before = names.index("execute_with_retry")
    after = names.index("add") - names.index("received")
    assert before <= 85
    assert after <= 27


def test_fetcher_announced_jobs_do_not_wait_for_a_slow_scan(engine, make_fetcher, monkeypatch):
    """Dead index entries make a scan slow, and the next one has to wait ten times as long."""
    fetcher = make_fetcher()
    for priority in (5, 0):
        helpers.make_job(engine, priority=priority)
    drain(fetcher)
    low = [helpers.make_job(engine, priority=0) for _ in range(2)]
    high = [helpers.make_job(engine, priority=5) for _ in range(2)]
    fetcher.lanes._rest.seconds = 60.0
    fetcher.polls.poll_soon()
    monkeypatch.delattr(lifecycle_claims, "scan_lanes")
    fetcher.tick()
    assert [job.job_id for job in take(fetcher)] == high + low


def test_fetcher_announced_job_of_paused_queue_is_not_claimed(engine, make_fetcher):
    """The fetcher also leaves the job alone if no notification of the pause arrived."""
    fetcher = make_fetcher()
    helpers.make_job(engine)
    drain(fetcher)
    pauses.pause(engine, Pausable.QUEUE, "default")
    helpers.wait_until(lambda: fetcher.tick() and not fetcher.lanes.recent_lanes())
    helpers.make_job(engine)
    fetcher.polls.poll_soon()
    fetcher.tick()
    assert not fetcher.in_flight.waiting
    pauses.resume(engine, Pausable.QUEUE, "default")
    fetcher.lanes.scan_again()
    fetcher.tick()
    assert len(fetcher.in_flight.waiting) == 1


def test_fetcher_pause_announced_with_job_does_not_claim_job(engine, make_fetcher, monkeypatch):
    """The notification of the pause makes the fetcher scan the lanes before it claims the job."""
    fetcher = make_fetcher()
    helpers.make_job(engine)
    drain(fetcher)
    pauses.pause(engine, Pausable.QUEUE, "default")
    helpers.make_job(engine)
    monkeypatch.setattr(fetcher.polls.waker, "wait_for_notifications", lambda seconds: {PAUSES_CHANGED})
    fetcher._sleep(0.0)
    fetcher.tick()
    assert not fetcher.in_flight.waiting


def test_fetcher_job_due_soon_limits_every_sleep(engine, make_fetcher, monkeypatch):
    """This includes the intervals of the polls that follow the last job."""
    monkeypatch.setattr(module, "IDLE_PAUSES_SECONDS", (60.0, 60.0))
    fetcher = make_fetcher()
    helpers.make_job(engine, delay_seconds=5.0)
    helpers.make_job(engine)
    fetcher.tick()
    take(fetcher)
    assert [fetcher.tick() <= 5.0 for _ in range(3)] == [True] * 3


def test_fetcher_leases_about_to_end_claims_nothing(engine, make_fetcher):
    helpers.make_jobs(engine, 3)
    fetcher = make_fetcher()
    fetcher.claim_size.leases.leases_hold = lambda: False
    assert fetcher.tick() == 0.1
    assert not fetcher.in_flight.waiting


def test_claim_sequence_behind_its_table_sets_no_job_aside(engine, make_fetcher):
    helpers.make_jobs(engine, 5)
    [first, *_] = helpers.claim_all(engine, limit=3)
    engine.execute("SELECT setval('pgqueue_execution_id_seq', %(id)s, false)", {"id": first.execution_id})
    fetcher = make_fetcher()
    with pytest.raises(psycopg.errors.UniqueViolation):
        fetcher.tick()
    assert [row["state"] for row in helpers.rows_of(engine, "pgqueue_job").values()].count("dead") == 0


@pytest.mark.promise("defect-slow-scan-after-lock")
def test_fetcher_scan_delayed_once_by_lock_is_repeated_soon(engine, second, watcher, make_fetcher, monkeypatch):
    clock = helpers.Clock(monkeypatch, module, lanes_module)
    fetcher = make_fetcher()
    with fetcher.link.use() as connection:
        connection.execute("SET lock_timeout = '30s'")
    drain(fetcher)
    for scan in (lambda: fetcher.lanes._scan(second), fetcher.tick):
        with helpers.transaction(engine, "LOCK TABLE pgqueue_job IN ACCESS EXCLUSIVE MODE"):
            blocked = helpers.Background(scan)
            helpers.wait_until(lambda: helpers.scalar(watcher, WAITING) == 1)
            clock.pass_by(5.0)
        blocked.result()
        helpers.make_job(engine)
        unlocked_at = clock.now
        while fetcher.tick() is not None and not take(fetcher):
            clock.pass_by(0.1)
        assert clock.now - unlocked_at < 3.0
        assert fetcher._full_scan_at < clock.now + 3.0


def test_pacing_scan_slow_each_time_waits_ten_times_as_long():
    pacing = Pacing()
    assert [pacing.after(seconds) for seconds in (0.5, 0.5, 0.001, 0.5, 1.0)] == [0.0, 5.0, 0.01, 0.01, 5.0]
    assert pacing.seconds == 5.0


def test_pacing_patient_scan_waits_fifty_times_as_long_up_to_its_patience():
    pacing = Pacing(1.0)
    assert [pacing.after(seconds) for seconds in (0.01, 0.01, 0.04, 0.04, 0.2, 0.2)] == [0.0, 0.5, 0.5, 1.0, 1.0, 2.0]


def test_fetcher_cancel_notification_calls_its_callback(make_fetcher, monkeypatch):
    calls = []
    fetcher = make_fetcher(on_requests={CANCEL_REQUESTED: lambda: calls.append("cancel")})
    for payload in ("", CANCEL_REQUESTED):
        monkeypatch.setattr(fetcher.polls.waker, "wait_for_notifications", lambda seconds, payload=payload: {payload})
        fetcher._sleep(0.0)
    assert calls == ["cancel"]


def test_fetcher_event_notification_passes_on_its_id(make_fetcher, monkeypatch):
    """Anybody can notify, so a payload can have anything behind the prefix."""
    event_ids = []
    fetcher = make_fetcher(on_events=event_ids.extend)
    forged = ("event:", "event:-1", "event:x", "event:" + "9" * 19, "event:\u0663", "other:1", "1")
    for payloads in ({""}, {"event:12", "event:7", ""}, {*forged}, {"event:" + "9" * 18}):
        monkeypatch.setattr(fetcher.polls.waker, "wait_for_notifications", lambda seconds, given=payloads: given)
        fetcher._sleep(0.0)
    assert sorted(event_ids) == [7, 12, 10**18 - 1]


def test_fetcher_execution_ids_restart_releases_reused_ids(make_fetcher, engine, monkeypatch):
    """A job that is claimed under an id in use is released, and then claimed again under another id.

    Otherwise two executions would share an id, and all other parts of the process know executions by id alone.
    """
    fetcher = make_fetcher()
    monkeypatch.setattr(NoCompleter, "ids", lambda self: {2}, raising=False)
    helpers.make_jobs(engine, 3)
    fetcher.tick()
    old = dict(fetcher.in_flight.waiting)
    assert sorted(old) == [1, 2, 3]
    for key in old:
        fetcher.in_flight.start(key, 0, wait=False)
    fetcher.in_flight.end(2)  # the completer is still writing its completion
    helpers.empty_tables(engine)
    helpers.make_jobs(engine, 4)
    fetcher.tick()
    assert {key: fetcher.in_flight.running[key].claimed for key in (1, 3)} == {key: old[key].claimed for key in (1, 3)}
    assert list(fetcher.in_flight.waiting) == [4]
    fetcher.in_flight.start(4, 0, wait=False)
    fetcher.restart_scans()  # the released jobs are behind the cursor
    fetcher.tick()
    new = [fetcher.in_flight.running[4].claimed, *(waiting.claimed for waiting in fetcher.in_flight.waiting.values())]
    assert sorted(job.job_id for job in new) == [1, 2, 3, 4]
    assert fetcher.claims.begun == fetcher.claims.ended > 0
    assert [row["attempt"] for row in helpers.rows_of(engine, "pgqueue_job").values()] == [1] * 4


@pytest.mark.promise("bad-row-claims")
@pytest.mark.parametrize("sqlstate", ["P0001", "54000", "42501"])
@pytest.mark.parametrize(("condition", "state"), [("NEW.state = 'running'", "dead"), ("true", "ready")])
def test_claim_trigger_refuses_one_others_are_claimed(engine, make_fetcher, condition, state, sqlstate):
    bad, *others = helpers.make_jobs(engine, 5)
    fetcher, claimed = make_fetcher(), []
    with helpers.users_trigger(engine, f"NEW.id = {bad} AND {condition}", sqlstate):
        while len(claimed) < len(others):
            fetcher.tick()
            claimed += take(fetcher)
        assert sorted(job.job_id for job in claimed) == others
    assert helpers.state_of(engine, bad) == state
