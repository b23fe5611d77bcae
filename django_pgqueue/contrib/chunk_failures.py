"""Find the jobs of a chunk that have failed alone. The integrations that trace use this."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from django_pgqueue.exceptions import Cancel, Retry, Snooze

if TYPE_CHECKING:
    from django_pgqueue.context import TaskContext

REQUESTS: Final = (Snooze, Cancel, Retry)
"""Exceptions with which a task requests something. They are no failures."""


def failures_of(context: TaskContext) -> list[tuple[TaskContext, Exception]]:
    """Return the jobs of a chunk whose own exception is a failure, each with it. Empty for other attempts.

    A job whose arguments do not fit is not among them: its worker leaves it to others.
    """
    errors = [(job, job.chunk_error()) for job in context.chunk]
    return [(job, error) for job, error in errors if isinstance(error, Exception) and not isinstance(error, REQUESTS)]
