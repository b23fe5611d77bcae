"""The duties of the maintenance for batches: find the ends that no completion has found, and remove old batches.

A worker that dies after a completion leaves the check of the batch undone, and operators, rescues and expiries end jobs
without one. The sweep looks at all batches that have not succeeded, so it finds those ends, whatever has caused them.
"""

from __future__ import annotations

from typing import Final

from django_pgqueue import batch_ends, lifecycle
from django_pgqueue.conf import get_settings
from django_pgqueue.worker.completion.batch_checks import log_refused
from django_pgqueue.worker.runtime.connection import ConnectionSource

SWEEP_SECONDS: Final = 10.0
"""How often each worker process looks at all batches that have not succeeded."""


class BatchDuties:
    """The positions of one process in its walks over the batches. `publish` sends the signals of callbacks."""

    def __init__(self, link: ConnectionSource, publish: batch_ends.Publish) -> None:
        self._link = link
        self._publish = publish
        self._swept_id = self._pruned_id = 0

    def sweep(self) -> bool:
        """Find the ends of one page of batches. Return whether there are more pages."""
        with self._link.use() as connection:
            settled, last_id = batch_ends.sweep(connection, self._swept_id, self._publish)
        log_refused(settled)
        self._swept_id = last_id or 0
        return last_id is not None

    def prune(self) -> bool:
        """Remove the old batches without jobs of one page. Return whether there are more pages."""
        with self._link.use() as connection:
            retention_seconds = get_settings().BATCH_RETENTION
            last_id = lifecycle.batches.prune_batches(connection, retention_seconds, self._pruned_id).last_id
        self._pruned_id = last_id or 0
        return last_id is not None
