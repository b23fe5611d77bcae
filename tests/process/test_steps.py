"""Durable steps in real workers: killed between two steps, restarts while jobs are suspended, events and timeouts."""

from __future__ import annotations

import signal

import pytest
from django.contrib.auth.models import Group
from django.db import connection
from django.test import override_settings

from django_pgqueue import send_event
from django_pgqueue.models import Execution, Job, JobStep, SentEvent
from django_pgqueue.tasks import registry
from tests.steps import conftest as own
from tests.steps import tasks

pytestmark = pytest.mark.process
MODULES = [tasks.__name__]


@pytest.fixture(autouse=True)
def known_tasks(monkeypatch):
    monkeypatch.setattr(registry, "_tasks", {**registry._tasks, **own.OWN})
    with override_settings(PGQUEUE={"TASK_MODULES": MODULES}):
        yield
    Group.objects.all().delete()


@pytest.fixture
def worker(start):
    """Return a function that starts a worker that knows the tasks with steps."""

    def start_worker(*arguments, **options):
        one = start(*arguments, TASK_MODULES=MODULES, **options)
        one.wait_until_ready()
        return one

    return start_worker


def state(job):
    return Job.objects.values_list("state", flat=True).get(pk=job.pk)


def has_ended(job):
    return lambda: state(job) in ("succeeded", "dead")


def is_suspended(*jobs):
    ids = [job.pk for job in jobs]
    return lambda: Execution.objects.filter(job__in=ids, outcome="suspended").count() == len(ids)


def counts(*names):
    return [tasks.calls(name) for name in names]


@pytest.mark.promise("step-result-is-stored")
def test_worker_killed_between_steps_runs_the_first_once(worker):
    job = tasks.killed_between_steps.enqueue()
    one = worker()
    one.wait_until(has_ended(job))
    job.refresh_from_db()
    assert (job.state, job.result, job.attempt) == ("succeeded", [1, 1], 2)
    assert counts("first", "second") == [1, 1]


@pytest.mark.promise("atomic-step-once")
def test_worker_killed_in_atomic_step_leaves_no_effect(worker):
    job = tasks.killed_in_atomic_step.enqueue()
    one = worker()
    one.wait_until(has_ended(job))
    job.refresh_from_db()
    assert (job.state, job.result, job.attempt, counts("write")) == ("succeeded", 1, 2, [1])


@pytest.mark.promise("suspended-holds-no-slot")
def test_suspended_jobs_hold_no_slot_and_survive_restarts(worker):
    """One slot, two suspended jobs, and a third job that runs beside them. Then the worker is killed and replaced."""
    jobs = [tasks.waits.enqueue("4711") for _ in range(2)]
    first = worker("--concurrency", "1")
    first.wait_until(is_suspended(*jobs))
    plain = tasks.killed_in_atomic_step.using(run_after=3600).enqueue()
    assert state(plain) == "ready"
    first.end()
    send_event("go", 4711, "yes")
    second = worker("--concurrency", "1")
    for job in jobs:
        second.wait_until(has_ended(job))
        job.refresh_from_db()
        assert (job.state, job.result, job.attempt) == ("succeeded", "yes", 1)
    assert counts("before", "after") == [2, 2]


@pytest.mark.parametrize("options", [{}, {"NOTIFY": False}], ids=["notified", "polling"])
@pytest.mark.promise("event-is-never-lost")
def test_event_wakes_a_waiting_job(worker, options):
    job = tasks.waits.enqueue("1")
    one = worker(**options)
    one.wait_until(is_suspended(job))
    with override_settings(PGQUEUE={"TASK_MODULES": MODULES, **options}):
        send_event("go", 1, {"by": "anna"})
    one.wait_until(has_ended(job))
    job.refresh_from_db()
    assert (job.state, job.result) == ("succeeded", {"by": "anna"})


@pytest.mark.promise("event-is-never-lost")
def test_event_that_no_sender_announced_is_found_by_the_sweep(worker):
    """The sender was lost between its commit and the statement that wakes the job."""
    job = tasks.waits.enqueue("1")
    one = worker()
    one.wait_until(is_suspended(job))
    SentEvent.objects.create(name="go", key="1", payload="by SQL")
    one.wait_until(has_ended(job), 30)
    job.refresh_from_db()
    assert job.result == "by SQL"


def test_event_sent_before_the_job_is_received_without_a_wait(worker):
    send_event("go", "early", 1)
    job = tasks.waits.enqueue("early")
    one = worker()
    one.wait_until(has_ended(job))
    assert list(Execution.objects.values_list("outcome", flat=True)) == ["succeeded"]


def test_wait_ends_at_its_timeout(worker):
    job = tasks.waits.using(max_attempts=1).enqueue("never", 0.5)
    one = worker()
    one.wait_until(has_ended(job))
    execution = Execution.objects.filter(job=job).latest("id")
    assert (state(job), execution.exception_class) == ("dead", "django_pgqueue.declared.steps.EventTimeout")


def test_steps_in_isolated_process(worker):
    job = tasks.isolated.enqueue()
    one = worker()
    one.wait_until(has_ended(job))
    job.refresh_from_db()
    assert (job.state, job.result) == ("succeeded", [1, 1])
    assert list(Execution.objects.order_by("id").values_list("outcome", flat=True)) == ["suspended", "succeeded"]


def test_coroutine_steps_in_the_event_loop(worker):
    job = tasks.fulfil_async.enqueue(7)
    one = worker()
    one.wait_until(is_suspended(job))
    with connection.cursor() as cursor:  # let a day pass
        cursor.execute("UPDATE pgqueue_step SET wake_at = statement_timestamp() WHERE kind = 'sleep'")
        cursor.execute("UPDATE pgqueue_job SET run_after = statement_timestamp()")
    one.wait_until(lambda: JobStep.objects.filter(job=job, kind="event").exists())
    send_event("approved", 7, "yes")
    one.wait_until(has_ended(job))
    job.refresh_from_db()
    assert (job.state, job.result) == ("succeeded", [1, "yes", 1])


def test_worker_that_stops_leaves_suspended_jobs_alone(worker):
    job = tasks.waits.enqueue("1")
    one = worker()
    one.wait_until(is_suspended(job))
    one.send(signal.SIGTERM)
    assert one.has_drained()
    assert (state(job), counts("before", "after")) == ("ready", [1, 0])


@pytest.fixture
def suspended_job(worker):
    """Return a job that a worker with the old code has suspended after the steps a and b. The worker has stopped."""
    job = tasks.deployed.enqueue()
    old = worker()
    old.wait_until(is_suspended(job))
    old.send(signal.SIGTERM)
    assert old.has_drained()
    return job


@pytest.mark.promise("defect-changed-steps-use-up-attempts")
@pytest.mark.promise("changed-steps-refused")
def test_deploy_with_another_order_of_steps_says_so(worker, suspended_job):
    new = worker(variables={"PGQUEUE_TEST_STEPS": "b,a"})
    send_event("go", suspended_job.pk)
    new.wait_until(lambda: Job.objects.get(pk=suspended_job.pk).unknown_since)
    execution = Execution.objects.filter(job=suspended_job).latest("id")
    assert (state(suspended_job), execution.outcome, Job.objects.get().attempt) == ("ready", "released", 0)
    assert "the step 'a' is called after the step 'b'" in execution.error
    new.wait_until(lambda: "is released for now" in new.said)
    new.end()  # before the job is due, otherwise it can claim the job again
    assert Job.objects.get(pk=suspended_job.pk).run_now()
    fixed = worker()
    fixed.wait_until(lambda: state(suspended_job) == "succeeded")


def test_deploy_without_a_stored_step_keeps_and_reports_it(worker, suspended_job):
    new = worker(variables={"PGQUEUE_TEST_STEPS": "b,c"})
    send_event("go", suspended_job.pk)
    new.wait_until(has_ended(suspended_job))
    suspended_job.refresh_from_db()
    assert (suspended_job.state, suspended_job.result) == ("succeeded", ["value of b", "value of c"])
    names = JobStep.objects.filter(job=suspended_job).order_by("position").values_list("name", flat=True)
    assert list(names) == ["a", "b", "c", "go"]
    new.wait_until(lambda: "has ended without its stored steps 'a': the code does not call them any more" in new.said)
