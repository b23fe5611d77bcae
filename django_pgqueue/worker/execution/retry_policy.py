"""Decide when a job runs again after an attempt that did not succeed.

Every part of the worker that closes an execution calls this: attempts, isolated processes, rescue and the supervisor.
It runs the application's backoff function, and falls back to the default backoff if that function fails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from django_pgqueue import registry
from django_pgqueue.conf import get_settings
from django_pgqueue.lifecycle import OpenExecution
from django_pgqueue.retry import DEFAULT_BACKOFF
from django_pgqueue.worker.runtime.time_limit import call_in_time

from . import error_text

if TYPE_CHECKING:
    from django_pgqueue.lifecycle import Claimed

BACKOFF_SECONDS: Final = 2.0
"""How long an engine thread waits for an application's backoff function."""
UNKNOWN_FIRST_SECONDS: Final = 15.0
UNKNOWN_LONGEST_SECONDS: Final = 600.0


def delay_after_failure(claimed: Claimed, exception: BaseException | None, *, in_time: bool = False) -> float | None:
    """Return the seconds until the next attempt, or None for no further attempt.

    Set `in_time` if the caller is an engine thread: a backoff function that hangs is then abandoned after 2 s.
    """
    return _delay(claimed.task_name, claimed.attempt, claimed.max_attempts, exception, in_time=in_time)


def delay_after_crash(execution: OpenExecution, *, by_default: bool = False) -> float | None:
    """Return the seconds until the next attempt of a job whose worker was lost, or None for no further one.

    Only a job that had started is charged with the crash; after `CRASH_BUDGET` crashes it is dead. After the first
    crash it is due at once: the cause was more likely the machine, and if it was the job, it runs isolated from now on.
    With `by_default`, no function of the application is called.
    """
    if execution.started and execution.crashes + 1 >= get_settings().CRASH_BUDGET:
        return None
    task_name = "" if by_default else execution.task_name or ""
    delay_seconds = _delay(task_name, execution.attempt, execution.max_attempts, None, in_time=True)
    return delay_seconds if delay_seconds is None or execution.crashes else 0.0


def as_open_execution(claimed: Claimed) -> OpenExecution:
    """Return the input of `delay_after_crash` for a claimed job that had started."""
    return OpenExecution(
        claimed.execution_id,
        claimed.job_id,
        claimed.task_name,
        claimed.queue_name,
        claimed.attempt,
        claimed.max_attempts,
        claimed.crashes,
        started=True,
        claimed_ms=claimed.claimed_ms,
    )


def delay_while_unknown(unknown_seconds: float | None) -> float | None:
    """Return the seconds until a job that this worker cannot run is tried again, or None if it must become dead.

    The first delay is 15 s. Each later one is as long as the job has waited already, which doubles the total, with a
    maximum of 10 minutes.
    """
    waited = unknown_seconds or 0.0
    if waited >= get_settings().UNKNOWN_TASK_LIMIT:
        return None
    return min(max(waited, UNKNOWN_FIRST_SECONDS), UNKNOWN_LONGEST_SECONDS)


def _delay(
    task_name: str, attempt: int, max_attempts: int, exception: BaseException | None, *, in_time: bool
) -> float | None:
    if attempt >= max_attempts:
        return None
    task = registry.get(task_name)
    if task is None:
        return _default_delay(attempt, exception)
    try:
        if in_time and callable(task.backoff):
            delay_seconds = call_in_time(lambda: task.delay_after(attempt, exception), BACKOFF_SECONDS)
        else:
            delay_seconds = task.delay_after(attempt, exception)
        # Convert it to a plain float, because a subclass of float can override anything.
        return None if delay_seconds is None else float.__float__(delay_seconds)
    except BaseException as error:  # noqa: BLE001 -- the backoff is the application's function, and may raise anything
        error_text.log_exception(f"the backoff of {registry.in_words(task_name)} failed; the default is used:", error)
        return _default_delay(attempt, exception)


def _default_delay(attempt: int, exception: BaseException | None) -> float:
    return DEFAULT_BACKOFF(attempt, exception)  # type: ignore[return-value]  # the default backoff returns a float
