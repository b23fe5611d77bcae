"""The progress that a task reports: its valid values, where it can be read, and that it outlives the attempt."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection, transaction
from django.test import override_settings
from django.utils.translation import gettext_lazy

from django_pgqueue import TaskContext
from django_pgqueue.ground.progress import Progress, checked
from django_pgqueue.models import Job
from django_pgqueue.testing import run_jobs, time_travel
from tests.app import tasks


def ran(job: Job) -> Job:
    run_jobs(raising=True)
    job.refresh_from_db()
    return job


# ------------------------------------------------------------------ what is accepted


@pytest.mark.parametrize("done", [0, 7, 2.5, Fraction(1, 2), 10**20])
def test_progress_numbers_are_accepted(done: Any) -> None:
    assert checked(done, done).done == float(done)


@pytest.mark.parametrize(
    ("done", "total", "error"),
    [
        ("3", None, TypeError),
        (None, None, TypeError),
        (True, None, TypeError),
        (Decimal(3), None, TypeError),
        (1, "4", TypeError),
        (-1, None, ValueError),
        (1, -4, ValueError),
        (math.nan, None, ValueError),
        (1, math.inf, ValueError),
        (10**400, None, ValueError),
    ],
)
def test_progress_invalid_number_is_refused(done: Any, total: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"progress: (done|total) must be a"):
        TaskContext().progress(done, total)


@pytest.mark.parametrize(
    ("message", "kept"),
    [("x" * 300, "x" * 200), ("a\x00b\ud800", "a\ufffdb?"), (gettext_lazy("done"), "done"), ("größer", "größer")],
)
def test_progress_message_is_made_storable(message: Any, kept: str) -> None:
    assert checked(1, 2, message).message == kept


@pytest.mark.parametrize(
    ("done", "total", "fraction"),
    [
        (1, 4, 0.25), (5, 4, 1.0), (0, 4, 0.0), (1, None, None), (0, 0, None),
        (math.nan, 4, None), (1, math.nan, None), (1, math.inf, None), (math.inf, 4, 1.0), (-3, 4, 0.0),
    ],
)  # fmt: skip
def test_progress_fraction_is_between_0_and_1_or_missing(done: float, total: float | None, fraction: Any) -> None:
    assert Progress(done, total).fraction == fraction


def test_progress_in_direct_call_is_ignored() -> None:
    assert TaskContext().progress(1, 2) is None  # type: ignore[func-returns-value]  # the test checks that it returns None
    assert TaskContext().last_progress() is None


# ------------------------------------------------------------------ where it is read


@pytest.mark.django_db
def test_progress_without_report_is_none() -> None:
    assert ran(tasks.noop.enqueue()).progress is None


@pytest.mark.django_db
def test_progress_last_report_is_on_the_job() -> None:
    job = ran(tasks.tell.enqueue([1, 3, "one"], [2, 3, "two"], [3, 3]))
    assert job.progress is not None
    assert job.progress[:3] == (3.0, 3.0, "")
    assert job.progress.at is not None
    assert job.finished_at is not None
    assert abs((job.finished_at - job.progress.at).total_seconds()) < 10


@pytest.mark.django_db
def test_progress_outlives_an_attempt_and_the_next_continues() -> None:
    job = tasks.tell_and_fail_once.enqueue()
    assert run_jobs() == 2
    job.refresh_from_db()
    assert (job.state, job.result) == ("succeeded", 3)
    assert job.progress is not None
    assert job.progress[:3] == (3.0, 4.0, "so far")


@pytest.mark.django_db
def test_progress_of_atomic_task_is_written() -> None:
    job = ran(tasks.tell_atomically.enqueue("whole"))
    assert job.progress is not None
    assert job.progress[:3] == (2.0, 2.0, "whole")


@pytest.mark.django_db
def test_progress_of_failed_atomic_task_is_kept() -> None:
    with transaction.atomic():
        Group.objects.create(name="taken")
    job = tasks.tell_atomically.using(max_attempts=1).enqueue("taken")
    run_jobs()
    job.refresh_from_db()
    assert job.state == "dead"
    assert job.progress is not None
    assert job.progress.done == 1


@pytest.mark.django_db
@override_settings(PGQUEUE={"IMMEDIATE": True})
def test_progress_of_immediate_job_is_written() -> None:
    job = tasks.tell.enqueue([1, 3, "one"])
    assert job.progress is not None
    assert job.progress[:3] == (1.0, 3.0, "one")


@pytest.mark.django_db
def test_progress_time_is_the_clock_of_the_queue() -> None:
    with time_travel(hours=1):
        job = ran(tasks.tell.enqueue([1]))
    assert job.progress is not None
    assert job.finished_at is not None
    assert job.progress.at is not None
    assert abs((job.finished_at - job.progress.at).total_seconds()) < 60


@pytest.mark.django_db
def test_progress_of_framework_task_is_written() -> None:
    from tests.framework import tasks as framework

    result = framework.tell.enqueue()
    run_jobs(raising=True)
    progress = Job.objects.get(pk=result.id).progress
    assert progress is not None
    assert progress[:3] == (1.0, 2.0, "half")


@pytest.mark.django_db
def test_progress_invalid_numbers_in_row_can_be_read() -> None:
    job = ran(tasks.tell.enqueue([1, 3]))
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_job SET progress_done = 'NaN', progress_total = 'Infinity'")
    job.refresh_from_db()
    assert job.progress is not None
    assert job.progress.fraction is None
