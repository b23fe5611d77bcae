"""Errors of `Job` that say what to do instead: for attributes of other queues, and for writes past the acts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from django.db import IntegrityError

INSTEAD: Final = {
    "get": "call wait(timeout), or read return_value of a job that has succeeded",
    "ready": "read is_finished",
    "successful": "compare state with State.SUCCEEDED",
    "failed": "compare state with State.DEAD",
    "revoke": "call cancel()",
    "abort": "call cancel()",
    "forget": "call delete()",
    "task_id": "read id",
    "traceback": "read errors, which has the traceback of each failed attempt",
    "info": "read return_value, progress or errors",
    "get_status": "read status",
    "get_id": "read id",
    "requeue": "call retry()",
    "reschedule": "call run_now() to make it due, or enqueue another job",
}
"""Names of the results of Celery, RQ and others, and what a job has instead."""
ACTS: Final = "call retry(), cancel(), run_now(), acknowledge() or set_max_attempts()"


def missing_attribute(owner: object, name: str) -> AttributeError:
    """Return the error for an attribute that a job does not have."""
    advice = f": {INSTEAD[name]}" if name in INSTEAD else ""
    return AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}{advice}", name=name, obj=owner)


def refused_save(job: Any) -> TypeError:
    """Return the error for `save()` of a stored job."""
    return TypeError(f"job {job.pk} cannot be saved, because workers change its row at any time: {ACTS}")


@contextmanager
def explained() -> Iterator[None]:
    """Say what to call instead, if the database refuses the values of a job's row that were written past the acts."""
    try:
        yield
    except IntegrityError as error:
        reason = str(error).partition("\n")[0]
        if "pgqueue_job" not in reason:
            raise
        raise IntegrityError(f"{reason}. To change a job, {ACTS}. To add one, call task.enqueue(…)") from error
