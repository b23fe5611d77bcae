"""Undo the finished steps of dead and cancelled jobs: add the jobs of their compensations, the last step's first.

`ends.compensations` calls these functions. They protect one invariant: each compensation is added once, and after those
of all later steps have succeeded. The order is decided from rows, so a crash or an end by another path cannot break it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial
from typing import Final, NamedTuple

from django_pgqueue import sql
from django_pgqueue.db.statements import Connection, execute, numbers
from django_pgqueue.declared.steps import CompensationUnfinished

from .enqueueing import stored_job
from .execute import TRANSIENT_EXCEPT_LOCKS, idle_wait, transaction_with_retry
from .refused_rows import Refused, divided
from .unique import add_jobs

FORGET_LIMIT: Final = 1000
"""Jobs whose compensations one statement forgets."""


class AddedCompensation(NamedTuple):
    """The job of a compensation that was added."""

    compensated_id: int
    """Id of the job whose step it undoes."""
    job_id: int
    task_name: str
    queue_name: str


class Compensated(NamedTuple):
    """The result of `compensate()`. The database `refused` to write the compensations of these jobs."""

    added: list[AddedCompensation]
    refused: list[Refused[int]]


def compensate(connection: Connection, job_ids: Iterable[int]) -> Compensated:
    """Add the next compensation of each of these jobs that is dead or cancelled, if none of it is unfinished.

    Those of jobs that have succeeded are forgotten. Jobs that another session has locked are left to the sweep.
    """
    parts = divided(connection, sorted(set(job_ids)), partial(_compensate, connection))
    return Compensated([each for each in parts.answers.values() if each is not None], parts.refused)


def _compensate(connection: Connection, job_ids: Collection[int]) -> dict[int, AddedCompensation | None]:
    def compensate_once() -> dict[int, AddedCompensation | None]:
        params = {"job_ids": numbers(job_ids), "idle_wait": idle_wait(connection)}
        rows = execute(connection, sql.sagas.COMPENSATE, params)
        jobs = {job_id: stored_job(call, arguments) for _, job_id, call, arguments in rows}
        add_jobs(connection, jobs)
        return dict.fromkeys(job_ids) | {
            ended_id: AddedCompensation(ended_id, job_id, jobs[job_id].task_name, jobs[job_id].queue_name)
            for ended_id, job_id, *_ in rows
        }

    return transaction_with_retry(connection, compensate_once, TRANSIENT_EXCEPT_LOCKS)


def pending_sagas(connection: Connection, after_id: int, limit: int) -> list[int]:
    """Return up to `limit` jobs behind `after_id` with compensations that are neither added nor forgotten."""
    rows = execute(connection, sql.sagas.PENDING_SAGAS, {"after_id": after_id, "limit": limit})
    return [row[0] for row in rows]


def forget_compensations(connection: Connection) -> int:
    """Forget all compensations that are not added yet, a page of jobs at a time. Return their number."""
    count, after_id = 0, 0
    while job_ids := pending_sagas(connection, after_id, FORGET_LIMIT):
        [(forgotten,)] = execute(connection, sql.sagas.FORGET_COMPENSATIONS, {"job_ids": numbers(job_ids)})
        count, after_id = count + forgotten, job_ids[-1]
    return count


def is_compensating(connection: Connection, job_id: int) -> bool:
    """Return whether the compensation of a job has begun and is not over."""
    return bool(execute(connection, sql.sagas.IS_COMPENSATING, {"job_id": job_id}))


def check_compensation(connection: Connection, job_id: int) -> None:
    """Raise `CompensationUnfinished` if this is why a job was not retried."""
    if is_compensating(connection, job_id):
        raise CompensationUnfinished(
            f"job {job_id} cannot be retried while its steps are compensated: retry it when the job of the last "
            "compensation has succeeded, and retry or delete a compensation that is dead"
        )
