"""Release executions without counting the attempt. A job whose cancellation was requested ends as cancelled instead.

The fetcher, the lease monitor and a stopping process call this. An execution whose release the database refuses stays
open: the release is retried, or the lease expires and the job is rescued.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from django_pgqueue import lifecycle, signals
from django_pgqueue.db.notifications import wake_workers
from django_pgqueue.db.statements import Connection
from django_pgqueue.lifecycle import ExecutionKey, Moved, Released
from django_pgqueue.states import State
from django_pgqueue.worker.runtime.refusals import Refusals

from .events import IN_THIS_THREAD, Events

refusals: Final = Refusals("the release of execution")


class Execution(Protocol):
    """A claimed job, or an open execution as the database reports it."""

    @property
    def execution_id(self) -> int: ...
    @property
    def job_id(self) -> int: ...
    @property
    def task_name(self) -> str | None: ...
    @property
    def key(self) -> ExecutionKey: ...


def give_back(
    connection: Connection, executions: Sequence[Execution], events: Events = IN_THIS_THREAD
) -> dict[int, Moved]:
    """Release these executions in one statement, publish the jobs that ended as cancelled, and wake other workers.

    Return the result for each execution, without those whose release the database refuses.
    """
    if not executions:
        return {}
    rows = [Released(execution.key) for execution in executions]
    moves, refused = lifecycle.divided(connection, rows, lambda part: lifecycle.release(connection, part))
    for row, error in refused:
        refusals.note(row.key.execution_id, error)
    for execution in executions:
        if execution.execution_id in moves:
            publish_cancelled(execution, moves[execution.execution_id], connection.alias, events)
    wake_workers(connection)
    return moves


def publish_cancelled(execution: Execution, moved: Moved, database: str, events: Events = IN_THIS_THREAD) -> None:
    """Publish that a job ended as cancelled, if its release did that."""
    if moved.state is State.CANCELLED:
        about = {"job_id": execution.job_id, "database": database, "error": ""}
        events.publish(signals.job_cancelled, execution.task_name, about)
