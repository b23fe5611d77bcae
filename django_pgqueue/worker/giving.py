"""Giving back what this process holds, uncounted; a job that somebody asked to cancel ends there instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from django_pgqueue import lifecycle, signals
from django_pgqueue.db import Connection, wake_workers
from django_pgqueue.lifecycle import Moved, Released
from django_pgqueue.states import State


class Execution(Protocol):
    """A claimed job, or what the database says is held."""

    @property
    def execution_id(self) -> int: ...
    @property
    def job_id(self) -> int: ...
    @property
    def task_name(self) -> str | None: ...


def give_back(connection: Connection, held: Sequence[Execution]) -> dict[int, Moved]:
    """Release these executions in one statement; wake others for them, and tell of the jobs that ended cancelled."""
    if not held:
        return {}
    moves = lifecycle.release(connection, [Released(one.execution_id) for one in held])
    for one in held:
        tell_cancelled(one, moves[one.execution_id], connection.alias)
    wake_workers(connection)
    return moves


def tell_cancelled(one: Execution, moved: Moved, database: str) -> None:
    """Send `job_cancelled` if a job ended so instead of being released."""
    if moved.state is State.CANCELLED:
        signals.job_cancelled.send_robust(sender=one.task_name, job_id=one.job_id, database=database, error="")
