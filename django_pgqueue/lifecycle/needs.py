"""Say why a removal has left finished jobs: unfinished work needs them.

LOCK_FINISHED and DELETE decide this by themselves. The callers of a removal ask afterwards, about the jobs that
are left, so that their answers name the reason.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from django_pgqueue import sql
from django_pgqueue.db.arrays import numbers
from django_pgqueue.db.statements import Connection, execute
from django_pgqueue.states import Need, State


class Needed(NamedTuple):
    """The state of a job, and why it must stay. None: nothing needs it."""

    state: State
    need: Need | None


def needs_of(connection: Connection, job_ids: Collection[int]) -> dict[int, Needed]:
    """Return for each of these jobs that exists why it must stay."""
    if not job_ids:
        return {}
    rows = execute(connection, sql.needs.NEEDS, {"job_ids": numbers(sorted(job_ids))})
    return {row[0]: Needed(State(row[1]), Need(row[2]) if row[2] else None) for row in rows}
