"""Tests of schedules on several connections: which session fires a tick, and what is written if a write fails."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from functools import partial

import psycopg
import pytest
from django.db import connection

from django_pgqueue import JobLocked
from django_pgqueue.declared.limits import CallLimit
from django_pgqueue.lifecycle import schedules, unique
from django_pgqueue.lifecycle import schedules as lifecycle_schedules
from django_pgqueue.lifecycle import ticks as lifecycle_ticks
from django_pgqueue.lifecycle.schedules import Scheduled
from django_pgqueue.lifecycle.ticks import Fired
from django_pgqueue.schedules import declarations, run_and_resume
from django_pgqueue.tasks import registry
from django_pgqueue.worker.maintenance.scheduler import Scheduler
from tests import helpers
from tests.app import tasks


def counts(connection) -> tuple[int, int]:
    """Return the number of jobs and the number of recorded ticks."""
    return tuple(helpers.scalar(connection, f"SELECT count(*) FROM pgqueue_{name}") for name in ("job", "schedulerun"))


def fire_by_the_statement_for_many(connection, schedule: Scheduled, **changes) -> Fired | None:
    """Fire the next tick of a schedule as `helpers.fire()` does."""
    return lifecycle_ticks.fire_many(connection, [helpers.tick_of(schedule, **changes)]).get(schedule.schedule_id)


@pytest.fixture(params=[helpers.fire, fire_by_the_statement_for_many], ids=["one", "many"])
def fire(request):
    """Return the function that fires a tick. Both must do the same."""
    return request.param


def test_fire_by_two_workers_at_once_fires_once(fire, engine, second):
    schedule = helpers.schedule_of(engine, helpers.make_schedule(engine))
    with helpers.transaction(engine):
        assert fire(engine, schedule).what == "fired"
        assert fire(second, schedule) is None, (
            "the second worker must neither wait for the first nor fire the tick again"
        )
        engine.execute("COMMIT")
    assert fire(second, schedule) is None
    assert counts(engine) == (1, 1)


@pytest.mark.promise("schedule-not-due")
@pytest.mark.parametrize(
    "change",
    [
        "enabled = false",
        "origin = 'code', confirmed_at = statement_timestamp() - interval '4 minutes'",
        "next_run_at = statement_timestamp() + interval '30 s'",
    ],
    ids=["it is paused", "no worker's code has it", "its tick has not come"],
)
def test_fire_schedule_not_due_does_nothing(fire, engine, change):
    """A worker checks the schedule before it fires the tick, and the statement checks it again."""
    schedule_id = helpers.make_schedule(engine)
    engine.execute(f"UPDATE pgqueue_schedule SET {change}")
    assert fire(engine, helpers.schedule_of(engine, schedule_id)) is None
    assert counts(engine) == (0, 0)


def test_fire_delayed_by_table_lock_fires_once(fire, engine, second, watcher):
    """The snapshot of the delayed statement is older than the other session's commit, and its locks are newer.

    A later call with the same old values then finds the schedule changed, and does not fire the tick again.
    """
    schedule_id = helpers.make_schedule(engine)
    schedule = helpers.schedule_of(engine, schedule_id)
    with helpers.transaction(engine, "LOCK TABLE pgqueue_schedulerun IN ACCESS EXCLUSIVE MODE"):
        late = helpers.Background(lambda: fire(second, schedule))
        helpers.wait_for_lock(watcher, second.info.backend_pid)
        engine.execute("COMMIT")
    assert late.result().what == "fired"
    assert fire(engine, schedule) is None
    assert counts(engine) == (1, 1)


def test_fire_with_delay_makes_job_due_later(fire, engine):
    fired = fire(
        engine, helpers.schedule_of(engine, helpers.make_schedule(engine)), job=helpers.new_job(delay_seconds=600.0)
    )
    job = helpers.rows_of(engine, "pgqueue_job")[fired.job_id]
    assert job["run_after"] - job["enqueued_at"] == timedelta(seconds=600)


def test_fire_if_running_skip_after_many_ticks_sees_last_job(fire, engine):
    schedule_id = helpers.make_schedule(engine, due_in=-3600.0, if_running="skip")
    engine.execute(
        "INSERT INTO pgqueue_schedulerun (schedule_id, tick_at, job_id) "
        "SELECT %s, statement_timestamp() - n * interval '2 hours', -n FROM generate_series(1, 25) AS n",
        [schedule_id],
    )
    fired = fire(engine, helpers.schedule_of(engine, schedule_id))
    assert fired.what == "fired"
    assert fire(engine, helpers.schedule_of(engine, schedule_id)).what == "skipped"
    assert helpers.rows_of(engine, "pgqueue_schedule")[schedule_id]["last_job_id"] == fired.job_id


@pytest.mark.promise("tick-fired-once")
def test_scheduler_eight_workers_fire_each_tick_once(engine, new_connection, monkeypatch):
    """Eight schedulers check the schedules at the same time, six times each, while an operator edits the rows.

    Two of them could fire the same tick, or a tick could be lost. Each tick must fire exactly once.
    """
    monkeypatch.setattr(declarations, "definitions", lambda alias: {})
    seen_at, _ = schedules.read_schedules(engine)
    first_at = seen_at - timedelta(seconds=49)
    for number in range(4):
        schedules.add_schedule(
            engine,
            helpers.definition(str(number), expression="every 1 second", missed="all"),
            origin="admin",
            next_run_at=first_at.replace(microsecond=0),
        )
    together = threading.Barrier(8)

    def work(connection):
        together.wait(30)
        scheduler = Scheduler()
        for _ in range(6):
            scheduler.turn(connection)

    workers = [helpers.Background(partial(work, new_connection())) for _ in range(8)]
    for _ in range(20):
        engine.execute("UPDATE pgqueue_schedule SET jitter_seconds = 0")
    for worker in workers:
        worker.result()
    last = Scheduler()
    last.turn(engine)
    ticks = engine.execute(
        "SELECT schedule_id, count(*), count(DISTINCT tick_at), count(DISTINCT job_id),"
        " extract(epoch FROM max(tick_at) - min(tick_at))::int + 1 FROM pgqueue_schedulerun GROUP BY schedule_id"
    ).fetchall()
    assert len(ticks) == 4
    for _, runs, distinct, jobs, seconds in ticks:
        assert runs == distinct == jobs == seconds >= 50
    assert counts(engine)[0] == sum(row[1] for row in ticks)


@pytest.mark.quick
@pytest.mark.promise("tick-all-or-nothing")
@pytest.mark.parametrize("table", ["pgqueue_job", "pgqueue_schedulerun", "pgqueue_schedule"])
def test_fire_one_write_refused_writes_nothing(fire, engine, table):
    """If one of the three writes fails, none of them takes effect, and the tick is still due."""
    schedule = helpers.schedule_of(engine, helpers.make_schedule(engine))
    event = "UPDATE" if table == "pgqueue_schedule" else "INSERT"
    engine.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'refused'; END$$"
    )
    try:
        engine.execute(f"CREATE TRIGGER refusing BEFORE {event} ON {table} FOR EACH ROW EXECUTE FUNCTION refuse()")
        with pytest.raises(psycopg.Error, match="refused"):
            fire(engine, schedule)
    finally:
        engine.execute("DROP FUNCTION refuse CASCADE")
    assert counts(engine) == (0, 0)
    assert helpers.schedule_of(engine, schedule.schedule_id)._replace(seen_at=schedule.seen_at) == schedule
    assert fire(engine, schedule).what == "fired"


@pytest.mark.promise("tick-lost-reply")
def test_fire_after_lost_reply_does_not_fire_again(fire, engine, second):
    """The worker that lost the reply fires again with the row as it was before the first call."""
    schedule = helpers.schedule_of(engine, helpers.make_schedule(engine))
    assert fire(engine, schedule).what == "fired"
    assert fire(engine, schedule) is None
    engine.execute("UPDATE pgqueue_schedule SET next_run_at = %s", [schedule.next_run_at])  # a restored row
    assert fire(engine, schedule).what == "again"
    assert counts(engine) == (1, 1)


@pytest.mark.parametrize(
    "act", [helpers.fire, lambda engine, schedule: schedules.pause_schedule(engine, schedule.schedule_id)]
)
def test_plan_schedule_stale_read_writes_nothing(engine, act):
    schedule = helpers.schedule_of(engine, helpers.make_schedule(engine))
    act(engine, schedule)
    before = helpers.rows_of(engine, "pgqueue_schedule")
    assert not schedules.plan_schedule(engine, schedule, schedule.next_run_at + timedelta(days=1))
    assert helpers.rows_of(engine, "pgqueue_schedule") == before


@pytest.mark.parametrize("change", ["pause", "definition"])
def test_fire_schedule_changed_since_read_writes_nothing(fire, engine, second, change):
    schedule = helpers.schedule_of(engine, helpers.make_schedule(engine))
    if change == "pause":
        schedules.pause_schedule(second, schedule.schedule_id)
    else:
        changed = helpers.definition(expression="@daily")
        assert schedules.change_schedule(
            second, schedule.schedule_id, changed, revision=schedule.revision, next_run_at=schedule.next_run_at
        )
    assert fire(engine, schedule) is None
    assert not schedules.plan_schedule(engine, schedule, schedule.next_run_at + timedelta(days=1))
    assert not schedules.change_schedule(
        engine, schedule.schedule_id, helpers.definition(), revision=schedule.revision, next_run_at=schedule.next_run_at
    )
    assert counts(engine) == (0, 0)


def test_add_schedule_by_two_workers_adds_one_row(engine, second):
    seen_at, _ = schedules.read_schedules(engine)
    with helpers.transaction(engine):
        assert schedules.add_schedule(engine, helpers.definition(), origin="code", next_run_at=seen_at)
        adding = helpers.Background(
            lambda: schedules.add_schedule(second, helpers.definition(), origin="code", next_run_at=seen_at)
        )
        engine.execute("COMMIT")
    assert adding.result() is None
    assert schedules.add_schedule(engine, helpers.definition(), origin="admin", next_run_at=seen_at) is not None


def test_schedule_transitions_locked_row_do_not_wait(fire, engine, second, monkeypatch):
    monkeypatch.setattr(lifecycle_schedules, "LOCK_WAIT_SECONDS", 0.05)
    engine.execute("SET lock_timeout = '1s'")
    schedule = helpers.schedule_of(engine, helpers.make_schedule(engine))
    change = partial(
        schedules.change_schedule,
        *(engine, schedule.schedule_id, helpers.definition()),
        revision=schedule.revision,
        next_run_at=schedule.next_run_at,
    )
    with helpers.transaction(second, "SELECT FROM pgqueue_schedule FOR UPDATE"):
        assert fire(engine, schedule) is None
        assert not schedules.plan_schedule(engine, schedule, schedule.next_run_at)
        assert not change()
        schedules.confirm_schedules(engine, [schedule.schedule_id])
        assert schedules.remove_schedules(engine, [schedule.schedule_id], 0.0) == []
        for call in (
            lambda: lifecycle_ticks.run_schedule(engine, schedule, helpers.new_job()),
            lambda: schedules.pause_schedule(engine, schedule.schedule_id),
            lambda: schedules.resume_schedule(engine, schedule.schedule_id, schedule.next_run_at),
            partial(change, tries=True),
        ):
            with pytest.raises(JobLocked):
                call()
    assert schedules.pause_schedule(engine, schedule.schedule_id)


def test_resume_of_a_changed_schedule_follows_the_new_definition(engine, second):
    schedule_id = helpers.make_schedule(engine, expression="0 9 1 1 *")
    schedules.pause_schedule(engine, schedule_id)
    before = schedules.read_schedules(engine)[0]
    with helpers.transaction(second, "UPDATE pgqueue_schedule SET expression = 'every 2 hours', revision = 99"):
        resumed = helpers.Background(partial(resume_as_operator, schedule_id))
        time.sleep(0.3)
        assert resumed.thread.is_alive(), "the row is locked, so nothing can be resumed yet"
        second.execute("COMMIT")
    assert resumed.result() is True
    schedule = helpers.schedule_of(engine, schedule_id)
    assert schedule.enabled and schedule.revision == 100
    assert before < schedule.next_run_at <= before + timedelta(hours=2, seconds=10)


def test_resume_skips_a_tick_that_passed_while_the_row_was_locked(engine, second):
    schedule_id = helpers.make_schedule(engine, expression="every 1 seconds")
    schedules.pause_schedule(engine, schedule_id)
    with helpers.transaction(second, "SELECT FROM pgqueue_schedule FOR UPDATE"):
        resumed = helpers.Background(partial(resume_as_operator, schedule_id))
        time.sleep(1.5)
        unlocked_at = schedules.read_schedules(engine)[0]
        second.execute("COMMIT")
    assert resumed.result() is True
    assert helpers.schedule_of(engine, schedule_id).next_run_at > unlocked_at


def resume_as_operator(schedule_id: int) -> bool:
    """Resume a schedule on the connection of this thread, as the admin and `manage.py pgqueue` do."""
    try:
        return run_and_resume.resume(connection, schedule_id)
    finally:
        connection.close()


def test_remove_schedules_deletes_only_its_own_ticks(engine):
    mine, other = helpers.make_schedule(engine), helpers.make_schedule(engine, "another")
    for schedule_id in (mine, other):
        assert helpers.fire(engine, helpers.schedule_of(engine, schedule_id)).what == "fired"
    assert schedules.remove_schedules(engine, [mine], 0.0) == [mine]
    assert [run["schedule_id"] for run in helpers.rows_of(engine, "pgqueue_schedulerun").values()] == [other]


# ------------------------------------------------------------------ unique keys

KEYED = helpers.new_job("k")
FOR_PERIOD = helpers.new_job("k", 3600.0)


def enqueue_same_key(connection, job):
    """Enqueue a job with the same key."""
    if job is KEYED:
        helpers.enqueue_unique(connection, "k")
    else:
        helpers.enqueue_for_period(connection, "k")


@pytest.mark.promise("tick-unique-key-taken")
@pytest.mark.parametrize("job", [KEYED, FOR_PERIOD], ids=["state", "period"])
@pytest.mark.parametrize(("end", "what"), [("COMMIT", "duplicate"), ("ROLLBACK", "fired")])
def test_fire_key_being_enqueued_follows_its_outcome(engine, second, watcher, job, end, what, monkeypatch):
    monkeypatch.setattr(lifecycle_ticks, "KEY_WAIT", f"{helpers.LOCK_WAIT_SECONDS:g}s")
    schedule = helpers.schedule_of(engine, helpers.make_schedule(engine))
    second.execute("BEGIN")
    enqueue_same_key(second, job)
    waiting = helpers.Background(lambda: helpers.fire(engine, schedule, job=job))
    helpers.wait_for_lock(watcher, engine.info.backend_pid)
    assert helpers.fire(watcher, schedule, job=job) is None, (
        "a third session must neither wait for the key nor fire the tick"
    )
    second.execute(end)
    assert waiting.result().what == what
    assert counts(engine) == (1, 1)
    assert helpers.fire(second, schedule, job=job) is None


@pytest.mark.promise("tick-unique-key-locked")
@pytest.mark.parametrize("job", [KEYED, FOR_PERIOD], ids=["state", "period"])
def test_fire_key_locked_times_out_and_tick_stays_due(engine, second, job, monkeypatch):
    """This must work behind a pooler too, where the session has no `lock_timeout` of its own."""
    engine.execute("SET lock_timeout = 0")
    monkeypatch.setattr(lifecycle_ticks, "KEY_WAIT", "50ms")
    schedule = helpers.schedule_of(engine, helpers.make_schedule(engine))
    with helpers.transaction(second):
        enqueue_same_key(second, job)
        for _ in range(2):
            assert helpers.fire(engine, schedule, job=job) == ("waits", None)
        assert counts(engine) == (0, 0)
        assert helpers.scalar(engine, "SHOW lock_timeout") == "0"
        engine.execute("SET lock_timeout = '50ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            lifecycle_ticks.run_schedule(engine, schedule, job)
    assert helpers.fire(engine, schedule, job=job).what == "fired"
    assert counts(engine) == (1, 1)


@pytest.mark.promise("tick-unique-key-locked")
def test_scheduler_key_locked_other_schedules_fire(engine, second, monkeypatch):
    monkeypatch.setattr(declarations, "definitions", lambda alias: {})
    monkeypatch.setitem(registry._tasks, helpers.NOOP, tasks.noop.using(unique_key="k"))
    monkeypatch.setattr(lifecycle_ticks, "KEY_WAIT", "50ms")
    yearly = {"expression": "@yearly"}  # the next tick of a schedule that fires each minute may come during the test
    helpers.make_schedule(engine, "held", **yearly)
    arguments = '{"args":[1],"kwargs":{}}'
    helpers.make_schedule(engine, "free", task_name="tests.app.tasks.add", arguments=arguments, **yearly)
    with helpers.transaction(second):
        enqueue_same_key(second, KEYED)
        assert Scheduler().turn(engine) > 1, "the scheduler must wait before it tries the locked key again"
        assert counts(engine) == (1, 1)
    Scheduler().turn(engine)
    assert counts(engine) == (2, 2)


@pytest.mark.parametrize("job", [KEYED, FOR_PERIOD], ids=["state", "period"])
def test_fire_eight_schedules_of_one_key_adds_one_job(new_connection, engine, job):
    all_schedules = [helpers.schedule_of(engine, helpers.make_schedule(engine, f"{number}")) for number in range(8)]
    firing = [
        helpers.Background(partial(helpers.fire, new_connection(), schedule, job=job)) for schedule in all_schedules
    ]
    assert sorted(each.result().what for each in firing) == ["duplicate"] * 7 + ["fired"]
    assert counts(engine) == (1, 8)


@pytest.mark.parametrize("job", [KEYED, FOR_PERIOD], ids=["state", "period"])
def test_run_schedule_key_taken_records_no_tick(engine, job):
    schedule = helpers.schedule_of(engine, helpers.make_schedule(engine))
    assert lifecycle_ticks.run_schedule(engine, schedule, job).what == "fired"
    assert lifecycle_ticks.run_schedule(engine, schedule, job) == ("duplicate", None)
    assert counts(engine) == (1, 1)
    assert len(unique.open_windows(engine, helpers.NOOP, ["k"])) == (job is FOR_PERIOD)


def test_fire_of_frozen_worker_unlocks_schedule_after_5_s(engine, second):
    """A process that is frozen between the two statements keeps the row of the schedule locked until then."""
    schedule = helpers.schedule_of(engine, helpers.make_schedule(engine))
    with helpers.transaction(engine):
        assert helpers.fire(engine, schedule).what == "fired"
        assert helpers.scalar(engine, "SHOW idle_in_transaction_session_timeout") == "5s"
        assert helpers.fire(second, schedule) is None


def test_fire_rolled_back_tick_can_fire_again(fire, engine, second):
    schedule = helpers.schedule_of(engine, helpers.make_schedule(engine))
    with helpers.transaction(engine):
        fire(engine, schedule)
    assert counts(engine) == (0, 0)
    assert fire(second, schedule).what == "fired"


def test_fire_many_fires_each_tick_that_it_may(engine, second):
    """One schedule is locked, one is paused, and one has changed. The others fire, each with its own values."""
    due = [
        helpers.schedule_of(engine, helpers.make_schedule(engine, f"{number}", if_running="skip"))
        for number in range(6)
    ]
    ticks = [helpers.tick_of(schedule) for schedule in due]
    of_row = {"queue_name": "mail", "priority": 7, "max_attempts": 3, "expires_seconds": 60.0, "delay_seconds": 600.0}
    of_row |= {"headers": '{"a": "b"}', "task_name": "shop.now"}
    own = helpers.new_job(search_keys={"order": "12"}, limit=CallLimit("stripe", 2, 1), **of_row)
    ticks[0] = ticks[0]._replace(job=own)
    schedules.pause_schedule(engine, due[2].schedule_id)
    ticks[3] = ticks[3]._replace(scheduled=due[3]._replace(revision=7))
    assert fire_by_the_statement_for_many(engine, due[4]).what == "fired"
    ticks[4] = helpers.tick_of(helpers.schedule_of(engine, due[4].schedule_id))._replace(tick_at=due[5].next_run_at)
    with helpers.transaction(second, f"SELECT FROM pgqueue_schedule WHERE id = {due[1].schedule_id} FOR UPDATE"):
        fired = lifecycle_ticks.fire_many(engine, ticks)
    expected = {due[0].schedule_id: "fired", due[4].schedule_id: "skipped", due[5].schedule_id: "fired"}
    assert {schedule_id: result.what for schedule_id, result in fired.items()} == expected
    job = helpers.rows_of(engine, "pgqueue_job")[fired[due[0].schedule_id].job_id]
    wanted = {"queue_name": "mail", "priority": 7, "max_attempts": 3, "task_name": "shop.now", "headers": {"a": "b"}}
    limit = {"limit_key": "stripe", "limit_weight": 2, "limit_order": 1}
    assert {**job, **wanted, **limit} == job
    assert job["run_after"] - job["enqueued_at"] == timedelta(seconds=600)
    assert job["expires_at"] - job["enqueued_at"] == timedelta(seconds=60)
    assert engine.execute("SELECT job_id, name, value FROM pgqueue_search_key").fetchall() == [
        (job["id"], "order", "12")
    ]
    rows = helpers.rows_of(engine, "pgqueue_schedule")
    for schedule in due:
        has_fired = expected.get(schedule.schedule_id) == "fired"
        row = rows[schedule.schedule_id]
        if has_fired:
            assert row["last_job_id"] == fired[schedule.schedule_id].job_id
            assert (row["last_run_at"], row["next_run_at"]) == (
                schedule.next_run_at,
                schedule.next_run_at + timedelta(seconds=60),
            )
    assert rows[due[4].schedule_id]["last_job_id"] is not None, "a skipped tick must not forget the last job"
    assert counts(engine) == (3, 4)


def test_fire_many_after_a_skipped_tick_that_waits_stays_due(engine):
    schedule = helpers.schedule_of(engine, helpers.make_schedule(engine, if_running="queue"))
    assert fire_by_the_statement_for_many(engine, schedule).what == "fired"
    engine.execute("UPDATE pgqueue_schedule SET next_run_at = statement_timestamp() - interval '1 s'")
    later = helpers.schedule_of(engine, schedule.schedule_id)
    assert fire_by_the_statement_for_many(engine, later) == ("waits", None)
    assert helpers.schedule_of(engine, schedule.schedule_id).next_run_at == later.next_run_at
    engine.execute("UPDATE pgqueue_job SET state = 'succeeded', finished_at = statement_timestamp()")
    assert fire_by_the_statement_for_many(engine, later).what == "fired"
