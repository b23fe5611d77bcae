"""Schedules: what a worker's turn fires, by the database's clock; what it makes of missed ticks, of clocks that jump,
of bad rows, and of other workers with other code."""

from __future__ import annotations

import math
import types
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from django.test import override_settings

from django_pgqueue import lifecycle, registry, signals
from django_pgqueue.db import statements
from django_pgqueue.db.notifications import CHANNEL
from django_pgqueue.models import Job, Schedule, ScheduleRun
from django_pgqueue.schedules import declarations
from django_pgqueue.worker.maintenance import schedule_service, scheduler
from django_pgqueue.worker.maintenance.schedule_service import Schedules
from django_pgqueue.worker.maintenance.scheduler import Scheduler
from django_pgqueue.worker.runtime.connection import Link
from tests import helpers
from tests.app import tasks
from tests.statements import replace_execute

DAY = timedelta(days=1)
START = datetime(2030, 5, 6, 8, 59, 30, tzinfo=UTC)
NINE = datetime(2030, 5, 6, 9, 0, tzinfo=UTC)
DAILY = helpers.definition("daily", expression="0 9 * * *")
MINUTELY = helpers.definition("minutely", expression="* * * * *")


class Clock:
    """The database's clock, set by the tests, and the process's own beside it."""

    def __init__(self, engine, monkeypatch) -> None:
        self.engine = engine
        self.monotonic_seconds = 1000.0
        monkeypatch.setattr(scheduler, "time", types.SimpleNamespace(monotonic=lambda: self.monotonic_seconds))

    def set(self, instant: datetime) -> None:
        real = helpers.scalar(self.engine, "SELECT statement_timestamp()")
        statements.clock.shift_seconds = (instant - real).total_seconds()

    def pass_by(self, seconds: float) -> None:
        statements.clock.shift_seconds += seconds
        self.monotonic_seconds += seconds


@pytest.fixture
def clock(engine, monkeypatch):
    it = Clock(engine, monkeypatch)
    it.set(START)
    return it


@pytest.fixture
def release(engine, monkeypatch):
    """Makes workers whose code has the definitions given: each call is one turn."""

    def make(*definitions: lifecycle.Definition, on=engine):
        one = Scheduler()

        def turn() -> float | None:
            monkeypatch.setattr(declarations, "definitions", lambda alias: {each.name: each for each in definitions})
            return one.turn(on)

        turn.scheduler = one  # type: ignore[attr-defined]  # for a look inside
        return turn

    return make


def ticks(name: str = "") -> list[datetime]:
    """The ticks that have a job, of one schedule or of all."""
    runs = ScheduleRun.objects.filter(job_id__isnull=False)
    runs = runs.filter(schedule__name=name) if name else runs
    found = list(runs.order_by("tick_at").values_list("tick_at", flat=True))
    assert Job.objects.count() == ScheduleRun.objects.filter(job_id__isnull=False).count()
    return found


def row(name: str) -> Schedule:
    return Schedule.objects.get(name=name)


# ------------------------------------------------------------------ firing


def test_a_tick_is_fired_when_it_has_come_and_once(clock, release):
    one, other = release(DAILY), release(DAILY)
    assert one() == pytest.approx(30, abs=1)
    assert ticks() == []
    clock.set(NINE)
    assert one() == pytest.approx(DAY.total_seconds(), abs=1)
    assert other() == pytest.approx(DAY.total_seconds(), abs=1)
    assert ticks() == [NINE]
    job = Job.objects.get()
    assert (job.task_name, job.queue_name, job.state) == (helpers.NOOP, "default", "ready")
    assert job.run_after - NINE < timedelta(seconds=5)
    assert (row("daily").last_run_at, row("daily").last_job_id, row("daily").next_run_at) == (NINE, job.pk, NINE + DAY)


def test_a_job_of_a_schedule_runs_with_its_arguments(clock, release, committing):
    from django_pgqueue.testing import run_jobs

    adding = DAILY._replace(task_name="tests.app.tasks.add", arguments='{"args":[2],"kwargs":{"b":3}}')
    worker = release(adding)
    worker()
    clock.set(NINE)
    worker()
    assert run_jobs(raising=True) == 1
    assert Job.objects.get().result == 5


@pytest.mark.promise("schedule-any-worker-fires")
def test_any_worker_fires_a_schedule_of_whatever_code_it_has(clock, release):
    """Nothing has to be set up on each of them, not even the task."""
    unknown = DAILY._replace(task_name="shop.tasks.brand_new", queue_name="new", priority=7, max_attempts=3)
    release(unknown)()
    clock.set(NINE)
    release()()
    job = Job.objects.get()
    assert (job.task_name, job.queue_name, job.priority, job.max_attempts) == ("shop.tasks.brand_new", "new", 7, 3)


def test_one_of_the_admin_follows_its_task_where_that_is_known(clock, engine, release, monkeypatch):
    helpers.make_schedule(engine, queue_name="former", priority=1, max_attempts=9)
    monkeypatch.setitem(registry._tasks, helpers.NOOP, tasks.noop.using(queue_name="present", max_attempts=2))
    release()()
    job = Job.objects.get()
    assert (job.queue_name, job.priority, job.max_attempts) == ("present", 0, 2)


def test_one_of_the_code_has_the_options_of_the_code_that_defines_it(clock, engine, release):
    """Whatever the task has in the worker that fires it, which may be older."""
    release(DAILY._replace(queue_name="mail", priority=3, max_attempts=7))()
    clock.set(NINE)
    release()()
    [job] = Job.objects.all()
    assert (job.queue_name, job.priority, job.max_attempts) == ("mail", 3, 7)


def test_firing_is_told_to_receivers_and_wakes_workers(clock, engine, second, release):
    second.execute(f"LISTEN {CHANNEL}")
    told = []

    def receiver(sender, **about):
        told.append((sender, about["job_id"], about["database"], about["queue_name"]))

    signals.job_enqueued.connect(receiver)
    try:
        helpers.make_schedule(engine)
        release()()
    finally:
        signals.job_enqueued.disconnect(receiver)
    assert told == [(helpers.NOOP, Job.objects.get().pk, "default", "default")]
    assert list(second.notifies(timeout=5, stop_after=1))


def test_jitter_puts_off_the_job_and_not_the_tick(clock, engine, release, monkeypatch):
    monkeypatch.setattr(scheduler.random, "uniform", lambda least, most: most / 2)
    helpers.make_schedule(engine, jitter_seconds=600.0)
    release()()
    job, run = Job.objects.get(), ScheduleRun.objects.get()
    assert timedelta(seconds=299) < job.run_after - run.fired_at < timedelta(seconds=301)


def test_a_paused_one_does_not_fire_and_nothing_is_owed_for_the_pause(clock, engine, release):
    worker = release(DAILY)
    worker()
    assert lifecycle.pause_schedule(engine, row("daily").pk)
    assert not lifecycle.pause_schedule(engine, row("daily").pk)
    clock.set(NINE + 2 * DAY)
    worker()
    assert ticks() == []
    assert lifecycle.resume_schedule(engine, row("daily").pk, NINE + 3 * DAY)
    assert not lifecycle.resume_schedule(engine, row("daily").pk, NINE + 3 * DAY)
    worker()
    clock.set(NINE + 3 * DAY)
    worker()
    assert ticks() == [NINE + 3 * DAY]


def test_a_pause_outlives_a_deploy(clock, engine, release):
    release(DAILY)()
    lifecycle.pause_schedule(engine, row("daily").pk)
    later = release(DAILY._replace(expression="1 9 * * *"))
    later()
    clock.set(NINE + DAY)
    later()
    assert ticks() == []


# ------------------------------------------------------------------ missed ticks


@pytest.mark.promise("tick-after-outage")
@pytest.mark.parametrize(
    ("missed", "wanted"),
    [("skip", []), ("latest", [NINE + timedelta(minutes=180)]), ("all", [NINE + timedelta(hours=n) for n in range(4)])],
)
def test_after_three_hours_without_a_worker(clock, release, missed, wanted, caplog):
    worker = release(DAILY._replace(expression="0 * * * *", missed=missed))
    worker()
    clock.set(NINE + timedelta(hours=3, minutes=20))
    assert worker() == pytest.approx(40 * 60, abs=1)
    assert ticks() == wanted
    assert "does not run" not in caplog.text
    clock.set(NINE + timedelta(hours=4))
    worker()
    assert ticks() == [*wanted, NINE + timedelta(hours=4)]
    assert not caplog.records, "nothing of it is an error"


def test_what_is_made_up_for_is_bounded(clock, release):
    worker = release(MINUTELY._replace(missed="all"))
    worker()
    clock.set(NINE + DAY)
    worker()
    assert ticks() == [NINE + DAY - timedelta(minutes=n) for n in reversed(range(scheduler.MISSED_LIMIT))]


@pytest.mark.parametrize("missed", ["skip", "latest", "all"])
def test_what_is_only_late_always_runs_each_tick(clock, release, missed):
    """A worker that was busy for some seconds has missed nothing."""
    worker = release(helpers.definition("quick", expression="every 10 seconds", missed=missed))
    worker()
    clock.set(START + timedelta(seconds=45))
    worker()
    assert ticks() == [START + timedelta(seconds=n) for n in (10, 20, 30, 40)]


# ------------------------------------------------------------------ an earlier job that is not finished


def finish_all(engine):
    lifecycle.succeed(engine, helpers.succeeded(*[one.key for one in helpers.claim_all(engine)]))


@pytest.mark.parametrize("state", ["ready", "running"])
def test_while_one_is_not_finished_a_tick_is_skipped(clock, engine, release, state):
    worker = release(MINUTELY._replace(if_running="skip"))
    worker()
    clock.set(NINE)
    worker()
    if state == "running":
        helpers.claim_all(engine)
    clock.set(NINE + timedelta(minutes=1))
    worker()
    assert ticks() == [NINE]
    assert ScheduleRun.objects.get(job_id=None).tick_at == NINE + timedelta(minutes=1)
    engine.execute("UPDATE pgqueue_job SET state = 'succeeded', finished_at = now()")
    clock.set(NINE + timedelta(minutes=2))
    worker()
    assert ticks() == [NINE, NINE + timedelta(minutes=2)]


def test_while_one_is_not_finished_a_tick_waits_and_runs_after_it(clock, engine, release):
    worker = release(MINUTELY._replace(if_running="queue"))
    worker()
    clock.set(NINE)
    worker()
    for minutes in (1, 2, 5):
        clock.set(NINE + timedelta(minutes=minutes))
        assert worker() == float("inf")
    assert ticks() == [NINE]
    finish_all(engine)
    worker()
    assert ticks() == [NINE, NINE + timedelta(minutes=5)]
    finish_all(engine)
    clock.set(NINE + timedelta(minutes=6))
    worker()
    assert len(ticks()) == 3


def test_by_default_they_overlap(clock, release):
    worker = release(MINUTELY)
    worker()
    for minutes in range(3):
        clock.set(NINE + timedelta(minutes=minutes))
        worker()
    assert len(ticks()) == 3


def test_a_job_that_an_operator_has_started_counts_as_one_that_runs(clock, engine, release):
    worker = release(MINUTELY._replace(if_running="skip"))
    worker()
    one, options = helpers.schedule_of(engine, row("minutely").pk), lifecycle.JobOptions("default", 0, 10)
    assert lifecycle.run_schedule(engine, one, options).what == "fired"
    clock.set(NINE)
    worker()
    assert Job.objects.count() == 1
    for other in (one._replace(schedule_id=1_000_000), one._replace(revision=7)):
        assert lifecycle.run_schedule(engine, other, options) is None


# ------------------------------------------------------------------ clocks that jump


@pytest.mark.promise("tick-clock-jumps")
def test_a_clock_that_goes_back_does_nothing_twice_and_goes_on_at_once(clock, release):
    worker = release(MINUTELY)
    worker()
    for minutes in range(5):
        clock.set(NINE + timedelta(minutes=minutes))
        worker()
    clock.set(NINE - timedelta(minutes=1, seconds=30))
    for _ in range(14):
        worker()
        clock.pass_by(30)
    assert ticks() == [NINE + timedelta(minutes=n) for n in range(-1, 6)]


@pytest.mark.promise("tick-clock-jumps")
def test_a_clock_that_was_a_year_ahead_costs_one_run_and_stops_nothing(clock, release):
    worker = release(DAILY)
    worker()
    clock.set(NINE + 365 * DAY)
    worker()
    clock.set(START)
    worker()
    assert row("daily").next_run_at == NINE
    clock.set(NINE)
    worker()
    clock.set(NINE + DAY)
    worker()
    assert ticks() == [NINE, NINE + DAY, NINE + 365 * DAY]


@pytest.mark.promise("tick-record-kept")
def test_what_was_dealt_with_is_remembered_beyond_the_jobs_own_time(clock, engine, release):
    """The evidence goes by the schedule's last ticks, whatever becomes of the jobs."""
    worker = release(DAILY)
    worker()
    clock.set(NINE)
    worker()
    engine.execute("DELETE FROM pgqueue_job")
    clock.set(NINE + 30 * DAY)
    assert lifecycle.prune_schedule_runs(engine, 7 * DAY.total_seconds(), kept=100) == 0
    clock.set(START)
    worker()
    clock.set(NINE)
    worker()
    assert list(ScheduleRun.objects.values_list("tick_at", flat=True)) == [NINE]
    assert Job.objects.count() == 0


def test_old_ticks_are_forgotten_but_for_the_last(clock, engine):
    schedule_id = helpers.make_schedule(engine, expression="every 1 second")
    engine.execute(
        "INSERT INTO pgqueue_schedulerun (schedule_id, tick_at, fired_at)"
        " SELECT %s, %s - n * interval '1 hour', now() FROM generate_series(1, 1000) AS n",
        [schedule_id, START],
    )
    assert lifecycle.prune_schedule_runs(engine, 7 * DAY.total_seconds(), kept=100, limit=10) == 10
    assert lifecycle.prune_schedule_runs(engine, 7 * DAY.total_seconds(), kept=100) == 1000 - 10 - (7 * 24 - 1)
    assert lifecycle.prune_schedule_runs(engine, 0.0, kept=100) == 7 * 24 - 1 - 100
    assert ScheduleRun.objects.count() == 100


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York"])
def test_the_server_s_own_time_zone_makes_no_difference_in_the_hour_that_comes_twice(clock, engine, release, zone):
    """Instants read in that zone would be compared by the clock on its wall."""
    engine.execute(f"SET TIME ZONE '{zone}'")
    fold = datetime(2030, 10, 26, 23, 50, tzinfo=UTC)  # ten to two in Berlin, where it is two o'clock twice
    clock.set(fold)
    berlin = {"time_zone": "Europe/Berlin"}
    worker = release(
        helpers.definition("daily", expression="30 2 * * *", **berlin),
        helpers.definition("quarterly", expression="*/15 * * * *", **berlin),
    )
    for minutes in range(0, 150, 5):
        clock.set(fold + timedelta(minutes=minutes))
        assert worker() == pytest.approx(60 * (15 - (50 + minutes) % 15), abs=2)
    assert ticks("daily") == [datetime(2030, 10, 27, 0, 30, tzinfo=UTC)]
    assert ticks("quarterly") == [fold + timedelta(minutes=10 + 15 * n) for n in range(10)]


# ------------------------------------------------------------------ releases side by side

EARLIER = DAILY
LATER = DAILY._replace(expression="5 9 * * *", task_name="tests.app.tasks.add", arguments='{"args":[1],"kwargs":{}}')


def test_an_old_worker_leaves_the_new_definition_alone_and_fires_it(clock, release):
    old, new = release(EARLIER), release(LATER)
    old()
    new()
    restarted = release(EARLIER)
    for _ in range(10):
        for turn in (old, restarted, new):
            turn()
        clock.pass_by(2)
    assert row("daily").expression == LATER.expression
    clock.set(NINE + timedelta(minutes=3))
    new()
    clock.set(NINE + timedelta(minutes=5))
    old()
    assert Job.objects.get().task_name == LATER.task_name
    assert ticks() == [NINE + timedelta(minutes=5)]


def test_an_old_worker_does_not_remove_what_it_does_not_know(clock, release):
    old = release()
    old()
    release(DAILY)()
    clock.set(NINE)
    old()
    assert ticks() == [NINE]


def test_an_old_worker_leaves_it_alone_for_as_long_as_new_ones_vouch(clock, release):
    old, new = release(EARLIER), release(LATER)
    old()
    new()
    for _ in range(20):
        clock.pass_by(30)
        new()
        old()
        assert row("daily").expression == LATER.expression


@pytest.mark.promise("schedule-roll-back")
def test_with_the_new_workers_gone_the_old_definition_is_back(clock, release):
    """A roll-back; in a deploy that goes wrong too, where old workers have been there all the time."""
    old, new = release(EARLIER), release(LATER)
    old()
    new()
    for _ in range(20):
        clock.pass_by(10)
        old()
        assert row("daily").expression == (EARLIER if clock.monotonic_seconds > 1190 else LATER).expression
    again = release(LATER)
    again()
    assert row("daily").expression == EARLIER.expression


@pytest.mark.promise("schedule-roll-back")
def test_an_outage_or_a_jump_of_the_clock_is_no_roll_back(clock, release):
    old, new = release(EARLIER), release(LATER)
    old()
    new()
    clock.set(START + 10 * DAY)
    old()
    old.scheduler.forget()  # as after an error of the database
    clock.monotonic_seconds += 10_000
    old()
    assert row("daily").expression == LATER.expression


def test_a_schedule_that_no_worker_s_code_has_stops(clock, release):
    with_it, without = release(DAILY), release()
    with_it()
    clock.set(NINE - timedelta(seconds=200))
    with_it()
    clock.set(NINE)
    assert without() == math.inf, "there is nothing to look at soon"
    assert ticks() == []
    with_it()
    assert ticks() == [NINE], "the first thing that a worker with it does is to vouch for it"


def test_what_no_code_has_is_removed_after_a_week(clock, engine, release):
    release(DAILY)()
    helpers.make_schedule(engine, "of the admin", due_in=60 * DAY.total_seconds())
    without = release()
    for days, left in ((6, 2), (8, 1)):
        clock.set(START + days * DAY)
        without()
        clock.monotonic_seconds += 4000
        without()
        assert Schedule.objects.count() == left
    assert Schedule.objects.get().name == "of the admin"


def test_a_tick_that_is_due_when_its_definition_changes_is_owed_once(clock, release):
    """All workers were down over nine, and the new ones say five past."""
    release(EARLIER)()
    clock.set(NINE + timedelta(minutes=2))
    new = release(LATER)
    new()
    assert ticks() == [NINE]
    clock.set(NINE + timedelta(minutes=5))
    new()
    assert ticks() == [NINE, NINE + timedelta(minutes=5)]


def test_a_definition_counts_from_its_change_on(clock, release):
    release(EARLIER)()
    clock.set(NINE - timedelta(seconds=10))
    new = release(EARLIER._replace(expression="55 8 * * *"))
    new()
    assert ticks() == []
    assert row("daily").next_run_at == NINE + DAY - timedelta(minutes=5)


def test_the_same_definition_written_again_changes_nothing(clock, release):
    release(DAILY)()
    before = Schedule.objects.values().get()
    for _ in range(3):
        release(DAILY)()
    assert Schedule.objects.values().get() == before


def test_a_minute_of_turns_vouches_once(clock, release, monkeypatch):
    calls = []
    vouch = lifecycle.vouch
    monkeypatch.setattr(lifecycle, "vouch", lambda *given: calls.append(given) or vouch(*given))
    workers = [release(DAILY) for _ in range(3)]
    for _ in range(12):
        for worker in workers:
            worker()
        clock.pass_by(5)
    assert len(calls) == 0
    clock.pass_by(5)
    for worker in workers:
        worker()
    assert len(calls) == 1


# ------------------------------------------------------------------ bad rows, and a database that is ill

BAD = {
    "expression": "UPDATE pgqueue_schedule SET expression = 'whenever' WHERE name = 'bad'",
    "time zone": "UPDATE pgqueue_schedule SET time_zone = 'Europe/Atlantis' WHERE name = 'bad'",
    "an expression that never comes due": "UPDATE pgqueue_schedule SET expression = '0 0 31 2,4 *' WHERE name = 'bad'",
    "a rule for missed ones": "UPDATE pgqueue_schedule SET missed = '?' WHERE name = 'bad'",
    "name": "UPDATE pgqueue_schedule SET name = E'b\\nad', expression = '?' WHERE name = 'bad'",
}


@pytest.mark.promise("bad-schedule-stops-no-other")
@pytest.mark.parametrize("what", BAD)
def test_one_bad_schedule_stops_no_other(clock, engine, release, what, caplog):
    helpers.make_schedule(engine, "bad")
    engine.execute(BAD[what])
    helpers.make_schedule(engine, "good")
    worker = release(DAILY)
    worker()
    worker()
    assert len(ticks("good")) == 1
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == (what != "a rule for missed ones")
    assert not any("\n" in line for line in said)


@pytest.mark.promise("bad-schedule-stops-no-other")
def test_one_whose_job_the_database_refuses_stops_no_other(clock, engine, release, caplog):
    engine.execute("ALTER TABLE pgqueue_job ADD CONSTRAINT refusing CHECK (task_name <> 'bad')")
    try:
        helpers.make_schedule(engine, "bad", task_name="bad")
        helpers.make_schedule(engine, "good")
        worker = release()
        assert worker() > 1, "and it is not tried again without a pause"
    finally:
        engine.execute("ALTER TABLE pgqueue_job DROP CONSTRAINT refusing")
    assert len(ticks()) == 1
    assert row("bad").next_run_at < row("good").next_run_at, "it is owed still"
    assert [record.levelname for record in caplog.records] == ["ERROR"]


@pytest.mark.promise("bad-row-schedules")
@pytest.mark.parametrize("sqlstate", ["P0001", "42501"])
def test_trigger_refuses_one_schedule_others_are_vouched_for_and_removed(clock, engine, release, sqlstate, caplog):
    """Each worker says once a minute which schedules its code has; one that no code has is removed after a week."""
    ours = [DAILY._replace(name=name) for name in "abc"]
    first = release(*ours)
    first()
    refused = "OLD.name = 'b' AND NEW.vouched_at <> OLD.vouched_at"
    clock.set(START + timedelta(minutes=2))
    with helpers.users_trigger(engine, refused, sqlstate, table="pgqueue_schedule"):
        first()
    assert [row(name).vouched_at > START + timedelta(minutes=1) for name in "abc"] == [True, False, True]
    assert f"the vouch for schedule {row('b').id} was refused" in caplog.text
    without = release()
    clock.set(START + 8 * DAY)
    with helpers.users_trigger(engine, "OLD.name = 'b'", sqlstate, table="pgqueue_schedule", event="DELETE"):
        without()
        clock.monotonic_seconds += 4000
        without()
    assert [one.name for one in Schedule.objects.all()] == ["b"]
    assert f"the removal of schedule {row('b').id} was refused" in caplog.text


def test_a_definition_that_cannot_be_written_stops_no_other(clock, release, caplog):
    release(DAILY._replace(name="bad", queue_name="x" * 101), DAILY._replace(name="worse", time_zone="?"), DAILY)()
    assert [one.name for one in Schedule.objects.all()] == ["daily"]
    assert len(caplog.records) == 2


@pytest.fixture
def service(committing):
    """The service as a worker has it, not started."""
    made = Schedules(Link("default", "schedules"))
    yield made
    made.link.close()


def test_where_there_is_no_schedule_it_costs_a_statement_a_minute_and_no_connection(service, monkeypatch):
    monkeypatch.setattr(declarations, "definitions", lambda alias: {})
    ran = []
    execute = statements.execute
    replace_execute(monkeypatch, lambda *given: ran.append(given[1]) or execute(*given))
    assert service.tick() == schedule_service.NONE_INTERVAL_SECONDS
    assert len(ran) == 1
    assert service.link._connection is None


def test_rows_made_elsewhere_are_seen_within_the_interval(service, engine):
    helpers.make_schedule(engine, due_in=3600.0, expression="@yearly")
    assert service.tick() == 5.0
    with override_settings(PGQUEUE={"SCHEDULE_INTERVAL": 2}):
        assert service.tick() == 2.0


def test_a_role_that_may_not_is_told_once_and_tried_again(service, monkeypatch, caplog):
    def refuse(connection):
        raise psycopg.errors.InsufficientPrivilege("permission denied for table pgqueue_schedule")

    monkeypatch.setattr(service.scheduler, "turn", refuse)
    with caplog.at_level("INFO", "django_pgqueue.worker"):
        assert [service.tick(), service.tick()] == [schedule_service.NONE_INTERVAL_SECONDS] * 2
    assert len(caplog.records) == 1


@pytest.mark.promise("schedule-database-error")
def test_an_error_of_the_database_ends_a_turn_and_not_the_service(service, engine, monkeypatch):
    helpers.make_schedule(engine)
    monkeypatch.setattr("django_pgqueue.worker.runtime.service.ERROR_PAUSE_SECONDS", 0.01)
    engine.execute("ALTER TABLE pgqueue_schedule RENAME TO gone")
    try:
        service.start()
        helpers.wait_until(lambda: service._errors_in_a_row >= 2)
    finally:
        engine.execute("ALTER TABLE gone RENAME TO pgqueue_schedule")
    helpers.wait_until(Job.objects.exists)
    service.stop()
    service.join(10)
    assert not service.is_alive()


def test_after_an_error_a_silence_is_counted_anew(service, engine, monkeypatch):
    """Whether anybody vouched meanwhile is not known."""

    def fail(connection):
        raise psycopg.OperationalError("the server is away")

    seen_at, _ = lifecycle.read_schedules(engine)
    lifecycle.add_schedule(engine, DAILY, origin="code", next_run_at=seen_at + DAY)
    service.tick()
    assert service.scheduler._silence
    monkeypatch.setattr(service.scheduler, "turn", fail)
    with pytest.raises(psycopg.OperationalError):
        service.tick()
    assert not service.scheduler._silence


@pytest.mark.promise("schedule-database-error")
def test_a_statement_without_an_answer_is_given_up_and_the_next_turn_fires(service, engine, second, monkeypatch):
    """Somebody has locked the whole table; nothing waits for that longer than its time."""
    helpers.make_schedule(engine)
    monkeypatch.setattr("django_pgqueue.worker.runtime.service.ERROR_PAUSE_SECONDS", 0.01)
    service.link.statement_timeout_seconds = 0.2
    with helpers.transaction(second, "LOCK TABLE pgqueue_schedule IN ACCESS EXCLUSIVE MODE"):
        service.start()
        helpers.wait_until(lambda: service._errors_in_a_row >= 1)
    helpers.wait_until(Job.objects.exists)
    service.stop()
    service.join(10)


def test_a_task_of_django_s_framework_has_schedules_of_the_admin(clock, engine, release):
    from django_pgqueue.testing import run_jobs
    from tests.framework import tasks as framework

    name = framework.add.module_path
    helpers.make_schedule(engine, task_name=name, arguments='{"args":[1,2],"kwargs":{}}')
    release()()
    assert run_jobs(raising=True) == 1
    job = Job.objects.get()
    assert (job.result, job.max_attempts) == (3, 1)
