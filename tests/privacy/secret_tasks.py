"""Tasks that get a different secret in each argument, and reveal none of them by themselves."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django_pgqueue import Breaker, EventTimeout, Limit, Step, TaskContext, Throttled, task

SECRETS: dict[str, str] = {}
"""The secrets by what they are used for, as `secret()` has made them."""


def secret(use: str) -> str:
    """Return a text that a test finds wherever it leaks to. The text says where it came from."""
    return SECRETS.setdefault(use, f"Zq-{use}-qZ")


def of_region(order: str, region: str, **rest: str) -> str:
    return region


LETTERS = Limit("letters", key="to:{address}", ordered=True, on_dead="block")
CALLS = Limit("calls", key=of_region, concurrency=1, breaker=Breaker(attempts=2))


def key_of(order: str, **rest: str) -> str:
    return f"order:{order}"


@task(sensitive={"password"}, search=["customer"], unique_key=key_of, limit=LETTERS, max_attempts=2, backoff=0)
def send_letter(order: str, address: str, customer: str, password: str) -> str:
    """Fail in each attempt, without a word about its arguments."""
    raise ValueError("the printer is off")


@task(sensitive={"password"}, search=["customer"], unique_key=key_of, limit=LETTERS)
def print_letter(order: str, address: str, customer: str, password: str) -> str:
    """Return a secret."""
    return secret("result")


@task(limit=CALLS, max_attempts=1)
def call(order: str, region: str) -> None:
    """Fail, so that the breaker of its key opens."""
    raise ValueError("nobody answers")


@task(limit=Limit("slow", key="{address}", rate="10/s", burst=10))
def slow_down(address: str) -> None:
    """Hold the limit key."""
    raise Throttled(timedelta(hours=1))


@task
def undo(result: Any) -> None:
    """Undo a step."""


@task(takes_context=True, max_attempts=2, backoff=0)
def negotiate(context: TaskContext, order: str) -> str:
    """Use each kind of step, and fail at the end, so that a step is undone."""
    context.step(Step("offer", compensate=undo), secret, "step result")
    try:
        context.wait_for_event("never", secret("timed out key"), timeout=0.01)
    except EventTimeout:
        context.step("late", secret, "late result")
    answer = context.wait_for_event("answered", secret("event key"))
    context.step("answer", str, answer)
    raise ValueError("no agreement")


@task(takes_context=True)
def wait_for_answer(context: TaskContext, order: str) -> None:
    """Wait for an event that never comes."""
    context.wait_for_event("never", secret("waiting key"))


@task(takes_context=True, max_attempts=1)
def lose_patience(context: TaskContext, order: str) -> None:
    """Wait for an event until its timeout, which ends the job."""
    context.wait_for_event("never", secret("impatient key"), timeout=0.01)


@task
def first(value: str) -> str:
    return secret("result of first")


@task
def second(value: str, other: str) -> None:
    """Take the result of another job."""


@task
def callback(value: str) -> None:
    """End a batch."""
