"""Typed arguments in a real worker: in a thread, on the event loop, in a transaction and in an isolated process."""

from datetime import date

import pytest
from django.contrib.auth.models import Group
from django.db import connection, transaction

from django_pgqueue.models import Execution, Job
from tests.app import tasks

pytestmark = pytest.mark.process


def test_worker_loads_rows_and_dates_for_each_kind_of_task(start):
    group = Group.objects.create(name="readers")
    kinds = (tasks.name_on, tasks.async_name_on, tasks.atomic_name_on, tasks.isolated_name_on)
    jobs = [kind.enqueue(group, date(2026, 7, 1)) for kind in kinds for _ in range(5)]
    gone = Group.objects.create(name="gone")
    dead = [kind.enqueue(gone, date(2026, 7, 1)) for kind in kinds]
    gone.delete()
    worker = start()
    worker.wait_until(lambda: Job.objects.filter(state="succeeded").count() == len(jobs))
    worker.wait_until(lambda: Job.objects.filter(state="dead").count() == len(dead))
    results = Job.objects.filter(state="succeeded").values_list("result", flat=True)
    assert list(results) == [["readers", "01.07.2026"]] * len(jobs)


def test_timeout_stops_an_attempt_that_waits_for_its_row(start):
    job = tasks.impatient_name_on.enqueue(Group.objects.create(name="locked"), date(2026, 7, 1))
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("LOCK TABLE auth_group IN ACCESS EXCLUSIVE MODE")
        worker = start()
        worker.wait_until(lambda: Job.objects.filter(pk=job.pk, state="dead").exists())
    assert Execution.objects.get(job=job).exception_class == "django_pgqueue.exceptions.TaskTimeout"
