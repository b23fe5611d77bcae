"""Names that only POSIX systems have. On other systems, applications can do everything except run a worker.

Modules import this one instead of using such a name when they are imported. Functions that only a worker calls can use
the names directly, because `runworker` refuses to start without them.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Final

CAN_FORK: Final = hasattr(os, "fork")
"""Whether the system has the calls that a worker is made of."""


def after_fork_in_child(function: Callable[[], None]) -> None:
    """Register a function that each process forked from this one calls first. Without `fork()`, do nothing."""
    if CAN_FORK:
        os.register_at_fork(after_in_child=function)


def signals_named(*names: str) -> tuple[signal.Signals, ...]:
    """Return the signals with these names that the system has."""
    return tuple(getattr(signal, name) for name in names if hasattr(signal, name))
