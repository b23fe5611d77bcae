"""Choose finished jobs, and remove them with their executions.

The worker's pruner, `manage.py pgqueue prune` and the archive call these functions. A removal is a page of ids, chosen
without locks, and `remove()`, which locks and checks the jobs again: it removes only what is as it was seen, and what
no unfinished work needs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from django_pgqueue import sql
from django_pgqueue.db.statements import Connection, execute, numbers
from django_pgqueue.states import Need, State

from .execute import transaction_with_retry
from .refused_rows import MOST_SECONDS, Divided, divided
from .types import EPOCH, Cursor, Pruned

PRUNE_LIMIT: Final = 1000
"""Jobs that one page of a prune looks at."""
FIRST_FINISHED: Final = Cursor(EPOCH.replace(year=1), 0)
"""Where a scan of the finished jobs begins. It lies before every possible `finished_at`."""
MICROSECOND: Final = timedelta(microseconds=1)
EVER: Final = datetime(9999, 12, 30, tzinfo=UTC)
"""A time after every possible `finished_at`."""
Finished = Mapping[int, datetime]
"""The `finished_at` of each job, as it was seen."""


class Needed(NamedTuple):
    """The state of a job, and why it must stay. None: nothing needs it.

    LOCK_FINISHED and DELETE decide this by themselves. The callers of a removal ask afterwards, about the jobs that are
    left, so that their answers name the reason.
    """

    state: State
    need: Need | None


def needs_of(connection: Connection, job_ids: Collection[int]) -> dict[int, Needed]:
    """Return for each of these jobs that exists why it must stay."""
    if not job_ids:
        return {}
    rows = execute(connection, sql.needs.NEEDS, {"job_ids": numbers(sorted(job_ids))})
    return {row[0]: Needed(State(row[1]), Need(row[2]) if row[2] else None) for row in rows}


class FinishedPage(NamedTuple):
    """A page of a scan: the wanted jobs, and where the next page begins. None: this was the last page."""

    jobs: dict[int, datetime]
    last: Cursor
    """Where a later scan begins that is to find only jobs that have finished since."""
    following: Cursor | None


class Prunable(NamedTuple):
    """How many jobs past their retention a prune removes, and how many stay because unfinished work needs them."""

    removable: int
    kept: int


def _ignore(row_id: int, error: Exception) -> None:
    """Ignore a row that the database refuses to write."""


def finished_page(
    connection: Connection,
    state: State,
    after: Cursor,
    *,
    limit: int,
    before: datetime = EVER,
    older_than_seconds: float = 0.0,
    task_name: str | None = None,
    task_names: Sequence[str] = (),
    other_task_names: Sequence[str] = (),
    queue_names: Sequence[str] = (),
) -> FinishedPage:
    """Return the next finished jobs in a state, the oldest first. `limit` counts the jobs that are not wanted too.

    `task_name` reads the jobs of one task by their own index. `other_task_names` are not wanted.
    """
    params: dict[str, Any] = {
        "state": state.value,
        "after_at": after.run_after,
        "after_id": after.job_id,
        "before_at": before,
        "older_than_seconds": older_than_seconds,
        "limit": limit,
    }
    if task_name is not None:
        rows = execute(connection, sql.pruning.FINISHED_JOBS_OF_TASK, {**params, "task_name": task_name})
    else:
        names = {"task_names": task_names, "other_task_names": other_task_names, "queue_names": queue_names}
        params |= {name: list(each) for name, each in names.items()}
        rows = execute(connection, sql.pruning.FINISHED_JOBS, params)
    jobs, last = {row[0]: row[1] for row in rows if row[2]}, Cursor(rows[-1][1], rows[-1][0]) if rows else after
    if len(rows) == limit:
        return FinishedPage(jobs, last, last)
    # A later scan begins behind the last instant. It would read all jobs of that instant again, to compare their ids.
    return FinishedPage(jobs, Cursor(last.run_after + MICROSECOND, 0) if last.job_id else last, None)


def finished_jobs(connection: Connection, state: State, **filters: Any) -> Iterator[dict[int, datetime]]:
    """Yield the wanted jobs of each page of finished jobs, the oldest first.

    `filters` are the options of `finished_page()`.
    """
    after: Cursor | None = FIRST_FINISHED
    while after is not None:
        page = finished_page(connection, state, after, **filters)
        if page.jobs:
            yield page.jobs
        after = page.following


def lock_finished(connection: Connection, jobs: Finished) -> list[int]:
    """Lock those of these jobs until the transaction ends that may be removed and are as they were seen."""
    rows = execute(connection, sql.pruning.LOCK_FINISHED, {"job_ids": numbers(jobs)})
    return [job_id for job_id, finished_at in rows if jobs[job_id] == finished_at]


def remove(
    connection: Connection,
    jobs: Finished,
    *,
    logs: bool = False,
    acts: bool = False,
    first: str | None = None,
    most_seconds: float = MOST_SECONDS,
) -> Divided[tuple[int, datetime], bool]:
    """Remove those of these jobs that are as they were seen and that nobody needs, with their executions.

    `logs` and `acts` remove the kept log lines and the rows of the audit too. `first` is a statement that runs before,
    on the locked jobs. If the database refuses to remove a job because of a user's trigger or foreign key, the others
    are removed.
    """

    def transition(part: Sequence[tuple[int, datetime]]) -> dict[int, bool]:
        def run() -> dict[int, bool]:
            job_ids = lock_finished(connection, dict(part))
            if job_ids and first is not None:
                execute(connection, first, {"job_ids": numbers(job_ids)})
            if job_ids:
                flags = {"removes_logs": logs, "removes_acts": acts}
                execute(connection, sql.pruning.REMOVE, {"job_ids": numbers(job_ids), **flags})
            return dict.fromkeys(job_ids, True)

        return transaction_with_retry(connection, run)

    return divided(connection, list(jobs.items()), transition, most_seconds=most_seconds)


def prune(
    connection: Connection,
    state: State,
    retention_seconds: float,
    *,
    task_name: str | None = None,
    other_task_names: Sequence[str] = (),
    after: Cursor = FIRST_FINISHED,
    limit: int = PRUNE_LIMIT,
    on_refused: Callable[[int, Exception], None] = _ignore,
) -> Pruned:
    """Remove the jobs of the next page in a finished state that are older than the retention, with their executions.

    With `task_name`, remove jobs of this task only. Without it, remove all but those of `other_task_names`, which have
    a retention of their own. If the database refuses to remove a job because of a user's trigger or foreign key, the
    job is passed to `on_refused`.
    """
    page = finished_page(
        connection,
        state,
        after,
        limit=limit,
        older_than_seconds=retention_seconds,
        task_name=task_name,
        other_task_names=other_task_names,
    )
    done = remove(connection, page.jobs)
    for (job_id, _), refusal in done.refused:
        on_refused(job_id, refusal)
    left = page.jobs.keys() - done.answers.keys() - {job_id for (job_id, _), _ in done.refused}
    locked = [job_id for job_id, job in needs_of(connection, left).items() if job.need is None]
    return Pruned(len(done.answers), len(locked), page.last, page.following is not None)


def prunable(connection: Connection, state: State, retention_seconds: float, **tasks: Any) -> Prunable:
    """Return how many jobs `prune()` would remove if it were repeated until none is left, and how many would stay.

    `tasks` are the options `task_name` and `other_task_names` of `prune()`.
    """
    removable = kept = 0
    for jobs in finished_jobs(connection, state, limit=PRUNE_LIMIT, older_than_seconds=retention_seconds, **tasks):
        needed = sum(job.need is not None for job in needs_of(connection, jobs).values())
        removable, kept = removable + len(jobs) - needed, kept + needed
    return Prunable(removable, kept)
