"""Read what is stored for a job: its call, results of other jobs, and values of its steps.

Attempts, their steps and the endpoint of remote workers call these functions. They protect one rule: a value that this
process cannot read says nothing about the job. So the job is released without counting the attempt, and waits for a
worker that can read it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from django_pgqueue import codecs
from django_pgqueue.envelope import is_envelope
from django_pgqueue.headers import decode_headers
from django_pgqueue.serialization import decode_arguments

if TYPE_CHECKING:
    from django_pgqueue.lifecycle import Claimed


class DoesNotFit(BaseException):
    """The job cannot run here: its task is unknown, or this process cannot read or pass what is stored.

    This is not an `Exception`. Otherwise a middleware could mistake it for an error of the task.
    """


class DependencyUnfinished(DoesNotFit):
    """A job whose result this one needs has not ended, because it was retried since this one became ready."""


def read_call(job: Claimed) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
    """Return the positional and the keyword arguments of a job, and its headers. Raise `DoesNotFit` if unreadable."""
    try:
        return *decode_arguments(job.arguments), decode_headers(job.headers)
    except ValueError as error:
        raise DoesNotFit(str(error)) from None


def read_value(text: str | None, what: str) -> Any:
    """Return a stored value. Raise `DoesNotFit`, which names the value as `what`, if this process cannot read it."""
    if text is None:
        return None
    try:
        value = json.loads(text)
        return codecs.decode(value) if is_envelope(value) else value
    except (ValueError, RecursionError) as error:
        raise DoesNotFit(f"{what} cannot be read: {error}") from None
