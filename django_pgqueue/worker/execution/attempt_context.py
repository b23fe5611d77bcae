"""Build the context of an attempt, which the task and the middleware get, with what runs the task's durable steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from django_pgqueue.context import ProgressReporter, TaskContext

from .step_runner import AttemptSteps

if TYPE_CHECKING:
    from django_pgqueue.definition import TaskDefinition
    from django_pgqueue.lifecycle import Claimed


class StartingAttempt(ProgressReporter, Protocol):
    """An attempt that has found its task."""

    claimed: Claimed
    alias: str
    task: TaskDefinition
    steps: AttemptSteps | None
    outer_blocks: int

    def was_asked(self) -> bool: ...


def context_of(attempt: StartingAttempt, headers: Mapping[str, Any]) -> TaskContext:
    """Return the context of an attempt. A task with a context can use steps."""
    claimed, task = attempt.claimed, attempt.task
    if task.takes_context:
        attempt.steps = AttemptSteps(claimed, attempt.alias, task, attempt.outer_blocks)
    context = TaskContext(
        job_id=claimed.job_id,
        execution_id=claimed.execution_id,
        attempt=claimed.attempt,
        max_attempts=claimed.max_attempts,
        queue_name=claimed.queue_name,
        database=attempt.alias,
        asked_to_cancel=attempt.was_asked,
        task_name=task.name,
        headers=headers,
        _notes=attempt,
        _steps=attempt.steps,
    )
    if attempt.steps is not None:
        attempt.steps.context = context
    return context
