"""Schedules with real workers: killed workers, no worker for a while, a database outage, and a locked schedule."""

from __future__ import annotations

import signal

import pytest

from django_pgqueue.models import Job, Schedule, ScheduleRun
from tests import helpers

pytestmark = pytest.mark.process

GAPS = """
SELECT count(*), count(DISTINCT tick_at), count(DISTINCT job_id),
       extract(epoch FROM max(tick_at) - min(tick_at))::int + 1
FROM pgqueue_schedulerun
"""


@pytest.mark.promise("tick-fired-once")
def test_schedule_fires_each_tick_once_while_workers_are_killed(start, engine):
    helpers.make_schedule(engine, expression="every 1 second")
    engine.execute("UPDATE pgqueue_schedule SET next_run_at = date_trunc('second', next_run_at)")
    workers = [start("--concurrency", "2", SCHEDULE_INTERVAL=0.5) for _ in range(3)]
    for worker in workers:
        worker.wait_until_ready()
    for worker in workers[:2]:
        count = ScheduleRun.objects.count()
        workers[2].wait_until(lambda count=count: ScheduleRun.objects.count() > count + 3)
        worker.send_all(signal.SIGKILL)
        worker.exit_code()
    count = ScheduleRun.objects.count()
    workers[2].wait_until(lambda: ScheduleRun.objects.count() > count + 3)
    [(runs, ticks, jobs, seconds)] = engine.execute(GAPS).fetchall()
    assert runs == ticks == jobs == seconds
    workers[2].wait_until(lambda: Job.objects.filter(state="succeeded").count() >= 10)


@pytest.mark.promise("tick-after-outage")
def test_schedule_ticks_missed_without_worker_run_once(start, engine):
    """The worker also notices a row that is added later, without a restart."""
    helpers.make_schedule(engine, "nightly", due_in=-3 * 3600.0, expression="@hourly")
    worker = start()
    worker.wait_until(lambda: Job.objects.filter(state="succeeded").count() == 1)
    assert Schedule.objects.get().next_run_at > Job.objects.get().enqueued_at
    helpers.make_schedule(engine, "another")
    worker.wait_until(lambda: ScheduleRun.objects.filter(schedule__name="another").exists())
    assert ScheduleRun.objects.filter(schedule__name="nightly").count() == 1


def test_schedules_after_database_outage_continue(start, engine):
    helpers.make_schedule(engine, expression="every 1 second")
    worker = start(SCHEDULE_INTERVAL=0.2)
    worker.wait_until(ScheduleRun.objects.exists)
    for _ in range(2):
        seen = ScheduleRun.objects.count()
        ended = engine.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name LIKE ANY ('{pgqueue:fetcher%,pgqueue:completer}')"
        )
        assert ended.fetchall()
        worker.wait_until(lambda seen=seen: ScheduleRun.objects.count() > seen + 1)
    engine.execute("ALTER TABLE pgqueue_schedulerun RENAME TO gone")
    try:
        worker.wait_until(lambda: 'does not run: relation "pgqueue_schedulerun"' in worker.said)
    finally:
        engine.execute("ALTER TABLE gone RENAME TO pgqueue_schedulerun")
    seen = ScheduleRun.objects.count()
    worker.wait_until(lambda: ScheduleRun.objects.count() > seen + 1)
    [(runs, ticks, jobs, _)] = engine.execute(GAPS).fetchall()
    assert runs == ticks == jobs
    worker.send(signal.SIGTERM)
    assert worker.exit_code() == 0


def test_schedule_with_locked_row_does_not_delay_others(start, engine, second):
    locked_id = helpers.make_schedule(engine, "held", expression="every 1 second", due_in=1.0)
    helpers.make_schedule(engine, "free", expression="every 1 second", due_in=1.0)
    with helpers.transaction(second):
        second.execute("SELECT FROM pgqueue_schedule WHERE id = %s FOR UPDATE", [locked_id])
        worker = start(SCHEDULE_INTERVAL=0.2)
        worker.wait_until(lambda: ScheduleRun.objects.filter(schedule__name="free").count() >= 3)
        assert not ScheduleRun.objects.filter(schedule=locked_id).exists()
    worker.wait_until(lambda: ScheduleRun.objects.filter(schedule=locked_id).exists())


def test_until_empty_fires_no_schedule(start, engine):
    helpers.make_schedule(engine, expression="every 1 second")
    job_id = helpers.make_job(engine)
    assert start("--until-empty").has_drained()
    assert helpers.state_of(engine, job_id) == "succeeded"
    assert not ScheduleRun.objects.exists()
