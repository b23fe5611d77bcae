"""Publish what happened to a job: write its log line, and deliver its signal to the application's receivers.

`Events` is the observer of a worker's transitions (see `reactions`); `Attempt` also publishes the start of a job here.
The function that delivers signals is injected. A worker process passes them to its `CallbackRunner`, because a receiver
is the application's code and must not run in a thread that the engine needs. In the foreground (`pgqueue run`,
`IMMEDIATE`, `run_jobs`) the receivers run in the caller's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from django_pgqueue import log, signals
from django_pgqueue.ends.end_checks import follow
from django_pgqueue.ground.endings import Ending
from django_pgqueue.ground.log_events import event
from django_pgqueue.lifecycle.types import Claimed
from django_pgqueue.reactions import AnyWaiters, JobTransition, Reactions, arguments_of, signals_of
from django_pgqueue.signals import TaskSignal, WorkerSignal
from django_pgqueue.tasks import registry
from django_pgqueue.worker.runtime.process_info import call_here

from . import error_text
from .report import STOPS

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

    def wants_successes(self) -> bool:
        """Return whether successes are logged or `job_succeeded` has receivers."""
        return signals.job_succeeded in log.enabled or bool(signals.job_succeeded.receivers)

    def observe(self, transition: JobTransition, database: str) -> None:
        """Publish one transition."""
        if transition.ending is Ending.CRASHED:
            _log_crash(transition)
        for signal in signals_of(transition):
            if self.are_heard(signal, transition.task_name):
                is_logged = transition.ending is Ending.CRASHED and signal is signals.job_failed
                about = arguments_of(transition, signal, database)
                self.publish(signal, transition.task_name, about, is_logged=is_logged)

    def are_heard(self, signal: TaskSignal, task_name: str | None) -> bool:
        """Return whether publishing would have any effect. If not, the caller need not build the arguments."""
        return signal in log.enabled or signal.has_listeners(task_name)

    def publish(
        self, signal: TaskSignal, task_name: str | None, about: dict[str, Any], *, is_logged: bool = False
    ) -> None:
        """Publish one event. `about` holds the arguments of its signal. Costs only a check without receivers.

        `is_logged`: the caller has logged it.
        """
        try:
            if not is_logged:
                log.write(signal, task_name, about)
        except CONTAINED as error:
            with suppress(*CONTAINED):
                logger.error(
                    "writing a log line for job %s failed: %s",
                    about.get("job_id"),
                    error_text.class_path(error),
                    extra=event("log_line_failed", job_id=about.get("job_id")),
                )
        if signal.has_listeners(task_name):
            self._deliver(signal, task_name, about)


def _log_crash(transition: JobTransition) -> None:
    """Log the new state of a job whose process or worker was lost, and how that was detected."""
    details = transition.details
    logger.warning(
        "job %s (%s), attempt %d: %s; now %s",
        transition.job_id,
        registry.in_words(transition.task_name),
        details["attempt"],
        transition.error,
        transition.result.state,
        extra=event(
            "job_crashed",
            job_id=transition.job_id,
            execution_id=details["execution_id"],
            task=transition.task_name,
            queue=details["queue_name"],
            attempt=details["attempt"],
            state=transition.result.state,
        ),
    )


def start_of(claimed: Claimed, database: str) -> dict[str, Any]:
    """Return the arguments of `job_started`."""
    return {
        "job_id": claimed.job_id,
        "database": database,
        "execution_id": claimed.execution_id,
        "queue_name": claimed.queue_name,
        "attempt": claimed.attempt,
    }


def call_receivers(
    signal: WorkerSignal,
    task_name: str | None,
    about: dict[str, Any],
    *,
    caught: Caught = CONTAINED,
    passed: Caught = (),
) -> None:
    """Call the receivers in this thread, one after another. Log the `caught` exceptions, raise the `passed` ones."""
    for receiver, call in signal.calls_for(task_name, **about):
        try:
            call_here(call)
        except passed:
            raise
        except caught as error:
            log_failure(receiver, error)


def log_failure(receiver: Any, error: BaseException) -> None:
    """Log that a receiver raised. Raise nothing, whatever the exception is."""
    name = error_text.name_of(receiver)
    error_text.log_exception(f"the receiver {name} raised", error, extra=event("receiver_failed"))


IN_JOB_THREAD: Final = Events(partial(call_receivers, passed=STOPS))
"""Deliver in the job's thread. An exception that the worker raises in the job ends the receiver and the attempt."""
FOREGROUND: Final = Reactions([Events()], AnyWaiters(), follow=follow)
"""The reactions of a process that runs jobs in the caller's thread."""
