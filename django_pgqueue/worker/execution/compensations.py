"""Check the compensation of a step before its function runs, and store it with the step.

`AttemptSteps` calls it. The call of the compensation is encoded when the step is stored, so the statement that adds its
job later needs no code of the application.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django_pgqueue.ends.compensations import HEADER
from django_pgqueue.enqueue.callbacks import check_call, parts_of
from django_pgqueue.enqueue.calls import TaskCall
from django_pgqueue.exceptions import ResultNotStored

from . import error_text
from .report import STOPS

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_pgqueue.steps import Step


def check(step: Step[Any], connection: BaseDatabaseWrapper) -> None:
    """Raise an error if the compensation of a step cannot be enqueued, whatever the result of the step is.

    Raises:
        TypeError: It is not a task, or it does not take one argument.
        InvalidTask: It has a unique key or a batch, belongs to another database, or no worker would find it.
    """
    if step.compensate is not None:
        check_call(_name(step), _call(step, None), connection, "the job of the step")


def stored(step: Step[Any], value: Any, connection: BaseDatabaseWrapper, job_id: int) -> tuple[str, str]:
    """Return the options and the arguments of the job that undoes a step with this result, as JSON texts.

    Raises:
        ResultNotStored: The task does not take this result. The function of the step has run, so another attempt would
            repeat work that has succeeded.
    """
    try:
        return parts_of(_call(step, value), connection, {HEADER: job_id})
    except (KeyboardInterrupt, *STOPS):
        raise
    except BaseException as error:
        reason = error_text.message(error) or type(error).__name__
        raise ResultNotStored(
            f"the step {step.name!r} succeeded, but its result cannot be the argument of its compensation, so the step "
            f"is neither stored nor undone: {reason}"
        ) from error


def _call(step: Step[Any], value: Any) -> TaskCall[Any]:
    call = None if step.compensate is None else step.compensate.s(value)
    if not isinstance(call, TaskCall):
        raise TypeError(f"{_name(step)} must be a task, not {type(step.compensate).__name__}")
    return call


def _name(step: Step[Any]) -> str:
    return f"compensate of the step {step.name!r}"
