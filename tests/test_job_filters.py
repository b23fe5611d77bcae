"""The filters of `Job.objects`: which jobs each returns. `tests/test_docs_queries.py` checks their plans."""

from datetime import timedelta

import pytest

from django_pgqueue.models import Job
from django_pgqueue.testing import time_travel
from tests import helpers
from tests.app import tasks

NAMES = ("ready", "due", "scheduled", "running", "dead", "stuck")


def found(name, *args):
    return set(getattr(Job.objects, name)(*args).values_list("pk", flat=True))


@pytest.mark.parametrize("state", ["new", "ready", "ready later", "running", "succeeded", "dead", "cancelled"])
def test_filters_return_jobs_in_each_state(committing, job_in, state):
    job_id = job_in(state).job_id
    expected = {
        "new": {"ready", "due"},
        "ready": {"ready", "due"},
        "ready later": {"ready", "scheduled"},
        "running": {"running"},
        "dead": {"dead"},
    }
    assert {name for name in NAMES if job_id in found(name)} == expected.get(state, set())


def test_filters_can_be_chained_and_changed(committing, engine, job_in):
    job_in("dead")
    helpers.make_job(engine, queue_name="mail")
    helpers.make_job(engine)
    assert Job.objects.due().filter(queue_name="mail").cancel() == 1
    assert Job.objects.filter(task_name=helpers.NOOP).dead().retry() == 1
    assert Job.objects.exclude(queue_name="mail").ready().count() == 2


def test_due_and_scheduled_follow_the_time_of_time_travel(committing):
    job = tasks.noop.using(run_after=timedelta(hours=1)).enqueue()
    assert (found("due"), found("scheduled")) == (set(), {job.pk})
    with time_travel(hours=2):
        assert (found("due"), found("scheduled")) == ({job.pk}, set())


def test_stuck_returns_jobs_without_lease(committing, engine, job_in):
    lost, running = job_in("running"), job_in("running")
    helpers.end_lease(engine, lost.execution_id)
    assert found("stuck") == {lost.job_id}
    assert found("running") == {lost.job_id, running.job_id}
    helpers.rescue(engine)
    assert found("stuck") == set()


def test_stuck_longer_than_returns_jobs_that_run_longer(committing, engine, job_in):
    lost, slow, quick, prefetched = (job_in("running") for _ in range(4))
    helpers.end_lease(engine, lost.execution_id)
    started = "UPDATE pgqueue_execution SET started_at = statement_timestamp() - %s::interval WHERE id = %s"
    engine.execute(started, ["61 s", slow.execution_id])
    engine.execute(started, ["50 s", quick.execution_id])
    engine.execute(started, [None, prefetched.execution_id])
    assert found("stuck", 60) == found("stuck", timedelta(minutes=1)) == {lost.job_id, slow.job_id}


@pytest.mark.parametrize(("longer_than", "error"), [("an hour", TypeError), (True, TypeError), (-1, ValueError)])
def test_stuck_invalid_duration_raises(longer_than, error):
    with pytest.raises(error, match="invalid duration"):
        Job.objects.stuck(longer_than)
