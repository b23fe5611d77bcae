"""Close a batch for an operator, and write the audit. The admin and `manage.py pgqueue batch` call it."""

from __future__ import annotations

from django.db import connections, transaction

from django_pgqueue.composed.batches import Batch
from django_pgqueue.lifecycle.audit import add_audit

from . import CLOSE_BATCH


def close_batch(batch: Batch, *, by: str) -> bool:
    """Close a batch, so that it completes when its last job has ended. Return whether it was open."""
    with transaction.atomic(using=batch.database):
        was_open = batch.close()
        if was_open:
            add_audit(connections[batch.database], CLOSE_BATCH.name, {"batch_id": batch.id}, [], done_by=by)
    return was_open
