"""Release executions without counting the attempt. A job whose cancellation was requested ends as cancelled instead.

The fetcher, the lease monitor and a stopping process call this. An execution whose release the database refuses stays
open: the release is retried, or the lease expires and the job is rescued.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from django_pgqueue import lifecycle
from django_pgqueue.db.statements import Connection
from django_pgqueue.endings import Ending
from django_pgqueue.lifecycle import ExecutionKey, Released, TransitionResult
from django_pgqueue.reactions import ExecutionInfo, JobTransition, Reactions, ended
from django_pgqueue.worker.execution.events import FOREGROUND
from django_pgqueue.worker.runtime.refusals import Refusals

refusals: Final = Refusals("the release of execution")


class Releasable(ExecutionInfo, Protocol):
    """A claimed job, or an open execution as the database reports it."""

    @property
    def key(self) -> ExecutionKey: ...


def release_executions(
    connection: Connection, executions: Sequence[Releasable], reactions: Reactions = FOREGROUND
) -> dict[int, TransitionResult]:
    """Release these executions in one statement, and react to that.

    Return the result for each execution, without those whose release the database refuses, or that time was up for.
    """
    if not executions:
        return {}
    rows = [Released(execution.key) for execution in executions]
    results, refused, _ = lifecycle.divided(connection, rows, lambda part: lifecycle.release(connection, part))
    for row, error in refused:
        refusals.note(row.key.execution_id, error)
    reactions.after(connection, transitions_of(executions, results))
    return results


def transitions_of(executions: Iterable[Releasable], results: Mapping[int, TransitionResult]) -> list[JobTransition]:
    """Return the transitions of released executions. Jobs that were due at their claim are due now."""
    return [
        ended(execution, results[execution.execution_id], Ending.RELEASED, is_due=True)
        for execution in executions
        if execution.execution_id in results
    ]
