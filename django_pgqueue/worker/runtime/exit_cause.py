"""Record in shared memory which code ends a worker process by `os._exit()`, so that no other job is charged for it.

Nothing shows afterwards which thread has ended a process. `os._exit()` is different, because it runs in that thread: in
the context of a job, in the thread that calls signal receivers, or in that of a `TimedCall` (a backoff, or a function
of a schedule). The end by a signal, or by C code, has no such place. Then all jobs that had started are charged.
"""

from __future__ import annotations

import os
import threading
from typing import NoReturn

from django_pgqueue.tasks.context import running_job

from .shared_memory import NO_EXECUTION, ProcessState
from .time_limit import TimedCall

CALLBACKS: str = "pgqueue-callbacks"
"""The name of the threads that call receivers (see `completion.callbacks`)."""


def watch(state: ProcessState) -> None:
    """Make `os._exit()` of this process record its cause. Processes that jobs fork record nothing."""
    exit_at_once, pid = os._exit, os.getpid()

    def exit_with_cause(status: int) -> NoReturn:
        if os.getpid() == pid:
            state.ended_by = _cause()
        exit_at_once(status)

    os._exit = exit_with_cause


def _cause() -> int:
    """Return the execution whose code calls this, `NO_EXECUTION` for other code that is known, or 0."""
    job = running_job.get()
    if job is not None:
        return job.execution_id
    thread = threading.current_thread()
    if isinstance(thread, TimedCall):
        return thread.execution_id
    return NO_EXECUTION if thread.name == CALLBACKS else 0
