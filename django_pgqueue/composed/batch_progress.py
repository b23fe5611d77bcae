"""The progress of batches, counted from the rows of their jobs. `batches` and the admin use it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from django_pgqueue.db.statements import Connection
from django_pgqueue.lifecycle import batches


class BatchProgress(NamedTuple):
    """How many jobs a batch and the batches nested in it have, by state. Jobs that were removed are counted too."""

    ready: int = 0
    running: int = 0
    succeeded: int = 0
    dead: int = 0
    cancelled: int = 0
    waiting: int = 0
    """Jobs of workflows that wait for others."""

    @property
    def finished(self) -> int:
        """Jobs that have ended."""
        return self.succeeded + self.dead + self.cancelled

    @property
    def total(self) -> int:
        """All jobs that were added so far."""
        return self.waiting + self.ready + self.running + self.finished

    @property
    def fraction(self) -> float:
        """The part of the jobs that have ended, from 0 to 1. 0 without jobs."""
        return self.finished / self.total if self.total else 0.0


def progress_of(connection: Connection, batch_ids: Iterable[int]) -> dict[int, BatchProgress]:
    """Return the progress of several batches, by id, with one query."""
    counted = batches.count_jobs(connection, batch_ids)
    return {batch_id: BatchProgress(**counts) for batch_id, counts in counted.items()}
