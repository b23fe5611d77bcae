"""Retention: by state, by task, for ever, and not at all."""

from __future__ import annotations

import contextlib
import time
from io import StringIO

import pytest
from django.core.management import call_command
from django.test import override_settings

from django_pgqueue.db import clock
from django_pgqueue.models import Execution, Job
from django_pgqueue.testing import run_jobs
from django_pgqueue.worker.link import Link
from django_pgqueue.worker.maintenance import Duty, Maintenance, Pruner
from tests.app import tasks

DAY = 24 * 3600


@pytest.fixture
def finished(committing):
    """A job of each kind that is over."""
    jobs = {
        "succeeded": tasks.noop.enqueue(),
        "dead": tasks.raise_directive.enqueue("dead"),
        "cancelled": tasks.raise_directive.enqueue("cancel"),
        "own": tasks.kept_for_ever.enqueue(),
        "own dead": tasks.kept_for_ever.enqueue(fail=True),
    }
    run_jobs()
    return jobs


def left(jobs):
    ids = set(Job.objects.values_list("pk", flat=True))
    assert set(Execution.objects.values_list("job_id", flat=True)) <= ids
    return {name for name, job in jobs.items() if job.pk in ids}


@pytest.mark.parametrize(
    ("days", "kept"),
    [
        (0.0001, {"succeeded", "dead", "cancelled", "own", "own dead"}),
        (1, {"succeeded", "dead", "cancelled", "own"}),
        (8, {"dead", "own"}),
        (91, {"own"}),
    ],
)
def test_what_is_past_its_retention_goes(finished, engine, days, kept):
    clock.shift_seconds = days * DAY
    Pruner().prune(engine, most_batches=10)
    assert left(finished) == kept


@override_settings(PGQUEUE={"RETENTION": {"succeeded": "forever", "dead": 1}})
def test_the_settings_decide_for_tasks_without_a_retention_of_their_own(finished, engine):
    clock.shift_seconds = 100 * DAY
    Pruner().prune(engine, most_batches=10)
    assert left(finished) == {"succeeded", "own"}


def test_the_command_says_what_it_would_remove_and_then_does(finished):
    clock.shift_seconds = 8 * DAY
    out = StringIO()
    call_command("pgqueue", "prune", "--dry-run", stdout=out)
    lines = [line.split() for line in out.getvalue().splitlines()]
    assert ["1", "succeeded", "all", "other", "tasks"] in lines
    assert left(finished) == set(finished)
    out = StringIO()
    call_command("pgqueue", "prune", stdout=out)
    assert "Removed 3 finished jobs." in out.getvalue()


def test_a_large_heap_goes_in_batches_and_marks_where_it_was(committing, engine):
    engine.execute(
        "INSERT INTO pgqueue_job (task_name, arguments, state, finished_at)"
        " SELECT 'tests.app.tasks.noop', '{}', 'succeeded', now() - interval '8 days' + n * interval '1 ms'"
        " FROM generate_series(1, 2500) n"
    )
    pruner = Pruner()
    assert pruner.prune(engine, most_batches=2) == 2000
    assert pruner.prune(engine, most_batches=2) == 500
    assert pruner._marks


@pytest.mark.parametrize(("fails", "at_least", "less_than"), [(False, 2.0, 10.0), (True, 0.4, 1.0)])
def test_a_slow_duty_rests_ten_times_as_long_unless_it_was_slow_to_fail(fails, at_least, less_than):
    def slow():
        time.sleep(0.2)
        if fails:
            raise OSError("the database is away")

    duty = Duty("slow", 0.5, slow)
    maintenance = Maintenance(Link("default", "maintenance"))
    maintenance.duties = [duty]
    duty.due_at = 0.0
    began = time.monotonic()
    with contextlib.suppress(OSError):
        maintenance.tick()
    assert at_least < duty.due_at - began < less_than
