"""Pauses: what workers leave alone. On the operator's connection, in whatever transaction is open there."""

from __future__ import annotations

from datetime import datetime

from django_pgqueue import sql
from django_pgqueue.db import Connection, execute
from django_pgqueue.states import Pausable


def pause(
    connection: Connection,
    kind: Pausable,
    name: str,
    *,
    until: datetime | None = None,
    for_seconds: float | None = None,
    paused_by: str = "",
    reason: str = "",
) -> None:
    """Pause a queue or a task until an instant, for so long, or until it is resumed; again: as told now."""
    when = {"until": until, "for_seconds": for_seconds}
    who = {"paused_by": paused_by, "reason": reason}
    execute(connection, sql.PAUSE, {"kind": kind.value, "name": name, **when, **who})


def resume(connection: Connection, kind: Pausable, name: str) -> bool:
    """End a pause; say whether there was one, that had not ended by itself."""
    rows = execute(connection, sql.RESUME, {"kind": kind.value, "name": name})
    return bool(rows and rows[0][0])


def prune_pauses(connection: Connection, older_than_seconds: float) -> None:
    """Forget pauses that ended by themselves so long ago."""
    execute(connection, sql.PRUNE_PAUSES, {"older_than_seconds": older_than_seconds})
