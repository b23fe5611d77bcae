"""Cancel ready jobs whose `expires_at` has passed. Called by the worker's maintenance."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from django_pgqueue import sql
from django_pgqueue.db.statements import Connection, execute, numbers

from .execute import execute_with_retry, savepoint
from .pruning import PRUNE_LIMIT, _ignore
from .refused_rows import FAILURES, divided, may_divide


def expire(
    connection: Connection,
    *,
    worker_id: int,
    error: str,
    limit: int = PRUNE_LIMIT,
    skipped_ids: Sequence[int] = (),
    on_refused: Callable[[int, Exception], object] = _ignore,
) -> list[tuple[int, str]]:
    """Cancel up to `limit` ready jobs that should have started by now; return their ids and task names.

    Jobs in `skipped_ids` are left out. If the database refuses to write a job, it is passed to `on_refused`, with the
    error.
    """
    selection = {"limit": limit, "skipped_ids": numbers(skipped_ids)}
    record = {"worker_id": worker_id, "error": error}
    try:
        with savepoint(connection):
            rows = execute_with_retry(connection, sql.expiry.EXPIRE, {**record, **selection})
            return [(row[0], row[1]) for row in rows]
    except FAILURES as failure:
        if not may_divide(connection, failure):
            raise
    late = [row[0] for row in execute(connection, sql.expiry.LATE_JOBS, selection)]
    expired, refused, _ = divided(
        connection,
        late,
        lambda part: dict(execute_with_retry(connection, sql.expiry.EXPIRE_JOBS, {**record, "job_ids": list(part)})),
    )
    for job_id, refusal in refused:
        on_refused(job_id, refusal)
    return list(expired.items())
