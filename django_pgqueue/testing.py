"""Running jobs inside a test: real rows, statements and executor, in the test's own thread and transaction."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import connections, router

from . import lifecycle
from .conf import get_settings
from .lifecycle import Claimed, Cursor
from .worker.executor import Attempt
from .worker.finisher import finish

TEST_WORKER_ID = 0
"""Leases of a test are held under an id that no worker has."""


def run_jobs(
    *, queue_names: Sequence[str] = (), max_jobs: int | None = None, raising: bool = False, database: str | None = None
) -> int:
    """Run due jobs one after another, those included that they enqueue, until none is left; return how many ran.

    Claims, runs and finishes as a worker does, on the test's own connection: inside `TestCase` all is undone with the
    test. An atomic task's body and finish are in a savepoint there. Jobs due later, retries among them, stay.

    `raising` re-raises the exception of the first attempt that fails, after it is written.
    """
    from .models import Job  # after the apps are loaded

    if isinstance(queue_names, str):
        raise TypeError(f"queue_names must be a list of names, not the string {queue_names!r}")
    alias = database or router.db_for_write(Job)
    count = 0
    while max_jobs is None or count < max_jobs:
        claimed = _claim_one(alias, queue_names)
        if claimed is None:
            break
        count += 1
        report = Attempt(claimed, alias).run()
        finish(connections[alias], [report])
        if raising and report.exception is not None:
            raise report.exception
    return count


def _claim_one(alias: str, queue_names: Sequence[str]) -> Claimed | None:
    connection = connections[alias]
    found = lifecycle.lanes(connection)
    lanes = [
        lane for lane, seconds in found.items() if seconds <= 0 and (not queue_names or lane.queue_name in queue_names)
    ]
    lanes.sort(key=lambda lane: -lane.priority)
    if not lanes:
        return None
    claimed = lifecycle.claim(
        connection,
        dict.fromkeys(lanes, Cursor()),
        limit=1,
        free_slots=1,
        worker_id=TEST_WORKER_ID,
        lease_seconds=get_settings().LEASE,
    )
    return claimed[0] if claimed else None
