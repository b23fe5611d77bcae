"""The check of ids that are ahead of the sequence which draws them.

A role that may insert ids can insert any. A row with an id that the sequence has not drawn yet makes the INSERT fail
that draws it later: `enqueue()` of another program, or a claim.
"""

from __future__ import annotations

from typing import Final

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .findings import Level, Result, cannot_see, check, listed, no_tables, ok
from .session import Session

TABLES: Final = (
    *("pgqueue_job", "pgqueue_execution", "pgqueue_worker_request", "pgqueue_rollup", "pgqueue_limit_state"),
    *("pgqueue_limit_override", "pgqueue_open_breaker", "pgqueue_breaker_count", "pgqueue_archived_job"),
    *("pgqueue_audit", "pgqueue_audit_job", "pgqueue_pause"),
    *("pgqueue_schedule", "pgqueue_schedulerun", "pgqueue_event", "pgqueue_batch", "pgqueue_batch_removal"),
)
"""The tables whose ids a sequence draws."""
OF_CLOCK: Final = ("pgqueue_worker", "pgqueue_installation")
"""The tables whose ids are times. They have a sequence too, and nothing draws from it."""

# The tables that exist, and whether this role may read the ids of each and its sequence.
READABLE: Final = """/* pgqueue:doctor_readable_ids */
SELECT name, has_column_privilege(name, 'id', 'SELECT') AND has_sequence_privilege(sequence, 'SELECT, USAGE')
FROM unnest(%(tables)s::text[]) AS name
CROSS JOIN LATERAL (SELECT pg_get_serial_sequence(name, 'id') AS sequence) AS of_table
WHERE to_regclass(name) IS NOT NULL
"""
# The highest id of each table.
#
# Index: the primary keys
HIGHEST: Final = {
    table: f"""/* pgqueue:doctor_highest_id */
SELECT id FROM {table} ORDER BY id DESC LIMIT 1
"""  # noqa: S608 -- all parts are literals of this module
    for table in TABLES
}
# The last id that each sequence has drawn. It is NULL before the first one.
LAST_DRAWN: Final = """/* pgqueue:doctor_last_drawn */
SELECT name, coalesce(pg_sequence_last_value(pg_get_serial_sequence(name, 'id')::regclass), 0)
FROM unnest(%(tables)s::text[]) AS name
"""


@check(
    "ids",
    "Error: a table has an id that its sequence has not drawn yet.",
    gettext_lazy("The INSERT that draws the same id fails: `enqueue()`, or the claim of a job."),
)
def _ids(session: Session) -> Result:
    may_read: dict[str, bool] = dict(session.rows(READABLE, tables=list(TABLES)))
    if not may_read:
        return no_tables()
    readable = [table for table in TABLES if may_read.get(table)]
    # The ids come first. An id that is drawn between the two statements would look as if it were ahead.
    highest = {table: row[0] for table in readable for row in session.rows(HIGHEST[table])}
    drawn: dict[str, int] = dict(session.rows(LAST_DRAWN, tables=readable))
    ahead = {table: last_id for table, last_id in highest.items() if last_id > drawn[table]}
    hidden = [table for table in TABLES if may_read.get(table) is False]
    data = {"ahead": ahead, "hidden_tables": hidden}
    if ahead:
        what = _("An id is ahead of the sequence that draws the ids of %(tables)s.") % {"tables": listed(ahead)}
        fix = " ".join(
            f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), {last_id});" for table, last_id in ahead.items()
        )
        return Result(Level.ERROR, what, fix, data)
    if hidden:
        what = _("Cannot see the ids and the sequences of %(tables)s.") % {"tables": listed(hidden)}
        fix = _("Run the doctor as the owner of the tables, who may read the sequences.")
        return cannot_see(what, fix, **data)
    return ok(_("No id of %(count)s tables is ahead of its sequence.") % {"count": len(readable)}, **data)


SEQUENCE_CHECKS: Final = (_ids,)
