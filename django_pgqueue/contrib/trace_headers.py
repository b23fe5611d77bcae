"""Add a trace to the headers of new jobs. Both integrations that trace use this.

It protects one rule: a trace never prevents an enqueue. Headers have a limit, so a trace without room is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from django_pgqueue.encoding.headers import encode_headers
from django_pgqueue.exceptions import Cancel, Retry, Snooze

if TYPE_CHECKING:
    from django_pgqueue.tasks.context import TaskContext

REQUESTS: Final = (Snooze, Cancel, Retry)
"""Exceptions with which a task requests something. They are no failures."""


def add_fitting(headers: dict[str, Any], trace: Mapping[str, str]) -> None:
    """Add the headers of a trace, most important first, as far as there is room for them."""
    fitting = dict(trace)
    while fitting:
        try:
            encode_headers(headers | fitting)
        except ValueError:
            fitting.popitem()
        except TypeError:  # in the caller's own headers: `enqueue()` reports it
            return
        else:
            headers.update(fitting)
            return


def failures_of(context: TaskContext) -> list[tuple[TaskContext, Exception]]:
    """Return the jobs of a chunk whose own exception is a failure, each with it. Empty for other attempts.

    A job whose arguments do not fit is not among them: its worker leaves it to others.
    """
    errors = [(job, job.chunk_error()) for job in context.chunk]
    return [(job, error) for job, error in errors if isinstance(error, Exception) and not isinstance(error, REQUESTS)]
