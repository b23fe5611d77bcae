"""Time travel and `run_jobs(until=…)`: delayed jobs and retries come due, no row is touched, nobody sleeps."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from django.utils import timezone

from django_pgqueue.db.statements import clock
from django_pgqueue.models import Job
from django_pgqueue.testing import run_jobs, time_travel
from tests.app import tasks
from tests.framework import tasks as framework

pytestmark = pytest.mark.django_db


def states():
    return list(Job.objects.order_by("pk").values_list("state", flat=True))


def test_a_delayed_job_comes_due_on_the_journey_and_only_there():
    job = tasks.noop.using(run_after=timedelta(minutes=10)).enqueue()
    assert run_jobs() == 0
    with time_travel(minutes=9):
        assert run_jobs() == 0
        with time_travel(minutes=2):
            assert run_jobs() == 1
    job_now = Job.objects.get()
    assert (job_now.state, job_now.run_after) == ("succeeded", job.run_after)
    assert clock.shift_seconds == 0


def test_it_is_a_decorator_too_and_ends_with_an_error():
    @time_travel(hours=1)
    def fails():
        assert clock.shift_seconds == 3600
        raise LookupError

    with pytest.raises(LookupError):
        fails()
    assert clock.shift_seconds == 0


def test_nobody_travels_into_the_past():
    with pytest.raises(ValueError, match="cannot go back by 60 s"), time_travel(minutes=-1):
        pass


def test_what_is_enqueued_on_a_journey_is_of_that_time():
    with time_travel(days=1):
        job = tasks.noop.enqueue()
        assert run_jobs() == 1
    assert job.enqueued_at > timezone.now() + timedelta(hours=23)


@pytest.mark.parametrize(
    "until",
    [timedelta(minutes=30), 1800, lambda: timezone.now() + timedelta(minutes=30)],
    ids=["delta", "s", "instant"],
)
def test_until_runs_each_job_at_its_time_and_no_later_one(until):
    for minutes in (20, 10, 40):
        tasks.noop.using(run_after=timedelta(minutes=minutes)).enqueue()
    assert run_jobs(until=until() if callable(until) else until) == 2
    late, early, later = Job.objects.order_by("pk")
    assert (late.state, early.state, later.state) == ("succeeded", "succeeded", "ready")
    assert early.run_after <= early.finished_at < early.run_after + timedelta(minutes=1)
    assert late.run_after <= late.finished_at < late.run_after + timedelta(minutes=1)
    assert clock.shift_seconds == 0


def test_until_runs_retries_to_the_end():
    framework.always.using(max_attempts=2).enqueue()
    assert run_jobs(until=timedelta(days=1)) == 2
    assert states() == ["dead"]


def test_max_jobs_and_queue_hold_on_the_journey_too():
    for queue_name in ("a", "b", "a"):
        tasks.noop.using(run_after=60, queue_name=queue_name).enqueue()
    assert run_jobs("a", until=120, max_jobs=1) == 1
    assert run_jobs(["b"], until=120) == 1
    assert states() == ["succeeded", "succeeded", "ready"]


def test_an_instant_needs_a_time_zone():
    with pytest.raises(ValueError, match="time zone"):
        run_jobs(until=timezone.now().replace(tzinfo=None))


def test_a_statement_that_fails_in_a_task_spoils_nothing_else():
    """A worker has no transaction around a task; a test has one, which PostgreSQL ends at the first error."""
    framework.refused_by_the_database.enqueue()
    tasks.noop.enqueue()
    assert run_jobs() == 2
    assert states() == ["dead", "succeeded"]


def test_a_coroutine_function_travels_too_and_a_class_is_refused():
    @time_travel(hours=1)
    async def journey():
        return clock.shift_seconds

    assert asyncio.run(journey()) == 3600
    assert clock.shift_seconds == 0
    with pytest.raises(TypeError, match="decorate the methods"):
        time_travel(hours=1)(Job)


@pytest.mark.parametrize("kind", ["snooze", "cancel"])
def test_a_task_that_ends_itself_has_not_failed(kind):
    tasks.raise_directive.enqueue(kind, after=60)
    assert run_jobs(raising=True) == 1


def test_the_keyboard_interrupts_the_test_and_not_the_job_alone():
    job = tasks.raise_exception.enqueue("keyboard_interrupt")
    with pytest.raises(KeyboardInterrupt):
        run_jobs()
    job.refresh_from_db()
    assert [execution.outcome for execution in job.executions.all()] == ["failed"]
