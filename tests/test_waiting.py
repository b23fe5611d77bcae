"""Waiting for a job: what ends a wait, what does not, and where a wait is refused because it could never end."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import timedelta
from types import SimpleNamespace

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import translation

from django_pgqueue import CannotWait, JobCancelled, JobFailed, JobGone
from django_pgqueue.lifecycle import completions, operator
from django_pgqueue.lifecycle.types import Cancelled, Released
from django_pgqueue.models import Job
from django_pgqueue.stats import explanation
from django_pgqueue.tasks.context import running_job
from django_pgqueue.testing import run_jobs
from django_pgqueue.waiting import result_wait
from tests import helpers
from tests.app import tasks


@pytest.fixture
def job(committing) -> Job:
    """Return a committed job that no worker runs."""
    return tasks.add.enqueue(2, 3)


def waited(job: Job, how: str, timeout: float = 20.0) -> object:
    return job.wait(timeout) if how == "sync" else async_to_sync(job.await_result)(timeout)


both = pytest.mark.parametrize("how", ["sync", "async"])


@pytest.fixture
def before_poll(monkeypatch):
    """Return a dict in which a test plans actions: each is called before the poll with its number, from 0."""
    plans: dict[int, object] = {}
    original, count = result_wait._is_over, iter(range(1000))

    def is_over(job, *, is_first):
        if plan := plans.get(next(count)):
            plan()
        return original(job, is_first=is_first)

    monkeypatch.setattr(result_wait, "_is_over", is_over)
    return plans


# ------------------------------------------------------------------ what ends a wait


@pytest.mark.django_db
def test_wait_finished_job_is_refreshed_at_once():
    """This also works in the transaction that has enqueued the job, as in a test or with IMMEDIATE."""
    job = tasks.add.enqueue(2, 3)
    run_jobs()
    assert job.wait(0) == 5
    assert (job.state, job.result) == ("succeeded", 5)


@pytest.mark.django_db
@override_settings(PGQUEUE={"IMMEDIATE": True})
def test_wait_immediate_job_returns_at_once():
    assert tasks.add.enqueue(2, 3).wait(0) == 5


@both
def test_wait_ends_when_the_job_succeeds(job, engine, before_poll, how):
    def finish():
        completions.succeed(engine, helpers.succeeded(helpers.claim_one(engine).key, result="7"))

    before_poll[3] = finish
    assert waited(job, how) == 7
    assert job.state == "succeeded"


@both
def test_wait_dead_job_raises_its_error(job, engine, before_poll, how):
    before_poll[1] = lambda: completions.fail(engine, helpers.failed(helpers.claim_one(engine).key, None))
    with pytest.raises(JobFailed, match="is dead after 1 of 10 attempts: RuntimeError: as asked") as raised:
        waited(job, how)
    error = raised.value
    assert (error.job_id, error.exception_class, error.error) == (job.pk, "RuntimeError", "as asked")
    assert job.state == "dead"


def test_wait_dead_job_raises_error_of_last_attempt(job, engine):
    [first] = helpers.failed(helpers.claim_one(engine).key)
    completions.fail(engine, [first._replace(error="the first")])
    [last] = helpers.failed(helpers.claim_one(engine).key, None)
    completions.fail(engine, [last._replace(error="the last")])
    with pytest.raises(JobFailed, match=r"after 2 of 10 attempts: RuntimeError: the last$"):
        job.wait(1)


@both
def test_wait_cancelled_job_raises_job_cancelled(job, engine, before_poll, how):
    before_poll[1] = lambda: operator.cancel(engine, [job.pk])
    with pytest.raises(JobCancelled, match=r"was cancelled$"):
        waited(job, how)


def test_wait_cancelled_job_has_reason_in_error(job, engine):
    claimed = helpers.claim_one(engine)
    completions.end_cancelled(engine, [Cancelled(claimed.key, None, 0.0, "not wanted any more")])
    with pytest.raises(JobCancelled, match=r"was cancelled: not wanted any more$"):
        job.wait(1)


@pytest.mark.promise("wait-ends-when-finished")
@both
def test_wait_deleted_job_raises_job_gone(job, engine, before_poll, how):
    before_poll[2] = lambda: engine.execute("DELETE FROM pgqueue_job")
    with pytest.raises(JobGone, match=r"deleted, or it was never committed: .* was rolled back") as raised:
        waited(job, how)
    assert raised.value.job_id == job.pk


def test_wait_discarded_job_mentions_its_retention(engine, committing, before_poll):
    job = tasks.keeps_nothing.enqueue()
    before_poll[2] = lambda: completions.succeed_and_discard(engine, [helpers.claim_one(engine).key])
    with pytest.raises(JobGone, match=r"retention=0\), so it has most likely succeeded"):
        job.wait(20)


@both
@pytest.mark.parametrize("timeout", [0, 0.05, timedelta(milliseconds=50)])
def test_wait_timeout_raises_timeout_error(job, how, timeout):
    with pytest.raises(TimeoutError, match=rf"job {job.pk} \(tests.app.tasks.add\) was not finished within 0(.05)? s"):
        waited(job, how, timeout)


@both
def test_wait_timeout_says_why_the_job_has_not_finished(job, how):
    with translation.override("de"), pytest.raises(TimeoutError, match=r"within 0.05 s: No worker is running"):
        waited(job, how, 0.05)


@both
def test_wait_timeout_is_not_hidden_by_a_failure_of_its_reason(job, how, monkeypatch):
    def fail(*_):
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 / 0")

    monkeypatch.setattr(explanation, "why", fail)
    with transaction.atomic():
        with pytest.raises(TimeoutError, match=r"within 0.05 s$"):
            waited(job, how, 0.05)
        assert Job.objects.filter(pk=job.pk).exists(), "the caller's transaction is not aborted"


def test_wait_without_a_timeout_reads_no_reason(job, monkeypatch):
    monkeypatch.setattr(explanation, "why", lambda *_: pytest.fail("it is a poll, which must stay cheap"))
    with pytest.raises(TimeoutError, match=r"within 0 s$"):
        job.wait(0)


@pytest.mark.parametrize(("timeout", "error"), [(-1, ValueError), ("1", TypeError), (None, TypeError)])
def test_wait_invalid_timeout_is_refused(job, timeout, error):
    with pytest.raises(error):
        job.wait(timeout)


def test_wait_last_poll_is_at_the_timeout(job, engine, before_poll, monkeypatch):
    monkeypatch.setattr(result_wait, "FIRST_PAUSE_SECONDS", 30.0)
    before_poll[1] = lambda: operator.cancel(engine, [job.pk])
    with pytest.raises(JobCancelled):
        job.wait(0.05)


# ------------------------------------------------------------------ what does not end a wait


@pytest.mark.promise("wait-ends-when-finished")
def test_wait_continues_after_release_retry_and_rescue(job, engine, before_poll):
    before_poll[1] = lambda: completions.release(engine, [Released(helpers.claim_one(engine).key)])
    before_poll[2] = lambda: completions.fail(engine, helpers.failed(helpers.claim_one(engine).key))

    def rescue():
        helpers.claim_one(engine)
        helpers.end_lease(engine)
        helpers.rescue(engine)

    before_poll[3] = rescue
    before_poll[4] = lambda: completions.succeed(engine, helpers.succeeded(helpers.claim_one(engine).key))
    assert job.wait(20) is None
    assert job.attempt == 3


def test_wait_continues_after_retry_between_poll_and_read(job, engine, before_poll, monkeypatch):
    """The poll finds a dead job. An operator retries the job before the wait refreshes it."""
    original = Job.refresh_from_db
    completions.fail(engine, helpers.failed(helpers.claim_one(engine).key, None))

    def retried(self, **options):
        monkeypatch.setattr(Job, "refresh_from_db", original)
        operator.retry(engine, [self.pk])
        original(self, **options)

    monkeypatch.setattr(Job, "refresh_from_db", retried)
    before_poll[2] = lambda: completions.succeed(engine, helpers.succeeded(helpers.claim_one(engine).key))
    assert job.wait(20) is None


def test_wait_polls_less_and_less_often_by_one_query(job, monkeypatch):
    """A notification would end an interval early, but none arrives in this test."""
    slept = []
    event = SimpleNamespace(wait=slept.append, clear=lambda: None, set=None)
    monkeypatch.setattr(result_wait, "threading", SimpleNamespace(Event=lambda: event))
    monkeypatch.setattr(result_wait, "time", SimpleNamespace(monotonic=lambda: sum(slept)))
    monkeypatch.setattr(result_wait.completion_listener, "awaiting", lambda *_: nullcontext())
    monkeypatch.setattr(explanation, "why", lambda *_: SimpleNamespace(sentence="nobody runs it"))
    with CaptureQueriesContext(connection) as queries, pytest.raises(TimeoutError):
        job.wait(60)
    polls = [query for query in queries if query["sql"].startswith("SELECT")]  # the reason has a transaction of its own
    assert len(polls) in (len(slept), len(slept) + (slept[-1] > 0))
    assert slept[0] == result_wait.FIRST_PAUSE_SECONDS
    assert max(slept) == result_wait.LONGEST_PAUSE_SECONDS
    assert len(slept) < 80
    assert not any("arguments" in query["sql"] for query in queries), "only the end of the wait must read the whole row"


# ------------------------------------------------------------------ where a wait is refused


def assert_wait_refused(job: Job) -> None:
    with pytest.raises(CannotWait, match="was enqueued in the transaction that is open here"):
        job.wait(20)


def test_wait_in_transaction_of_its_enqueue_is_refused(committing):
    with transaction.atomic():
        assert_wait_refused(tasks.add.enqueue(2, 3))


@pytest.mark.promise("endless-wait-refused")
def test_wait_in_or_after_savepoint_of_enqueue_is_refused(committing):
    with transaction.atomic():
        with transaction.atomic():
            job = tasks.add.enqueue(2, 3)
            assert_wait_refused(job)
        assert_wait_refused(job)


def test_wait_without_autocommit_is_refused(committing):
    transaction.set_autocommit(False)
    try:
        assert_wait_refused(tasks.add.enqueue(2, 3))
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)


@pytest.mark.django_db
def test_await_result_in_transaction_of_enqueue_is_refused():
    """The test runs in a transaction that is never committed."""
    job = tasks.add.enqueue(2, 3)

    with pytest.raises(CannotWait, match="was enqueued in the transaction"):
        async_to_sync(job.await_result)(20)


def test_wait_in_an_unrelated_transaction_is_allowed(job, engine, before_poll):
    before_poll[2] = lambda: completions.succeed(engine, helpers.succeeded(helpers.claim_one(engine).key))
    with transaction.atomic():
        tasks.noop.enqueue()
        assert job.wait(20) is None


def test_wait_in_repeatable_read_is_refused(job):
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        with pytest.raises(CannotWait, match="sees the database as it was at its beginning"):
            job.wait(20)


@pytest.mark.django_db
def test_wait_in_a_task_is_refused(job):
    own = running_job.set(SimpleNamespace(job_id=7))
    try:
        with pytest.raises(CannotWait, match="job 7 would keep its slot"):
            job.wait(1)
    finally:
        running_job.reset(own)


def test_wait_job_never_enqueued_is_refused():
    with pytest.raises(CannotWait, match="never enqueued"):
        Job().wait(1)


@pytest.mark.django_db
def test_wait_after_run_jobs_does_not_count_as_in_a_task():
    """After `run_jobs()` or with IMMEDIATE, the caller does not count as a task that waits."""
    tasks.noop.enqueue()
    run_jobs()
    with pytest.raises(CannotWait, match="in the transaction"):
        tasks.add.enqueue(2, 3).wait(1)
