"""Pause and resume queues and tasks, in the transaction that is open on the operator's connection.

`control.queues` calls these functions. A pause changes no job: workers skip paused queues and tasks when they claim.
"""

from __future__ import annotations

from datetime import datetime

from django_pgqueue import sql
from django_pgqueue.db.statements import Connection, execute
from django_pgqueue.states import Pausable

from .ranges import rows_in_ranges


def pause(
    connection: Connection,
    kind: Pausable,
    name: str,
    *,
    until: datetime | None = None,
    for_seconds: float | None = None,
    paused_by: str = "",
    reason: str = "",
    only_new: bool = False,
) -> bool:
    """Pause a queue or a task: until a time, during a number of seconds, or until `resume()`.

    If it is paused already, the new end, `paused_by` and `reason` replace the old ones. With `only_new`, nothing
    changes then. Return whether this call has paused it.
    """
    end = {"until": until, "for_seconds": for_seconds}
    note = {"paused_by": paused_by, "reason": reason, "only_new": only_new}
    return bool(execute(connection, sql.pauses.PAUSE, {"kind": kind.value, "name": name, **end, **note}))


def resume(connection: Connection, kind: Pausable, name: str) -> bool:
    """End a pause; return whether there was one that had not ended by itself."""
    rows = execute(connection, sql.pauses.RESUME, {"kind": kind.value, "name": name})
    return bool(rows and rows[0][0])


def prune_pauses(connection: Connection, older_than_seconds: float) -> None:
    """Remove pauses that ended by themselves more than `older_than_seconds` ago."""
    params = {"older_than_seconds": older_than_seconds}
    rows_in_ranges(connection, "the removal of pause", sql.pauses.PRUNE_PAUSES, params)
