"""Tasks with durable steps, and the task that undoes a step."""

from __future__ import annotations

import random
from typing import Any

from django_pgqueue import EventTimeout, Step, TaskContext, task
from tests.tools.faults import journal
from tests.tools.faults.app.tasks import body, effect, linger
from tests.tools.faults.failpoints import hit


@task(takes_context=True, backoff=0)
def waits(context: TaskContext, key: str, nap_seconds: float = 0.0, tag: str = "") -> None:
    """Have an effect, sleep, wait for an event, and have another effect."""
    with body(context, "stepped"):
        context.step(Step("first", atomic=True), effect, context, "first")
        if nap_seconds:
            context.sleep("nap", nap_seconds)
        context.wait_for_event("go", key)
        context.step(Step("second", atomic=True), effect, context, "second")


@task(takes_context=True, backoff=0.1, max_attempts=20)
def undo(context: TaskContext, done: dict[str, Any], tag: str = "") -> None:
    """Undo a step of another job."""
    with body(context, "undo"):
        effect(context, f"undo {done['job']} {done['name']}")
        if context.attempt < done.get("before", 1):
            raise RuntimeError(f"attempt {context.attempt}")


@task(takes_context=True, backoff=0.1, max_attempts=3)
def tale(context: TaskContext, plan: list[dict[str, Any]], tag: str = "") -> None:
    """Do what the plan says, part by part."""
    with body(context, "tale"):
        for part in plan:
            PARTS[part["do"]](context, part)


def _step(context: TaskContext, part: dict[str, Any]) -> None:
    """Have an effect in a step. The names of atomic ones begin with "atomic"."""
    name = part["name"]
    compensate = undo if part.get("undo") else None
    step = Step(name, atomic=name.startswith("atomic"), retries=3, backoff=0.1, compensate=compensate)
    context.step(step, _worked, context, part)


def _worked(context: TaskContext, part: dict[str, Any]) -> dict[str, Any]:
    name = part["name"]
    journal.write("step", job=context.job_id, execution=context.execution_id, name=name)
    effect(context, name)
    hit("body.mid")
    linger(context, part.get("seconds", 0.0), part.get("until"))
    if random.SystemRandom().random() < part.get("odds", 0.0):
        raise ConnectionError("as asked")
    return {"job": context.job_id, "name": name, "before": part.get("undo_before", 1)}


def _sleep(context: TaskContext, part: dict[str, Any]) -> None:
    context.sleep(part["name"], part["seconds"])
    journal.write("woken", job=context.job_id, execution=context.execution_id, name=part["name"])


def _event(context: TaskContext, part: dict[str, Any]) -> None:
    about = {"job": context.job_id, "execution": context.execution_id, "name": part["name"], "key": part["key"]}
    try:
        payload = context.wait_for_event("go", part["key"], timeout=part.get("timeout"), name=part["name"])
    except EventTimeout:
        journal.write("woken", **about)
    else:
        journal.write("received", payload=payload, **about)


def _fail(context: TaskContext, part: dict[str, Any]) -> None:
    raise RuntimeError("the tale fails")


PARTS = {"step": _step, "sleep": _sleep, "event": _event, "fail": _fail}
