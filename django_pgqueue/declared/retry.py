"""Backoffs: how long a job waits after a failed attempt.

The worker calls `delay_after()` through `Task.delay_after()` when it records a failure. The functions in this module
use no clock and no database.

The default backoff is 30 s, doubled with each attempt and capped at one hour, plus a random 0 to 30 % for each job. The
jitter spreads out jobs that failed at the same time. Ten attempts with this backoff last about three hours.
"""

import inspect
import random
from collections.abc import Callable
from typing import Any, Final, Literal, cast

from django_pgqueue.durations import Duration, seconds
from django_pgqueue.exceptions import TaskTimedOut, TaskTimeout, WorkerLost
from django_pgqueue.ground.signatures import signature_of

Backoff = Callable[[Any, Any], Duration | None]
"""A function that returns the delay before the next attempt, or None for no further attempt.

Its parameters are (attempt, exception) or (exception, task_result). A function whose second parameter is named
`task_result` is of the second kind, which Django plans for its own framework.

* `attempt` is the number of the failed attempt (1, 2, …). `exception` is None if the worker was lost, because the
  exception is unknown in that case.
* With `task_result`, `exception` is never None: it is a `WorkerLost` if the worker was lost, and a `TaskTimedOut` after
  a timeout. `task_result` is the framework's `TaskResult`, or the `Job` of a task of this package.

The parameters have the type Any, because type checkers cannot infer those of a lambda from a choice of two.
"""

MAX_DELAY_SECONDS: Final = 400 * 24 * 3600.0
"""Maximum delay (400 days). Longer delays are reduced to it: a delay of centuries is a mistake, and timestamps are
limited."""


JITTER: Final = 0.3
"""Maximum random addition of a backoff that does not say otherwise, as a fraction of the delay."""


def exponential(
    base: Duration = 30, *, factor: float = 2, cap: Duration = 3600, jitter: float | Literal["full"] = JITTER
) -> Backoff:
    """Return a backoff that grows exponentially: `base * factor ** (attempt - 1)`, at most `cap`, with jitter.

    Args:
        base: Delay after the first attempt, in seconds or as a timedelta.
        factor: Multiplier for each further attempt, finite and at least 1.
        cap: Maximum delay before jitter, in seconds or as a timedelta.
        jitter: Maximum random addition as a fraction of the delay, from 0 to 1. 0.3 adds 0 to 30 %. "full" draws the
            delay between 0 and its value instead, which spreads many clients of one service best: see "Exponential
            Backoff And Jitter" in the AWS Architecture Blog (2015).

    Returns:
        A function for the `backoff` option of `@task`.

    Raises:
        TypeError: `base` or `cap` is not a duration.
        ValueError: An argument is out of range.

    Example::

        @task(backoff=exponential(10, cap=600), max_attempts=5)
        def send_reminder(order_id: int) -> None: ...
    """
    base_seconds, cap_seconds = seconds(base), seconds(cap)
    low, high = (0.0, 1.0) if jitter == "full" else (1.0, 1.0 + _fraction(jitter))
    if not 1 <= factor < float("inf"):
        raise ValueError(f"exponential(): factor must be at least 1 and finite, not {factor!r}")

    def backoff(attempt: int, exception: BaseException | None) -> float:
        try:
            delay = min(cap_seconds, base_seconds * float(factor) ** (attempt - 1))
        except OverflowError:
            delay = cap_seconds if base_seconds else 0.0
        return delay * random.uniform(low, high)  # noqa: S311 -- spreads load, needs no secrecy

    backoff.__name__ = f"exponential({base_seconds:g}, factor={factor:g}, cap={cap_seconds:g}, jitter={jitter!r})"
    return backoff


def _fraction(jitter: object) -> float:
    if isinstance(jitter, int | float) and not isinstance(jitter, bool) and 0 <= jitter <= 1:
        return jitter
    raise ValueError(f'exponential(): jitter must be a number from 0 to 1, or "full", not {jitter!r}')


def fixed(delay: Duration) -> Backoff:
    """Return a backoff that is always `delay`, without jitter.

    Args:
        delay: Seconds or a timedelta.

    Returns:
        A function for the `backoff` option of `@task`.

    Raises:
        TypeError: `delay` is not a duration.
        ValueError: `delay` is negative or longer than 100 years.
    """
    delay_seconds = seconds(delay)

    def backoff(attempt: int, exception: BaseException | None) -> float:
        return delay_seconds

    backoff.__name__ = f"fixed({delay_seconds:g})"
    return backoff


DEFAULT_BACKOFF: Final = cast(Callable[[int, BaseException | None], float], exponential())


def as_backoff(value: Backoff | Duration | None) -> Backoff:
    """Return the function for a task's `backoff` option.

    None means the default backoff. A duration means this delay after each attempt, plus the jitter of the default. A
    function is returned unchanged.

    Raises:
        TypeError: `value` is not a duration.
        ValueError: `value` is a duration that is negative or longer than 100 years.
    """
    if value is None:
        return DEFAULT_BACKOFF
    return value if callable(value) else exponential(value, factor=1, cap=value)


def check_backoff(value: Backoff | Duration | None) -> None:
    """Raise the `TypeError` or `ValueError` of `as_backoff()` and `takes_task_result()` for an invalid backoff."""
    takes_task_result(as_backoff(value))


def takes_task_result(backoff: Callable[..., Any]) -> bool:
    """Return whether a backoff's parameters are (exception, task_result); otherwise they are (attempt, exception).

    The name of the second positional parameter decides: `task_result`. Other names, `*args`, and functions whose
    parameters Python does not know mean (attempt, exception).

    Raises:
        TypeError: It cannot be called with two arguments, or its first parameter has the name of a second one.
    """
    try:
        signature = signature_of(backoff)
    except ValueError:  # some functions that are written in C
        return False
    try:
        signature.bind(None, None)
    except TypeError:
        raise TypeError(f"{PARAMETERS}, not {signature}") from None
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [name for name, parameter in signature.parameters.items() if parameter.kind in kinds]
    is_second_kind = names[1:2] == ["task_result"]
    if names[:1] == ["task_result"] or (names[:1] == ["exception"] and not is_second_kind):
        raise TypeError(f"{PARAMETERS}, not {signature}")
    return is_second_kind


PARAMETERS: Final = "the parameters of a backoff must be (attempt, exception) or (exception, task_result)"


def delay_after(
    backoff: Backoff, attempt: int, exception: BaseException | None, task_result: Callable[[], Any] = lambda: None
) -> float | None:
    """Return the seconds before the next attempt, or None if there is no further attempt.

    Args:
        backoff: A backoff, possibly a function of the application.
        attempt: Number of the failed attempt, from 1.
        exception: The exception that ended it, or None if the worker was lost.
        task_result: Returns the result to pass to a backoff with this parameter. Other backoffs do not call it.

    Raises:
        TypeError: `backoff` returned neither a duration nor None.
        ValueError: `backoff` returned a duration that is negative or longer than 100 years.
        Exception: Any error that `backoff` raises.
    """
    call: Callable[..., Duration | None] = backoff
    if takes_task_result(call):
        delay = call(_in_terms_of_framework(exception), task_result())
    else:
        delay = call(attempt, exception)
    return None if delay is None else min(seconds(delay), MAX_DELAY_SECONDS)


def _in_terms_of_framework(exception: BaseException | None) -> BaseException:
    """Return the exception as results name it: see `TaskTimedOut` and `WorkerLost`."""
    if exception is None:
        return WorkerLost("the worker was lost while the task ran")
    if issubclass(type(exception), TaskTimeout):
        timed_out = TaskTimedOut(str(exception)).with_traceback(exception.__traceback__)
        timed_out.__cause__ = exception
        return timed_out
    return exception
