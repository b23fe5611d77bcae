"""Encode the value and the compensation of a durable step, and store them, also during an outage.

`AttemptSteps` calls it when the function of a step has returned. If the value were dropped because the connection was
lost, the next attempt would call the function again. So the statement is repeated on a new connection. That is safe: it
contains the fence, and storing a step twice is the same as storing it once.
"""

from __future__ import annotations

import inspect
import time
from typing import Any, Final

import psycopg
from django.db import Error as DjangoDatabaseError
from django.db.backends.base.base import BaseDatabaseWrapper

from django_pgqueue.db.errors import is_of_rows
from django_pgqueue.declared.steps import EventTimeout, Step, StepError
from django_pgqueue.encoding.serialization import encode_result
from django_pgqueue.ends.compensations import HEADER
from django_pgqueue.enqueue.callbacks import check_call, parts_of
from django_pgqueue.enqueue.calls import TaskCall
from django_pgqueue.exceptions import Dead, ResultNotStored
from django_pgqueue.lifecycle import steps
from django_pgqueue.lifecycle.steps import EndedStep
from django_pgqueue.lifecycle.types import ExecutionKey, TransitionStatus
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.worker.execution import error_text
from django_pgqueue.worker.execution.report import STOPS
from django_pgqueue.worker.execution.stored_values import DoesNotFit, read_value
from django_pgqueue.worker.runtime.outages import outage_log

RECONNECT_SECONDS: Final = 0.2
"""How long to wait before the step is stored again after the connection was lost."""


def store(connection: BaseDatabaseWrapper, key: ExecutionKey, step: EndedStep) -> TransitionStatus:
    """Store a step. If the database cannot be reached, repeat that on new connections for the time of a lease.

    Inside a transaction the error is raised at once, because the connection's loss has rolled it back.
    """
    deadline = time.monotonic() + get_settings().LEASE
    while True:
        try:
            return steps.store_step(connection, key, step)
        except (DjangoDatabaseError, psycopg.Error) as error:
            is_open = connection.in_atomic_block or not connection.autocommit
            if is_open or is_of_rows(error) or time.monotonic() > deadline:
                raise
            outage_log.report("step", error.__cause__ if isinstance(error.__cause__, psycopg.Error) else error)
        connection.close()
        time.sleep(RECONNECT_SECONDS)


def remote(task_name: str) -> StepError:
    """Return the error of a step in a remote worker."""
    return StepError(
        f"{task_name} runs in a remote worker, which has no connection to the database, so it cannot use steps: "
        "enqueue its jobs into a queue of a worker with a database"
    )


def timed_out(step: EndedStep) -> EventTimeout:
    """Return the error of a wait whose time is over. It leaves out the key, as `Suspension.reason` does."""
    return EventTimeout(f"the step {step.name!r} has waited for the event {step.event_name} until its timeout")


def encoded(name: str, value: Any) -> str | None:
    """Return a value as the text to store. Raise an error that ends the job if it cannot be stored."""
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()  # otherwise Python warns that it was never awaited
        raise Dead(
            f"the function of the step {name!r} returned a {type(value).__name__}, which nobody awaits: "
            "await context.astep() in a task with `async def`"
        )
    try:
        return None if value is None else encode_result(value, "its value")
    except (KeyboardInterrupt, *STOPS):
        raise
    except BaseException as error:
        reason = error_text.message(error) or type(error).__name__
        raise ResultNotStored(f"the step {name!r} succeeded, but its result cannot be stored: {reason}") from error


def read_back(name: str, text: str | None) -> Any:
    """Return a value from the text to store, as a later attempt will read it. Raise as `encoded()`."""
    try:
        return read_value(text, "it")
    except DoesNotFit as error:
        raise ResultNotStored(f"the step {name!r} succeeded, but its result cannot be stored: {error}") from None


def check_compensation(step: Step[Any], connection: BaseDatabaseWrapper) -> None:
    """Raise an error if the compensation of a step cannot be enqueued, whatever the result of the step is.

    `AttemptSteps` calls it. The call of the compensation is encoded when the step is stored, so the statement that adds
    its job later needs no code of the application.

    Raises:
        TypeError: It is not a task, or it does not take one argument.
        InvalidTask: It has a unique key or a batch, belongs to another database, or no worker would find it.
    """
    if step.compensate is not None:
        check_call(_described(step), _task_call(step, None), connection, "the job of the step")


def compensation_of(step: Step[Any], value: Any, connection: BaseDatabaseWrapper, job_id: int) -> tuple[str, str]:
    """Return the options and the arguments of the job that undoes a step with this result, as JSON texts.

    Raises:
        ResultNotStored: The task does not take this result. The function of the step has run, so another attempt would
            repeat work that has succeeded.
    """
    try:
        return parts_of(_task_call(step, value), connection, {HEADER: job_id})
    except (KeyboardInterrupt, *STOPS):
        raise
    except BaseException as error:
        reason = error_text.message(error) or type(error).__name__
        raise ResultNotStored(
            f"the step {step.name!r} succeeded, but its result cannot be the argument of its compensation, so the step "
            f"is neither stored nor undone: {reason}"
        ) from error


def _task_call(step: Step[Any], value: Any) -> TaskCall[Any]:
    call = None if step.compensate is None else step.compensate.s(value)
    if not isinstance(call, TaskCall):
        raise TypeError(f"{_described(step)} must be a task, not {type(step.compensate).__name__}")
    return call


def _described(step: Step[Any]) -> str:
    return f"compensate of the step {step.name!r}"
