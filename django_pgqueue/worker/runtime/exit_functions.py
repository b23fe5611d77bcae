"""Run the application's exit functions before a process ends, within a time limit of a few seconds.

The worker's processes end with `os._exit`, because threads of jobs may never end. That skips `atexit`, which libraries
use to send buffered spans, errors and log lines. Each process therefore calls `run_exit_functions()` first. A process
that runs jobs passes the function that calls the receivers of `worker_process_stopping`.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from django_pgqueue.ground.log_events import event

from .background_log import background_log, flush_output
from .process_signals import TIMERS

logger = logging.getLogger("django_pgqueue.worker")

EXIT_SECONDS: Final = 3.0
"""How long receivers of `worker_process_stopping` and `atexit` functions may take in total."""
RECEIVERS_SHARE: Final = 2 / 3
"""The share of this time that the receivers may use, so that a receiver that hangs leaves time for `atexit`."""


def forget_inherited_processes() -> None:
    """Prevent a forked process from terminating its parent's `multiprocessing` processes when it exits.

    The exit function of `multiprocessing` terminates all child processes that it knows. This function clears that list,
    as `multiprocessing` itself does in the processes that it forks.
    """
    if "multiprocessing.process" in sys.modules:
        vars(sys.modules["multiprocessing.process"])["_children"] = set()
    if "multiprocessing.util" in sys.modules:
        sys.modules["multiprocessing.util"]._finalizer_registry.clear()


def run_exit_functions(call_receivers: Callable[[], None] | None = None, seconds: float = EXIT_SECONDS) -> bool:
    """Call the receivers of `worker_process_stopping`, run the `atexit` functions, and flush the log.

    A function that hangs is abandoned in its thread. A second call in the same process does nothing.

    Args:
        call_receivers: Calls the receivers. None in a process that runs no jobs.
        seconds: The time for all of it. The receivers may take two thirds of it.

    Returns:
        False if a function has not returned in time.
    """
    if _done_in == [os.getpid()]:
        return True
    _done_in[:] = [os.getpid()]
    stop_at = time.monotonic() + seconds
    for timer in TIMERS.values():  # one that a job has left could end the process now
        signal.setitimer(timer, 0)
    has_returned = call_receivers is None or _returns(call_receivers, seconds * RECEIVERS_SHARE)
    if not has_returned:
        logger.error(
            "the receivers of worker_process_stopping have not returned; the process ends without them",
            extra=event("receivers_late"),
        )
    has_returned &= _returns(_run, max(0.1, stop_at - time.monotonic()))
    return has_returned and background_log.flush(max(0.1, min(1.0, stop_at - time.monotonic())))


_done_in: list[int] = []
"""The id of the process that has run the exit functions. A forked child has another id, and runs them itself."""


def _returns(function: Callable[[], None], seconds: float) -> bool:
    """Call a function in a thread of its own; return whether it has returned after `seconds`."""
    runner = threading.Thread(target=function, name="pgqueue-exit", daemon=True)
    with suppress(RuntimeError):  # the system cannot start a thread
        runner.start()
        runner.join(seconds)
    return not runner.is_alive()


def _run() -> None:
    background_log.flush()  # before `logging.shutdown()`, one of the `atexit` functions, closes the handlers
    flush_output()
    with suppress(BaseException):
        atexit._run_exitfuncs()
