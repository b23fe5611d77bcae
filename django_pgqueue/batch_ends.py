"""Decide which batches have failed, completed or succeeded, and react: announce the callbacks, and look at the parents.

The worker calls `settle()` after it has written the ends of jobs, and applications when they close a batch. The sweep
of the maintenance calls `sweep()`, which finds the batches whose jobs have ended in another way, and those that a
process had no time for before it died. Each call sees what its caller has committed. So the last one of several
sessions that end jobs of a batch sees all ends, and no end is missed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from . import lifecycle, signals
from .db.engine_connection import EngineConnection
from .db.notifications import wake_workers
from .db.statements import Connection
from .lifecycle.batches import BatchEvent
from .reactions import after_enqueue

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from .signals import TaskSignal

SWEEP_LIMIT: Final = 1000
"""Batches that one page of the sweep looks at."""
ENDINGS: Final = frozenset({"complete", "success"})
"""The events after which the parent of a batch may end."""

Publish = Callable[["TaskSignal", str | None, dict[str, Any]], None]
"""Sends a signal: its arguments are the signal, the sender and the arguments of the receivers."""


def send_now(signal: TaskSignal, task_name: str | None, arguments: dict[str, Any]) -> None:
    """Send a signal in this thread. Django logs the errors of receivers."""
    signal.send_robust(sender=task_name, **arguments)


class Settled(NamedTuple):
    """The result of `settle()`.

    These batches were not ended: another session has `locked` them or time was up, or the database `refused` to write
    their ends.
    """

    locked: set[int]
    refused: list[lifecycle.Refused[int]]
    callbacks: int
    """How many jobs were added."""

    def raise_refused(self) -> None:
        """Raise the error of the first batch that the database refused to end."""
        if self.refused:
            raise self.refused[0].error


def settle(connection: Connection, batch_ids: Iterable[int], publish: Publish = send_now) -> Settled:
    """Record the ends of these batches and then those of their parents, and add the jobs of their callbacks."""
    locked: set[int] = set()
    refused: list[lifecycle.Refused[int]] = []
    callbacks = 0
    waiting = set(batch_ids)
    while waiting:
        over = lifecycle.batches.batches_to_end(connection, waiting)
        waiting = set()
        parts = lifecycle.divided(connection, over, partial(_end, connection))
        refused += parts.refused
        locked |= set(parts.left)
        for batch_id, events in parts.answers.items():
            if events is None:
                locked.add(batch_id)
                continue
            callbacks += _announce(connection, events, publish)
            waiting |= {each.parent_id for each in events if each.name in ENDINGS and each.parent_id is not None}
    return Settled(locked, refused, callbacks)


def _end(connection: Connection, batch_ids: Collection[int]) -> dict[int, list[BatchEvent] | None]:
    return lifecycle.batches.end_batches(connection, batch_ids)


def _announce(connection: Connection, events: Iterable[BatchEvent], publish: Publish) -> int:
    """Wake the workers for the callbacks of one batch, and send `job_enqueued` for each. Return their number."""
    added = [
        (each.job_id, each.job.task_name, each.job.queue_name)
        for each in events
        if each.job_id is not None and each.job is not None
    ]
    if added and isinstance(connection, EngineConnection):
        wake_workers(connection)
    for job_id, task_name, queue_name in added:
        if not isinstance(connection, EngineConnection):
            after_enqueue(cast("BaseDatabaseWrapper", connection), task_name, queue_name, [job_id])
        elif signals.job_enqueued.receivers:
            about = {"job_id": job_id, "database": connection.alias, "queue_name": queue_name}
            publish(signals.job_enqueued, task_name, about)
    return len(added)


class Swept(NamedTuple):
    """The result of one page of the sweep. `last_id` is the end of the page, or None after the last."""

    settled: Settled
    last_id: int | None
    is_empty: bool
    """Whether the page had no batch."""


def sweep(
    connection: Connection, after_id: int = 0, publish: Publish = send_now, *, with_complete: bool = False
) -> Swept:
    """Look at one page of the batches that are not complete, behind the batch `after_id`.

    `with_complete`: look also at those that are complete and have not succeeded. An operator's retry can have repaired
    them. Batches that failed are kept for weeks, so this is for rare sweeps.
    """
    read = lifecycle.batches.unsettled_batches if with_complete else lifecycle.batches.incomplete_batches
    page = read(connection, after_id, SWEEP_LIMIT)
    return Swept(settle(connection, page, publish), page[-1] if len(page) == SWEEP_LIMIT else None, not page)
