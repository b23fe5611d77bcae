"""Giving back what this process holds, uncounted; a job that somebody asked to cancel ends there instead.

A release that the database refuses stays open: it is tried again, or its lease runs out and rescue takes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from django_pgqueue import lifecycle, signals
from django_pgqueue.db import Connection, wake_workers
from django_pgqueue.lifecycle import ExecutionKey, Moved, Released
from django_pgqueue.states import State

from .events import IN_THIS_THREAD, Events
from .refusals import Refusals

refusals: Final = Refusals("the release of execution")


class Execution(Protocol):
    """A claimed job, or what the database says is held."""

    @property
    def execution_id(self) -> int: ...
    @property
    def job_id(self) -> int: ...
    @property
    def task_name(self) -> str | None: ...
    @property
    def key(self) -> ExecutionKey: ...


def give_back(connection: Connection, held: Sequence[Execution], events: Events = IN_THIS_THREAD) -> dict[int, Moved]:
    """Release these executions in one statement; wake others for them, and publish which jobs ended cancelled.

    The answer leaves out the executions whose release the database refuses.
    """
    if not held:
        return {}
    rows = [Released(one.key) for one in held]
    moves, refused = lifecycle.divided(connection, rows, lambda part: lifecycle.release(connection, part))
    for row, error in refused:
        refusals.note(row.key.execution_id, error)
    for one in held:
        if one.execution_id in moves:
            publish_cancelled(one, moves[one.execution_id], connection.alias, events)
    wake_workers(connection)
    return moves


def publish_cancelled(one: Execution, moved: Moved, database: str, events: Events = IN_THIS_THREAD) -> None:
    """Publish that a job ended cancelled, if it did so instead of being released."""
    if moved.state is State.CANCELLED:
        about = {"job_id": one.job_id, "database": database, "error": ""}
        events.publish(signals.job_cancelled, one.task_name, about)
