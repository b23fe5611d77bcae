"""Log lines of a worker, from the signals; the logger is `django_pgqueue.worker`.

Every record carries job_id, task, queue, attempt and, once the job ran, duration_ms; never an argument or a result.
Connected only for the levels that are enabled when the worker starts: a line costs more than a small job.
"""

from __future__ import annotations

import logging
from typing import Any

from . import signals
from .registry import in_words

logger = logging.getLogger("django_pgqueue.worker")


def connect() -> None:
    """Log what the signals tell, from now on, in this process and those it forks."""
    if logger.isEnabledFor(logging.DEBUG):
        signals.job_started.connect(_started, dispatch_uid="pgqueue-log")
    if logger.isEnabledFor(logging.INFO):
        signals.job_succeeded.connect(_succeeded, dispatch_uid="pgqueue-log")
        signals.job_cancelled.connect(_cancelled, dispatch_uid="pgqueue-log")
    if logger.isEnabledFor(logging.WARNING):
        signals.job_failed.connect(_failed, dispatch_uid="pgqueue-log")
    if logger.isEnabledFor(logging.ERROR):
        signals.job_dead.connect(_dead, dispatch_uid="pgqueue-log")


def _about(task: str, told: dict[str, Any]) -> dict[str, Any]:
    about = {
        "task": task,
        "job_id": told.get("job_id"),
        "queue": told.get("queue_name"),
        "attempt": told.get("attempt"),
    }
    if "duration_seconds" in told:
        about["duration_ms"] = round(1000 * told["duration_seconds"], 3)
    return about


def _started(sender: str, **told: Any) -> None:
    logger.debug("job %s (%s) started", told["job_id"], in_words(sender), extra=_about(sender, told))


def _succeeded(sender: str, **told: Any) -> None:
    about = _about(sender, told)
    logger.info("job %s (%s) succeeded in %s ms", told["job_id"], in_words(sender), about["duration_ms"], extra=about)


def _cancelled(sender: str, **told: Any) -> None:
    logger.info("job %s (%s) cancelled", told["job_id"], in_words(sender), extra=_about(sender, told))


def _failed(sender: str, **told: Any) -> None:
    retry_seconds, exception = told.get("retry_seconds"), told.get("exception")
    if exception is None:  # a crash: whoever saw it has logged it
        return
    logger.warning(
        "job %s (%s) failed at attempt %s with %s; again in %.0f s",
        told["job_id"],
        in_words(sender),
        told["attempt"],
        type(exception).__name__,
        retry_seconds or 0.0,
        exc_info=exception,
        extra=_about(sender, told),
    )


def _dead(sender: str, **told: Any) -> None:
    logger.error(
        "job %s (%s) is dead after attempt %s: %s%s",
        told["job_id"],
        in_words(sender),
        told["attempt"],
        "" if told.get("exception") is None else f"{type(told['exception']).__name__}: ",
        told.get("error", ""),
        exc_info=told.get("exception"),
        extra=_about(sender, told),
    )
