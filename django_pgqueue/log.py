"""Write one log line per transition of a job, on the logger `django_pgqueue.worker`.

`worker.execution.events` calls `write()` at each transition. The lines do not depend on the application's signal
receivers. Every record carries `job_id`, `task`, `queue`, `attempt` and, once the job ran, `duration_ms`. A record
never carries an argument or a result. `enable()` decides once, when the worker starts, which transitions are logged,
because writing a line costs more than running a small job.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from . import signals
from .registry import in_words
from .signals import TaskSignal

logger = logging.getLogger("django_pgqueue.worker")


Line = Callable[[str | None, dict[str, Any]], None]


def enable() -> None:
    """Start logging in this process and its forks. Only the levels that are enabled now are logged."""
    _enabled.clear()
    _enabled.update({signal: line for signal, (level, line) in LINES.items() if logger.isEnabledFor(level)})


def disable() -> None:
    """Stop logging transitions in this process."""
    _enabled.clear()


def is_enabled_for(signal: TaskSignal) -> bool:
    """Return whether this transition is logged."""
    return signal in _enabled


def write(signal: TaskSignal, task_name: str | None, about: dict[str, Any]) -> None:
    """Write the line of a transition if that is enabled; `about` holds the arguments of its signal."""
    line = _enabled.get(signal)
    if line is not None:
        line(task_name, about)


def _extra(task_name: str | None, about: dict[str, Any]) -> dict[str, Any]:
    extra = {
        "task": task_name,
        "job_id": about.get("job_id"),
        "queue": about.get("queue_name"),
        "attempt": about.get("attempt"),
    }
    if "duration_seconds" in about:
        extra["duration_ms"] = round(1000 * about["duration_seconds"], 3)
    return extra


def _started(task_name: str | None, about: dict[str, Any]) -> None:
    logger.debug("job %s (%s) started", about["job_id"], in_words(task_name), extra=_extra(task_name, about))


def _succeeded(task_name: str | None, about: dict[str, Any]) -> None:
    extra = _extra(task_name, about)
    logger.info(
        "job %s (%s) succeeded in %s ms", about["job_id"], in_words(task_name), extra["duration_ms"], extra=extra
    )


def _cancelled(task_name: str | None, about: dict[str, Any]) -> None:
    logger.info("job %s (%s) cancelled", about["job_id"], in_words(task_name), extra=_extra(task_name, about))


def _failed(task_name: str | None, about: dict[str, Any]) -> None:
    retry_seconds, exception = about.get("retry_seconds"), about.get("exception")
    if exception is None:  # a crash: the process that detected it has logged it
        return
    logger.warning(
        "job %s (%s) failed at attempt %s with %s; retrying in %.0f s",
        about["job_id"],
        in_words(task_name),
        about["attempt"],
        type(exception).__name__,
        retry_seconds or 0.0,
        exc_info=exception,
        extra=_extra(task_name, about),
    )


def _dead(task_name: str | None, about: dict[str, Any]) -> None:
    logger.error(
        "job %s (%s) is dead after attempt %s: %s%s",
        about["job_id"],
        in_words(task_name),
        about["attempt"],
        "" if about.get("exception") is None else f"{type(about['exception']).__name__}: ",
        about.get("error", ""),
        exc_info=about.get("exception"),
        extra=_extra(task_name, about),
    )


LINES: Final[dict[TaskSignal, tuple[int, Line]]] = {
    signals.job_started: (logging.DEBUG, _started),
    signals.job_succeeded: (logging.INFO, _succeeded),
    signals.job_cancelled: (logging.INFO, _cancelled),
    signals.job_failed: (logging.WARNING, _failed),
    signals.job_dead: (logging.ERROR, _dead),
}
_enabled: dict[TaskSignal, Line] = {}
