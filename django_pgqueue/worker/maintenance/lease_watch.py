"""Decide which leases have ended although their workers could have extended them.

`Rescuer` uses one `LeaseWatch`. A lease that has ended does not prove that its worker is lost. Commits can hang while
reads work: a synchronous standby is away, or the disk of the write-ahead log stalls. No heartbeat is committed then.
A commit that hung shows its lease only when it ends, perhaps after the end of that lease. Commits of different
sessions can end at different times.

The watch therefore measures the time in which this process could commit, by commits of its own. A lease is lost if it
stays the same for two heartbeats of that time. Observation begins before the lease ends, so a rescue comes no later for
it, unless the process has just started or commits hung.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from django_pgqueue.conf import get_settings

OBSERVED_HEARTBEATS: Final = 2.0
"""For how many heartbeats of time with commits a lease must stay the same before its execution is rescued."""
FROM_HEARTBEATS: Final = 2.75
"""How many heartbeats before its end a lease is observed. A live worker extends it when three are left."""


def observed_from_seconds() -> float:
    """Return how many seconds before its end a lease is observed."""
    return FROM_HEARTBEATS * get_settings().heartbeat_seconds


def limit_seconds() -> float:
    """Return within how many seconds the jobs of a lost host are ready again, while a worker runs and commits work.

    A process that runs all the time rescues them within the lease and one interval between two looks. At worst, a
    deploy replaces it just before that. The new process observes the lease, and needs another look.
    """
    settings = get_settings()
    observed_seconds = OBSERVED_HEARTBEATS * settings.heartbeat_seconds
    return settings.LEASE + settings.RESCUE_INTERVAL + observed_seconds + settings.RESCUE_INTERVAL


class LeaseWatch:
    """The leases that end soon or have ended, and for how long each has stayed the same.

    Args:
        now: The clock.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._seconds = 0.0
        """How long this process could commit, as far as it has found out."""
        self._committed_at: float | None = None
        """When its last commit ended. None: none has succeeded since the last failure."""
        self._since: dict[tuple[int, float], float] = {}
        """By execution and lease: the value of `_seconds` when the lease was first seen."""

    def forget(self) -> None:
        """Forget all leases, because none ends soon."""
        self._since.clear()
        self._committed_at = None

    def interrupted(self) -> None:
        """Do not count the time since the last commit, because something has failed since."""
        self._committed_at = None

    @contextmanager
    def commit(self) -> Iterator[None]:
        """Count the time from the last commit to this one, which happens inside the block.

        The time that this commit takes is not counted. A failure leaves the time before it uncounted too.
        """
        since, self._committed_at = self._committed_at, None
        began = self._now()
        yield
        if since is not None:
            settings = get_settings()
            # The cap is for a process that was frozen: nobody knows whether others could commit meanwhile.
            self._seconds += min(began - since, max(settings.heartbeat_seconds, settings.RESCUE_INTERVAL))
        self._committed_at = self._now()

    def lost(self, leases: Mapping[int, float]) -> dict[int, float]:
        """Note the leases that end soon or have ended. Return those that were the same for long enough."""
        self._since = {lease: self._since.get(lease, self._seconds) for lease in leases.items()}
        observed_seconds = OBSERVED_HEARTBEATS * get_settings().heartbeat_seconds
        return {
            execution_id: lease_ms
            for (execution_id, lease_ms), since in self._since.items()
            if self._seconds - since >= observed_seconds
        }
