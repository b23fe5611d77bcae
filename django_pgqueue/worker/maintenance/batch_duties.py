"""The duties of the maintenance for batches: find the ends that no completion has found, and remove old batches.

A worker that dies after a completion leaves the check of the batch undone, and operators, rescues and expiries end jobs
without one. The sweep looks at all batches that are not complete, so it finds those ends, whatever has caused them.
"""

from __future__ import annotations

import time
from typing import Final

from django_pgqueue import batch_ends, lifecycle
from django_pgqueue.conf import get_settings
from django_pgqueue.worker.completion.batch_checks import log_refused
from django_pgqueue.worker.runtime.connection import ConnectionSource

from .sweeps import UNUSED_SECONDS

PAUSE_FACTOR: Final = 10
"""How many times as long as a page takes the sweep waits before the next one."""


class BatchDuties:
    """The positions of one process in its walks over the batches. `publish` sends the signals of callbacks.

    Each method returns whether there is more to do, or in how many seconds.
    """

    def __init__(self, link: ConnectionSource, publish: batch_ends.Publish) -> None:
        self._link = link
        self._publish = publish
        self._swept_id = self._swept_complete_id = self._pruned_id = 0

    def sweep(self) -> bool | float:
        """Find the ends of one page of the batches that are not complete."""
        began, is_first = time.monotonic(), not self._swept_id
        swept = self._sweep(self._swept_id)
        self._swept_id = swept.last_id or 0
        if is_first and swept.is_empty:
            return UNUSED_SECONDS
        return PAUSE_FACTOR * (time.monotonic() - began) if self._swept_id else False

    def sweep_complete(self) -> bool | float:
        """Find those of one page of batches that an operator's retry has repaired, if no completion has found them."""
        began = time.monotonic()
        self._swept_complete_id = self._sweep(self._swept_complete_id, with_complete=True).last_id or 0
        return PAUSE_FACTOR * (time.monotonic() - began) if self._swept_complete_id else False

    def _sweep(self, after_id: int, *, with_complete: bool = False) -> batch_ends.Swept:
        with self._link.use() as connection:
            swept = batch_ends.sweep(connection, after_id, self._publish, with_complete=with_complete)
        log_refused(swept.settled)
        return swept

    def prune(self) -> bool:
        """Remove the old batches without jobs of one page."""
        with self._link.use() as connection:
            retention_seconds = get_settings().BATCH_RETENTION
            last_id = lifecycle.batches.prune_batches(connection, retention_seconds, self._pruned_id).last_id
        self._pruned_id = last_id or 0
        return last_id is not None
