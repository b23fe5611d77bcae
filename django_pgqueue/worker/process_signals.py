"""Signals that must not end a worker process: those of a terminal or a service manager, and those that jobs cause.

A worker process obeys its supervisor alone. A thread job may call `signal.alarm()` or `os.kill()` on its own process,
but cannot install a handler, because it does not run in the main thread. The default action would end the process with
all its jobs.
"""

from __future__ import annotations

import logging
import signal
from contextlib import suppress
from types import FrameType
from typing import Final

from .trouble import trouble

logger = logging.getLogger("django_pgqueue.worker")

PASSED_ON: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The supervisor gets these too, and gives its orders through a pipe."""
TIMERS: Final = {
    signal.SIGALRM: signal.ITIMER_REAL,
    signal.SIGVTALRM: signal.ITIMER_VIRTUAL,
    signal.SIGPROF: signal.ITIMER_PROF,
}
FROM_JOBS: Final = (*TIMERS, signal.SIGUSR1, signal.SIGUSR2, signal.SIGIO)


def survive_signals() -> None:
    """Have a worker process survive signals. Handlers that the project has installed stay."""
    for number in PASSED_ON:
        # A handler that does nothing, not SIG_IGN, which programs that a task starts would inherit.
        signal.signal(number, _do_nothing)
    caught = _caught_by_c_code()
    for number in FROM_JOBS:
        if signal.getsignal(number) is signal.SIG_DFL and number not in caught:
            signal.signal(number, _survive)
    reset_of_parent()


def reset_of_parent() -> None:
    """In a process just forked: undo what the supervisor installed to be woken by signals."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def outlive_terminal() -> None:
    """Have a helper process of the supervisor go on when everybody is told to stop: its supervisor ends it."""
    for number in PASSED_ON:
        signal.signal(number, _do_nothing)
    reset_of_parent()


def _do_nothing(number: int, frame: FrameType | None) -> None:
    pass


def _survive(number: int, frame: FrameType | None) -> None:
    """Stop the timer that sent the signal, because it may send many; say that it came."""
    if number in TIMERS:
        signal.setitimer(TIMERS[signal.Signals(number)], 0)
    if trouble.may_speak():
        logger.warning("signal %s, which a job may have caused, is ignored", signal.Signals(number).name)


def _caught_by_c_code() -> set[int]:
    """Return the signals that have any handler, `faulthandler.register()`'s too; only Linux can say."""
    with suppress(OSError, ValueError), open("/proc/self/status", encoding="ascii", errors="replace") as status:
        for line in status:
            if line.startswith("SigCgt:"):
                mask = int(line.split()[1], 16)
                return {number for number in range(1, 65) if mask >> (number - 1) & 1}
    return set()
