"""The duties of maintenance that remove rows that nobody needs any more, except those of jobs.

Some tables have rows of jobs that may have been deleted by SQL. A `Walk` reads such a table page by page.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from django_pgqueue import lifecycle, registry
from django_pgqueue.conf import DAY_SECONDS, get_settings
from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.worker.runtime.connection import ConnectionSource

RECORD_SECONDS: Final = 7 * DAY_SECONDS
"""How long the records of stopped workers, ended pauses and ended overrides are kept."""


class Pruned(Protocol):
    """The result of one page. `last_id` is its end, or None after the last."""

    @property
    def last_id(self) -> int | None: ...


def _orphans(name: str, connection: EngineConnection, after_id: int) -> Pruned:
    return lifecycle.prune_orphans(connection, name, after_id)


def _old_batches(connection: EngineConnection, after_id: int) -> Pruned:
    return lifecycle.batches.prune_batches(connection, get_settings().BATCH_RETENTION, after_id)


def _old_events(connection: EngineConnection, after_id: int) -> Pruned:
    return lifecycle.events.prune_events(connection, get_settings().EVENT_RETENTION, after_id)


WALKS: Final[dict[str, Callable[[EngineConnection, int], Pruned]]] = {
    **{name: partial(_orphans, name) for name in lifecycle.ORPHANS},
    "events": _old_events,
    "old batches": _old_batches,
    "limits": lifecycle.limits.prune_limit_states,
}
"""The duties that read a whole table, by their names, each with the function that removes the old rows of a page."""


class Walk:
    """The position of one process in its walk over a table."""

    def __init__(self, link: ConnectionSource, name: str) -> None:
        self._link = link
        self._prune = WALKS[name]
        self._after_id = 0

    def prune(self) -> bool:
        """Remove the old rows of one page. Return whether there is more to do, until the whole table was read."""
        with self._link.use() as connection:
            last_id = self._prune(connection, self._after_id).last_id
        self._after_id = last_id or 0
        return last_id is not None


class OldRows:
    """The duties that remove old rows by an index. Each method returns whether there is more to do."""

    def __init__(self, link: ConnectionSource) -> None:
        self._link = link

    def prune_workers(self) -> bool:
        """Remove the records of workers that stopped a week ago, and their answered requests."""
        with self._link.use() as connection:
            lifecycle.prune_workers(connection, RECORD_SECONDS)
            lifecycle.prune_worker_requests(connection, DAY_SECONDS)
        return False

    def prune_pauses(self) -> bool:
        """Remove the records of pauses that ended a week ago."""
        with self._link.use() as connection:
            lifecycle.prune_pauses(connection, RECORD_SECONDS)
        return False

    def prune_windows(self) -> bool:
        """Remove uniqueness windows that are over."""
        with self._link.use() as connection:
            return lifecycle.prune_windows(connection) >= lifecycle.WINDOWS_PRUNED

    def prune_audit(self) -> bool:
        """Remove entries of the audit that are past their retention."""
        with self._link.use() as connection:
            return lifecycle.prune_audit(connection, get_settings().AUDIT_RETENTION) >= lifecycle.PRUNE_LIMIT

    def prune_breaker_counts(self) -> bool:
        """Remove the counts of circuit breakers that are in no window any more. Without a breaker, do nothing."""
        if not registry.breakers():
            return False
        with self._link.use() as connection:
            return lifecycle.breakers.prune_counts(connection) >= lifecycle.breakers.COUNTS_PRUNED

    def prune_overrides(self) -> bool:
        """Remove overrides of limits and records of circuit breakers that ended a week ago."""
        with self._link.use() as connection:
            lifecycle.limit_overrides.prune_overrides(connection, RECORD_SECONDS)
            lifecycle.breakers.prune_breakers(connection, RECORD_SECONDS)
        return False

    def prune_rollups(self) -> bool:
        """Remove counts of attempts that are past their retention."""
        with self._link.use() as connection:
            return lifecycle.prune_rollups(connection, get_settings().STATS_RETENTION) >= lifecycle.ROLLUPS_MERGED
