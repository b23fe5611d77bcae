"""Tests of the testing tools with `freezegun` and `time-machine`: these freeze Python's clock, but not the queue's."""

from __future__ import annotations

from datetime import timedelta

import freezegun
import pytest
import time_machine
from django.utils import timezone

from django_pgqueue.testing import run_jobs, time_travel
from tests.app import tasks

pytestmark = pytest.mark.django_db
NOON = "2030-01-01 12:00:00+00:00"


@pytest.mark.parametrize("stop", [freezegun.freeze_time, lambda to: time_machine.travel(to, tick=False)])
def test_run_jobs_frozen_python_time_runs_due_jobs(stop):
    with stop(NOON):
        job = tasks.noop.enqueue()
        assert job.enqueued_at.year < 2030
        assert run_jobs() == 1
        tasks.noop.using(run_after=timedelta(minutes=5)).enqueue()
        assert run_jobs() == 0
        with time_travel(minutes=6):
            assert run_jobs() == 1
        for until in (timedelta(hours=1), timezone.now() + timedelta(hours=1)):
            tasks.noop.using(run_after=timedelta(minutes=5)).enqueue()
            assert run_jobs(until=until) == 1
