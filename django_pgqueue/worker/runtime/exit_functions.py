"""Run the application's exit functions before a process ends, within a time limit of a few seconds.

The worker's processes end with `os._exit`, because threads of jobs may never end. That skips `atexit`, which libraries
use to send buffered spans, errors and log lines. Each process therefore calls `run_exit_functions()` first.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import Final

from django_pgqueue import signals

from .background_log import background_log, flush_output
from .process_signals import TIMERS

EXIT_SECONDS: Final = 3.0
"""How long receivers of `worker_stopping` and `atexit` functions may take in total."""


def forget_inherited_processes() -> None:
    """Prevent a forked process from terminating its parent's `multiprocessing` processes when it exits.

    The exit function of `multiprocessing` terminates all child processes that it knows. This function clears that list,
    as `multiprocessing` itself does in the processes that it forks.
    """
    if "multiprocessing.process" in sys.modules:
        vars(sys.modules["multiprocessing.process"])["_children"] = set()
    if "multiprocessing.util" in sys.modules:
        sys.modules["multiprocessing.util"]._finalizer_registry.clear()


def run_exit_functions(kind: str | None, database: str, seconds: float = EXIT_SECONDS) -> bool:
    """Send `worker_stopping` unless `kind` is None, run the `atexit` functions, and flush the log.

    A function that hangs is abandoned in its thread. A second call in the same process does nothing.

    Returns:
        False if this takes longer than `seconds`.
    """
    if _done_in == [os.getpid()]:
        return True
    _done_in[:] = [os.getpid()]
    stop_at = time.monotonic() + seconds
    clear_timers()  # a timer that a job has left could end the process now
    runner = threading.Thread(target=_run, args=(kind, database), name="pgqueue-exit", daemon=True)
    with suppress(RuntimeError):  # the system cannot start a thread
        runner.start()
        runner.join(seconds)
    return not runner.is_alive() and background_log.flush(max(0.1, min(1.0, stop_at - time.monotonic())))


_done_in: list[int] = []
"""The id of the process that has run the exit functions. A forked child has another id, and runs them itself."""


def clear_timers() -> None:
    """Stop the timers of `signal.alarm()` and `signal.setitimer()`."""
    for timer in TIMERS.values():
        signal.setitimer(timer, 0)


def _run(kind: str | None, database: str) -> None:
    if kind is not None:
        with suppress(BaseException):  # a receiver may raise SystemExit, which `send_robust` lets through
            signals.worker_stopping.send_robust(sender=None, kind=kind, database=database)
    background_log.flush()  # before `logging.shutdown()`, one of the `atexit` functions, closes the handlers
    flush_output()
    with suppress(BaseException):
        atexit._run_exitfuncs()
