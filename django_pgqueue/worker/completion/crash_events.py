"""Log and publish the result for a job whose worker was lost.

Maintenance calls this after a rescue, and the supervisor after a worker process died.
"""

from __future__ import annotations

import logging
from typing import Any

from django_pgqueue import registry, signals
from django_pgqueue.lifecycle import Held, Moved, TransitionResult
from django_pgqueue.states import State

from .events import IN_THIS_THREAD, Events

logger = logging.getLogger("django_pgqueue.worker")


def log_crash(held: Held, moved: Moved, error: str) -> None:
    """Log the new state of a job whose worker was lost. `error` says how the loss was detected."""
    if moved.fate is TransitionResult.DONE:
        logger.warning(
            "job %s (%s), attempt %d: %s; now %s",
            held.job_id,
            registry.in_words(held.task_name),
            held.attempt,
            error,
            moved.state,
            extra={"job_id": held.job_id, "task": held.task_name, "queue": held.queue_name, "attempt": held.attempt},
        )


def publish_crash(
    held: Held, moved: Moved, database: str, *, error: str, rescued: bool, events: Events = IN_THIS_THREAD
) -> None:
    """Log and publish the new state of a job whose worker was lost. `error` says how the loss was detected."""
    if moved.fate is not TransitionResult.DONE:
        return
    log_crash(held, moved, error)
    job: dict[str, Any] = {"job_id": held.job_id, "database": database}
    about: dict[str, Any] = {**job, "execution_id": held.execution_id, "attempt": held.attempt}
    if rescued:
        events.publish(signals.job_rescued, held.task_name, dict(about))
    about |= {"queue_name": held.queue_name, "exception": None, "error": error}
    if moved.state is State.DEAD:
        events.publish(signals.job_dead, held.task_name, about)
    elif moved.state is State.READY:
        events.publish(signals.job_failed, held.task_name, about | {"retry_seconds": None})
    else:
        events.publish(signals.job_cancelled, held.task_name, job | {"error": error})
