"""Publish what happened to a job: write its log line, and deliver its signal to the application's receivers.

Every part of the engine that has committed a transition calls `Events.publish()`; no other code sends these signals.
The function that delivers them is injected. A worker process passes them to its `CallbackRunner`, because a receiver is
the application's code and must not run in a thread that the engine needs. In the foreground (`pgqueue run`,
`IMMEDIATE`, `run_jobs`) the receivers run in the caller's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from django_pgqueue import log
from django_pgqueue.signals import TaskSignal
from django_pgqueue.worker.execution import error_text
from django_pgqueue.worker.execution.report import STOPS

if TYPE_CHECKING:
    from django_pgqueue.lifecycle import Claimed

logger = logging.getLogger("django_pgqueue.worker")

Caught = tuple[type[BaseException], ...]
CONTAINED: Final[Caught] = (Exception, SystemExit, GeneratorExit, asyncio.CancelledError)
"""Exceptions of a receiver that are logged when it runs in the caller's thread. `KeyboardInterrupt` and the outcomes
that pytest raises pass through, because they are meant for the caller."""
Deliver = Callable[[TaskSignal, str | None, dict[str, Any]], None]


class Events:
    """Publish transitions, and deliver their signals with the injected function."""

    def __init__(self, deliver: Deliver | None = None) -> None:
        self._deliver = deliver or call_receivers

    def are_heard(self, signal: TaskSignal, task_name: str | None) -> bool:
        """Return whether publishing would have any effect. If not, the caller need not build the arguments."""
        return log.is_enabled_for(signal) or signal.has_listeners(task_name)

    def publish(self, signal: TaskSignal, task_name: str | None, about: dict[str, Any]) -> None:
        """Publish one transition. `about` holds the arguments of its signal. Costs only a check without receivers."""
        try:
            log.write(signal, task_name, about)
        except CONTAINED as error:
            with suppress(*CONTAINED):
                logger.error(
                    "writing a log line for job %s failed: %s", about.get("job_id"), error_text.class_path(error)
                )
        if signal.has_listeners(task_name):
            self._deliver(signal, task_name, about)


def arguments_of(claimed: Claimed, database: str) -> dict[str, Any]:
    """Return the arguments that all signals of an attempt share."""
    return {
        "job_id": claimed.job_id,
        "database": database,
        "execution_id": claimed.execution_id,
        "queue_name": claimed.queue_name,
        "attempt": claimed.attempt,
    }


def call_receivers(
    signal: TaskSignal,
    task_name: str | None,
    about: dict[str, Any],
    *,
    caught: Caught = CONTAINED,
    passed: Caught = (),
) -> None:
    """Call the receivers in this thread, one after another. Log the `caught` exceptions, raise the `passed` ones."""
    for receiver, call in signal.calls_for(task_name, **about):
        try:
            call()
        except passed:
            raise
        except caught as error:
            log_failure(receiver, error)


def log_failure(receiver: Any, error: BaseException) -> None:
    """Log that a receiver raised. Raise nothing, whatever the exception is."""
    name = error_text.name_of(receiver)
    error_text.log_exception(f"the receiver {name} raised", error)


IN_THIS_THREAD: Final = Events()
"""Deliver in the thread that publishes."""
IN_JOB_THREAD: Final = Events(partial(call_receivers, passed=STOPS))
"""Deliver in the job's thread. An exception that the worker raises in the job ends the receiver and the attempt."""
