"""The parts that the forms which make a job have in common: read the call, and announce the job.

`edit_and_retry` and `enqueue_form` use it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.exceptions import ObjectDoesNotExist

from django_pgqueue.exceptions import Cancel, Dead, DuplicateJob, InvalidTask
from django_pgqueue.models import Job
from django_pgqueue.task import Task
from django_pgqueue.worker.execution.stored_values import DoesNotFit
from django_pgqueue.worker.execution.typed_call import decoded as decode

from .call_values import Call
from .formatting import visible

REFUSALS = (TypeError, ValueError, InvalidTask, DoesNotFit, Dead, Cancel, ObjectDoesNotExist, DuplicateJob)
"""The errors by which `enqueue()` and the reading of arguments refuse a call."""


class NotEnqueued(Exception):
    """No job was made. The message gives the operator the reason."""


@contextmanager
def refusals() -> Iterator[None]:
    """Raise `NotEnqueued` for an error that refuses the call. Put it around the transaction, which is rolled back."""
    try:
        yield
    except REFUSALS as error:
        raise NotEnqueued(visible(str(error))) from error


def decoded(task: Task[..., Any], call: Call, alias: str) -> tuple[Any, Any]:
    """Return the arguments of a stored call as the task gets them."""
    plan = task.plan
    return (call.args, call.kwargs) if plan is None else decode(task, plan, call.args, call.kwargs, alias)


def announced(task: Task[..., Any], job: Job) -> None:
    """Wake the workers after the commit and send the signals, as `enqueue()` does."""
    task.send_enqueued(job)
    if task.adapter is not None:
        task.adapter.enqueued(job.pk, str(job._state.db), job.queue_name)
