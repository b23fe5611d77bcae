"""The sweeps of the maintenance for what follows the ends of jobs.

A worker that dies after a completion leaves its checks undone, and some ends have none (`ends` has a table). Each sweep
looks at all rows for which a check may be due, so it finds those, whatever has ended the jobs.
"""

from __future__ import annotations

import time
from typing import Final

from django_pgqueue.conf import DAY_SECONDS
from django_pgqueue.ends.end_check import EndCheck, Reactor, Sweep
from django_pgqueue.ends.end_checks import CHECKS, sweep
from django_pgqueue.worker.runtime.connection import ConnectionSource

from .sweeps import SWEEP_SECONDS, UNUSED_SECONDS

PAUSE_FACTOR: Final = 10
"""How many times as long as a page takes the sweep waits before the next one."""


class EndSweep:
    """The position of one process in the walk of one sweep."""

    def __init__(self, link: ConnectionSource, end_check: EndCheck, one: Sweep, reactor: Reactor) -> None:
        self.name = one.name
        self.interval_seconds = DAY_SECONDS / 24 if one.is_rare else SWEEP_SECONDS
        self._link, self._end_check, self._sweep, self._reactor = link, end_check, one, reactor
        self._after_id = 0

    def run(self) -> bool | float:
        """Look at one page. Return whether there is more to do, or in how many seconds."""
        began, is_first = time.monotonic(), not self._after_id
        with self._link.use() as connection:
            swept = sweep(connection, self._end_check, self._sweep, self._after_id, self._reactor)
        self._after_id = swept.last_id or 0
        if is_first and swept.is_empty and not self._sweep.is_rare:
            return UNUSED_SECONDS
        return PAUSE_FACTOR * (time.monotonic() - began) if self._after_id else False


def end_sweeps(link: ConnectionSource, reactor: Reactor) -> list[EndSweep]:
    """Return the sweeps of all checks."""
    return [EndSweep(link, end_check, one, reactor) for end_check in CHECKS for one in end_check.sweeps]
