"""Check that a batch takes more jobs, before a job is added to it.

`Task.enqueue()` and `enqueue_many()` call this module for jobs with a batch only. The check locks the batch until the
transaction of the insert ends, so that the batch cannot complete in between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from django_pgqueue import lifecycle
from django_pgqueue.batch_reference import BatchFinished
from django_pgqueue.db.transactions import atomic_unless_open
from django_pgqueue.exceptions import InvalidTask

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_pgqueue.models import Job


def with_open_batch(
    connection: BaseDatabaseWrapper, row: Mapping[str, Any], insert: Callable[[], Job]
) -> Callable[[], Job]:
    """Return the insert of a job after the check of its batch. For a job without a batch, `insert` itself.

    Without an open transaction, the insert opens one.
    """
    return insert if row["batch_id"] is None else partial(_insert, connection, row, insert)


def _insert(connection: BaseDatabaseWrapper, row: Mapping[str, Any], insert: Callable[[], Job]) -> Job:
    with atomic_unless_open(connection):
        check_open(connection, row)
        return insert()


def check_open(connection: BaseDatabaseWrapper, row: Mapping[str, Any]) -> None:
    """Raise `BatchFinished` if the batch of a job is complete, and `InvalidTask` if it does not exist.

    Otherwise the batch stays incomplete until the open transaction ends. Without a batch, send no statement.
    """
    batch_id = row["batch_id"]
    if batch_id is None:
        return
    is_complete = lifecycle.batches.join_batch(connection, batch_id)
    if is_complete is None:
        raise InvalidTask(f"there is no batch {batch_id} in the database {connection.alias!r}: it was removed")
    if is_complete:
        raise BatchFinished(f"batch {batch_id} is complete and takes no more jobs: create a new batch", batch_id)
