"""Steps belong to the thread of the job: other threads of the task are refused at once."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from asgiref.sync import async_to_sync, sync_to_async

from django_pgqueue import Step, StepError
from django_pgqueue.models import Job, JobStep
from django_pgqueue.testing import run_jobs
from tests.process.conftest import start

from . import tasks
from .tasks import CODE

__all__ = ["start"]

REFUSED = "is called in a thread that the task has started"
CALLS = {
    "step": lambda context: context.step("a", str),
    "sleep": lambda context: context.sleep("a", 60),
    "wait_for_event": lambda context: context.wait_for_event("a"),
}


def refusal(call, *args) -> str:
    try:
        call(*args)
    except StepError as error:
        return str(error)
    return "not refused"


def run(task, code):
    CODE["code"] = code
    job = task.enqueue()
    run_jobs()
    return Job.objects.get(pk=job.pk)


@pytest.mark.django_db
@pytest.mark.parametrize("form", CALLS)
def test_step_in_another_thread_is_refused(form):
    def code(context):
        with ThreadPoolExecutor() as threads:
            return threads.submit(refusal, CALLS[form], context).result()

    job = run(tasks.scripted, code)
    assert job.state == "succeeded" and REFUSED in job.result
    assert not JobStep.objects.exists()


@pytest.mark.django_db
@pytest.mark.parametrize("form", CALLS)
def test_step_of_coroutine_in_to_thread_is_refused(form):
    async def code(context):
        return await asyncio.to_thread(refusal, CALLS[form], context)

    job = run(tasks.scripted_async, code)
    assert job.state == "succeeded" and REFUSED in job.result
    assert not JobStep.objects.exists()


@pytest.mark.django_db
def test_step_of_coroutine_in_to_thread_after_a_step_is_refused():
    async def code(context):
        await context.astep("first", str)
        return [await asyncio.to_thread(refusal, CALLS["step"], context), await context.astep("last", str)]

    job = run(tasks.scripted_async, code)
    assert job.state == "succeeded" and REFUSED in job.result[0]
    assert list(JobStep.objects.order_by("position").values_list("name", flat=True)) == ["first", "last"]


@pytest.mark.django_db
def test_step_in_a_thread_that_asgiref_has_used_is_refused():
    """asgiref calls the threads of the loop's executor too, with `thread_sensitive=False`."""

    async def code(context):
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        await sync_to_async(str, thread_sensitive=False)()
        return [
            await asyncio.to_thread(refusal, CALLS["step"], context),
            await sync_to_async(refusal, thread_sensitive=False)(CALLS["step"], context),
            await context.astep("last", str),
        ]

    job = run(tasks.scripted_async, code)
    assert job.state == "succeeded", job.executions.get().error
    assert REFUSED in job.result[0] and REFUSED in job.result[1]
    assert list(JobStep.objects.values_list("name", flat=True)) == ["last"]


@pytest.mark.django_db
def test_thread_inside_a_step_may_do_the_work():
    async def work():
        return await asyncio.to_thread(sum, [1, 2]) + await sync_to_async(len)("abc")

    async def code(context):
        done = await context.astep("a", work), await context.astep(Step("b", atomic=True), sum, [4])
        return [*done, await sync_to_async(lambda: context.step("c", sum, [5]))()]

    assert run(tasks.scripted_async, code).result == [6, 4, 5]


@pytest.mark.django_db
def test_step_through_async_to_sync_stays_in_the_thread():
    def code(context):
        async def call():
            return await sync_to_async(context.step)("a", sum, [7])

        return async_to_sync(call)()

    assert run(tasks.scripted, code).result == 7


@pytest.mark.process
def test_worker_refuses_steps_of_other_threads(committing, start):
    worker = start("--concurrency", "2", TASK_MODULES=[tasks.__name__])
    kinds = [tasks.in_threads.enqueue(), tasks.async_in_threads.enqueue()]
    for job in kinds:
        worker.wait_until(lambda job=job: Job.objects.get(pk=job.pk).finished_at is not None)
    for job in kinds:
        refused, *values = Job.objects.get(pk=job.pk).result
        assert REFUSED in refused
        assert values == ["first", "last"]
