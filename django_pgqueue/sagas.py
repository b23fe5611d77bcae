"""Undo the finished steps of jobs that end dead or cancelled, and react: wake the workers for the compensations.

The worker calls `compensate()` after it has written the ends of jobs, and the sweep of the maintenance calls `sweep()`,
which finds the jobs that have ended in another way, and those that a process had no time for before it died.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from . import lifecycle, signals
from .batch_ends import Publish, send_now
from .db.engine_connection import EngineConnection
from .db.notifications import wake_workers
from .db.statements import Connection
from .lifecycle import sagas as compensations
from .reactions import after_enqueue

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

HEADER: Final = "pgqueue_compensates"
"""Header of the job of a compensation: the id of the job whose step it undoes."""
SWEEP_LIMIT: Final = 1000
"""Jobs that one page of the sweep looks at."""

OnRefused = Callable[[list[lifecycle.Refused[int]]], None]
"""Gets the jobs whose compensations the database refuses."""


def compensated_id(headers: str | None) -> int | None:
    """Return the id of the job that a compensation with these headers undoes. None: it is no compensation."""
    if headers is None or HEADER not in headers:
        return None
    value = json.loads(headers).get(HEADER)
    return value if isinstance(value, int) else None


def compensate(
    connection: Connection, job_ids: Iterable[int], on_refused: OnRefused, publish: Publish = send_now
) -> int:
    """Add the next compensations of these jobs, and announce them. Return their number."""
    done = compensations.compensate(connection, job_ids)
    if done.refused:
        on_refused(done.refused)
    if done.added and isinstance(connection, EngineConnection):
        wake_workers(connection)
    for each in done.added:
        if not isinstance(connection, EngineConnection):
            after_enqueue(cast("BaseDatabaseWrapper", connection), each.task_name, each.queue_name, [each.job_id])
        elif signals.job_enqueued.receivers:
            about: dict[str, Any] = {
                "job_id": each.job_id,
                "database": connection.alias,
                "queue_name": each.queue_name,
            }
            publish(signals.job_enqueued, each.task_name, about)
    return len(done.added)


class Swept(NamedTuple):
    """The result of one page of the sweep. `last_id` is the end of the page, or None after the last."""

    added: int
    last_id: int | None
    is_empty: bool
    """Whether the page had no job."""


def sweep(connection: Connection, after_id: int, on_refused: OnRefused, publish: Publish = send_now) -> Swept:
    """Look at one page of the jobs with compensations that are neither added nor forgotten, behind `after_id`."""
    page = compensations.pending_sagas(connection, after_id, SWEEP_LIMIT)
    added = compensate(connection, page, on_refused, publish) if page else 0
    return Swept(added, page[-1] if len(page) == SWEEP_LIMIT else None, not page)
