"""Decide when a job runs again after an attempt that did not succeed.

Every part of the worker that closes an execution calls this: attempts, isolated processes, rescue and the supervisor.
It runs the application's backoff function, and falls back to the default backoff if that function fails.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from django.db import DEFAULT_DB_ALIAS

from django_pgqueue.declared.retry import DEFAULT_BACKOFF
from django_pgqueue.ground.log_events import event
from django_pgqueue.lifecycle.types import Claimed, OpenExecution
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.tasks import registry
from django_pgqueue.tasks.context import TaskContext
from django_pgqueue.tasks.definition import TaskDefinition
from django_pgqueue.worker.runtime.time_limit import call_in_time

from . import error_text

BACKOFF_SECONDS: Final = 2.0
"""How long an engine thread waits for an application's backoff function."""
UNKNOWN_FIRST_SECONDS: Final = 15.0
UNKNOWN_LONGEST_SECONDS: Final = 600.0


def delay_after_failure(
    job: Claimed | OpenExecution,
    exception: BaseException | None,
    *,
    alias: str = DEFAULT_DB_ALIAS,
    in_time: bool = False,
) -> float | None:
    """Return the seconds until the next attempt, or None for no further attempt.

    `alias` is the database of the job. Set `in_time` if the caller is an engine thread: a backoff function that hangs
    is then abandoned after 2 s.
    """
    if job.attempt >= job.max_attempts:
        return None
    task = registry.get(job.task_name or "")
    if task is None:
        return DEFAULT_BACKOFF(job.attempt, exception)
    delay = partial(task.delay_after, job.attempt, exception, partial(_task_result, task, job, alias))
    try:
        calls_application = callable(get_settings().BACKOFF if task.backoff is None else task.backoff)
        owner = f"the backoff of {task.name}"
        if in_time and calls_application:
            delay_seconds = call_in_time(delay, BACKOFF_SECONDS, owner, job.execution_id)
        else:
            delay_seconds = delay()
        # Convert it to a plain float, because a subclass of float can override anything.
        return None if delay_seconds is None else float.__float__(delay_seconds)
    except BaseException as error:  # noqa: BLE001 -- the backoff is the application's function, and may raise anything
        name = registry.in_words(job.task_name)
        extra = event("backoff_failed", task=job.task_name)
        error_text.log_exception(f"the backoff of {name} failed; the default is used:", error, extra=extra)
        return DEFAULT_BACKOFF(job.attempt, exception)


def delay_after_crash(
    job: Claimed | OpenExecution, *, alias: str = DEFAULT_DB_ALIAS, by_default: bool = False
) -> float | None:
    """Return the seconds until the next attempt of a job whose worker was lost, or None for no further one.

    Only a job that had started is charged with the crash, as a claimed job has; after `CRASH_BUDGET` crashes it is
    dead. After the first crash it is due at once: the cause was more likely the machine, and if it was the job, it runs
    isolated from now on. With `by_default`, no function of the application is called. `alias` is the database of the
    job.
    """
    has_started = isinstance(job, Claimed) or job.started
    if has_started and _is_last_crash(job):
        return None
    known = job._replace(task_name="") if by_default else job
    delay_seconds = delay_after_failure(known, None, alias=alias, in_time=True)
    return delay_seconds if delay_seconds is None or job.crashes else 0.0


def is_exhausted(job: Claimed, exception: BaseException | None, *, has_crashed: bool = False) -> bool:
    """Return whether a job gets no further attempt only because this was its last one.

    An operator can raise `max_attempts` while the attempt runs. Then the job runs again. `has_crashed`: the job has
    ended its process.
    """
    if job.attempt < job.max_attempts or (has_crashed and _is_last_crash(job)):
        return False
    task = registry.get(job.task_name)
    return task is None or exception is None or task.is_retryable(exception)


def _is_last_crash(job: Claimed | OpenExecution) -> bool:
    return job.crashes + 1 >= get_settings().CRASH_BUDGET


def delay_while_unknown(unknown_seconds: float | None) -> float | None:
    """Return the seconds until a job that this worker cannot run is tried again, or None if it must become dead.

    The first delay is 15 s. Each later one is as long as the job has waited already, which doubles the total, with a
    maximum of 10 minutes.
    """
    waited = unknown_seconds or 0.0
    if waited >= get_settings().UNKNOWN_TASK_LIMIT:
        return None
    return min(max(waited, UNKNOWN_FIRST_SECONDS), UNKNOWN_LONGEST_SECONDS)


def _task_result(task: TaskDefinition, job: Claimed | OpenExecution, alias: str) -> Any:
    """Return the result that a backoff gets: the framework's, or the job. It loads what is not known on first use."""
    if task.adapter is not None:
        return task.adapter.task_result(job.job_id, alias, job.attempt, job.queue_name)
    return TaskContext(
        job_id=job.job_id,
        attempt=job.attempt,
        max_attempts=job.max_attempts,
        queue_name=job.queue_name,
        database=alias,
        task_name=job.task_name or "",
    ).task_result
