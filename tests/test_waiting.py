"""Waiting for a job: what ends it, what does not, and where it is refused because it could never end."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import timedelta
from types import SimpleNamespace

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from django_pgqueue import CannotWait, JobCancelled, JobFailed, JobGone, lifecycle
from django_pgqueue.context import running_job
from django_pgqueue.models import Job
from django_pgqueue.testing import run_jobs
from django_pgqueue.waiting import results
from tests import helpers
from tests.app import tasks


@pytest.fixture
def job(committing) -> Job:
    """One that is committed, and that no worker runs."""
    return tasks.add.enqueue(2, 3)


def waited(job: Job, how: str, timeout: float = 20.0) -> object:
    return job.wait(timeout) if how == "sync" else async_to_sync(job.await_result)(timeout)


both = pytest.mark.parametrize("how", ["sync", "async"])


@pytest.fixture
def looked(monkeypatch):
    """Calls what a test wants to happen at each look, before it."""
    plans: dict[int, object] = {}
    original, count = results._is_over, iter(range(1000))

    def look(job, *, is_first):
        if plan := plans.get(next(count)):
            plan()
        return original(job, is_first=is_first)

    monkeypatch.setattr(results, "_is_over", look)
    return plans


# ------------------------------------------------------------------ what ends it


@pytest.mark.django_db
def test_a_job_that_is_over_is_not_waited_for_and_is_refreshed():
    """Also inside the transaction that has enqueued it, as in a test, or with IMMEDIATE."""
    job = tasks.add.enqueue(2, 3)
    run_jobs()
    assert job.wait(0) == 5
    assert (job.state, job.result) == ("succeeded", 5)


@pytest.mark.django_db
@override_settings(PGQUEUE={"IMMEDIATE": True})
def test_a_job_that_ran_at_its_enqueue_is_over():
    assert tasks.add.enqueue(2, 3).wait(0) == 5


@both
def test_it_ends_with_the_job(job, engine, looked, how):
    def finish():
        lifecycle.succeed(engine, helpers.succeeded(helpers.claim_one(engine).key, result="7"))

    looked[3] = finish
    assert waited(job, how) == 7
    assert job.state == "succeeded"


@both
def test_a_job_that_dies_raises_its_error(job, engine, looked, how):
    looked[1] = lambda: lifecycle.fail(engine, helpers.failed(helpers.claim_one(engine).key, None))
    with pytest.raises(JobFailed, match="is dead after 1 of 10 attempts: RuntimeError: as asked") as raised:
        waited(job, how)
    error = raised.value
    assert (error.job_id, error.exception_class, error.error) == (job.pk, "RuntimeError", "as asked")
    assert job.state == "dead"


def test_of_several_attempts_the_last_one_s_error_is_told(job, engine):
    [first] = helpers.failed(helpers.claim_one(engine).key)
    lifecycle.fail(engine, [first._replace(error="the first")])
    [last] = helpers.failed(helpers.claim_one(engine).key, None)
    lifecycle.fail(engine, [last._replace(error="the last")])
    with pytest.raises(JobFailed, match=r"after 2 of 10 attempts: RuntimeError: the last$"):
        job.wait(1)


@both
def test_a_job_that_is_cancelled_raises(job, engine, looked, how):
    looked[1] = lambda: lifecycle.cancel(engine, [job.pk])
    with pytest.raises(JobCancelled, match=r"was cancelled$"):
        waited(job, how)


def test_the_reason_of_a_cancellation_is_told(job, engine):
    one = helpers.claim_one(engine)
    lifecycle.end_cancelled(engine, [lifecycle.Cancelled(one.key, None, 0.0, "not wanted any more")])
    with pytest.raises(JobCancelled, match=r"was cancelled: not wanted any more$"):
        job.wait(1)


@pytest.mark.promise("wait-ends-when-finished")
@both
def test_a_row_that_is_removed_ends_it(job, engine, looked, how):
    looked[2] = lambda: engine.execute("DELETE FROM pgqueue_job")
    with pytest.raises(JobGone, match="no longer exists: it was pruned or deleted") as raised:
        waited(job, how)
    assert raised.value.job_id == job.pk


def test_a_success_that_keeps_nothing_says_so(engine, committing, looked):
    job = tasks.keeps_nothing.enqueue()
    looked[2] = lambda: lifecycle.succeed_and_discard(engine, [helpers.claim_one(engine).key])
    with pytest.raises(JobGone, match=r"retention=0\), so it has most likely succeeded"):
        job.wait(20)


@both
@pytest.mark.parametrize("timeout", [0, 0.05, timedelta(milliseconds=50)])
def test_the_time_ends_it(job, how, timeout):
    with pytest.raises(TimeoutError, match=rf"job {job.pk} \(tests.app.tasks.add\) was not finished within 0(.05)? s"):
        waited(job, how, timeout)


@pytest.mark.parametrize(("timeout", "error"), [(-1, ValueError), ("1", TypeError), (None, TypeError)])
def test_a_time_that_is_none_is_refused(job, timeout, error):
    with pytest.raises(error):
        job.wait(timeout)


def test_the_last_look_is_at_the_end_of_the_time(job, engine, looked, monkeypatch):
    monkeypatch.setattr(results, "FIRST_PAUSE_SECONDS", 30.0)
    looked[1] = lambda: lifecycle.cancel(engine, [job.pk])
    with pytest.raises(JobCancelled):
        job.wait(0.05)


# ------------------------------------------------------------------ what does not


@pytest.mark.promise("wait-ends-when-finished")
def test_a_release_a_retry_and_a_rescue_in_between_do_not_end_it(job, engine, looked):
    looked[1] = lambda: lifecycle.release(engine, [lifecycle.Released(helpers.claim_one(engine).key)])
    looked[2] = lambda: lifecycle.fail(engine, helpers.failed(helpers.claim_one(engine).key))

    def rescue():
        helpers.claim_one(engine)
        helpers.end_lease(engine)
        helpers.rescue(engine)

    looked[3] = rescue
    looked[4] = lambda: lifecycle.succeed(engine, helpers.succeeded(helpers.claim_one(engine).key))
    assert job.wait(20) is None
    assert job.attempt == 3


def test_an_operator_who_is_faster_than_the_look_does_not_end_it(job, engine, looked, monkeypatch):
    """Dead when it was looked at, ready again when it was read."""
    original = Job.refresh_from_db
    lifecycle.fail(engine, helpers.failed(helpers.claim_one(engine).key, None))

    def retried(self, **options):
        monkeypatch.setattr(Job, "refresh_from_db", original)
        lifecycle.retry(engine, [self.pk])
        original(self, **options)

    monkeypatch.setattr(Job, "refresh_from_db", retried)
    looked[2] = lambda: lifecycle.succeed(engine, helpers.succeeded(helpers.claim_one(engine).key))
    assert job.wait(20) is None


def test_it_looks_ever_less_often_by_one_query_each(job, monkeypatch):
    """Until it hears; here it never does."""
    slept = []
    deaf = SimpleNamespace(wait=slept.append, clear=lambda: None, set=None)
    monkeypatch.setattr(results, "threading", SimpleNamespace(Event=lambda: deaf))
    monkeypatch.setattr(results, "time", SimpleNamespace(monotonic=lambda: sum(slept)))
    monkeypatch.setattr(results.listener, "awaiting", lambda *_: nullcontext())
    with CaptureQueriesContext(connection) as queries, pytest.raises(TimeoutError):
        job.wait(60)
    assert len(queries) == len(slept) + (slept[-1] > 0) or len(queries) == len(slept)
    assert slept[0] == results.FIRST_PAUSE_SECONDS
    assert max(slept) == results.LONGEST_PAUSE_SECONDS
    assert len(slept) < 80
    assert not any("arguments" in query["sql"] for query in queries), "the row is read when it is over"


# ------------------------------------------------------------------ where it is refused


def in_vain(job: Job) -> None:
    with pytest.raises(CannotWait, match="was enqueued in the transaction that is open here"):
        job.wait(20)


def test_in_the_transaction_that_has_enqueued_it(committing):
    with transaction.atomic():
        in_vain(tasks.add.enqueue(2, 3))


@pytest.mark.promise("endless-wait-refused")
def test_in_a_savepoint_of_it_and_after_one(committing):
    with transaction.atomic():
        with transaction.atomic():
            job = tasks.add.enqueue(2, 3)
            in_vain(job)
        in_vain(job)


def test_without_autocommit(committing):
    transaction.set_autocommit(False)
    try:
        in_vain(tasks.add.enqueue(2, 3))
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)


@pytest.mark.django_db
def test_in_asynchronous_code_too():
    """In a test's transaction, which nobody commits."""
    job = tasks.add.enqueue(2, 3)

    with pytest.raises(CannotWait, match="was enqueued in the transaction"):
        async_to_sync(job.await_result)(20)


def test_another_transaction_that_is_open_is_none_of_its_business(job, engine, looked):
    looked[2] = lambda: lifecycle.succeed(engine, helpers.succeeded(helpers.claim_one(engine).key))
    with transaction.atomic():
        tasks.noop.enqueue()
        assert job.wait(20) is None


def test_one_that_sees_no_commits_of_others(job):
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        with pytest.raises(CannotWait, match="sees the database as it was at its beginning"):
            job.wait(20)


@pytest.mark.django_db
def test_in_a_task(job):
    own = running_job.set(7)
    try:
        with pytest.raises(CannotWait, match="job 7 would keep its slot"):
            job.wait(1)
    finally:
        running_job.reset(own)


def test_a_job_that_was_never_enqueued():
    with pytest.raises(CannotWait, match="never enqueued"):
        Job().wait(1)


@pytest.mark.django_db
def test_what_runs_in_this_thread_is_forgotten_when_it_ends():
    """`run_jobs()` and IMMEDIATE leave the caller free to wait."""
    tasks.noop.enqueue()
    run_jobs()
    with pytest.raises(CannotWait, match="in the transaction"):
        tasks.add.enqueue(2, 3).wait(1)
