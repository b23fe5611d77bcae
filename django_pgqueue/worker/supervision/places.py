"""Find the place of a new worker process among those that live. The supervisor calls this."""

from __future__ import annotations

from collections.abc import Collection

from django_pgqueue.worker.options import Options
from django_pgqueue.worker.runtime.shared_memory import ProcessState

from .heartbeat import ChildProcess


def vacant_place(children: Collection[ChildProcess], options: Options) -> int | None:
    """Return the first place without a process, or None. A retiring process leaves its place free."""
    keep_all = options.until_empty
    taken = {process.place for process in children if keep_all or not process.state.retires}
    return next((place for place in range(options.processes) if place not in taken), None)


def retiring_at(children: Collection[ChildProcess], place: int) -> ProcessState | None:
    """Return the shared memory of the process that retires from this place, or None. There is at most one."""
    states = (process.state for process in children if process.place == place)
    return next((state for state in states if state.retires), None)
