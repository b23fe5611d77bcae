"""Compensation with real workers: after the last failure, after a kill, and after a worker that was lost in between."""

from __future__ import annotations

import signal

import pytest
from django.test import override_settings

from django_pgqueue.models import Execution, Job, JobStep
from django_pgqueue.tasks import registry
from django_pgqueue.worker.maintenance.end_sweeps import SWEEP_SECONDS
from tests import helpers
from tests.helpers import wait_until
from tests.steps import conftest as own
from tests.steps import tasks

pytestmark = pytest.mark.process
MODULES = [tasks.__name__]
WAITS_FOR_LOCK = """
CREATE FUNCTION users_rule() RETURNS trigger LANGUAGE plpgsql AS
    $$BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NEW; END$$;
CREATE TRIGGER users_rule BEFORE INSERT ON pgqueue_job FOR EACH ROW WHEN (NEW.task_name LIKE '%undo%')
    EXECUTE FUNCTION users_rule()
"""
"""A trigger that makes the compensations wait for a lock."""


@pytest.fixture(autouse=True)
def known_tasks(monkeypatch):
    monkeypatch.setattr(registry, "_tasks", {**registry._tasks, **own.OWN})
    with override_settings(PGQUEUE={"TASK_MODULES": MODULES}):
        yield


@pytest.fixture
def worker(start):
    def start_worker(*arguments, **options):
        one = start(*arguments, TASK_MODULES=MODULES, **options)
        one.wait_until_ready()
        return one

    return start_worker


def undone() -> list[str]:
    """Return the arguments of the compensations that have succeeded, in the order of their ends."""
    jobs = Job.objects.filter(task_name__in=[tasks.undo.name, tasks.undo_once.name], state="succeeded")
    return [job.arguments["args"][0] for job in jobs.order_by("finished_at")]


@pytest.mark.promise("compensation-in-reverse-order")
@pytest.mark.parametrize(
    "task", [tasks.order, tasks.order_isolated, tasks.order_async], ids=lambda task: task.func.__name__
)
def test_dead_job_is_compensated_at_once(worker, task):
    """Without a sweep: the completion and each compensation lead to the next one."""
    one = worker()
    task.enqueue()
    one.wait_until(lambda: len(undone()) == 2)
    assert undone() == ["reserve", "charge"]
    first, last = Job.objects.filter(task_name__in=[tasks.undo.name, tasks.undo_once.name]).order_by("id")
    between_seconds = (last.enqueued_at - first.enqueued_at).total_seconds()
    assert between_seconds < 0.9 * SWEEP_SECONDS  # the sweeps that would enqueue them are farther apart


@pytest.mark.promise("compensation-after-every-end")
def test_worker_killed_before_the_compensation_it_is_added(worker, engine):
    """The settlement of the killed process closes the execution, and then adds the compensation."""
    job = tasks.killed_after_step.enqueue()
    one = worker()
    one.wait_until(lambda: JobStep.objects.filter(job=job).exists())
    one.wait_until(lambda: Execution.objects.filter(job=job, outcome="crashed").exists(), 60)
    wait_until(lambda: undone() == ["charge"], 40)


@pytest.mark.promise("compensation-after-every-end")
def test_worker_killed_between_completion_and_compensation(worker, engine):
    engine.execute(WAITS_FOR_LOCK)
    with helpers.transaction(engine, "SELECT pg_advisory_xact_lock(1)"):
        job = tasks.order.enqueue()
        one = worker(LEASE=6.0)
        one.wait_until(lambda: Job.objects.filter(pk=job.pk, state="dead").exists())
        one.send_all(signal.SIGKILL)
        one.exit_code()
        # Otherwise the server executes the statement that waits for the table, although its client is gone.
        ended = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        wait_until(lambda: not helpers.scalar(engine, f"{ended} AND datname = current_database()"), 30)
        engine.execute("COMMIT")
    assert not Job.objects.filter(task_name__in=[tasks.undo.name, tasks.undo_once.name]).exists()
    engine.execute("DROP FUNCTION users_rule CASCADE")
    worker(LEASE=6.0)
    wait_until(lambda: undone() == ["reserve", "charge"], 60)


@pytest.mark.promise("compensation-after-every-end")
def test_cancelled_suspended_job_is_found_by_the_sweep(worker):
    job = tasks.charged_and_waiting.enqueue()
    one = worker()
    one.wait_until(lambda: Execution.objects.filter(job=job, outcome="suspended").exists())
    job.refresh_from_db()
    assert job.cancel()
    worker()  # the first one may have swept before the step existed, and sweeps a minute later then
    wait_until(lambda: undone() == ["charge"], 30)
