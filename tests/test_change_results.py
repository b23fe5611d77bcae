"""`ChangeResult`: what `job.retry()`, `acknowledge()`, `cancel()` and `run_now()` say if they change nothing."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection

from django_pgqueue.models import ChangeResult, Job
from tests import helpers
from tests.management.conftest import claim, die, succeed

pytestmark = pytest.mark.django_db


def job_in(state: str) -> Job:
    if state == "dead":
        return Job.objects.get(pk=die())
    job_id = helpers.make_job(connection)
    if state == "running":
        claim(job_id)
    if state == "succeeded":
        succeed(job_id)
    if state == "cancelled":
        Job.objects.get(pk=job_id).cancel()
    return Job.objects.get(pk=job_id)


@pytest.mark.parametrize(
    ("act", "state", "reason"),
    [
        ("cancel", "succeeded", "it has already succeeded"),
        ("cancel", "dead", "it is already dead"),
        ("cancel", "cancelled", "it was already cancelled"),
        ("retry", "ready", "it is ready, and only a job that has ended can be retried"),
        ("retry", "running", "it is running, and only a job that has ended can be retried"),
        ("acknowledge", "succeeded", "it is succeeded, and only a dead job can be acknowledged"),
        ("run_now", "ready", "it is due already"),
        ("run_now", "running", "it is running"),
        ("run_now", "dead", "it is already dead: retry() makes it ready again"),
    ],
)
def test_change_of_unfit_job_is_false_with_its_reason(act, state, reason):
    result = getattr(job_in(state), act)()
    assert not result and result == ChangeResult(False, reason)
    assert repr(result) == f"<not changed: {reason}>"


def test_change_that_succeeds_is_true():
    job = job_in("ready")
    assert job.cancel() == ChangeResult(True)
    assert repr(ChangeResult(True)) == "<changed>"


def test_cancel_of_running_job_says_that_it_was_asked_to_stop():
    job = job_in("running")
    first, second = job.cancel(), job.cancel()
    assert first and first.reason == "it is running: its worker was asked to stop it"
    assert not second and second.reason == "it is running, and was asked to stop before"


def test_change_of_removed_job_says_that_it_does_not_exist():
    job = job_in("dead")
    Job.objects.filter(pk=job.pk).delete()
    assert job.retry().reason.startswith("it does not exist: it was removed, or the transaction")


def test_retry_of_stale_job_says_what_it_is_now():
    job, other = job_in("dead"), Job.objects.get()
    other.retry()
    assert job.retry().reason == "it is ready, and only a job that has ended can be retried"
    succeed(job.pk)
    assert job.retry().reason == "it has changed since it was read, and is succeeded now: refresh it"


def test_second_acknowledgement_says_so():
    job = job_in("dead")
    assert job.acknowledge()
    assert job.acknowledge().reason == "it is acknowledged already"


def test_run_now_of_stale_job_says_so():
    job = Job.objects.get(pk=helpers.make_job(connection, delay_seconds=60.0))
    job.run_after -= timedelta(seconds=1)
    assert job.run_now().reason == "it has changed since it was read, and is ready now: refresh it"


def test_change_that_succeeds_runs_no_query_for_a_reason(django_assert_num_queries):
    job = job_in("ready")
    with django_assert_num_queries(1):
        job.cancel()
