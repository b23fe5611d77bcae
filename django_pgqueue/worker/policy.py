"""What comes after an attempt that did not succeed: asked for each job, by whoever closes its execution."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from django_pgqueue import registry
from django_pgqueue.conf import get_settings
from django_pgqueue.lifecycle import Held
from django_pgqueue.retry import DEFAULT_BACKOFF

from . import describe
from .bounded import call_in_time

if TYPE_CHECKING:
    from django_pgqueue.lifecycle import Claimed

BACKOFF_SECONDS: Final = 2.0
"""How long an engine thread waits for a backoff of the application."""
UNKNOWN_FIRST_SECONDS: Final = 15.0
UNKNOWN_LONGEST_SECONDS: Final = 600.0


def delay_after_failure(claimed: Claimed, exception: BaseException | None, *, in_time: bool = False) -> float | None:
    """Return the seconds until the next attempt, or None for no more.

    `in_time`: the calling thread is the engine's, so a backoff that hangs is given up after a few seconds.
    """
    return _delay(claimed.task_name, claimed.attempt, claimed.max_attempts, exception, in_time=in_time)


def delay_after_crash(held: Held, *, by_default: bool = False) -> float | None:
    """Return the seconds until the next attempt of a job whose worker was lost, or None for no more.

    Only a job that had started is charged with the loss, and has `CRASH_BUDGET` of them. After the first it is due at
    once: a machine was lost, more likely than not, and where the job is to blame it runs isolated from now on.
    `by_default` calls no function of the application.
    """
    if held.started and held.crashes + 1 >= get_settings().CRASH_BUDGET:
        return None
    task_name = "" if by_default else held.task_name or ""
    delay_seconds = _delay(task_name, held.attempt, held.max_attempts, None, in_time=True)
    return delay_seconds if delay_seconds is None or held.crashes else 0.0


def as_held(claimed: Claimed) -> Held:
    """Return what `delay_after_crash` asks of a job that had started."""
    return Held(
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
    """Return how long to leave a job that this worker cannot run, or None if it has waited long enough to be dead.

    15 s at first, then as long again as it has waited already, which doubles it, 10 minutes at most.
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
        # A subclass of float may still do anything; what is written is a plain, finite number.
        return None if delay_seconds is None else float.__float__(delay_seconds)
    except BaseException as error:  # noqa: BLE001 -- the backoff is the application's function, and may raise anything
        describe.log_exception(f"the backoff of {registry.in_words(task_name)} failed; the default is used:", error)
        return _default_delay(attempt, exception)


def _default_delay(attempt: int, exception: BaseException | None) -> float:
    return DEFAULT_BACKOFF(attempt, exception)  # type: ignore[return-value]  # ours returns a float
