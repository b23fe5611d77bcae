"""The kit where Python's time stands still: `freezegun` and `time-machine` move that, and not the queue's."""

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
def test_jobs_run_and_come_due_while_pythons_time_stands_still(stop):
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
