"""The class of the values that `using(batch=…)` accepts, and the error if such a batch is complete.

`batches.Batch` is the public subclass. `options` checks the option, and must not import `batches`, which enqueues.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django_pgqueue.exceptions import InvalidTask, QueueError


class BatchFinished(QueueError):
    """A job or a nested batch was added to a batch that is complete. Nothing was written.

    Attributes:
        batch_id: The id of the batch.
    """

    def __init__(self, message: str, batch_id: int) -> None:
        super().__init__(message)
        self.batch_id = batch_id


class BatchReference:
    """A batch, by its id and the alias of its database."""

    __slots__ = ("database", "id")

    def __init__(self, id: int | None, database: str) -> None:  # noqa: A002 -- the name of the attribute
        self.id = id
        self.database = database


def batch_problems(option: str, value: Any) -> Iterator[str]:
    """Yield what is wrong with the value of the option `batch`."""
    if not isinstance(value, BatchReference):
        yield f"{option} must be a Batch, not {type(value).__name__}: Batch.get(id) returns the batch with an id"
    elif value.id is None:
        yield f"{option} is not stored yet: use it in a with statement, or call its open() first"


def check_parent(parent: Any) -> None:
    """Raise an error if a value cannot be the parent of a batch or a workflow."""
    if parent is not None and not isinstance(parent, BatchReference):
        raise TypeError(
            f"parent must be a Batch, not {type(parent).__name__}: pass Batch.get(id), or the batch of a workflow"
        )
    if parent is not None and parent.id is None:
        raise InvalidTask("the parent of a batch is not stored yet: use it in a with statement, or call its open()")
