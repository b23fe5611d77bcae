"""A worker that cannot read a stored value releases the job: its call, the result of a job, a step, an event."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.test import override_settings

from django_pgqueue import Step, chain, history, send_event
from django_pgqueue.exceptions import ResultNotStored
from django_pgqueue.models import Job
from django_pgqueue.testing import run_jobs
from tests.app import tasks as app_tasks

from . import tasks

pytestmark = pytest.mark.django_db
HIDDEN, WRONG_KEY = "tests.app.codecs.Hidden", "tests.app.codecs.WrongKey"
ALMOST_AN_HOUR, AFTER_AN_HOUR = timedelta(minutes=55), timedelta(minutes=70)


def with_codec(*paths: str) -> Any:
    return override_settings(PGQUEUE={"TASK_MODULES": [tasks.__name__], "CODECS": paths})


def step_and_event(context):
    return [context.step(Step("first", compensate=tasks.undo), lambda: "kept"), context.wait_for_event("go", "key")]


def event_only(context):
    return context.wait_for_event("go", "key")


async def step_and_event_of_coroutine(context):
    return [await context.astep("first", tasks.anote, "first"), await context.await_event("go", "key")]


def argument():
    return app_tasks.add.enqueue(2, 3), 5


def result_of_job():
    with with_codec():
        chain(app_tasks.add.s(1, 1)).then(app_tasks.add, 3).enqueue()
    run_jobs(max_jobs=1)
    return Job.objects.latest("pk"), 5


def waiting(task, code, result):
    """Run a job up to its wait for an event, which is then sent."""
    tasks.CODE["code"] = code
    with with_codec():
        job = task.enqueue()
    run_jobs()
    send_event("go", "key", "payload")
    return job, result


VALUES = {
    "the job's arguments": argument,
    "the result of job": result_of_job,
    "the value of the step 'first'": lambda: waiting(tasks.scripted, step_and_event, ["kept", "payload"]),
    "the value of the step 'go'": lambda: waiting(tasks.scripted, event_only, "payload"),
    "the value of the step": lambda: waiting(tasks.scripted_async, step_and_event_of_coroutine, [1, "payload"]),
}


@pytest.mark.parametrize("value", VALUES)
def test_unreadable_value_waits_for_a_worker_that_can_read_it(value):
    with with_codec(HIDDEN):
        job, result = VALUES[value]()
    with with_codec(WRONG_KEY):
        run_jobs(until=ALMOST_AN_HOUR)
        job.refresh_from_db()
        assert (job.state, job.attempt) == ("ready", 0)
        last = job.executions.latest("id")
        assert last.outcome == "released"
        assert last.error.startswith(value)
        assert "cannot be read: the codec 'hidden'" in last.error
    with with_codec(HIDDEN):
        run_jobs(until=AFTER_AN_HOUR)
        job.refresh_from_db()
        assert (job.state, job.result) == ("succeeded", result)
    assert not Job.objects.filter(task_name=tasks.undo.name).exists()


@pytest.mark.parametrize("value", VALUES)
def test_unreadable_value_after_an_hour_the_job_is_dead(value):
    with with_codec(HIDDEN):
        job, _ = VALUES[value]()
    with with_codec(WRONG_KEY):
        run_jobs(until=AFTER_AN_HOUR)
        job.refresh_from_db()
        assert (job.state, job.attempt) == ("dead", 1)
        assert job.executions.latest("id").error.startswith(value)


def test_unreadable_step_task_that_catches_it_is_released():
    def code(context):
        with suppress(BaseException):
            context.step("first", lambda: "kept")
        context.step("second", tasks.note, "second")

    tasks.CODE["code"] = lambda context: (context.step("first", lambda: "kept"), context.sleep("nap", 60))
    job = tasks.scripted.enqueue()
    with with_codec(HIDDEN):
        run_jobs()
    tasks.CODE["code"] = code
    with with_codec(WRONG_KEY):
        run_jobs(until=timedelta(minutes=5))
    job.refresh_from_db()
    assert (job.state, job.attempt, tasks.calls("second")) == ("ready", 0, 0)


def test_unreadable_step_of_a_coroutine_that_catches_is_released():
    async def code(context):
        with suppress(BaseException):
            await context.astep("first", tasks.anote, "first")
        await sync_to_async(tasks.note)("second")

    async def stores(context):
        await context.astep("first", tasks.anote, "first")
        await context.asleep("nap", 60)

    tasks.CODE["code"] = stores
    job = tasks.scripted_async.enqueue()
    with with_codec(HIDDEN):
        run_jobs()
    tasks.CODE["code"] = code
    with with_codec(WRONG_KEY):
        run_jobs(until=timedelta(minutes=5))
    job.refresh_from_db()
    assert (job.state, job.attempt) == ("ready", 0)


def test_step_value_that_cannot_be_read_back_makes_the_job_dead():
    tasks.CODE["code"] = lambda context: context.step("first", tasks.note, "first")
    job = tasks.scripted.enqueue()
    with with_codec("tests.app.codecs.OneWay"):
        run_jobs()
    job.refresh_from_db()
    last = job.executions.latest("id")
    assert (job.state, tasks.calls("first")) == ("dead", 1)
    assert last.exception_class.endswith(ResultNotStored.__name__)


def test_retry_of_a_job_with_erased_steps_waits_for_an_hour():
    with with_codec(HIDDEN):
        job, _ = waiting(tasks.scripted_async, step_and_event_of_coroutine, [])
        job.cancel()
        history.erase(jobs=[job.pk], arguments=False, results=True, errors=False, by="operator")
        job.refresh_from_db()
        assert job.retry()
        run_jobs(until=ALMOST_AN_HOUR)
    job.refresh_from_db()
    assert (job.state, job.attempt) == ("ready", 0)
    assert "the value was erased" in job.executions.latest("id").error
