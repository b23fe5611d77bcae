"""Send the signals about the start and the end of a process that runs jobs.

The worker process and the isolated process call this. The receivers are the application's code: they may warm caches or
open clients before the first job, and close them after the last one. They run with a time limit, and never in a thread
that the engine needs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from django_pgqueue import signals
from django_pgqueue.ground.log_events import event
from django_pgqueue.worker.runtime.time_limit import call_in_time

from .job_events import call_receivers, log_failure

logger = logging.getLogger("django_pgqueue.worker")

WORKER: Final = "worker"
ISOLATED: Final = "isolated"
"""The kinds of processes that run jobs, as the receivers see them."""
START_SECONDS: Final = 30.0
"""How long the first job of a process waits for the receivers of `worker_process_started`."""
NOT_RETURNED: Final = "receivers of worker_process_started have not returned after %.0f s; jobs start without them"


def about(kind: str, database: str) -> dict[str, Any]:
    """Return the arguments of both signals."""
    return {"kind": kind, "database": database}


def call_start_receivers(kind: str, database: str) -> None:
    """Call the receivers of `worker_process_started` in threads, one after another, and wait 30 s at most for all.

    After the 30 s, this starts the receivers that are left at once and does not wait for them. So a receiver that hangs
    does not keep those after it from being called.
    """
    until, are_late = time.monotonic() + START_SECONDS, False
    calls = signals.worker_process_started.calls_for(None, **about(kind, database))
    for place, (receiver, call) in enumerate(calls):
        try:
            left_seconds = max(0.0, until - time.monotonic())
            call_in_time(partial(_call, receiver, call), left_seconds, f"receiver {place} of worker_process_started")
        except TimeoutError:
            are_late = True
    if are_late:
        logger.error(NOT_RETURNED, START_SECONDS, extra=event("receivers_late"))


def _call(receiver: Any, call: Callable[[], Any]) -> None:
    try:
        call()
    except BaseException as error:  # noqa: BLE001 -- whatever a receiver raises, the next one is called
        log_failure(receiver, error)


def stop_receivers(kind: str, database: str) -> Callable[[], None]:
    """Return a function that calls the receivers of `worker_process_stopping`, for `run_exit_functions()`."""
    return partial(call_each, signals.worker_process_stopping, about(kind, database))


def call_each(signal: signals.WorkerSignal, arguments: dict[str, Any]) -> None:
    """Call each receiver in this thread, and log what it raises, whatever that is."""
    call_receivers(signal, None, arguments, caught=(BaseException,))
