"""The duty of the maintenance for compensations: find the jobs that no completion has found.

A worker that dies after a completion leaves their compensations undone, and operators, rescues and expiries end jobs
without a completion. The sweep looks at all jobs that have a compensation which is neither enqueued nor forgotten.
"""

from __future__ import annotations

import time

from django_pgqueue import batch_ends, sagas
from django_pgqueue.worker.completion.compensation_checks import log_refused
from django_pgqueue.worker.runtime.connection import ConnectionSource

from .batch_duties import PAUSE_FACTOR
from .sweeps import UNUSED_SECONDS


class SagaDuty:
    """The position of one process in its walk over these jobs. `publish` sends the signals of the added jobs."""

    def __init__(self, link: ConnectionSource, publish: batch_ends.Publish) -> None:
        self._link = link
        self._publish = publish
        self._after_id = 0

    def sweep(self) -> bool | float:
        """Enqueue the next compensations of one page. Return whether there is more, or in how many seconds."""
        began, is_first = time.monotonic(), not self._after_id
        with self._link.use() as connection:
            swept = sagas.sweep(connection, self._after_id, log_refused, self._publish)
        self._after_id = swept.last_id or 0
        if is_first and swept.is_empty:
            return UNUSED_SECONDS
        return PAUSE_FACTOR * (time.monotonic() - began) if self._after_id else False
