"""Encode the value of a durable step for its row, and make the errors of steps. Used by `AttemptSteps`."""

from __future__ import annotations

import inspect
from typing import Any

from django_pgqueue.exceptions import Dead, ResultNotStored
from django_pgqueue.lifecycle.steps import EndedStep
from django_pgqueue.serialization import encode_result
from django_pgqueue.steps import EventTimeout, StepError, event_in_words

from . import error_text
from .report import STOPS
from .stored_values import DoesNotFit, read_value


def remote(task_name: str) -> StepError:
    """Return the error of a step in a remote worker."""
    return StepError(
        f"{task_name} runs in a remote worker, which has no connection to the database, so it cannot use steps: "
        "enqueue its jobs into a queue of a worker with a database"
    )


def timed_out(step: EndedStep) -> EventTimeout:
    """Return the error of a wait whose time is over."""
    what = event_in_words(step.event_name, step.event_key)
    return EventTimeout(f"the step {step.name!r} has waited for {what} until its timeout")


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
