"""Schedules on several connections: who fires a tick, and what is there of it if anything fails."""

from __future__ import annotations

import threading
from datetime import timedelta
from functools import partial

import psycopg
import pytest

from django_pgqueue import JobLocked, lifecycle, registry
from django_pgqueue.lifecycle import schedules
from django_pgqueue.schedules import declarations
from django_pgqueue.worker.maintenance.scheduler import Scheduler
from tests import helpers
from tests.app import tasks

OPTIONS = lifecycle.JobOptions("default", 0, 10)


def counts(connection) -> tuple[int, int]:
    """Jobs, and ticks that were dealt with."""
    return tuple(helpers.scalar(connection, f"SELECT count(*) FROM pgqueue_{name}") for name in ("job", "schedulerun"))


def test_two_workers_that_have_read_the_same_fire_once(engine, second):
    one = helpers.schedule_of(engine, helpers.make_schedule(engine))
    with helpers.transaction(engine):
        assert helpers.fire(engine, one).what == "fired"
        assert helpers.fire(second, one) is None, "it waited for the other, or fired too"
        engine.execute("COMMIT")
    assert helpers.fire(second, one) is None
    assert counts(engine) == (1, 1)


@pytest.mark.promise("schedule-not-due")
@pytest.mark.parametrize(
    "change",
    [
        "enabled = false",
        "origin = 'code', vouched_at = statement_timestamp() - interval '4 minutes'",
        "next_run_at = statement_timestamp() + interval '30 s'",
    ],
    ids=["it is paused", "no worker's code has it", "its tick has not come"],
)
def test_one_that_may_not_fire_does_not_whoever_asks(engine, change):
    """A worker looks before it asks, and the statement again."""
    schedule_id = helpers.make_schedule(engine)
    engine.execute(f"UPDATE pgqueue_schedule SET {change}")
    assert helpers.fire(engine, helpers.schedule_of(engine, schedule_id)) is None
    assert counts(engine) == (0, 0)


def test_one_that_comes_late_to_the_row_finds_it_changed(engine, second, watcher):
    """Its snapshot is from before the other's commit, its lock from after."""
    schedule_id = helpers.make_schedule(engine)
    one = helpers.schedule_of(engine, schedule_id)
    with helpers.transaction(engine, "LOCK TABLE pgqueue_schedulerun IN ACCESS EXCLUSIVE MODE"):
        late = helpers.Background(lambda: helpers.fire(second, one))
        helpers.wait_for_lock(watcher, second.info.backend_pid)
        engine.execute("COMMIT")
    assert late.result().what == "fired"
    assert helpers.fire(engine, one) is None
    assert counts(engine) == (1, 1)


def test_after_many_ticks_the_last_one_s_job_still_counts(engine):
    schedule_id = helpers.make_schedule(engine, due_in=-3600.0, if_running="skip")
    engine.execute(
        "INSERT INTO pgqueue_schedulerun (schedule_id, tick_at, job_id) "
        "SELECT %s, statement_timestamp() - n * interval '2 hours', -n FROM generate_series(1, 25) AS n",
        [schedule_id],
    )
    fired = helpers.fire(engine, helpers.schedule_of(engine, schedule_id))
    assert fired.what == "fired"
    assert helpers.fire(engine, helpers.schedule_of(engine, schedule_id)).what == "skipped"
    assert helpers.rows_of(engine, "pgqueue_schedule")[schedule_id]["last_job_id"] == fired.job_id


@pytest.mark.promise("tick-fired-once")
def test_eight_workers_fire_each_of_fifty_ticks_once(engine, new_connection, monkeypatch):
    """All look at the same moment, again and again, while an operator edits the rows."""
    monkeypatch.setattr(declarations, "definitions", lambda alias: {})
    seen_at, _ = lifecycle.read_schedules(engine)
    first_at = seen_at - timedelta(seconds=49)
    for number in range(4):
        lifecycle.add_schedule(
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


@pytest.mark.promise("tick-all-or-nothing")
@pytest.mark.parametrize("table", ["pgqueue_job", "pgqueue_schedulerun", "pgqueue_schedule"])
def test_a_tick_is_all_there_or_not_at_all(engine, table):
    """Whichever of the three writes fails, none of them is done, and the tick is owed still."""
    one = helpers.schedule_of(engine, helpers.make_schedule(engine))
    event = "UPDATE" if table == "pgqueue_schedule" else "INSERT"
    engine.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'refused'; END$$"
    )
    try:
        engine.execute(f"CREATE TRIGGER refusing BEFORE {event} ON {table} FOR EACH ROW EXECUTE FUNCTION refuse()")
        with pytest.raises(psycopg.Error, match="refused"):
            helpers.fire(engine, one)
    finally:
        engine.execute("DROP FUNCTION refuse CASCADE")
    assert counts(engine) == (0, 0)
    assert helpers.schedule_of(engine, one.schedule_id)._replace(seen_at=one.seen_at) == one
    assert helpers.fire(engine, one).what == "fired"


@pytest.mark.promise("tick-lost-reply")
def test_what_was_fired_before_the_reply_was_lost_is_not_fired_again(engine, second):
    """The worker that asks again has read the row before."""
    one = helpers.schedule_of(engine, helpers.make_schedule(engine))
    assert helpers.fire(engine, one).what == "fired"
    assert helpers.fire(engine, one) is None
    engine.execute("UPDATE pgqueue_schedule SET next_run_at = %s", [one.next_run_at])  # a row that was restored
    assert helpers.fire(engine, one).what == "again"
    assert counts(engine) == (1, 1)


@pytest.mark.parametrize("act", [helpers.fire, lambda engine, one: lifecycle.pause_schedule(engine, one.schedule_id)])
def test_a_plan_by_what_was_read_before_is_not_written(engine, act):
    one = helpers.schedule_of(engine, helpers.make_schedule(engine))
    act(engine, one)
    before = helpers.rows_of(engine, "pgqueue_schedule")
    assert not lifecycle.plan_schedule(engine, one, one.next_run_at + timedelta(days=1))
    assert helpers.rows_of(engine, "pgqueue_schedule") == before


@pytest.mark.parametrize("change", ["pause", "definition"])
def test_what_was_worked_out_before_a_change_is_not_written_after_it(engine, second, change):
    one = helpers.schedule_of(engine, helpers.make_schedule(engine))
    if change == "pause":
        lifecycle.pause_schedule(second, one.schedule_id)
    else:
        changed = helpers.definition(expression="@daily")
        assert lifecycle.change_schedule(
            second, one.schedule_id, changed, revision=one.revision, next_run_at=one.next_run_at
        )
    assert helpers.fire(engine, one) is None
    assert not lifecycle.plan_schedule(engine, one, one.next_run_at + timedelta(days=1))
    assert not lifecycle.change_schedule(
        engine, one.schedule_id, helpers.definition(), revision=one.revision, next_run_at=one.next_run_at
    )
    assert counts(engine) == (0, 0)


def test_two_workers_that_start_at_once_write_a_definition_down_once(engine, second):
    seen_at, _ = lifecycle.read_schedules(engine)
    with helpers.transaction(engine):
        assert lifecycle.add_schedule(engine, helpers.definition(), origin="code", next_run_at=seen_at)
        adding = helpers.Background(
            lambda: lifecycle.add_schedule(second, helpers.definition(), origin="code", next_run_at=seen_at)
        )
        engine.execute("COMMIT")
    assert adding.result() is None
    assert lifecycle.add_schedule(engine, helpers.definition(), origin="admin", next_run_at=seen_at) is not None


def test_no_act_on_a_schedule_waits_for_its_row(engine, second, monkeypatch):
    monkeypatch.setattr(schedules, "LOCK_WAIT_SECONDS", 0.05)
    engine.execute("SET lock_timeout = '1s'")
    one = helpers.schedule_of(engine, helpers.make_schedule(engine))
    change = partial(
        lifecycle.change_schedule,
        *(engine, one.schedule_id, helpers.definition()),
        revision=one.revision,
        next_run_at=one.next_run_at,
    )
    with helpers.transaction(second, "SELECT FROM pgqueue_schedule FOR UPDATE"):
        assert helpers.fire(engine, one) is None
        assert not lifecycle.plan_schedule(engine, one, one.next_run_at)
        assert not change()
        lifecycle.vouch(engine, [one.schedule_id])
        assert lifecycle.remove_schedules(engine, [one.schedule_id], 0.0) == []
        for act in (
            lambda: lifecycle.run_schedule(engine, one, OPTIONS),
            lambda: lifecycle.pause_schedule(engine, one.schedule_id),
            lambda: lifecycle.resume_schedule(engine, one.schedule_id, one.next_run_at),
            partial(change, tries=True),
        ):
            with pytest.raises(JobLocked):
                act()
    assert lifecycle.pause_schedule(engine, one.schedule_id)


def test_a_schedule_that_is_removed_takes_its_ticks_with_it_and_no_others(engine):
    mine, other = helpers.make_schedule(engine), helpers.make_schedule(engine, "another")
    for schedule_id in (mine, other):
        assert helpers.fire(engine, helpers.schedule_of(engine, schedule_id)).what == "fired"
    assert lifecycle.remove_schedules(engine, [mine], 0.0) == [mine]
    assert [run["schedule_id"] for run in helpers.rows_of(engine, "pgqueue_schedulerun").values()] == [other]


# ------------------------------------------------------------------ unique keys

KEYED = OPTIONS._replace(unique_key="k", task_name=helpers.NOOP)
FOR_PERIOD = KEYED._replace(period_seconds=3600.0)


def take(connection, options):
    """Enqueue a job with the same key."""
    if options is KEYED:
        helpers.enqueue_unique(connection, "k")
    else:
        helpers.enqueue_for_period(connection, "k")


@pytest.mark.promise("tick-unique-key-taken")
@pytest.mark.parametrize("options", [KEYED, FOR_PERIOD], ids=["state", "period"])
@pytest.mark.parametrize(("end", "what"), [("COMMIT", "duplicate"), ("ROLLBACK", "fired")])
def test_a_tick_that_meets_an_enqueue_of_its_key_is_skipped_or_fired_as_that_ends(
    engine, second, watcher, options, end, what
):
    one = helpers.schedule_of(engine, helpers.make_schedule(engine))
    second.execute("BEGIN")
    take(second, options)
    waiting = helpers.Background(lambda: helpers.fire(engine, one, options=options))
    helpers.wait_for_lock(watcher, engine.info.backend_pid)
    assert helpers.fire(watcher, one, options=options) is None, "nobody else waits for it, or fires it"
    second.execute(end)
    assert waiting.result().what == what
    assert counts(engine) == (1, 1)
    assert helpers.fire(second, one, options=options) is None


@pytest.mark.promise("tick-unique-key-locked")
@pytest.mark.parametrize("options", [KEYED, FOR_PERIOD], ids=["state", "period"])
def test_for_a_key_that_an_open_transaction_has_it_waits_once_and_the_tick_stays_owed(
    engine, second, options, monkeypatch
):
    """Also behind a pooler, where the session has no time-out of its own."""
    engine.execute("SET lock_timeout = 0")
    monkeypatch.setattr(schedules, "KEY_WAIT", "50ms")
    one = helpers.schedule_of(engine, helpers.make_schedule(engine))
    with helpers.transaction(second):
        take(second, options)
        for _ in range(2):
            assert helpers.fire(engine, one, options=options) == ("waits", None)
        assert counts(engine) == (0, 0)
        assert helpers.scalar(engine, "SHOW lock_timeout") == "0"
        engine.execute("SET lock_timeout = '50ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            lifecycle.run_schedule(engine, one, options)
    assert helpers.fire(engine, one, options=options).what == "fired"
    assert counts(engine) == (1, 1)


@pytest.mark.promise("tick-unique-key-locked")
def test_while_a_key_is_waited_for_the_other_schedules_fire(engine, second, monkeypatch):
    monkeypatch.setattr(declarations, "definitions", lambda alias: {})
    monkeypatch.setitem(registry._tasks, helpers.NOOP, tasks.noop.using(unique_key="k"))
    monkeypatch.setattr(schedules, "KEY_WAIT", "50ms")
    yearly = {"expression": "@yearly"}  # the next tick of a minute may be a moment away
    helpers.make_schedule(engine, "held", **yearly)
    arguments = '{"args":[1],"kwargs":{}}'
    helpers.make_schedule(engine, "free", task_name="tests.app.tasks.add", arguments=arguments, **yearly)
    with helpers.transaction(second):
        take(second, KEYED)
        assert Scheduler().turn(engine) > 1, "it is not tried again without a pause"
        assert counts(engine) == (1, 1)
    Scheduler().turn(engine)
    assert counts(engine) == (2, 2)


@pytest.mark.parametrize("options", [KEYED, FOR_PERIOD], ids=["state", "period"])
def test_eight_schedules_of_one_key_make_one_job_at_once(new_connection, engine, options):
    ones = [helpers.schedule_of(engine, helpers.make_schedule(engine, f"{number}")) for number in range(8)]
    firing = [helpers.Background(partial(helpers.fire, new_connection(), one, options=options)) for one in ones]
    assert sorted(each.result().what for each in firing) == ["duplicate"] * 7 + ["fired"]
    assert counts(engine) == (1, 8)


@pytest.mark.parametrize("options", [KEYED, FOR_PERIOD], ids=["state", "period"])
def test_what_an_operator_asks_for_is_not_noted_where_the_key_is_taken(engine, options):
    one = helpers.schedule_of(engine, helpers.make_schedule(engine))
    assert lifecycle.run_schedule(engine, one, options).what == "fired"
    assert lifecycle.run_schedule(engine, one, options) == ("duplicate", None)
    assert counts(engine) == (1, 1)
    assert len(lifecycle.holds(engine, helpers.NOOP, ["k"])) == (options is FOR_PERIOD)


def test_a_tick_fired_inside_a_transaction_that_rolls_back_was_never_fired(engine, second):
    one = helpers.schedule_of(engine, helpers.make_schedule(engine))
    with helpers.transaction(engine):
        helpers.fire(engine, one)
    assert counts(engine) == (0, 0)
    assert helpers.fire(second, one).what == "fired"
