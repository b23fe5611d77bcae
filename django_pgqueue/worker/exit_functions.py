"""The end of a process: what the application registered for it runs, but delays it by no more than a few seconds.

Our processes end by `os._exit`, because threads of jobs may run on for ever. That skips `atexit`, by which libraries
send what they have buffered: spans, errors, log lines. So each process calls `run_exit_functions()` before.
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

from .background_log import background_log
from .process_signals import TIMERS

EXIT_SECONDS: Final = 3.0
"""How long receivers of `worker_stopping` and functions of `atexit` may take together."""


def forget_inherited_processes() -> None:
    """In a process just forked: have `multiprocessing` end none of its parent's processes when this one exits.

    Its own function for `atexit` terminates the processes that it knows. This does what `multiprocessing` itself does
    in the processes that it forks.
    """
    if "multiprocessing.process" in sys.modules:
        vars(sys.modules["multiprocessing.process"])["_children"] = set()
    if "multiprocessing.util" in sys.modules:
        sys.modules["multiprocessing.util"]._finalizer_registry.clear()


def run_exit_functions(kind: str | None, database: str, seconds: float = EXIT_SECONDS) -> bool:
    """Send `worker_stopping`, unless `kind` is None, then run what is registered with `atexit`, then flush the log.

    Return False if that was not done in `seconds`. A function that hangs is left behind in its thread. A second call in
    the same process does nothing.
    """
    if _done_in == [os.getpid()]:
        return True
    _done_in[:] = [os.getpid()]
    stop_at = time.monotonic() + seconds
    clear_timers()  # what a job left behind must not end the process now
    runner = threading.Thread(target=_run, args=(kind, database), name="pgqueue-exit", daemon=True)
    with suppress(RuntimeError):  # the system has no more threads
        runner.start()
        runner.join(seconds)
    return not runner.is_alive() and background_log.flush(max(0.1, min(1.0, stop_at - time.monotonic())))


_done_in: list[int] = []
"""The process that has run them; a copy of it after a fork has not."""


def clear_timers() -> None:
    """Stop the timers of `signal.alarm()` and `signal.setitimer()`."""
    for timer in TIMERS.values():
        signal.setitimer(timer, 0)


def _run(kind: str | None, database: str) -> None:
    if kind is not None:
        with suppress(BaseException):  # a receiver may raise SystemExit, which `send_robust` lets through
            signals.worker_stopping.send_robust(sender=None, kind=kind, database=database)
    background_log.flush()  # before logging.shutdown(), which is among the functions, closes the handlers
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # whatever a task made of it
            stream.flush()
    with suppress(BaseException):
        atexit._run_exitfuncs()
