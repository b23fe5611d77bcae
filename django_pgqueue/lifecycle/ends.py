"""Read what follows the ends of jobs. `ends` calls this for ends that no report of an attempt describes."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from django_pgqueue import sql
from django_pgqueue.db.statements import Connection, numbers

from .execute import TRANSIENT_EXCEPT_LOCKS, execute_with_retry


class EndedJob(NamedTuple):
    """A job that has ended and that something follows. It has what the checks need to know of the job."""

    job_id: int
    batch_id: int | None = None
    in_graph: bool = False
    has_compensations: bool = False
    compensated_id: int | None = None
    """Id of the job whose step this job has undone."""
    is_postponed: bool = False
    """Whether the job has not ended, but has to wait again for the jobs that it depends on."""


def find_ended(connection: Connection, job_ids: Collection[int]) -> list[EndedJob]:
    """Return those of these ended jobs that something follows."""
    params = {"job_ids": numbers(sorted(job_ids))}
    rows = execute_with_retry(connection, sql.ends.FIND_ENDED, params, TRANSIENT_EXCEPT_LOCKS)
    return [EndedJob(*row) for row in rows]
