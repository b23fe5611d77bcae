"""Tests of `time_travel()` and `run_jobs(until=…)`.

Delayed jobs and retries become due without a change of their rows and without a sleep.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from django.test import override_settings
from django.utils import timezone

from django_pgqueue.db.statements import clock
from django_pgqueue.models import Job
from django_pgqueue.testing import run_jobs, time_travel
from tests.app import tasks
from tests.framework import tasks as framework

pytestmark = pytest.mark.django_db


def states():
    return list(Job.objects.order_by("pk").values_list("state", flat=True))


def test_time_travel_delayed_job_is_due_only_inside():
    job = tasks.noop.using(run_after=timedelta(minutes=10)).enqueue()
    assert run_jobs() == 0
    with time_travel(minutes=9):
        assert run_jobs() == 0
        with time_travel(minutes=2):
            assert run_jobs() == 1
    job_now = Job.objects.get()
    assert (job_now.state, job_now.run_after) == ("succeeded", job.run_after)
    assert clock.shift_seconds == 0


def test_time_travel_decorator_error_resets_clock():
    @time_travel(hours=1)
    def fails():
        assert clock.shift_seconds == 3600
        raise LookupError

    with pytest.raises(LookupError):
        fails()
    assert clock.shift_seconds == 0


def test_time_travel_negative_time_raises_value_error():
    with pytest.raises(ValueError, match="cannot go back by 60 s"), time_travel(minutes=-1):
        pass


def test_time_travel_enqueued_job_has_travelled_time():
    with time_travel(days=1):
        job = tasks.noop.enqueue()
        assert run_jobs() == 1
    assert job.enqueued_at > timezone.now() + timedelta(hours=23)


@pytest.mark.parametrize(
    "until",
    [timedelta(minutes=30), 1800, lambda: timezone.now() + timedelta(minutes=30)],
    ids=["delta", "s", "instant"],
)
def test_run_jobs_until_runs_each_job_at_its_time(until):
    for minutes in (20, 10, 40):
        tasks.noop.using(run_after=timedelta(minutes=minutes)).enqueue()
    assert run_jobs(until=until() if callable(until) else until) == 2
    late, early, later = Job.objects.order_by("pk")
    assert (late.state, early.state, later.state) == ("succeeded", "succeeded", "ready")
    assert early.run_after <= early.finished_at < early.run_after + timedelta(minutes=1)
    assert late.run_after <= late.finished_at < late.run_after + timedelta(minutes=1)
    assert clock.shift_seconds == 0


def test_run_jobs_until_runs_all_retries():
    framework.always.using(max_attempts=2).enqueue()
    assert run_jobs(until=timedelta(days=1)) == 2
    assert states() == ["dead"]


def test_run_jobs_until_respects_max_jobs_and_queue():
    for queue_name in ("a", "b", "a"):
        tasks.noop.using(run_after=60, queue_name=queue_name).enqueue()
    assert run_jobs("a", until=120, max_jobs=1) == 1
    assert run_jobs(["b"], until=120) == 1
    assert states() == ["succeeded", "succeeded", "ready"]


def test_run_jobs_until_naive_datetime_raises_value_error():
    with pytest.raises(ValueError, match="time zone"):
        run_jobs(until=timezone.now().replace(tzinfo=None))


def test_run_jobs_failed_statement_leaves_other_jobs_intact():
    """An error of a statement in one task must not affect the next job.

    A worker runs a task without a surrounding transaction. A test has one, and PostgreSQL aborts it at the first error.
    """
    framework.refused_by_the_database.enqueue()
    tasks.noop.enqueue()
    assert run_jobs() == 2
    assert states() == ["dead", "succeeded"]


def test_time_travel_decorates_coroutine_but_not_class():
    @time_travel(hours=1)
    async def shift_inside():
        return clock.shift_seconds

    assert asyncio.run(shift_inside()) == 3600
    assert clock.shift_seconds == 0
    with pytest.raises(TypeError, match="decorate the methods"):
        time_travel(hours=1)(Job)


@pytest.mark.parametrize("kind", ["snooze", "cancel"])
def test_run_jobs_snooze_or_cancel_raises_no_error(kind):
    tasks.raise_directive.enqueue(kind, after=60)
    assert run_jobs(raising=True) == 1


def test_run_jobs_keyboard_interrupt_is_raised():
    job = tasks.raise_exception.enqueue("keyboard_interrupt")
    with pytest.raises(KeyboardInterrupt):
        run_jobs()
    job.refresh_from_db()
    assert [execution.outcome for execution in job.executions.all()] == ["failed"]


@override_settings(PGQUEUE={"IMMEDIATE": True})
def test_keyboard_interrupt_in_immediate_mode_reaches_caller():
    with pytest.raises(KeyboardInterrupt):
        tasks.raise_exception.enqueue("keyboard_interrupt")
    assert states() == ["dead"]


def test_run_jobs_failure_is_shown_and_logged(caplog):
    tasks.add.enqueue(1)
    job = tasks.fail.using(max_attempts=1).enqueue("shown")
    ran = run_jobs()
    failure = f"job {job.pk} ({tasks.fail.name}): RuntimeError: shown"
    assert (ran, ran.failures, repr(ran)) == (2, (failure,), f"2 (1 failed: {failure})")
    assert [each.levelname for each in caplog.records] == ["ERROR"]
    assert "raise RuntimeError(message)" in caplog.text
    assert (run_jobs(), repr(run_jobs())) == (0, "0")
