"""Tasks with durable steps. They count their calls in rows, so that a test sees what a rollback undoes."""

from __future__ import annotations

import asyncio
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta
from typing import Any

from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group
from django.db import transaction

from django_pgqueue import EventTimeout, Step, StepError, TaskContext, task

CODE: dict[str, Any] = {}
"""What `scripted` runs, by name. A test changes it to change the code of a task."""


def note(name: str) -> int:
    """Record a call. Return how often it was recorded."""
    Group.objects.create(name=f"{name} {Group.objects.count()}")
    return Group.objects.filter(name__startswith=f"{name} ").count()


def calls(name: str) -> int:
    """Return how often a call was recorded."""
    return Group.objects.filter(name__startswith=f"{name} ").count()


@task(takes_context=True, max_attempts=5, backoff=60)
def scripted(context: TaskContext, name: str = "code") -> Any:
    """Run what the test has chosen."""
    return CODE[name](context)


@task(takes_context=True, atomic=True)
def atomic(context: TaskContext) -> None:
    """Use a step in an atomic task."""
    context.step("a", note, "a")


@task(takes_context=True)
async def scripted_async(context: TaskContext, name: str = "code") -> Any:
    """Run what the test has chosen, in the event loop."""
    return await CODE[name](context)


@task(takes_context=True, max_attempts=3, backoff=0)
def fulfil(context: TaskContext, order_id: int) -> list[Any]:
    """Use each kind of step."""
    charge = context.step("charge", note, "charge")
    context.sleep("cooling-off", timedelta(hours=24))
    try:
        answer = context.wait_for_event("approved", order_id, timeout=timedelta(days=3))
    except EventTimeout:
        answer = None
    shipped = context.step(Step("ship", atomic=True), note, "ship")
    return [charge, answer, shipped]


@task(takes_context=True, max_attempts=3, backoff=0)
async def fulfil_async(context: TaskContext, order_id: int) -> list[Any]:
    """Do the same in the event loop."""
    charge = await context.astep("charge", anote, "charge")
    await context.asleep("cooling-off", timedelta(hours=24))
    try:
        answer = await context.await_event("approved", order_id, timeout=timedelta(days=3))
    except EventTimeout:
        answer = None
    shipped = await context.astep(Step("ship", atomic=True), note, "ship")
    return [charge, answer, shipped]


async def anote(name: str) -> int:
    """Do as `note()` in a coroutine."""
    return await sync_to_async(note)(name)


@task(takes_context=True, max_attempts=5, backoff=0)
def waits(context: TaskContext, key: str, seconds: float = 600.0) -> Any:
    """Record a call before and after a wait for an event."""
    context.step("before", note, "before")
    answer = context.wait_for_event("go", key, timeout=seconds)
    context.step("after", note, "after")
    return answer


@task(takes_context=True, max_attempts=5, backoff=0)
def killed_between_steps(context: TaskContext) -> list[int]:
    """Kill the worker process between two steps of the first attempt."""
    first = context.step("first", note, "first")
    if context.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return [first, context.step("second", note, "second")]


@task(takes_context=True, max_attempts=5, backoff=0)
def killed_in_atomic_step(context: TaskContext) -> int:
    """Kill the worker process inside the transaction of an atomic step."""
    return context.step(Step("write", atomic=True), write_and_die, context.attempt)


def write_and_die(attempt: int) -> int:
    """Write a row. Then die in the first attempt."""
    count = note("write")
    if attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return count


@task(takes_context=True, isolation="process")
def isolated(context: TaskContext) -> list[int]:
    """Use steps and a short sleep in an isolated process."""
    first = context.step("first", note, "first")
    context.sleep("nap", 0.2)
    return [first, context.step(Step("second", atomic=True), note, "second")]


@task(takes_context=True)
def in_transaction(context: TaskContext) -> None:
    """Call a step inside a transaction."""
    with transaction.atomic():
        context.step("a", note, "a")


@task(takes_context=True, retention=0)
def discarded(context: TaskContext) -> Any:
    """Run what the test has chosen. No row of the job is kept."""
    return CODE["code"](context)


@task(takes_context=True, sensitive={"token"}, max_attempts=1)
def with_token(context: TaskContext, token: str) -> None:
    """Pass a sensitive argument to a step that fails."""
    if CODE.get("by_name"):
        context.step("charge", charge_token, token=token)
    context.step("charge", charge_token, token)


def charge_token(token: str) -> None:
    """Fail."""
    raise ValueError("no")


LOG: list[str] = []
"""What the compensations have done, in their order."""


@task
def undo(result: Any) -> None:
    """Undo a step. Fail if the test wants it."""
    LOG.append(f"undo {result}")
    if (fails := CODE.get("undo")) is not None:
        fails(result)


@task
def undo_on_day(result: date) -> None:
    """Undo a step that returns a day."""
    LOG.append(f"undo on {result}")


@task(max_attempts=1)
def undo_once(result: Any) -> None:
    """Undo a step, with a single attempt."""
    undo(result)


@task(takes_context=True, max_attempts=2, backoff=0)
def order(context: TaskContext, fails: bool = True, first: Any = None) -> Any:
    """Charge, reserve, and then fail."""
    charge = context.step(Step("charge", compensate=undo), do, "charge")
    context.step("look", do, "look")
    context.step(Step("reserve", atomic=True, compensate=first or undo_once), do, "reserve")
    if "wait" in CODE:
        context.wait_for_event("go", context.job_id)
    context.step(Step("ship", compensate=undo), fail_to if CODE.get("fails", fails) else do, "ship")
    return charge


def do(name: str) -> str:
    """Record a call of a step."""
    LOG.append(name)
    return name


def fail_to(name: str) -> str:
    """Fail in a step."""
    raise ValueError(name)


@task(takes_context=True, max_attempts=1, isolation="process")
def order_isolated(context: TaskContext) -> None:
    """Do as `order`, in an isolated process."""
    context.step(Step("charge", compensate=undo), do, "charge")
    context.step(Step("reserve", compensate=undo), do, "reserve")
    raise ValueError("ship")


@task(takes_context=True, max_attempts=1)
async def order_async(context: TaskContext) -> None:
    """Do as `order`, in the event loop."""
    await context.astep(Step("charge", compensate=undo), ado, "charge")
    await context.astep(Step("reserve", atomic=True, compensate=undo), do, "reserve")
    raise ValueError("ship")


async def ado(name: str) -> str:
    """Do as `do()` in a coroutine."""
    return do(name)


@task(takes_context=True, max_attempts=1)
def killed_after_step(context: TaskContext) -> None:
    """Kill the worker process after a step with a compensation."""
    context.step(Step("charge", compensate=undo), do, "charge")
    os.kill(os.getpid(), signal.SIGKILL)


@task(takes_context=True)
def charged_and_waiting(context: TaskContext) -> None:
    """Wait for an event after a step with a compensation."""
    context.step(Step("charge", compensate=undo), do, "charge")
    context.wait_for_event("never")


@task(takes_context=True, max_attempts=1, name="tests.steps.deployed")
def deployed(context: TaskContext) -> list[str]:
    """Call the steps that the variable names, as the code of another release would do."""
    names = os.environ.get("PGQUEUE_TEST_STEPS", "a,b").split(",")
    values = [context.step(name, f"value of {name}".lower) for name in names]
    context.wait_for_event("go", context.job_id, timeout=60)
    return values


def _refusal(context: TaskContext) -> str:
    try:
        return context.step("refused", str)
    except StepError as error:
        return str(error)


@task(takes_context=True)
def in_threads(context: TaskContext) -> list[str]:
    """Call a step in another thread, between two steps."""
    first = context.step("first", str, "first")
    with ThreadPoolExecutor() as threads:
        refused = threads.submit(_refusal, context).result()
    return [refused, first, context.step("last", str, "last")]


@task(takes_context=True)
async def async_in_threads(context: TaskContext) -> list[str]:
    """Do so in a coroutine."""
    refused = await asyncio.to_thread(_refusal, context)
    return [refused, await context.astep("first", str, "first"), await context.astep("last", str, "last")]
