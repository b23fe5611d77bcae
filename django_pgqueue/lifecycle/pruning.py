"""Remove finished jobs past their retention, with their executions.

The worker's pruner and `manage.py pgqueue prune` call these functions. Only finished jobs are removed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from django_pgqueue import sql
from django_pgqueue.db.statements import Connection, execute
from django_pgqueue.states import State

from .execute import FAILURES, divided, execute_with_retry, may_divide, savepoint
from .types import EPOCH, Pruned

PRUNE_LIMIT: Final = 1000
"""Jobs that one prune statement removes at most."""


class Prunable(NamedTuple):
    """How many jobs past their retention a prune removes, and how many stay because unfinished work needs them."""

    removable: int
    kept: int


def _ignore(row_id: int, error: Exception) -> None:
    """Ignore a row that the database refuses to write."""


def prune(
    connection: Connection,
    state: State,
    retention_seconds: float,
    *,
    task_name: str | None = None,
    other_task_names: Sequence[str] = (),
    mark: datetime = EPOCH,
    limit: int = PRUNE_LIMIT,
    on_refused: Callable[[int, Exception], None] = _ignore,
) -> Pruned:
    """Remove up to `limit` jobs in a finished state that are older than the retention, with their executions.

    With `task_name`, remove jobs of this task only. Without it, remove all but those of `other_task_names`, which have
    a retention of their own. If the database refuses to remove a job because of a user's trigger or foreign key, the
    job is passed to `on_refused`.
    """
    params = {"state": state.value, "retention_seconds": retention_seconds, "mark": mark, "limit": limit}
    tasks: dict[str, Any]
    if task_name is None:
        tasks = {"other_task_names": list(other_task_names)}
        statement, one_by_one = sql.pruning.PRUNE, sql.pruning.OLD_JOBS
    else:
        tasks = {"task_name": task_name}
        statement, one_by_one = sql.pruning.PRUNE_TASK, sql.pruning.OLD_JOBS_OF_TASK
    try:
        with savepoint(connection):
            return Pruned._make(execute_with_retry(connection, statement, {**params, **tasks})[0])
    except FAILURES as error:
        if not may_divide(connection, error):
            raise
    old: dict[int, datetime] = dict(execute(connection, one_by_one, {**params, **tasks}))
    removed, refused, _ = divided(connection, list(old), lambda part: _prune_jobs(connection, part, params))
    for job_id, refusal in refused:
        on_refused(job_id, refusal)
    return Pruned(len(old), len(removed), max(old.values(), default=None))


def _prune_jobs(connection: Connection, job_ids: Sequence[int], params: Mapping[str, Any]) -> dict[int, bool]:
    conditions = {name: params[name] for name in ("state", "retention_seconds")}
    rows = execute_with_retry(connection, sql.pruning.PRUNE_JOBS, {**conditions, "job_ids": list(job_ids)})
    return {row[0]: True for row in rows}


def prunable(
    connection: Connection,
    state: State,
    retention_seconds: float,
    *,
    task_name: str | None = None,
    other_task_names: Sequence[str] = (),
) -> Prunable:
    """Return how many jobs `prune()` would remove if it were repeated until none is left, and how many would stay."""
    params = {"state": state.value, "retention_seconds": retention_seconds}
    if task_name is None:
        rows = execute(connection, sql.pruning.PRUNABLE, {**params, "other_task_names": list(other_task_names)})
    else:
        rows = execute(connection, sql.pruning.PRUNABLE_TASK, {**params, "task_name": task_name})
    [(count, past)] = rows
    return Prunable(count, past - count)
