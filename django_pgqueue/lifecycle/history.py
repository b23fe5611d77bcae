"""Transitions of finished jobs that move them to an archive or erase their values.

The package `history` calls these functions, in batches, and so do bulk acts. Each changes a job only if it is as it was
seen: finished, at the same instant. A job that was retried since stays as it is. Locked jobs are left alone, and so are
jobs that the database refuses to change.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from django_pgqueue import sql
from django_pgqueue.db.errors import message_without_detail
from django_pgqueue.db.statements import Connection, exact, execute, numbers, texts
from django_pgqueue.ground.envelope import ERASED, seal
from django_pgqueue.ground.log_events import event
from django_pgqueue.states import Seen, State

from .bulk_filters import ERASED_KINDS
from .execute import LockWait, execute_with_retry, pages
from .pruning import Finished, lock_finished, needs_of, remove
from .ranges import written
from .refused_rows import Divided, divided

logger = logging.getLogger("django_pgqueue.lifecycle")


def archive(connection: Connection, jobs: Finished) -> list[int]:
    """Move jobs with their executions to the archive table; return the ids of those that were moved."""
    return _changed(remove(connection, jobs, logs=True, acts=True, first=sql.history.ARCHIVE, most_seconds=math.inf))


def read_for_archive(connection: Connection, jobs: Finished) -> list[tuple[int, datetime, str]]:
    """Lock jobs until the transaction ends, and return the id, the `finished_at` and the JSON line of each.

    Call it in a transaction, together with `remove_archived()`.
    """
    rows = execute(connection, sql.history.READ_FOR_ARCHIVE, {"job_ids": numbers(lock_finished(connection, jobs))})
    return [(row[0], row[1], row[2]) for row in rows]


def remove_archived(connection: Connection, jobs: Finished) -> list[int]:
    """Remove jobs with their executions that are in a file; return the ids of those that were removed."""
    return _changed(remove(connection, jobs, logs=True, acts=True, most_seconds=math.inf))


def erase(
    connection: Connection,
    jobs: Finished,
    *,
    audit_id: int,
    arguments: bool,
    results: bool,
    errors: bool,
    logs: bool,
) -> list[int]:
    """Erase values of finished jobs, and count them in the audit; return the ids of the jobs that were changed.

    An erased value is an envelope that no codec can open, so nothing takes it for a value. Log lines are deleted.
    """
    kinds = {"arguments": arguments, "results": results, "errors": errors, "logs": logs}
    return _changed(_erased(connection, jobs, audit_id, [kind for kind, is_erased in kinds.items() if is_erased]))


def erase_seen(
    connection: Connection,
    job_ids: Sequence[int],
    *,
    seen: Mapping[int, Seen],
    lock_seconds: float,
    audit_id: int,
    kinds: Collection[str],
) -> dict[int, State]:
    """Erase values of finished jobs that are as they were seen; return the state of each job that was changed.

    This is `erase()` as a transition of a bulk act: a locked job is tried again for `lock_seconds`.

    Raises the first job's error if the database refuses all of them.
    """
    waiting = {job_id: at for job_id in job_ids if (at := seen[job_id].finished_at) is not None}
    changed: list[int] = []
    wait = LockWait(lock_seconds)
    while waiting:
        done = _erased(connection, waiting, audit_id, kinds)
        if done.refused and not done.answers and not changed:
            raise done.refused[0].error
        changed += _changed(done)
        answered = {*done.answers, *(job_id for (job_id, _), _ in done.refused)}
        left = needs_of(connection, waiting.keys() - answered)
        waiting = {job_id: waiting[job_id] for job_id, job in left.items() if job.need is None}
        if waiting and not wait.sleep():
            break
    return {job_id: State(seen[job_id].state) for job_id in changed}


def may_erase(connection: Connection) -> bool:
    """Return whether the database role of this connection has the grants to erase values and callbacks."""
    return bool(execute(connection, sql.history.MAY_ERASE, {})[0][0])


def _erased(
    connection: Connection, jobs: Finished, audit_id: int, kinds: Collection[str]
) -> Divided[tuple[int, datetime], bool]:
    flags = {f"erases_{kind}": kind in kinds for kind in ERASED_KINDS}
    params = {**flags, "erased": seal(ERASED, b""), "audit_id": audit_id}

    def transition(part: Sequence[tuple[int, datetime]]) -> dict[int, bool]:
        seen = {"job_ids": [job[0] for job in part], "seen_instants": texts(exact(job[1]) for job in part)}
        rows = execute_with_retry(connection, sql.history.ERASE, {**params, **seen})
        return {row[0]: True for row in rows}

    return divided(connection, list(jobs.items()), transition, most_seconds=math.inf)


class UsedCallbacks(NamedTuple):
    """The callbacks of a batch, as JSON text, that will not be called again. None: there is no such callback."""

    batch_id: int
    calls: tuple[str | None, ...]
    """The callback for a failure, the one for the completion, and the one for success, in this order."""


def used_callbacks(
    connection: Connection, before: datetime, limit: int, after_id: int = 0
) -> Iterator[list[UsedCallbacks]]:
    """Yield pages of batches behind one, by id, with the callbacks of each that were used before a time."""
    for rows in pages(connection, sql.history.USED_CALLBACKS, {"after_id": after_id}, limit=limit, before_at=before):
        yield [UsedCallbacks(row[0], row[1:]) for row in rows]


def erase_callbacks(connection: Connection, calls: Mapping[int, Sequence[str | None]]) -> None:
    """Store other callbacks in the rows of batches, in the order of `UsedCallbacks.calls`. None: keep it."""

    def erase_of(batch_ids: Sequence[int]) -> list[int]:
        rows = [(batch_id, *calls[batch_id]) for batch_id in batch_ids]
        names = ("batch_ids", "on_failure", "on_complete", "on_success")
        params = {name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
        execute(connection, sql.history.ERASE_CALLBACKS, params)
        return []

    written(connection, "the erasure of the callbacks of batch", sorted(calls), erase_of, most_seconds=math.inf)


def calls_of(connection: Connection, job_ids: Sequence[int]) -> list[tuple[str, str]]:
    """Return the tasks of jobs, and their arguments as they are stored."""
    return [(row[0], row[1]) for row in execute(connection, sql.history.CALLS_OF, {"job_ids": list(job_ids)})]


def _changed(done: Divided[tuple[int, datetime], bool]) -> list[int]:
    """Log the jobs that the database refuses to change, for example because of a trigger. Return the changed ones."""
    for (job_id, _), error in done.refused:
        refusal = message_without_detail(error)
        logger.warning(
            "job %s was not changed because the database refused the write: %s",
            job_id,
            refusal,
            extra=event("job_refused", job_id=job_id, reason=refusal),
        )
    return list(done.answers)
