"""Test which schedules a worker's turn fires, by the database's clock.

This covers missed ticks, clocks that jump, bad rows, database errors, and workers with different code side by side.
"""

from __future__ import annotations

import math
import types
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from django.test import override_settings

from django_pgqueue import signals
from django_pgqueue.db import statements
from django_pgqueue.db.notifications import CHANNEL
from django_pgqueue.lifecycle import completions, schedules
from django_pgqueue.lifecycle import ticks as lifecycle_ticks
from django_pgqueue.lifecycle.schedules import Definition
from django_pgqueue.models import Job, Schedule, ScheduleRun
from django_pgqueue.options.task_options import JobOptions
from django_pgqueue.schedules import declarations
from django_pgqueue.tasks import registry
from django_pgqueue.worker.maintenance import firing, scheduler
from django_pgqueue.worker.maintenance.scheduler import Scheduler, Schedules
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
    """Control the database's clock and the monotonic clock of the process."""

    def __init__(self, engine, monkeypatch) -> None:
        self.engine = engine
        self.monotonic_seconds = 1000.0
        for module in (firing, scheduler):
            monkeypatch.setattr(module, "time", types.SimpleNamespace(monotonic=lambda: self.monotonic_seconds))

    def set(self, instant: datetime) -> None:
        real = helpers.scalar(self.engine, "SELECT statement_timestamp()")
        statements.clock.shift_seconds = (instant - real).total_seconds()

    def pass_by(self, seconds: float) -> None:
        statements.clock.shift_seconds += seconds
        self.monotonic_seconds += seconds


@pytest.fixture
def clock(engine, monkeypatch):
    fake_clock = Clock(engine, monkeypatch)
    fake_clock.set(START)
    return fake_clock


@pytest.fixture
def make_worker(engine, monkeypatch):
    """Return a function that makes workers whose code has the given definitions. Each call of a worker is one turn."""

    def make(*definitions: Definition, on=engine):
        own_scheduler = Scheduler()

        def turn() -> float | None:
            monkeypatch.setattr(declarations, "definitions", lambda alias: {each.name: each for each in definitions})
            return own_scheduler.turn(on)

        turn.scheduler = own_scheduler  # type: ignore[attr-defined]  # so that tests can inspect it
        return turn

    return make


def ticks(name: str = "") -> list[datetime]:
    """Return the ticks that have a job, of one schedule or of all."""
    runs = ScheduleRun.objects.filter(job_id__isnull=False)
    runs = runs.filter(schedule__name=name) if name else runs
    found = list(runs.order_by("tick_at").values_list("tick_at", flat=True))
    assert Job.objects.count() == ScheduleRun.objects.filter(job_id__isnull=False).count()
    return found


def less_a_moment(seconds: float):
    """Compare equal to this many seconds, less the time that has passed since the database's clock was set."""
    return pytest.approx(seconds - 2.25, abs=2.3)


def row(name: str) -> Schedule:
    return Schedule.objects.get(name=name)


# ------------------------------------------------------------------ firing


def test_scheduler_due_tick_fires_once(clock, make_worker):
    first, other = make_worker(DAILY), make_worker(DAILY)
    assert first() == less_a_moment(30)
    assert ticks() == []
    clock.set(NINE)
    assert first() == less_a_moment(DAY.total_seconds())
    assert other() == less_a_moment(DAY.total_seconds())
    assert ticks() == [NINE]
    job = Job.objects.get()
    assert (job.task_name, job.queue_name, job.state) == (helpers.NOOP, "default", "ready")
    assert job.run_after - NINE < timedelta(seconds=5)
    assert (row("daily").last_run_at, row("daily").last_job_id, row("daily").next_run_at) == (NINE, job.pk, NINE + DAY)


def test_scheduler_fired_job_runs_with_schedule_arguments(clock, make_worker, committing):
    from django_pgqueue.testing import run_jobs

    adding = DAILY._replace(task_name="tests.app.tasks.add", arguments='{"args":[2],"kwargs":{"b":3}}')
    worker = make_worker(adding)
    worker()
    clock.set(NINE)
    worker()
    assert run_jobs(raising=True) == 1
    assert Job.objects.get().result == 5


@pytest.mark.promise("schedule-any-worker-fires")
def test_scheduler_worker_without_the_task_fires_schedule(clock, make_worker):
    """A worker needs neither the schedule nor its task in its own code."""
    unknown = DAILY._replace(task_name="shop.tasks.brand_new", options=JobOptions("new", 7, 3))
    make_worker(unknown)()
    clock.set(NINE)
    make_worker()()
    job = Job.objects.get()
    assert (job.task_name, job.queue_name, job.priority, job.max_attempts) == ("shop.tasks.brand_new", "new", 7, 3)


def test_admin_schedule_of_known_task_uses_its_options(clock, engine, make_worker, monkeypatch):
    helpers.make_schedule(engine, queue_name="former", priority=1, max_attempts=9)
    monkeypatch.setitem(registry._tasks, helpers.NOOP, tasks.noop.using(queue_name="present", max_attempts=2))
    make_worker()()
    job = Job.objects.get()
    assert (job.queue_name, job.priority, job.max_attempts) == ("present", 0, 2)


def test_code_schedule_fired_by_other_code_keeps_options(clock, engine, make_worker):
    """The worker that fires the schedule can be older. The options of its own task must not matter."""
    make_worker(DAILY._replace(options=JobOptions("mail", 3, 7)))()
    clock.set(NINE)
    make_worker()()
    [job] = Job.objects.all()
    assert (job.queue_name, job.priority, job.max_attempts) == ("mail", 3, 7)


def test_scheduler_fired_tick_sends_signal_and_wakes_workers(clock, engine, second, make_worker):
    second.execute(f"LISTEN {CHANNEL}")
    signals_sent = []

    def receiver(sender, **about):
        signals_sent.append((sender, about["job_id"], about["database"], about["queue_name"]))

    signals.job_enqueued.connect(receiver)
    try:
        helpers.make_schedule(engine)
        make_worker()()
    finally:
        signals.job_enqueued.disconnect(receiver)
    assert signals_sent == [(helpers.NOOP, Job.objects.get().pk, "default", "default")]
    assert list(second.notifies(timeout=20, stop_after=1))


def test_scheduler_jitter_delays_the_job(clock, engine, make_worker, monkeypatch):
    monkeypatch.setattr(firing.random, "uniform", lambda least, most: most / 2)
    helpers.make_schedule(engine, jitter_seconds=600.0)
    make_worker()()
    job, run = Job.objects.get(), ScheduleRun.objects.get()
    assert timedelta(seconds=299) < job.run_after - run.fired_at < timedelta(seconds=301)


def test_pause_schedule_resumed_skips_ticks_of_the_pause(clock, engine, make_worker):
    worker = make_worker(DAILY)
    worker()
    assert schedules.pause_schedule(engine, row("daily").pk)
    assert not schedules.pause_schedule(engine, row("daily").pk)
    clock.set(NINE + 2 * DAY)
    worker()
    assert ticks() == []
    assert schedules.resume_schedule(engine, row("daily").pk, NINE + 3 * DAY)
    assert not schedules.resume_schedule(engine, row("daily").pk, NINE + 3 * DAY)
    worker()
    clock.set(NINE + 3 * DAY)
    worker()
    assert ticks() == [NINE + 3 * DAY]


def test_pause_schedule_changed_definition_stays_paused(clock, engine, make_worker):
    make_worker(DAILY)()
    schedules.pause_schedule(engine, row("daily").pk)
    later = make_worker(DAILY._replace(expression="1 9 * * *"))
    later()
    clock.set(NINE + DAY)
    later()
    assert ticks() == []


def test_skip_run_next_tick_does_not_fire_and_later_ones_do(clock, engine, make_worker, caplog):
    caplog.set_level("INFO", "django_pgqueue.worker")
    worker = make_worker(DAILY)
    worker()
    [seen] = schedules.read_schedules(engine)[1]
    assert schedules.skip_run(engine, seen, NINE, "ada")
    clock.set(NINE + timedelta(seconds=5))
    worker()
    assert ticks() == []
    assert "skipped by an operator" in caplog.text
    assert row("daily").next_run_at == NINE + DAY and row("daily").last_run_at is None
    assert ScheduleRun.objects.get().skipped_by == "ada"
    clock.set(NINE + DAY)
    worker()
    assert ticks() == [NINE + DAY]


def test_undo_skip_lets_the_tick_fire_once(clock, engine, make_worker):
    worker = make_worker(DAILY)
    worker()
    [seen] = schedules.read_schedules(engine)[1]
    assert not schedules.undo_skip(engine, seen, NINE), "nobody has skipped it"
    assert schedules.skip_run(engine, seen, NINE, "ada")
    assert not schedules.undo_skip(engine, seen, NINE), "the page has shown the schedule before the skip"
    [seen] = schedules.read_schedules(engine)[1]
    assert not schedules.undo_skip(engine, seen, NINE + DAY)
    assert schedules.undo_skip(engine, seen, NINE)
    assert not schedules.undo_skip(engine, schedules.read_schedules(engine)[1][0], NINE), "a second click"
    clock.set(NINE + timedelta(seconds=5))
    worker()
    assert ticks() == [NINE]


def test_undo_skip_leaves_a_tick_that_was_recorded_otherwise(clock, engine, make_worker):
    make_worker(DAILY)()
    [seen] = schedules.read_schedules(engine)[1]
    ScheduleRun.objects.create(schedule_id=seen.schedule_id, tick_at=NINE)
    assert not schedules.undo_skip(engine, seen, NINE)
    assert ScheduleRun.objects.count() == 1


def test_skip_run_missed_tick_is_not_made_up_for(clock, engine, make_worker):
    worker = make_worker(DAILY)
    worker()
    schedules.skip_run(engine, schedules.read_schedules(engine)[1][0], NINE, "ada")
    clock.set(NINE + timedelta(hours=1))
    worker()
    assert ticks() == []


def test_skip_run_of_another_tick_or_revision_is_refused(clock, engine, make_worker):
    worker = make_worker(DAILY)
    worker()
    [seen] = schedules.read_schedules(engine)[1]
    assert not schedules.skip_run(engine, seen, NINE + DAY, "ada")
    assert not schedules.skip_run(engine, seen._replace(revision=seen.revision - 1), NINE, "ada")
    assert schedules.skip_run(engine, seen, NINE, "ada")
    assert not schedules.skip_run(engine, seen, NINE, "grace"), "a second click must not skip anything"
    assert not schedules.skip_run(engine, schedules.read_schedules(engine)[1][0], NINE, "grace")
    clock.set(NINE + DAY - timedelta(seconds=1))
    worker()
    clock.set(NINE + DAY + timedelta(seconds=1))
    [due] = schedules.read_schedules(engine)[1]
    assert not schedules.skip_run(engine, due, NINE + DAY, "ada"), "a run that is due cannot be skipped"
    schedules.pause_schedule(engine, due.schedule_id)
    [paused] = schedules.read_schedules(engine)[1]
    clock.set(NINE)
    assert not schedules.skip_run(engine, paused, NINE + DAY, "ada")


def test_fire_read_before_a_skip_does_nothing(clock, engine, make_worker):
    """The snapshot of the worker's statement can be older than the record of the skipped tick."""
    make_worker(DAILY)()
    [seen] = schedules.read_schedules(engine)[1]
    schedules.skip_run(engine, seen, NINE, "ada")
    clock.set(NINE)
    assert helpers.fire(engine, seen) is None
    assert ScheduleRun.objects.count() == 1 and not Job.objects.exists()


@pytest.mark.parametrize(
    ("missed", "wanted"),
    [("skip", []), ("latest", [NINE + 2 * DAY]), ("all", [NINE, NINE + DAY, NINE + 2 * DAY])],
)
def test_pause_with_end_goes_on_by_itself_by_missed_rule(clock, engine, make_worker, missed, wanted):
    worker = make_worker(DAILY._replace(missed=missed))
    worker()
    until = NINE + 2 * DAY + timedelta(hours=1)
    assert schedules.pause_schedule(engine, row("daily").pk, until=until).until == until
    assert schedules.pause_schedule(engine, row("daily").pk, until=until) is None
    clock.set(NINE + 2 * DAY)
    assert worker() == less_a_moment(3600), "the worker wakes at the end of the pause"
    assert ticks() == []
    clock.set(until)
    worker()
    assert ticks() == wanted
    clock.set(NINE + 3 * DAY)
    worker()
    assert ticks() == [*wanted, NINE + 3 * DAY]


@pytest.mark.parametrize(("missed", "wanted"), [("skip", []), ("latest", [NINE]), ("all", [NINE])])
def test_tick_just_before_the_end_of_a_pause_is_missed(clock, engine, make_worker, missed, wanted):
    """Without the pause, a tick of half a minute ago would be on time, and would fire with every rule."""
    worker = make_worker(DAILY._replace(missed=missed))
    worker()
    schedules.pause_schedule(engine, row("daily").pk, until=NINE + timedelta(seconds=30))
    clock.set(NINE + timedelta(seconds=30))
    worker()
    assert ticks() == wanted


def test_fire_during_pause_with_end_does_nothing(clock, engine):
    helpers.make_schedule(engine, due_in=30.0)
    schedules.pause_schedule(engine, row("nightly").pk, for_seconds=3600.0)
    [seen] = schedules.read_schedules(engine)[1]
    clock.pass_by(60.0)
    assert helpers.fire(engine, seen) is None
    clock.pass_by(3600.0)
    assert helpers.fire(engine, seen).what == "fired"


# ------------------------------------------------------------------ missed ticks


@pytest.mark.promise("tick-after-outage")
@pytest.mark.parametrize(
    ("missed", "wanted"),
    [("skip", []), ("latest", [NINE + timedelta(minutes=180)]), ("all", [NINE + timedelta(hours=n) for n in range(4)])],
)
def test_scheduler_missed_ticks_follow_the_missed_rule(clock, make_worker, missed, wanted, caplog):
    worker = make_worker(DAILY._replace(expression="0 * * * *", missed=missed))
    worker()
    clock.set(NINE + timedelta(hours=3, minutes=20))
    assert worker() == less_a_moment(40 * 60)
    assert ticks() == wanted
    assert "does not run" not in caplog.text
    clock.set(NINE + timedelta(hours=4))
    worker()
    assert ticks() == [*wanted, NINE + timedelta(hours=4)]
    assert not caplog.records, "missed ticks must not be logged as errors"


def test_scheduler_many_missed_ticks_fires_up_to_the_limit(clock, make_worker):
    worker = make_worker(MINUTELY._replace(missed="all"))
    worker()
    clock.set(NINE + DAY)
    worker()
    assert ticks() == [NINE + DAY - timedelta(minutes=n) for n in reversed(range(firing.MISSED_LIMIT))]


def test_scheduler_more_schedules_than_a_batch_all_fire(clock, engine, make_worker, monkeypatch):
    """Each has several late ticks, and the ticks of a schedule must come in their order."""
    monkeypatch.setattr(firing, "BATCH", 3)
    for number in range(8):
        helpers.make_schedule(engine, str(number), expression="every 10 seconds")
    engine.execute("UPDATE pgqueue_schedule SET next_run_at = %s", [START + timedelta(seconds=10)])
    clock.set(START + timedelta(seconds=35))
    assert make_worker()() == less_a_moment(5)
    for number in range(8):
        assert ticks(str(number)) == [START + timedelta(seconds=n) for n in (10, 20, 30)]
    fired = ScheduleRun.objects.filter(schedule__name="0").order_by("job_id").values_list("tick_at", flat=True)
    assert list(fired) == ticks("0")


def test_scheduler_long_turn_ends_and_fires_the_oldest_first(clock, engine, make_worker, monkeypatch):
    """Maintenance waits for the connection that a turn uses, and no schedule may always be the last one."""
    monkeypatch.setattr(firing, "BATCH", 2)
    monkeypatch.setattr(firing, "TURN_SECONDS", -1.0)
    for number in range(6):
        helpers.make_schedule(engine, str(number), expression="@yearly", due_in=-1.0 - number)
    worker = make_worker()
    assert worker() == 0
    assert ticks() == []
    seconds = iter(range(100))
    monkeypatch.setattr(firing, "time", types.SimpleNamespace(monotonic=lambda: next(seconds)))
    monkeypatch.setattr(firing, "TURN_SECONDS", 1.0)  # for one batch
    assert worker() == 0
    assert {run.schedule.name for run in ScheduleRun.objects.all()} == {"4", "5"}
    assert worker() == 0
    assert worker() > 0
    assert len(ticks()) == 6


@pytest.mark.parametrize("missed", ["skip", "latest", "all"])
def test_scheduler_late_ticks_all_fire(clock, make_worker, missed):
    """Ticks that came while a worker was busy for some seconds are late, not missed."""
    worker = make_worker(helpers.definition("quick", expression="every 10 seconds", missed=missed))
    worker()
    clock.set(START + timedelta(seconds=45))
    worker()
    assert ticks() == [START + timedelta(seconds=n) for n in (10, 20, 30, 40)]


@pytest.mark.promise("tick-after-outage")
@pytest.mark.parametrize(("missed", "first"), [("skip", 230), ("latest", 230), ("all", 10)])
def test_scheduler_missed_and_late_ticks_follow_both_rules(clock, make_worker, missed, first):
    """A tick that is up to a minute late fires, also if earlier ticks were missed."""
    worker = make_worker(helpers.definition("quick", expression="every 10 seconds", missed=missed))
    worker()
    clock.set(START + timedelta(seconds=285))
    worker()
    assert ticks() == [START + timedelta(seconds=n) for n in range(first, 290, 10)]


# ------------------------------------------------------------------ unfinished earlier jobs


def finish_all(engine):
    completions.succeed(engine, helpers.succeeded(*[execution.key for execution in helpers.claim_all(engine)]))


@pytest.mark.parametrize("state", ["ready", "running"])
def test_if_running_skip_unfinished_job_skips_the_tick(clock, engine, make_worker, state):
    worker = make_worker(MINUTELY._replace(if_running="skip"))
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


def test_if_running_queue_unfinished_job_delays_the_tick(clock, engine, make_worker):
    worker = make_worker(MINUTELY._replace(if_running="queue"))
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


def test_if_running_default_jobs_overlap(clock, make_worker):
    worker = make_worker(MINUTELY)
    worker()
    for minutes in range(3):
        clock.set(NINE + timedelta(minutes=minutes))
        worker()
    assert len(ticks()) == 3


def test_if_running_skip_job_of_operator_skips_the_tick(clock, engine, make_worker):
    worker = make_worker(MINUTELY._replace(if_running="skip"))
    worker()
    schedule, job = helpers.schedule_of(engine, row("minutely").pk), helpers.new_job()
    assert lifecycle_ticks.run_schedule(engine, schedule, job).what == "fired"
    clock.set(NINE)
    worker()
    assert Job.objects.count() == 1
    for other in (schedule._replace(schedule_id=1_000_000), schedule._replace(revision=7)):
        assert lifecycle_ticks.run_schedule(engine, other, job) is None


# ------------------------------------------------------------------ clocks that jump


@pytest.mark.promise("tick-clock-jumps")
def test_scheduler_clock_goes_back_fires_each_tick_once(clock, make_worker):
    """No tick fires twice, and new ticks fire at once, without waiting until the clock has caught up."""
    worker = make_worker(MINUTELY)
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
def test_scheduler_clock_a_year_ahead_fires_one_extra_tick(clock, make_worker):
    """The clock shows a time a year ahead, and then the right time again. The schedule must continue."""
    worker = make_worker(DAILY)
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
def test_scheduler_deleted_job_tick_does_not_fire_again(clock, engine, make_worker):
    """The record of a schedule's last ticks is kept even if their jobs are deleted."""
    worker = make_worker(DAILY)
    worker()
    clock.set(NINE)
    worker()
    engine.execute("DELETE FROM pgqueue_job")
    clock.set(NINE + 30 * DAY)
    assert schedules.prune_schedule_runs(engine, 7 * DAY.total_seconds(), kept=100) == 0
    clock.set(START)
    worker()
    clock.set(NINE)
    worker()
    assert list(ScheduleRun.objects.values_list("tick_at", flat=True)) == [NINE]
    assert Job.objects.count() == 0


def test_prune_schedule_runs_old_ticks_keeps_the_last(clock, engine):
    schedule_id = helpers.make_schedule(engine, expression="every 1 second")
    engine.execute(
        "INSERT INTO pgqueue_schedulerun (schedule_id, tick_at, fired_at)"
        " SELECT %s, %s - n * interval '1 hour', now() FROM generate_series(1, 1000) AS n",
        [schedule_id, START],
    )
    assert schedules.prune_schedule_runs(engine, 7 * DAY.total_seconds(), kept=100, limit=10) == 10
    assert schedules.prune_schedule_runs(engine, 7 * DAY.total_seconds(), kept=100) == 1000 - 10 - (7 * 24 - 1)
    assert schedules.prune_schedule_runs(engine, 0.0, kept=100) == 7 * 24 - 1 - 100
    assert ScheduleRun.objects.count() == 100


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York"])
def test_scheduler_server_time_zone_leaves_ticks_unchanged(clock, engine, make_worker, zone):
    """Python compares two times of the same zone by their local time, which is wrong in the repeated hour."""
    engine.execute(f"SET TIME ZONE '{zone}'")
    fold = datetime(2030, 10, 26, 23, 50, tzinfo=UTC)  # 01:50 in Berlin, before the hour from 02:00 that is repeated
    clock.set(fold)
    berlin = {"time_zone": "Europe/Berlin"}
    worker = make_worker(
        helpers.definition("daily", expression="30 2 * * *", **berlin),
        helpers.definition("quarterly", expression="*/15 * * * *", **berlin),
    )
    for minutes in range(0, 150, 5):
        clock.set(fold + timedelta(minutes=minutes))
        assert worker() == less_a_moment(60 * (15 - (50 + minutes) % 15))
    assert ticks("daily") == [datetime(2030, 10, 27, 0, 30, tzinfo=UTC)]
    assert ticks("quarterly") == [fold + timedelta(minutes=10 + 15 * n) for n in range(10)]


# ------------------------------------------------------------------ workers with different code

EARLIER = DAILY
LATER = DAILY._replace(expression="5 9 * * *", task_name="tests.app.tasks.add", arguments='{"args":[1],"kwargs":{}}')


def test_definition_old_worker_keeps_and_fires_new_one(clock, make_worker):
    old, new = make_worker(EARLIER), make_worker(LATER)
    old()
    new()
    restarted = make_worker(EARLIER)
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


def test_definition_unknown_to_old_worker_still_fires(clock, make_worker):
    old = make_worker()
    old()
    make_worker(DAILY)()
    clock.set(NINE)
    old()
    assert ticks() == [NINE]


def test_definition_confirmed_by_new_worker_stays(clock, make_worker):
    old, new = make_worker(EARLIER), make_worker(LATER)
    old()
    new()
    for _ in range(20):
        clock.pass_by(30)
        new()
        old()
        assert row("daily").expression == LATER.expression


@pytest.mark.promise("schedule-roll-back")
def test_definition_new_workers_gone_old_one_returns(clock, make_worker):
    """This happens in a roll-back, and also in a failed deploy during which old workers kept running."""
    old, new = make_worker(EARLIER), make_worker(LATER)
    old()
    new()
    for _ in range(20):
        clock.pass_by(10)
        old()
        assert row("daily").expression == (EARLIER if clock.monotonic_seconds > 1190 else LATER).expression
    again = make_worker(LATER)
    again()
    assert row("daily").expression == EARLIER.expression


@pytest.mark.promise("schedule-roll-back")
def test_definition_outage_or_clock_jump_keeps_new_one(clock, make_worker):
    old, new = make_worker(EARLIER), make_worker(LATER)
    old()
    new()
    clock.set(START + 10 * DAY)
    old()
    old.scheduler.forget()  # as after a database error
    clock.monotonic_seconds += 10_000
    old()
    assert row("daily").expression == LATER.expression


def test_schedule_without_defining_worker_stops_firing(clock, make_worker):
    with_it, without = make_worker(DAILY), make_worker()
    with_it()
    clock.set(NINE - timedelta(seconds=200))
    with_it()
    clock.set(NINE)
    assert without() == math.inf, "no tick is due for this worker"
    assert ticks() == []
    with_it()
    assert ticks() == [NINE], "a worker with the definition confirms it before it fires ticks"


def test_schedule_without_defining_code_is_removed_in_a_week(clock, engine, make_worker):
    make_worker(DAILY)()
    helpers.make_schedule(engine, "of the admin", due_in=60 * DAY.total_seconds())
    without = make_worker()
    for days, left in ((6, 2), (8, 1)):
        clock.set(START + days * DAY)
        without()
        clock.monotonic_seconds += 4000
        without()
        assert Schedule.objects.count() == left
    assert Schedule.objects.get().name == "of the admin"


def test_definition_changed_after_due_tick_fires_it_once(clock, make_worker):
    """All workers were down at 09:00. The definition of the new workers has the time 09:05."""
    make_worker(EARLIER)()
    clock.set(NINE + timedelta(minutes=2))
    new = make_worker(LATER)
    new()
    assert ticks() == [NINE]
    clock.set(NINE + timedelta(minutes=5))
    new()
    assert ticks() == [NINE, NINE + timedelta(minutes=5)]


def test_definition_changed_fires_only_later_ticks(clock, make_worker):
    make_worker(EARLIER)()
    clock.set(NINE - timedelta(seconds=10))
    new = make_worker(EARLIER._replace(expression="55 8 * * *"))
    new()
    assert ticks() == []
    assert row("daily").next_run_at == NINE + DAY - timedelta(minutes=5)


def test_definition_unchanged_keeps_the_row(clock, make_worker):
    make_worker(DAILY)()
    before = Schedule.objects.values().get()
    for _ in range(3):
        make_worker(DAILY)()
    assert Schedule.objects.values().get() == before


def test_scheduler_many_turns_confirm_once_a_minute(clock, make_worker, monkeypatch):
    calls = []
    confirm = schedules.confirm_schedules
    monkeypatch.setattr(schedules, "confirm_schedules", lambda *given: calls.append(given) or confirm(*given))
    workers = [make_worker(DAILY) for _ in range(3)]
    for _ in range(12):
        for worker in workers:
            worker()
        clock.pass_by(5)
    assert len(calls) == 0
    clock.pass_by(5)
    for worker in workers:
        worker()
    assert len(calls) == 1


# ------------------------------------------------------------------ bad rows and database errors

BAD = {
    "expression": "UPDATE pgqueue_schedule SET expression = 'whenever' WHERE name = 'bad'",
    "time zone": "UPDATE pgqueue_schedule SET time_zone = 'Europe/Atlantis' WHERE name = 'bad'",
    "an expression that never comes due": "UPDATE pgqueue_schedule SET expression = '0 0 31 2,4 *' WHERE name = 'bad'",
    "a rule for missed ones": "UPDATE pgqueue_schedule SET missed = '?' WHERE name = 'bad'",
    "name": "UPDATE pgqueue_schedule SET name = E'b\\nad', expression = '?' WHERE name = 'bad'",
}


@pytest.mark.promise("bad-schedule-stops-no-other")
@pytest.mark.parametrize("what", BAD)
def test_scheduler_bad_schedule_others_fire(clock, engine, make_worker, what, caplog):
    with helpers.without_row_checks(engine):
        helpers.make_schedule(engine, "bad")
        engine.execute(BAD[what])
        helpers.make_schedule(engine, "good")
        worker = make_worker(DAILY)
        worker()
        worker()
        assert len(ticks("good")) == 1
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == (what != "a rule for missed ones")
    assert not any("\n" in line for line in messages)


@pytest.mark.promise("bad-schedule-stops-no-other")
def test_scheduler_refused_job_other_schedules_fire(clock, engine, make_worker, caplog):
    engine.execute("ALTER TABLE pgqueue_job ADD CONSTRAINT refusing CHECK (task_name <> 'bad')")
    try:
        helpers.make_schedule(engine, "bad", task_name="bad")
        helpers.make_schedule(engine, "good")
        worker = make_worker()
        assert worker() > 1, "the refused schedule must not be retried without a pause"
        worker()
    finally:
        engine.execute("ALTER TABLE pgqueue_job DROP CONSTRAINT refusing")
    assert len(ticks()) == 1
    assert row("bad").next_run_at < row("good").next_run_at, "the refused tick must still be due"
    assert [record.levelname for record in caplog.records] == ["ERROR"]


@pytest.mark.promise("bad-row-schedules")
@pytest.mark.parametrize("sqlstate", ["P0001", "42501"])
def test_scheduler_trigger_refuses_one_others_are_updated(clock, engine, make_worker, sqlstate, caplog):
    """Each worker confirms the schedules of its code once a minute. A schedule without code is removed after a week.

    If a trigger refuses either of these for one schedule, the others must still be confirmed or removed.
    """
    definitions = [DAILY._replace(name=name) for name in "abc"]
    first = make_worker(*definitions)
    first()
    refused = "OLD.name = 'b' AND NEW.confirmed_at <> OLD.confirmed_at"
    clock.set(START + timedelta(minutes=2))
    with helpers.users_trigger(engine, refused, sqlstate, table="pgqueue_schedule"):
        first()
    assert [row(name).confirmed_at > START + timedelta(minutes=1) for name in "abc"] == [True, False, True]
    assert f"the confirmation of schedule {row('b').id} was refused" in caplog.text
    without = make_worker()
    clock.set(START + 8 * DAY)
    with helpers.users_trigger(engine, "OLD.name = 'b'", sqlstate, table="pgqueue_schedule", event="DELETE"):
        without()
        clock.monotonic_seconds += 4000
        without()
    assert [schedule.name for schedule in Schedule.objects.all()] == ["b"]
    assert f"the removal of schedule {row('b').id} was refused" in caplog.text


def test_definition_cannot_be_stored_others_are_stored(clock, make_worker, caplog):
    make_worker(
        DAILY._replace(name="bad", options=JobOptions("x" * 101, 0, 10)),
        DAILY._replace(name="worse", time_zone="?"),
        DAILY,
    )()
    assert [schedule.name for schedule in Schedule.objects.all()] == ["daily"]
    assert len(caplog.records) == 2


@pytest.fixture
def service(committing):
    """The schedule service of a worker, not started."""
    schedules_service = Schedules(Link("default", "schedules"))
    yield schedules_service
    schedules_service.link.close()


def test_schedule_service_no_schedule_reads_once_a_minute(service, monkeypatch):
    monkeypatch.setattr(declarations, "definitions", lambda alias: {})
    executed = []
    execute = statements.execute
    replace_execute(monkeypatch, lambda *given: executed.append(given[1]) or execute(*given))
    assert service.tick() == scheduler.NONE_INTERVAL_SECONDS
    assert len(executed) == 1


def test_schedule_service_tick_returns_the_interval(service, engine):
    helpers.make_schedule(engine, due_in=3600.0, expression="@yearly")
    assert service.tick() == 5.0
    with override_settings(PGQUEUE={"SCHEDULE_INTERVAL": 2}):
        assert service.tick() == 2.0


def test_schedule_service_missing_privilege_is_logged_once(service, monkeypatch, caplog):
    def refuse(connection):
        raise psycopg.errors.InsufficientPrivilege("permission denied for table pgqueue_schedule")

    monkeypatch.setattr(service.scheduler, "turn", refuse)
    with caplog.at_level("INFO", "django_pgqueue.worker"):
        assert [service.tick(), service.tick()] == [scheduler.NONE_INTERVAL_SECONDS] * 2
    assert len(caplog.records) == 1


@pytest.mark.promise("schedule-database-error")
def test_schedule_service_database_error_continues(service, engine, monkeypatch):
    helpers.make_schedule(engine)
    monkeypatch.setattr("django_pgqueue.worker.runtime.service.ERROR_PAUSE_SECONDS", 0.01)
    engine.execute("ALTER TABLE pgqueue_schedule RENAME TO gone")
    try:
        service.start()
        helpers.wait_until(lambda: service._pauses.errors_in_a_row >= 2)
    finally:
        engine.execute("ALTER TABLE gone RENAME TO pgqueue_schedule")
    helpers.wait_until(Job.objects.exists)
    service.stop()
    service.join(10)
    assert not service.is_alive()


def test_schedule_service_error_forgets_confirmations(service, engine, monkeypatch):
    """During the error another worker can have confirmed the schedule, so the observed silence must start again."""

    def fail(connection):
        raise psycopg.OperationalError("the server is away")

    seen_at, _ = schedules.read_schedules(engine)
    schedules.add_schedule(engine, DAILY, origin="code", next_run_at=seen_at + DAY)
    service.tick()
    assert service.scheduler._silence
    monkeypatch.setattr(service.scheduler, "turn", fail)
    with pytest.raises(psycopg.OperationalError):
        service.tick()
    assert not service.scheduler._silence


@pytest.mark.promise("schedule-database-error")
def test_schedule_service_statement_timeout_fires_next_turn(service, engine, second, monkeypatch):
    """Another session has locked the whole table. The statement must end at its timeout."""
    helpers.make_schedule(engine)
    monkeypatch.setattr("django_pgqueue.worker.runtime.service.ERROR_PAUSE_SECONDS", 0.01)
    service.link.statement_timeout_seconds = 0.2
    with helpers.transaction(second, "LOCK TABLE pgqueue_schedule IN ACCESS EXCLUSIVE MODE"):
        service.start()
        helpers.wait_until(lambda: service._pauses.errors_in_a_row >= 1)
    helpers.wait_until(Job.objects.exists)
    service.stop()
    service.join(10)


def test_admin_schedule_of_django_task_fires_and_runs(clock, engine, make_worker):
    from django_pgqueue.testing import run_jobs
    from tests.framework import tasks as framework

    name = framework.add.module_path
    helpers.make_schedule(engine, task_name=name, arguments='{"args":[1,2],"kwargs":{}}')
    make_worker()()
    assert run_jobs(raising=True) == 1
    job = Job.objects.get()
    assert (job.result, job.max_attempts) == (3, 1)
