"""Pause and resume queues, tasks and limits, in the transaction that is open on the operator's connection.

`control.queues` calls these functions. They protect one invariant: each pause and each end by an operator is in the
audit, because both are written together. A pause changes no job: workers skip what is paused when they claim.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from django_pgqueue import sql
from django_pgqueue.db.statements import Connection, execute
from django_pgqueue.states import Pausable

from .audit import add_audit
from .ranges import rows_in_ranges

COLUMNS: Final = {Pausable.QUEUE: "queue_name", Pausable.TASK: "task_name", Pausable.LIMIT: "limit_key"}
"""The column of jobs with the name of what is paused, for each kind."""


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
    """Pause a queue, a task or a limit: until a time, during a number of seconds, or until `resume()`.

    Call it in a transaction. If it is paused already, the new end, `paused_by` and `reason` replace the old ones. With
    `only_new`, nothing changes then. Return whether this call has paused it.
    """
    end = {"until": until, "for_seconds": for_seconds}
    note = {"paused_by": paused_by, "reason": reason, "only_new": only_new}
    rows = execute(connection, sql.pauses.PAUSE, {"kind": kind.value, "name": name, **end, **note})
    if not rows:
        return False
    ends_at, *former = rows[0]
    chosen = {COLUMNS[kind]: name, "until": ends_at and ends_at.isoformat(), "paused": _as_json(*former)}
    add_audit(connection, "pause", _set(chosen), [], done_by=paused_by, reason=reason)
    return True


def resume(connection: Connection, kind: Pausable, name: str, *, resumed_by: str = "", reason: str = "") -> bool:
    """End a pause; return whether there was one that had not ended by itself. Call it in a transaction."""
    rows = execute(connection, sql.pauses.RESUME, {"kind": kind.value, "name": name})
    for pause in rows:
        chosen = {COLUMNS[kind]: name, "paused": _as_json(*pause)}
        add_audit(connection, "resume", chosen, [], done_by=resumed_by, reason=reason)
    return bool(rows)


def _as_json(paused_at: datetime | None, until: datetime | None, by: str) -> dict[str, Any] | None:
    """Return a pause that ends or is replaced as the audit stores it; None if there was none."""
    if paused_at is None:
        return None
    return _set({"by": by or None, "since": paused_at.isoformat(), "until": until and until.isoformat()})


def _set(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def prune_pauses(connection: Connection, older_than_seconds: float) -> None:
    """Remove pauses that ended by themselves more than `older_than_seconds` ago."""
    params = {"older_than_seconds": older_than_seconds}
    rows_in_ranges(connection, "the removal of pause", sql.pauses.PRUNE_PAUSES, params)
