"""The duty that rescues the jobs of lost workers.

`Maintenance` calls it in its own thread. A job is rescued if `LeaseWatch` finds that its worker did not extend the
lease although it could. The duty protects live workers after an outage, when all leases look expired.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.ground.attempt_ends import LEASE_RAN_OUT
from django_pgqueue.ground.endings import Ending
from django_pgqueue.lifecycle import rescues
from django_pgqueue.lifecycle.types import OpenExecution, TransitionResult
from django_pgqueue.reactions import JobTransition, Reactions, ended
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.worker.completion.writer import transitions_of
from django_pgqueue.worker.runtime.connection import ConnectionSource
from django_pgqueue.worker.runtime.refusals import Refusals
from django_pgqueue.worker.runtime.shared_memory import health_memory

OBSERVED_HEARTBEATS: Final = 2.0
"""For how many heartbeats of time with commits a lease must stay the same before its execution is rescued."""
FROM_HEARTBEATS: Final = 2.75
"""How many heartbeats before its end a lease is observed. A live worker extends it when three are left."""


def observed_from_seconds() -> float:
    """Return how many seconds before its end a lease is observed.

    `Rescuer` uses one `LeaseWatch`. A lease that has ended does not prove that its worker is lost. Commits can hang
    while reads work: a synchronous standby is away, or the disk of the write-ahead log stalls. No heartbeat is
    committed then. A commit that hung shows its lease only when it ends, perhaps after the end of that lease. Commits
    of different sessions can end at different times.

    The watch therefore measures the time in which this process could commit, by commits of its own. A lease is lost if
    it stays the same for two heartbeats of that time. Observation begins before the lease ends, so a rescue comes no
    later for it, unless the process has just started or commits hung.
    """
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


@dataclass(eq=False, repr=False)
class Rescuer:
    """Rescues the jobs of lost workers.

    Args:
        link: The connection.
        reactions: The reactions to the transitions.
        delay_for: Returns a job's backoff in seconds, or None for no further attempt.
        on_wait: Called with the seconds for which a commit has waited.
    """

    link: ConnectionSource
    reactions: Reactions
    delay_for: Callable[[OpenExecution], float | None]
    on_wait: Callable[[float], None]
    watch: LeaseWatch = field(default_factory=LeaseWatch)
    _unrescued: Refusals = field(default_factory=lambda: Refusals("the rescue of execution"))

    def rescue(self) -> bool:
        """Look for lost leases, and rescue their jobs. While no lease ends soon, this sends one statement, a read."""
        try:
            with self.link.use() as connection:
                self._look(connection)
        except BaseException:
            self.watch.interrupted()
            raise
        return False

    def _look(self, connection: EngineConnection) -> None:
        leases = rescues.ending_leases(connection, observed_from_seconds())
        if leases:
            began = time.monotonic()
            with self.watch.commit():
                rescues.prove_commit(connection)
            self.on_wait(time.monotonic() - began)
            if lost := self.watch.lost(leases):
                self._rescue(connection, lost)
        else:
            self.watch.forget()
        health_memory.answered("rescue")

    def _rescue(self, connection: EngineConnection, leases: dict[int, float]) -> None:
        rescued = rescues.rescue(
            connection,
            self.delay_for,
            error=LEASE_RAN_OUT,
            leases=leases,
            skipped_ids=self._unrescued.skipped_ids(),
            on_refused=lambda execution, error: self._unrescued.note(
                execution.execution_id, error, _statement_for(execution)
            ),
        )
        for execution, _ in rescued:
            self._unrescued.wrote([execution.execution_id], _statement_for(execution))
        unused = {execution: result for execution, result in rescued if execution.worker_has_stopped}
        results = {execution.execution_id: result for execution, result in unused.items()}
        crashed = [_crash(*row) for row in rescued if row[0] not in unused]
        self.reactions.after(connection, [*transitions_of(unused, results), *crashed])


def _statement_for(execution: OpenExecution) -> str:
    """Return the name of the statement that closes an execution. Each is judged by what it has written itself."""
    return "release" if execution.worker_has_stopped else "rescue"


def _crash(execution: OpenExecution, result: TransitionResult) -> JobTransition:
    return ended(
        execution,
        result,
        Ending.CRASHED,
        is_due=True,
        error=LEASE_RAN_OUT,
        is_rescued=True,
        limit_key=execution.limit_key,
    )
