"""Pause, resume, drain and clear queues, tasks and limits, and change limits while workers run.

`queues` and `limits` have the functions for applications, which this package passes on. `workers` asks worker processes
for something, and `targets` checks what an operator names.
"""

from django_pgqueue.options.task_options import UNCHANGED

from .limits import end_hold, override_limit, restore_limit
from .queues import clear, drain, pause, resume, running, waiting
from .targets import UnknownLimitWarning, UnknownTaskWarning

__all__ = [
    "UNCHANGED",
    "UnknownLimitWarning",
    "UnknownTaskWarning",
    "clear",
    "drain",
    "end_hold",
    "override_limit",
    "pause",
    "restore_limit",
    "resume",
    "running",
    "waiting",
]
