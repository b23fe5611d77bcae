"""Requeue jobs that are `running` without an open execution.

The worker's maintenance calls this once an hour. No worker runs such a job, so without this it would stay `running`
forever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from django_pgqueue import sql
from django_pgqueue.db.statements import Connection, execute, numbers, sparse

from .completions import as_returned
from .execute import execute_with_retry
from .refused_rows import divided
from .types import OpenExecution, TransitionResult

PAGE: Final = 10_000
"""Jobs that one call reads, by id."""


class Requeued(NamedTuple):
    """The jobs of one page that were requeued, and the last id of the page, or None after the last page."""

    requeued: list[tuple[OpenExecution, TransitionResult]]
    last_id: int | None


def requeue(
    connection: Connection,
    delay_for: Callable[[OpenExecution], float | None],
    *,
    worker_id: int,
    after_id: int = 0,
    error: str,
    limit: int = PAGE,
) -> Requeued:
    """Requeue the running jobs without an open execution among the `limit` jobs that follow `after_id`.

    `delay_for` returns the delay as for `rescue()`. The lost attempt counts. A claim writes the job and its execution
    in one statement, so this function sees both rows of a claim that is just committing, or neither.
    """
    rows = execute(connection, sql.stranded.ABANDONED, {"after_id": after_id, "limit": limit})
    found = [(0, *row[1:7], False, 0.0, None, False) for row in rows if row[1] is not None]
    abandoned = {row[1]: OpenExecution._make(row) for row in found}
    delays = {job_id: delay_for(job) for job_id, job in abandoned.items()}

    def transition(job_ids: Sequence[int]) -> dict[int, TransitionResult]:
        params = {
            "job_ids": numbers(job_ids),
            "attempts": numbers(abandoned[job_id].attempt for job_id in job_ids),
            "delays_seconds": sparse([delays[job_id] for job_id in job_ids]),
            "worker_id": worker_id,
            "error": error,
        }
        return as_returned(execute_with_retry(connection, sql.stranded.REQUEUE, params))

    done = divided(connection, sorted(abandoned), transition).answers
    return Requeued([(abandoned[job_id], result) for job_id, result in done.items()], rows[0][0])
