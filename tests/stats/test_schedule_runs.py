"""The latest runs of schedules, and how many of their jobs died in a row."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_pgqueue.ground.attempt_ends import ISOLATED_DIED
from django_pgqueue.lifecycle import completions
from django_pgqueue.models import Execution, Job, ScheduleRun, Worker
from django_pgqueue.stats.schedule_runs import RUNS_READ, PastRun, failed_in_a_row, past_runs
from django_pgqueue.testing import run_jobs
from tests import helpers
from tests.app import tasks

AT = datetime(2026, 3, 1, tzinfo=UTC)


def run(state: str) -> PastRun:
    """Return a run with a job in a state, or one that was "skipped", or whose job was "removed"."""
    job_id = None if state == "skipped" else 7
    return PastRun(AT, job_id, None if state in ("skipped", "removed") else state, None, "")


@pytest.mark.parametrize(
    ("states", "count"),
    [
        ("", "0"),
        ("succeeded dead", "0"),
        ("dead", "1"),
        ("dead dead succeeded dead", "2"),
        ("running ready waiting dead cancelled skipped dead succeeded", "2"),
        ("dead removed dead", "1+"),
        ("dead succeeded removed", "1"),
        ("removed dead", "–"),
        ("dead " * 10, "10"),
        ("dead " * 10 + "succeeded", "10"),
        ("dead " * 10 + "removed", "10+"),
        ("dead " * 11, "10+"),
        ("dead " * 9 + "running skipped", "9+"),
        ("skipped " * 11, "–"),
    ],
)
def test_failed_in_a_row_counts_dead_jobs_up_to_a_success(states: str, count: str) -> None:
    assert str(failed_in_a_row([run(state) for state in states.split()])) == count


def add_run(schedule_id: int, job_id: int | None, minutes_ago: int = 0) -> None:
    tick_at = timezone.now() - timedelta(minutes=minutes_ago)
    ScheduleRun.objects.create(schedule_id=schedule_id, tick_at=tick_at, job_id=job_id)


def test_past_runs_are_the_latest_ones_of_each_schedule(connection: Any) -> None:
    first, second = (helpers.make_schedule(connection, name) for name in ("first", "second"))
    job_ids = helpers.make_jobs(connection, RUNS_READ + 3)
    for minutes_ago, job_id in enumerate(job_ids):
        add_run(first, job_id, minutes_ago)
    add_run(second, 10**9, 2)
    add_run(second, None, 1)
    found = past_runs(connection, [second, first])
    assert [run.job_id for run in found[first]] == job_ids[:RUNS_READ]
    assert {run.state for run in found[first]} == {"ready"}
    assert [(run.job_id, run.state, run.is_removed) for run in found[second]] == [
        (None, None, False),
        (10**9, None, True),
    ]


def test_past_runs_with_attempts_have_run_time_and_error(connection: Any) -> None:
    schedule_id = helpers.make_schedule(connection)
    dead_id = helpers.make_job(connection)
    claimed = helpers.claim_one(connection)
    completions.fail(connection, helpers.failed(claimed.key, None))
    job = tasks.add.enqueue(1)
    run_jobs()
    waiting_id = helpers.make_job(connection)
    for minutes_ago, job_id in enumerate((waiting_id, job.pk, dead_id)):
        add_run(schedule_id, job_id, minutes_ago)
    waiting, succeeded, dead = past_runs(connection, [schedule_id], with_attempts=True)[schedule_id]
    assert (waiting.state, waiting.ran_seconds, waiting.exception_class) == ("ready", None, "")
    assert (succeeded.state, succeeded.exception_class) == ("succeeded", "")
    assert succeeded.ran_seconds is not None and 0 <= succeeded.ran_seconds < 60
    assert (dead.state, dead.exception_class) == ("dead", "RuntimeError")
    without = past_runs(connection, [schedule_id])[schedule_id]
    assert [(run.state, run.ran_seconds, run.exception_class) for run in without] == [
        ("ready", None, ""),
        ("succeeded", None, ""),
        ("dead", None, ""),
    ]


def test_past_runs_give_lost_attempts_no_run_time(connection: Any) -> None:
    schedule_id = helpers.make_schedule(connection)
    running, rescued, expired, isolated = helpers.make_jobs(connection, 4)
    helpers.claim_all(connection, worker_id=10**6)
    now = timezone.now()
    Execution.objects.update(started_at=now - timedelta(seconds=100))
    ended = {"outcome": "crashed", "finished_at": now}
    Execution.objects.filter(job_id=rescued).update(**ended, error="the worker was lost: its lease ran out")
    Execution.objects.filter(job_id=isolated).update(**ended, error=f"{ISOLATED_DIED} (signal SIGSEGV)")
    Execution.objects.update(lease_expires_at=now - timedelta(seconds=1))
    worker = Worker.objects.create(pid=7, concurrency=1, lease_expires_at=now + timedelta(hours=1))
    Execution.objects.filter(job_id=running).update(worker_id=worker.pk)
    for minutes_ago, job_id in enumerate((running, rescued, expired, isolated)):
        add_run(schedule_id, job_id, minutes_ago)
    found = past_runs(connection, [schedule_id], with_attempts=True)[schedule_id]
    assert [(run.is_lost, run.ran_seconds is None) for run in found] == [
        (False, False),
        (True, True),
        (True, True),
        (False, False),
    ]
    assert found[3].ran_seconds == pytest.approx(100)


def test_past_runs_of_removed_job_ignore_left_over_executions(connection: Any) -> None:
    schedule_id = helpers.make_schedule(connection)
    job_id = helpers.make_job(connection)
    completions.fail(connection, helpers.failed(helpers.claim_one(connection).key, None))
    add_run(schedule_id, job_id)
    Job.objects.filter(pk=job_id)._raw_delete(connection.alias)
    [run] = past_runs(connection, [schedule_id], with_attempts=True)[schedule_id]
    assert (run.is_removed, run.ran_seconds, run.exception_class) == (True, None, "")


def test_past_runs_without_schedules_send_no_statement(connection: Any, django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(0):
        assert past_runs(connection, []) == {}
