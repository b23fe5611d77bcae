"""Tasks with durable steps."""

from __future__ import annotations

from django_pgqueue import Step, TaskContext, task
from tests.tools.faults.app.tasks import body, effect


@task(takes_context=True, backoff=0)
def waits(context: TaskContext, key: str, nap_seconds: float = 0.0, tag: str = "") -> None:
    """Have an effect, sleep, wait for an event, and have another effect."""
    with body(context, "stepped"):
        context.step(Step("first", atomic=True), effect, context, "first")
        if nap_seconds:
            context.sleep("nap", nap_seconds)
        context.wait_for_event("go", key)
        context.step(Step("second", atomic=True), effect, context, "second")
