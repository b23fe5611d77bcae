"""`expires`: its valid values, and what happens to a job that would start too late."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from django_pgqueue import InvalidTask, signals, task
from django_pgqueue.models import Execution, Job
from django_pgqueue.testing import run_jobs, time_travel
from django_pgqueue.worker.maintenance.maintenance import Maintenance
from django_pgqueue.worker.runtime.connection import Link
from tests.app import tasks

REASON = "the job did not start before it expired (expires)"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"expires": 0}, "longer than 0 seconds"),
        ({"expires": -1}, "expires must be longer than 0 seconds, not -1"),
        ({"expires": "soon"}, "expires: "),
        ({"expires": datetime(2030, 1, 1)}, "expires must be an aware datetime"),  # noqa: DTZ001 -- deliberately naive
        ({"expires": datetime(9999, 1, 1, tzinfo=UTC)}, "between the years"),
        ({"expires": 60, "run_after": 60}, "would never run"),
        ({"expires": datetime(2030, 1, 1, tzinfo=UTC), "run_after": datetime(2031, 1, 1, tzinfo=UTC)}, "would never"),
    ],
)
def test_using_invalid_expires_is_refused(options, words):
    with pytest.raises(InvalidTask, match=words):
        tasks.noop.using(**options)


def late():
    """Do nothing: `@task` refuses the options of this function."""


def test_task_invalid_expires_is_refused_by_the_decorator():
    with pytest.raises(InvalidTask, match="longer than 0 seconds"):
        task(expires=0)(late)


@pytest.mark.django_db
def test_enqueue_with_expires_sets_expires_at():
    job = tasks.noop.using(expires=timedelta(minutes=1)).enqueue()
    assert job.expires_at - job.enqueued_at == timedelta(minutes=1)
    job.refresh_from_db()
    assert job.expires_at - job.enqueued_at == timedelta(minutes=1)
    at = datetime(2030, 1, 1, tzinfo=UTC)
    assert tasks.noop.using(expires=at).enqueue().expires_at == at
    [job_id] = tasks.noop.using(expires=at).enqueue_many([((), {})])
    assert Job.objects.get(pk=job_id).expires_at == at
    assert tasks.noop.enqueue().expires_at is None


@pytest.mark.django_db
@pytest.mark.parametrize("task", [tasks.noop, tasks.async_add])
def test_run_jobs_expired_job_is_cancelled(task):
    job = task.using(expires=60).enqueue(1)
    other = task.using(expires=600).enqueue(1)
    with time_travel(seconds=61):
        assert run_jobs() == 2
    job.refresh_from_db()
    other.refresh_from_db()
    assert (job.state, other.state) == ("cancelled", "succeeded")
    assert Execution.objects.get(job=job).error == REASON


@pytest.mark.django_db
def test_run_jobs_retry_after_expiry_is_cancelled():
    job = tasks.fail_and_wait.using(expires=60).enqueue()
    assert run_jobs(until=timedelta(hours=1)) == 3
    job.refresh_from_db()
    assert job.state == "cancelled"
    assert [execution.outcome for execution in job.executions.order_by("id")][-1] == "cancelled"


@pytest.mark.django_db(transaction=True)
def test_maintenance_expired_job_is_cancelled_with_signal():
    job = tasks.noop.using(expires=0.001, queue_name="nobody").enqueue()
    received = []

    def receiver(sender, job_id, error, **kwargs):
        received.append((sender, job_id, error))

    signals.job_cancelled.connect(receiver)
    maintenance = Maintenance(Link("default", "maintenance"), worker_id=3)
    try:
        with time_travel(seconds=1):
            assert maintenance._expire() is False
    finally:
        signals.job_cancelled.disconnect(receiver)
        maintenance.link.close()
    assert received == [(tasks.noop.name, job.pk, REASON)]
    job.refresh_from_db()
    assert job.state == "cancelled"
    assert job.executions.get().worker_id == 3
