"""How many jobs are counted, and how many come before them. Imported before Django."""

from typing import Final

BATCH: Final = 100
"""The jobs of one claim, of one completion, and of one `enqueue_many()`."""
WARM_BATCHES: Final = 3
"""Batches that run before the count begins: they fill caches and prepare statements."""
