"""Giving back what this process holds, uncounted; a job that somebody asked to cancel ends there instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from django_pgqueue import lifecycle, signals
from django_pgqueue.db import Connection, wake_workers
from django_pgqueue.lifecycle import Moved, Released
from django_pgqueue.states import State

from .events import IN_THIS_THREAD, Events


class Execution(Protocol):
    """A claimed job, or what the database says is held."""

    @property
    def execution_id(self) -> int: ...
    @property
    def job_id(self) -> int: ...
    @property
    def task_name(self) -> str | None: ...


def give_back(connection: Connection, held: Sequence[Execution], events: Events = IN_THIS_THREAD) -> dict[int, Moved]:
    """Release these executions in one statement; wake others for them, and publish which jobs ended cancelled."""
    if not held:
        return {}
    moves = lifecycle.release(connection, [Released(one.execution_id) for one in held])
    for one in held:
        if moves[one.execution_id].state is State.CANCELLED:
            about = {"job_id": one.job_id, "database": connection.alias, "error": ""}
            events.publish(signals.job_cancelled, one.task_name, about)
    wake_workers(connection)
    return moves
