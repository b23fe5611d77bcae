"""Install handlers for signals that must not end a worker process or a helper process of the supervisor.

Each of these processes calls a function of this module right after its fork. A terminal or a service manager sends
signals to all processes of the worker, but a worker process takes orders only from its supervisor.

A job in a thread may call `signal.alarm()`, or `os.kill()` on its own process. It cannot install a handler, because it
does not run in the main thread. The default action would end the process with all its jobs.
"""

from __future__ import annotations

import logging
import signal
from contextlib import suppress
from types import FrameType
from typing import Final

from django_pgqueue.ground.log_events import event
from django_pgqueue.ground.posix import CAN_FORK, signals_named

from .outages import outage_log

logger = logging.getLogger("django_pgqueue.worker")

PASSED_ON: Final = signals_named("SIGINT", "SIGTERM", "SIGHUP")
"""The supervisor receives these signals too, and sends orders through a pipe."""
TIMERS: Final = (
    {signal.SIGALRM: signal.ITIMER_REAL, signal.SIGVTALRM: signal.ITIMER_VIRTUAL, signal.SIGPROF: signal.ITIMER_PROF}
    if CAN_FORK
    else {}
)
FROM_JOBS: Final = (*TIMERS, *signals_named("SIGUSR1", "SIGUSR2", "SIGIO"))


def survive_signals() -> None:
    """Make a worker process survive signals. Handlers that the project has installed remain."""
    outlive_terminal()
    caught = _caught_by_c_code()
    for number in FROM_JOBS:
        if signal.getsignal(number) is signal.SIG_DFL and number not in caught:
            signal.signal(number, _survive)


def outlive_terminal() -> None:
    """Make a process survive the signals that stop the worker. The supervisor ends it later."""
    signal.set_wakeup_fd(-1)  # otherwise signals to this process would wake the supervisor
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in PASSED_ON:
        # An empty handler instead of SIG_IGN, which programs started by a task would inherit.
        signal.signal(number, _do_nothing)


def _do_nothing(number: int, frame: FrameType | None) -> None:
    pass


def _survive(number: int, frame: FrameType | None) -> None:
    """Log the signal, and stop the timer that sent it, because an interval timer would send more."""
    if number in TIMERS:
        signal.setitimer(TIMERS[signal.Signals(number)], 0)
    if outage_log.may_log():
        extra = event("signal_ignored", signal=signal.Signals(number).name)
        logger.warning("ignored signal %s, which a job may have caused", signal.Signals(number).name, extra=extra)


def _caught_by_c_code() -> set[int]:
    """Return the signals that have a handler, including those of `faulthandler.register()`. Empty except on Linux."""
    with suppress(OSError, ValueError), open("/proc/self/status", encoding="ascii", errors="replace") as status:
        for line in status:
            if line.startswith("SigCgt:"):
                mask = int(line.split()[1], 16)
                return {number for number in range(1, 65) if mask >> (number - 1) & 1}
    return set()
