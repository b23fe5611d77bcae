"""The words for the states of a batch, which its times decide. The admin and `manage.py pgqueue batch` use them."""

from __future__ import annotations

from typing import Final

from .batches import JobBatch

OPEN: Final = "open"
RUNNING: Final = "running"
COMPLETE: Final = "complete"
FAILED: Final = "failed"
SUCCEEDED: Final = "succeeded"
CONDITIONS: Final[dict[str, dict[str, bool]]] = {
    OPEN: {"completed_at__isnull": True, "closed_at__isnull": True},
    RUNNING: {"completed_at__isnull": True, "closed_at__isnull": False},
    FAILED: {"succeeded_at__isnull": True, "failed_at__isnull": False},
    SUCCEEDED: {"succeeded_at__isnull": False},
    COMPLETE: {"completed_at__isnull": False},
}
"""The batches in each state, with the conditions of partial indexes: those of a state can be few among many.

A failed batch is also open, running or complete.
"""


def stage_of(batch: JobBatch) -> str:
    """Return whether a batch is open, closed with unfinished jobs, or complete."""
    if batch.completed_at is not None:
        return COMPLETE
    return OPEN if batch.closed_at is None else RUNNING


def word_of(batch: JobBatch) -> str:
    """Return the word for the state of a batch. `failed_at` stays after a repair, so success comes first."""
    if batch.succeeded_at is not None:
        return SUCCEEDED
    return stage_of(batch) if batch.failed_at is None else FAILED
