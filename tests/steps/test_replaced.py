"""A suspended job whose call is replaced by a new one with its unique key: it starts again, with the new arguments."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection as django_connection
from django.db import transaction

from django_pgqueue import JobLocked, Step, send_event, task
from django_pgqueue.declared.steps import Suspension
from django_pgqueue.lifecycle import claims, steps
from django_pgqueue.lifecycle.steps import EndedStep, SuspendedExecution
from django_pgqueue.models import Job, JobStep
from django_pgqueue.states import StepKind
from django_pgqueue.tasks import registry
from django_pgqueue.testing import run_jobs
from tests import helpers

from . import tasks

pytestmark = pytest.mark.django_db


def replaced_task(monkeypatch, unique_while, undo=None):
    """Return a task that waits for an event after its first step. A new call with its key replaces the old one."""

    def import_file(context, name):
        first = context.step(Step("open", compensate=undo), lambda: f"opened {name}")
        answer = context.wait_for_event("go", "key", timeout=timedelta(days=1))
        return [first, answer, name]

    return registered(monkeypatch, import_file, unique_while, takes_context=True)


def registered(monkeypatch, function, unique_while, **options):
    """Return the task of a function, which takes the place of an earlier one."""
    function.__module__ = tasks.__name__
    function.__qualname__ = "import_file"
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))
    registry._tasks.pop(f"{tasks.__name__}.import_file", None)
    return task(unique_key="key", unique_while=unique_while, on_conflict="replace", **options)(function)


ENQUEUE = {
    "one": lambda replacing, name: replacing.enqueue(name).pk,
    "many": lambda replacing, name: replacing.enqueue_many([((name,), {})])[0],
}


def overtaken(engine, watcher, job_id, enqueue, **columns):
    """Let a worker claim a job, store its first step and suspend it, while a call of `enqueue` waits for its lock."""

    def enqueue_and_close():
        try:
            return enqueue()
        finally:
            django_connection.close()

    with engine.transaction():
        claimed = claims.claim_one(engine, job_id, worker_id=1, lease_seconds=60.0)
        background = helpers.Background(enqueue_and_close)
        blocked = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%%replace%%'"
        helpers.wait_until(lambda: watcher.execute(blocked).fetchone())
        step = EndedStep("open", 1.0, StepKind.STEP, '"opened old"', 0.1, **columns)
        steps.store_step(engine, claimed.key, step)
        sleep = Suspension("nap", 2.0, StepKind.SLEEP, 60.0)
        steps.suspend(engine, [SuspendedExecution(claimed.key, sleep, *helpers.AGES)])
    return background


@pytest.mark.promise("replaced-call-uses-no-step")
@pytest.mark.parametrize("unique_while", ["ready+running", timedelta(hours=1)], ids=["job", "window"])
@pytest.mark.parametrize("how", ENQUEUE)
def test_replace_of_suspended_job_removes_its_steps(monkeypatch, unique_while, how):
    replacing = replaced_task(monkeypatch, unique_while)
    first = ENQUEUE[how](replacing, "old")
    run_jobs()
    assert list(JobStep.objects.values_list("name", flat=True).order_by("position")) == ["open", "go"]
    assert ENQUEUE[how](replacing, "new") == first
    assert not JobStep.objects.exists()
    run_jobs()  # it starts from the beginning at once, and waits for the event again
    send_event("go", "key", "yes")
    run_jobs()
    assert Job.objects.get().result == ["opened new", "yes", "new"]


@pytest.mark.promise("replaced-call-uses-no-step")
@pytest.mark.parametrize("unique_while", ["ready+running", timedelta(hours=1)], ids=["job", "window"])
@pytest.mark.parametrize("how", ENQUEUE)
def test_replace_by_code_without_steps_removes_those_of_the_job(monkeypatch, unique_while, how):
    def import_file(name):
        return name

    first = ENQUEUE[how](replaced_task(monkeypatch, unique_while), "old")
    run_jobs()
    assert JobStep.objects.exists()
    assert ENQUEUE[how](registered(monkeypatch, import_file, unique_while), "new") == first
    assert not JobStep.objects.exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.promise("replaced-call-uses-no-step")
@pytest.mark.parametrize("unique_while", ["ready+running", timedelta(hours=1)], ids=["job", "window"])
@pytest.mark.parametrize("how", ENQUEUE)
def test_replace_removes_a_step_that_was_stored_while_it_waited(monkeypatch, engine, watcher, unique_while, how):
    """The statement waits for a worker that claims the job, stores its first step and suspends it. So its snapshot does
    not contain the step, which belongs to the old arguments."""
    replacing = replaced_task(monkeypatch, unique_while)
    first = ENQUEUE[how](replacing, "old")

    background = overtaken(engine, watcher, first, lambda: ENQUEUE[how](replacing, "new"))
    assert background.result() == first
    assert not JobStep.objects.exists()
    assert Job.objects.get().arguments["args"] == ["new"]


@pytest.mark.promise("compensation-before-removal")
@pytest.mark.parametrize("unique_while", ["ready+running", timedelta(hours=1)], ids=["job", "window"])
@pytest.mark.parametrize("how", ENQUEUE)
def test_replace_leaves_a_job_that_has_something_to_undo(monkeypatch, unique_while, how):
    replacing = replaced_task(monkeypatch, unique_while, tasks.undo)
    first = ENQUEUE[how](replacing, "old")
    run_jobs()
    assert ENQUEUE[how](replacing, "new") == first
    job = Job.objects.get()
    assert job.arguments["args"] == ["old"]
    assert job.steps.get(name="open").compensation is not None
    job.cancel()
    run_jobs()
    assert tasks.LOG == ["undo opened old"]
    assert ENQUEUE[how](replacing, "new") != first or unique_while != "ready+running"


@pytest.mark.django_db(transaction=True)
@pytest.mark.promise("compensation-before-removal")
@pytest.mark.parametrize("unique_while", ["ready+running", timedelta(hours=1)], ids=["job", "window"])
@pytest.mark.parametrize("how", ENQUEUE)
def test_replace_beside_a_step_with_a_compensation_is_undone(monkeypatch, engine, watcher, unique_while, how):
    """The caller's transaction cannot commit the new call, also if it catches the error."""
    replacing = replaced_task(monkeypatch, unique_while)
    first = ENQUEUE[how](replacing, "old")

    def enqueue():
        with transaction.atomic(), pytest.raises(JobLocked, match="nothing was enqueued, try again"):
            ENQUEUE[how](replacing, "new")

    call = {"compensation": '{"task_name": "undo"}', "compensation_arguments": "{}"}
    overtaken(engine, watcher, first, enqueue, **call).result()
    assert Job.objects.get().arguments["args"] == ["old"]
    assert JobStep.objects.filter(name="open", compensation__isnull=False).exists()
