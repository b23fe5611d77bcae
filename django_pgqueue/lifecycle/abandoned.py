"""Taking back running jobs that no execution is open for: nobody holds them, and nothing else would end them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from django_pgqueue import sql
from django_pgqueue.db import Connection, execute
from django_pgqueue.states import State

from .arrays import numbers, sparse
from .persistence import divided, persistently
from .values import Fate, Held, Moved

PAGE: Final = 10_000
"""Jobs that one look walks over."""


class Requeued(NamedTuple):
    """What one page brought: the jobs taken back, and its last id, None if it was the last page."""

    requeued: list[tuple[Held, Moved]]
    last_id: int | None


def requeue(
    connection: Connection,
    delay_for: Callable[[Held], float | None],
    *,
    worker_id: int,
    after_id: int = 0,
    error: str,
    limit: int = PAGE,
) -> Requeued:
    """Make running jobs without an open execution ready again, of the page of jobs after an id.

    `delay_for` decides as for `rescue()`. The attempt counts. A claim writes job and execution in one statement, so a
    claim that is just committing is seen whole or not at all.
    """
    rows = execute(connection, sql.ABANDONED, {"after_id": after_id, "limit": limit})
    lost = {row[1]: Held._make((0, *row[1:7], False, 0.0)) for row in rows if row[1] is not None}
    delays = {job_id: delay_for(held) for job_id, held in lost.items()}

    def act(job_ids: Sequence[int]) -> dict[int, Moved]:
        params = {
            "job_ids": numbers(job_ids),
            "attempts": numbers(lost[job_id].attempt for job_id in job_ids),
            "delays_seconds": sparse([delays[job_id] for job_id in job_ids]),
            "worker_id": worker_id,
            "error": error,
        }
        return {key: Moved(Fate.DONE, State(state)) for key, state in persistently(connection, sql.REQUEUE, params)}

    done = divided(connection, sorted(lost), act).answers
    return Requeued([(lost[job_id], moved) for job_id, moved in done.items()], rows[0][0])
