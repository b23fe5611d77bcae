"""Write the log lines about schedules. `Scheduler` calls these functions."""

from __future__ import annotations

import logging
from datetime import datetime

from django_pgqueue.log_events import event
from django_pgqueue.registry import in_words

logger = logging.getLogger("django_pgqueue.worker")


def log_changed(name: str) -> None:
    """Log that the stored schedule was replaced by the code's definition."""
    logger.info(
        "schedule %s now has the definition of this worker's code",
        in_words(name),
        extra=event("schedule_changed", schedule=name),
    )


def log_fired(name: str, tick_at: datetime, job_id: int) -> None:
    """Log that a tick has made a job."""
    extra = event("schedule_fired", schedule=name, job_id=job_id)
    logger.info("schedule %s: job %s for the tick of %s", in_words(name), job_id, tick_at, extra=extra)


def log_skipped(name: str, tick_at: datetime, outcome: str) -> None:
    """Log that a tick has made no job."""
    extra = event("schedule_skipped", schedule=name, reason=outcome)
    logger.info("schedule %s: tick of %s %s", in_words(name), tick_at, outcome, extra=extra)


def log_failed(name: str, reason: str, cause: BaseException | None, *, is_left: bool) -> None:
    """Log that a schedule cannot run here, at level WARNING if other workers can run it (`is_left`)."""
    level, effect = (logging.WARNING, "is left to other workers") if is_left else (logging.ERROR, "does not run")
    extra = event("schedule_failed", schedule=name, reason=reason)
    logger.log(level, "schedule %s %s: %s", in_words(name), effect, reason, exc_info=cause, extra=extra)
