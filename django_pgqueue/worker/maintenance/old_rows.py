"""The duties of maintenance that remove rows that nobody needs any more, except those of jobs and steps.

Some tables have rows of jobs that may have been deleted by SQL. These duties walk over such a table page by page.
"""

from __future__ import annotations

from typing import Final

from django_pgqueue import lifecycle, registry
from django_pgqueue.conf import DAY_SECONDS, get_settings
from django_pgqueue.worker.runtime.connection import ConnectionSource

RECORD_SECONDS: Final = 7 * DAY_SECONDS
"""How long the records of stopped workers, ended pauses and ended overrides are kept."""


class OldRows:
    """The positions of one process in its walks over these tables. Each method returns whether there is more to do."""

    def __init__(self, link: ConnectionSource) -> None:
        self._link = link
        self._logs_after_id = self._audited_after_id = self._keys_after_id = self._limits_after_id = 0
        self._edges_after_id = self._batches_after_id = 0

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

    def prune_logs(self) -> bool:
        """Remove the log lines of removed jobs: one page per call, the whole table once an hour."""
        with self._link.use() as connection:
            last_id = lifecycle.prune_logs(connection, self._logs_after_id).last_id
        self._logs_after_id = last_id or 0
        return last_id is not None

    def prune_audit(self) -> bool:
        """Remove old entries of the audit, and the rows of removed jobs: one page of each per call."""
        with self._link.use() as connection:
            removed = lifecycle.prune_audit(connection, get_settings().AUDIT_RETENTION)
            last_id = lifecycle.prune_audited_jobs(connection, self._audited_after_id).last_id
        self._audited_after_id = last_id or 0
        return last_id is not None or removed >= lifecycle.PRUNE_LIMIT

    def prune_search_keys(self) -> bool:
        """Remove the search keys of jobs that were deleted by SQL: one page per call, the whole table once an hour."""
        with self._link.use() as connection:
            last_id = lifecycle.prune_search_keys(connection, self._keys_after_id).last_id
        self._keys_after_id = last_id or 0
        return last_id is not None

    def prune_dependencies(self) -> bool:
        """Remove the edges of jobs that were deleted by SQL: one page per call, the whole table once an hour."""
        with self._link.use() as connection:
            last_id = lifecycle.graphs.prune_dependencies(connection, self._edges_after_id).last_id
        self._edges_after_id = last_id or 0
        return last_id is not None

    def prune_batches(self) -> bool:
        """Remove the old batches without jobs of one page."""
        with self._link.use() as connection:
            retention_seconds = get_settings().BATCH_RETENTION
            last_id = lifecycle.batches.prune_batches(connection, retention_seconds, self._batches_after_id).last_id
        self._batches_after_id = last_id or 0
        return last_id is not None

    def prune_limit_states(self) -> bool:
        """Remove the states of unused limit keys: one page per call, the whole table once an hour."""
        with self._link.use() as connection:
            last_id = lifecycle.limits.prune_limit_states(connection, self._limits_after_id).last_id
        self._limits_after_id = last_id or 0
        return last_id is not None

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
