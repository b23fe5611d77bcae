"""Change the jobs of one batch of a bulk act. `bulk_acts` calls it, in the transaction that records the changes.

It protects two invariants: a job that the database refuses to change never stops the act, and a job is passed by only
if the act can change others. A batch of one job, at a rate of one job per second, must obey both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from django_pgqueue.db.statements import Connection
from django_pgqueue.exceptions import JobLocked
from django_pgqueue.states import Seen, State

from .audit import record_audit
from .bulk_selection import Page, Row
from .execute import FAILURES, may_divide, savepoint

LOCK_SECONDS = 0.25
"""How long a batch tries to get rows that other sessions have locked. A request to stop waits for the batch."""

Change = Callable[..., dict[int, State]]
"""A transition of `operator`, without the connection and the jobs."""


class Changed(NamedTuple):
    """The result of a batch: the jobs that it has passed, and those of them that it has changed.

    `rate_count` jobs count for the rate: those of its last part. `is_last`: no jobs come behind it.
    """

    rows: Sequence[Row]
    changed: Mapping[int, State]
    rate_count: int
    is_last: bool


def change_batch(
    connection: Connection, change: Change, page: Page, size: int, audit_id: int, *, passes_refused: bool
) -> Changed:
    """Change the first `size` jobs of a page, and record them. If all are refused, go on until one was changed.

    Then try the refused ones again: since they were refused, the same statement has changed another job. If
    `passes_refused`, a page of which all jobs are refused is passed by.

    Raises the error of the first refused job if the database refuses all jobs of the page, unless `passes_refused`.
    """
    rest, passed, refused, first_error = page, list[Row](), list[Row](), None
    while True:
        batch = rest.up_to(size)
        rest = Page(rest.rows[len(batch.rows) :], rest.is_last)
        passed += batch.rows
        changed, error = _change(connection, change, batch.rows, audit_id)
        if error is None or changed:
            break
        first_error = first_error or error
        refused += batch.rows
        if not rest.rows:
            break
    if changed and refused:
        changed |= _change(connection, change, refused, audit_id)[0]
    if first_error is not None and not changed and not passes_refused:
        raise first_error
    rate_count = sum(row.is_fitting for row in batch.rows)
    left = sum(row.is_chosen for row in passed) - len(changed)
    if left:
        record_audit(connection, audit_id, [], left=left)
    return Changed(passed, changed, rate_count, rest.is_last and not rest.rows)


def _change(
    connection: Connection, change: Change, rows: Sequence[Row], audit_id: int
) -> tuple[dict[int, State], Exception | None]:
    """Change and record jobs. Return those that were changed, and the error if the database has refused all of them."""
    job_ids = [row.job_id for row in rows if row.is_fitting]
    if not job_ids:
        return {}, None
    seen = {row.job_id: Seen(row.state, row.finished_at, row.run_after) for row in rows}
    try:
        with savepoint(connection):
            changed = change(connection, job_ids, seen=seen, lock_seconds=LOCK_SECONDS)
            record_audit(connection, audit_id, sorted(changed))
            return changed, None
    except JobLocked:  # each of them, or a dependent that its retry restores: the act continues with the others
        return {}, None
    except FAILURES as error:
        if not may_divide(connection, error):
            raise
        if len(rows) == 1:
            return {}, error
        refusal = error
    changed, error_of_one = dict[int, State](), None
    for row in rows:
        more, error_of_one = _change(connection, change, [row], audit_id)
        changed |= more
    return changed, None if changed else error_of_one or refusal
