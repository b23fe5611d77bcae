"""Remove rows whose owner was deleted by SQL, or by a transition that leaves them to a sweep.

The maintenance service calls `prune_orphans()` for each kind in `ORPHANS`, page by page. To add a kind, write its
statement and add it to `ORPHANS`. No state of a job depends on these rows.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from django_pgqueue import sql
from django_pgqueue.db.statements import Connection

from .pruning import PRUNE_LIMIT
from .ranges import PrunedPage, page_in_ranges


class Orphans(NamedTuple):
    """One kind of rows that can lose their owner. `rows` names them in the log, before the id of one of them."""

    rows: str
    statement: str


ORPHANS: Final[dict[str, Orphans]] = {
    "executions": Orphans("the executions of job", sql.completions.PRUNE_EXECUTIONS),
    "logs": Orphans("the log lines of execution", sql.logs.PRUNE_LOGS),
    "search keys": Orphans("the search keys of job", sql.search_keys.PRUNE_SEARCH_KEYS),
    "steps": Orphans("the steps of job", sql.steps.PRUNE_STEPS),
    "dependencies": Orphans("the dependencies of job", sql.graphs.PRUNE_DEPENDENCIES),
    "audited jobs": Orphans("audited job", sql.audit.PRUNE_AUDITED_JOBS),
}
"""All kinds, by their names."""


def prune_orphans(connection: Connection, name: str, after_id: int = 0, limit: int = PRUNE_LIMIT) -> PrunedPage:
    """Remove the rows of one kind that have lost their owner, from the page of about `limit` rows behind `after_id`."""
    rows, statement = ORPHANS[name]
    return page_in_ranges(connection, f"the removal of {rows}", statement, {"after_id": after_id, "limit": limit})
