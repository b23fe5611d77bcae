"""An operator changes `max_attempts` of jobs: which ones change, and what follows for an attempt that is running."""

import time
from contextlib import suppress

import pytest

from django_pgqueue import signals
from django_pgqueue.declared.retry import DEFAULT_BACKOFF
from django_pgqueue.ground.endings import Ending
from django_pgqueue.lifecycle import completions, operator, rescues
from django_pgqueue.models import Job
from django_pgqueue.states import Seen
from django_pgqueue.testing import run_jobs
from django_pgqueue.worker.completion.writer import finish
from django_pgqueue.worker.execution import retry_policy
from django_pgqueue.worker.execution.report import Report
from tests import helpers
from tests.app import tasks

pytestmark = pytest.mark.django_db(transaction=True)


def running(engine, max_attempts, attempts=1):
    """Return a job as it was claimed for this attempt."""
    job_id = helpers.make_job(engine, task_name=tasks.add.name, max_attempts=max_attempts)
    for _ in range(attempts - 1):
        completions.fail(engine, helpers.failed(helpers.claim_one(engine).key, delay_seconds=0.0))
    claimed = helpers.claim_one(engine)
    assert (claimed.job_id, claimed.attempt) == (job_id, attempts)
    return claimed


def failed(claimed, delay_seconds=None, *, is_exhausted=False):
    now = time.monotonic()
    return Report(
        claimed, Ending.FAILED, now, now, delay_seconds=delay_seconds, is_exhausted=is_exhausted, error="as asked"
    )


def state_of(claimed):
    return Job.objects.get(pk=claimed.job_id).state


def test_job_on_its_last_attempt_runs_again_if_it_got_more(engine):
    claimed = running(engine, max_attempts=2, attempts=2)
    assert Job.objects.filter(pk=claimed.job_id).set_max_attempts(3) == 1
    report = failed(claimed, is_exhausted=True)
    finish(engine, [report])
    assert state_of(claimed) == "ready"
    assert report.delay_seconds == pytest.approx(DEFAULT_BACKOFF(2, None), rel=0.5)
    again = Job.objects.get(pk=claimed.job_id)
    assert (again.attempt, again.max_attempts) == (2, 3)
    assert (again.run_after - again.executions.latest("pk").finished_at).total_seconds() > 1


def test_attempt_that_fails_after_the_change_is_not_the_last(engine):
    """The attempt itself finds out that only the number of attempts ends the job."""

    def give_more(sender, job_id, **about):
        Job.objects.filter(pk=job_id).set_max_attempts(2)

    signals.job_started.connect(give_more)
    try:
        job = tasks.fail.using(max_attempts=1).enqueue()
        with suppress(Exception):
            run_jobs()
    finally:
        signals.job_started.disconnect(give_more)
    job.refresh_from_db()
    assert (job.state, job.attempt, job.max_attempts) == ("ready", 1, 2)


def test_job_that_must_not_run_again_is_dead_although_it_got_more(engine):
    claimed = running(engine, max_attempts=1)
    Job.objects.filter(pk=claimed.job_id).set_max_attempts(3)
    finish(engine, [failed(claimed)])
    assert state_of(claimed) == "dead"


def test_job_with_attempts_left_is_dead_if_it_lost_them(engine):
    claimed = running(engine, max_attempts=5, attempts=2)
    assert Job.objects.filter(pk=claimed.job_id).set_max_attempts(2) == 1
    report = failed(claimed, 30.0)
    finish(engine, [report])
    assert (state_of(claimed), report.delay_seconds) == ("dead", None)


def test_rescue_counts_the_new_number(engine):
    claimed = running(engine, max_attempts=1)
    Job.objects.filter(pk=claimed.job_id).set_max_attempts(2)
    helpers.end_lease(engine)
    rescues.rescue(engine, lambda held: retry_policy.delay_after_failure(held, None), error="lost")
    assert state_of(claimed) == "ready"


def test_exhausted_only_if_another_attempt_would_help(engine, settings):
    settings.PGQUEUE = {"CRASH_BUDGET": 3}
    last = running(engine, max_attempts=1)
    assert retry_policy.is_exhausted(last, ValueError())
    assert retry_policy.is_exhausted(last, None, has_crashed=True)
    assert not retry_policy.is_exhausted(last._replace(crashes=2), None, has_crashed=True)
    assert not retry_policy.is_exhausted(last._replace(max_attempts=2), ValueError())
    picky = last._replace(task_name=tasks.picky.name)
    assert not retry_policy.is_exhausted(picky, ValueError())
    assert retry_policy.is_exhausted(picky, KeyError())


@pytest.mark.parametrize(
    ("state", "attempt", "least"), [("ready", 0, 1), ("ready", 3, 4), ("waiting", 0, 1), ("running", 3, 3)]
)
def test_number_below_attempts_made_is_refused_with_least(engine, state, attempt, least):
    job_id = helpers.make_job(engine, max_attempts=10)
    engine.execute("UPDATE pgqueue_job SET state = %s, attempt = %s WHERE id = %s", [state, attempt, job_id])
    job, jobs = Job.objects.get(pk=job_id), Job.objects.filter(pk=job_id)
    if least > 1:
        for change in (job, jobs):
            with pytest.raises(ValueError, match=f"attempt.* must be {least} or more, not {least - 1}"):
                change.set_max_attempts(least - 1)
        assert operator.set_max_attempts(engine, [job_id], max_attempts=least - 1) == {}
        assert Job.objects.get(pk=job_id).max_attempts == 10
    assert job.set_max_attempts(least)
    again = job.set_max_attempts(least)
    assert not again and again.reason == f"it has {least} as its number already"
    assert jobs.set_max_attempts(20) == 1
    assert Job.objects.get(pk=job_id).max_attempts == 20


@pytest.mark.parametrize("number", [0, 1001, "5"])
def test_invalid_number_is_refused(engine, number):
    job = Job.objects.get(pk=helpers.make_job(engine))
    for change in (job, Job.objects.all()):
        with pytest.raises(ValueError, match="must be a whole number from 1 to 1000"):
            change.set_max_attempts(number)


def test_finished_and_changed_jobs_are_left_alone(engine):
    dead = running(engine, max_attempts=1)
    finish(engine, [failed(dead)])
    ready = helpers.make_job(engine)
    stale = Job.objects.get(pk=ready)
    assert Job.objects.all().set_max_attempts(5) == 1
    assert Job.objects.get(pk=dead.job_id).max_attempts == 1
    claimed = helpers.claim_one(engine)
    assert stale.set_max_attempts(7).reason.startswith("it has changed since it was read")
    seen = {claimed.job_id: Seen("ready", run_after=stale.run_after)}
    assert operator.set_max_attempts(engine, [claimed.job_id], max_attempts=7, seen=seen) == {}
    assert Job.objects.get(pk=ready).max_attempts == 5
