"""Checks of what this process may do in the database: applied migrations, and the grants of its role."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, pgettext_lazy

from django_pgqueue.db.server import missing_migrations

from .findings import Level, Result, check, listed, no_tables, ok
from .session import ROLE, Session, tables


class Privilege(NamedTuple):
    """A privilege on a table or a sequence, or on some columns of a table."""

    privilege: str
    relation: str
    columns: str = ""


GRANT: Final = re.compile(r"(\w+)(?: \(([^)]+)\))?")


def privileges(*grants: str) -> tuple[Privilege, ...]:
    """Return the privileges of grants in the form "SELECT, UPDATE (a, b) ON table"."""
    found = []
    for grant in grants:
        granted, relation = grant.split(" ON ")
        found += [Privilege(each, relation, columns) for each, columns in GRANT.findall(granted)]
    return tuple(found)


VIEWING: Final = {"change jobs", "archive and erase jobs"}
"""The purposes that include the grants of `queue_viewer`: to read every table."""
PURPOSES: Final[dict[str, tuple[Privilege, ...]]] = {
    "enqueue jobs": privileges(
        "INSERT (task_name, queue_name, priority, arguments, max_attempts, enqueued_at, run_after, headers, "
        "expires_at, unique_key, unique_ready_only, limit_key, limit_weight, limit_order, batch_id), "
        "SELECT (id, enqueued_at, run_after, expires_at) ON pgqueue_job",
    ),
    "send events": privileges(
        "INSERT (name, key, payload, sent_at), SELECT (id) ON pgqueue_event",
        "USAGE ON pgqueue_event_id_seq",
    ),
    "run jobs": privileges(
        "INSERT, SELECT, DELETE, UPDATE (outcome, started_at, finished_at, lease_expires_at, exception_class, error, "
        "traceback) ON pgqueue_execution",
        "SELECT, DELETE, UPDATE (state, attempt, execution_id, worker_id, crashes, isolated, run_after, finished_at, "
        "unknown_since, result, unique_key, expires_at, progress_done, progress_total, progress_message, progress_at) "
        "ON pgqueue_job",
        "USAGE ON pgqueue_execution_id_seq",
        "SELECT, INSERT, DELETE, UPDATE (last_heartbeat_at, lease_expires_at, stopped_at, resident_mib) "
        "ON pgqueue_worker",
        "SELECT, DELETE, UPDATE (answered_at, answer) ON pgqueue_worker_request",
        "SELECT, INSERT, DELETE, UPDATE (paused_at, paused_until, paused_by, reason) ON pgqueue_pause",
        "SELECT, DELETE, UPDATE (ends_at) ON pgqueue_uniqueness_window",
        "SELECT, DELETE, UPDATE (value) ON pgqueue_search_key",
        "SELECT, DELETE, INSERT (job_id, name, position, kind, attempt, tries, result, error, started_at, finished_at, "
        "wake_at, event_name, event_key, event_id), UPDATE (attempt, tries, result, error, finished_at, wake_at, "
        "event_name, event_key, event_id, compensation_id) ON pgqueue_step",
        "SELECT, DELETE, UPDATE (sent_at) ON pgqueue_event",
        "SELECT, DELETE, UPDATE (failed_at, completed_at, succeeded_at) ON pgqueue_batch",
        "SELECT, INSERT, DELETE ON pgqueue_batch_removal",
        "USAGE ON pgqueue_batch_removal_id_seq",
        "SELECT, DELETE, UPDATE (has_cancelled) ON pgqueue_dependency",
        "SELECT, INSERT, DELETE, UPDATE (held_until) ON pgqueue_limit_state",
        "USAGE ON pgqueue_limit_state_id_seq",
        "SELECT, DELETE ON pgqueue_limit_override",
        "SELECT, INSERT, DELETE, UPDATE (after_execution_id, probes_failed, probed_at) ON pgqueue_open_breaker",
        "SELECT, INSERT, DELETE, UPDATE (ended_at) ON pgqueue_breaker_count",
        "SELECT, INSERT ON pgqueue_installation",
        "SELECT, INSERT, DELETE, UPDATE (first_lines, last_lines, cut_lines) ON pgqueue_execution_log",
        "SELECT, INSERT, DELETE, UPDATE (span) ON pgqueue_rollup",
        "SELECT, DELETE, UPDATE (cursor) ON pgqueue_audit",
        "SELECT, DELETE, UPDATE (detail) ON pgqueue_audit_job",
        "SELECT ON django_migrations",
    ),
    "change jobs": privileges(
        "UPDATE (cancel_requested_at, state, attempt, crashes, run_after, finished_at, unknown_since, result, "
        "expires_at, queue_name, priority, progress_done, progress_total, progress_message, progress_at, "
        "acknowledged_at, limit_order, max_attempts) ON pgqueue_job",
        "DELETE ON pgqueue_step",
        "UPDATE (has_cancelled) ON pgqueue_dependency",
        "INSERT, UPDATE, DELETE ON pgqueue_pause",
        "INSERT, UPDATE, DELETE ON pgqueue_limit_override",
        "USAGE ON pgqueue_limit_override_id_seq",
        "DELETE ON pgqueue_limit_state",
        "INSERT ON pgqueue_worker_request",
        "USAGE ON pgqueue_worker_request_id_seq",
        "INSERT, UPDATE (adopted_at, adopted_by), DELETE ON pgqueue_installation",
        "INSERT, UPDATE (ended_at, job_count, left_count, next_batch_at, cursor, stop_asked_at, stop_asked_by, "
        "outcome, failed_job_id, error) ON pgqueue_audit",
        "INSERT ON pgqueue_audit_job",
        "USAGE ON pgqueue_audit_id_seq",
        "USAGE ON pgqueue_audit_job_id_seq",
    ),
    "archive and erase jobs": privileges(
        "INSERT ON pgqueue_archived_job",
        "DELETE, UPDATE (arguments, headers, unique_key, limit_key, result, progress_message) ON pgqueue_job",
        "DELETE, UPDATE (error, traceback, limit_key) ON pgqueue_execution",
        "DELETE ON pgqueue_execution_log",
        "INSERT, UPDATE (ended_at, job_count, left_count, next_batch_at, outcome, failed_job_id, error) "
        "ON pgqueue_audit",
        "INSERT, DELETE, UPDATE (detail) ON pgqueue_audit_job",
        "DELETE ON pgqueue_search_key",
        "DELETE, UPDATE (result, error, event_key) ON pgqueue_step",
        "DELETE ON pgqueue_dependency",
        "UPDATE (on_failure, on_complete, on_success) ON pgqueue_batch",
        "INSERT ON pgqueue_batch_removal",
        "USAGE ON pgqueue_batch_removal_id_seq",
        "USAGE ON pgqueue_archived_job_id_seq",
        "USAGE ON pgqueue_audit_id_seq",
        "USAGE ON pgqueue_audit_job_id_seq",
    ),
    "fire schedules": privileges(
        "INSERT, SELECT, DELETE, UPDATE (fired_at) ON pgqueue_schedulerun",
        "SELECT, INSERT, UPDATE, DELETE ON pgqueue_schedule",
        "SELECT (finished_at, acknowledged_at, task_name, state, unique_key, unique_ready_only), INSERT (id) "
        "ON pgqueue_job",
        "USAGE ON pgqueue_job_id_seq",
        "SELECT, INSERT, UPDATE (job_id, ends_at) ON pgqueue_uniqueness_window",
        "SELECT, INSERT, UPDATE (value) ON pgqueue_search_key",
    ),
}
"""The grants of docs/production/security.md, by purpose, without those of `VIEWING`. A test compares both.

No other purpose needs the first privilege of a purpose (on the first of its columns). A role that has that one is meant
to have all of them."""

PARTLY: Final = {
    "enqueue jobs": gettext_lazy("The role %(role)s may enqueue jobs only in part: it lacks %(privileges)s."),
    "send events": gettext_lazy("The role %(role)s may send events only in part: it lacks %(privileges)s."),
    "run jobs": gettext_lazy("The role %(role)s may run jobs only in part: it lacks %(privileges)s."),
    "change jobs": gettext_lazy("The role %(role)s may change jobs only in part: it lacks %(privileges)s."),
    "archive and erase jobs": gettext_lazy(
        "The role %(role)s may archive and erase jobs only in part: it lacks %(privileges)s."
    ),
    "fire schedules": gettext_lazy("The role %(role)s may fire schedules only in part: it lacks %(privileges)s."),
}
"""The sentence about a role that has only a part of the grants, by purpose."""
WORDS: Final = {
    "enqueue jobs": pgettext_lazy("in a list of purposes of grants", "enqueue jobs"),
    "send events": pgettext_lazy("in a list of purposes of grants", "send events"),
    "run jobs": pgettext_lazy("in a list of purposes of grants", "run jobs"),
    "change jobs": pgettext_lazy("in a list of purposes of grants", "change jobs"),
    "archive and erase jobs": pgettext_lazy("in a list of purposes of grants", "archive and erase jobs"),
    "fire schedules": pgettext_lazy("in a list of purposes of grants", "fire schedules"),
}
"""The name of each purpose, as it stands in a list after "has all grants to"."""

# For each privilege, whether the role has it; NULL if the relation does not exist.
PRIVILEGES: Final = """/* pgqueue:doctor_privileges */
SELECT CASE
           WHEN wanted.relation LIKE '%%\\_id\\_seq' THEN has_sequence_privilege(to_regclass(wanted.relation), 'USAGE')
           WHEN wanted.columns = '' THEN has_table_privilege(to_regclass(wanted.relation), wanted.privilege)
           ELSE (
               SELECT bool_and(has_column_privilege(to_regclass(wanted.relation), name, wanted.privilege))
               FROM unnest(string_to_array(wanted.columns, ', ')) AS name
           )
       END
FROM unnest(%(privileges)s::text[], %(relations)s::text[], %(columns)s::text[])
    WITH ORDINALITY AS wanted (privilege, relation, columns, place)
ORDER BY wanted.place
"""


def needed_for(purpose: str) -> tuple[Privilege, ...]:
    """Return all grants of a purpose."""
    viewing = privileges(*(f"SELECT ON {table}" for table in tables())) if purpose in VIEWING else ()
    return PURPOSES[purpose] + viewing


@check(
    "migrations",
    "Error: a migration of this package is not applied.",
    gettext_lazy("Workers wait until all migrations are applied, and other code fails at missing tables and columns."),
)
def _migrations(session: Session) -> Result:
    missing = missing_migrations(session.alias)
    if missing:
        option = "" if session.alias == "default" else f" --database={session.alias}"
        what = ngettext(
            "The database lacks %(count)s migration: %(names)s.",
            "The database lacks %(count)s migrations: %(names)s.",
            len(missing),
        ) % {"count": len(missing), "names": listed(missing)}
        return Result(Level.ERROR, what, f"manage.py migrate{option}", {"missing": missing})
    return ok(_("All migrations of this release are applied."), missing=[])


@check(
    "grants",
    "Error: the role of this process has only a part of the grants to enqueue, run, change or archive jobs, or to "
    "fire schedules. Warning: it has none of them.",
    gettext_lazy("Statements fail with “permission denied”, often only in rare situations such as a rescue."),
)
def _grants(session: Session) -> Result:
    if not session.has_tables():
        return no_tables()
    [role] = session.row(ROLE)
    allowed = [name for name, needed in PURPOSES.items() if all(_has(session, (_first(needed),)))]
    lacking = {}
    for name in allowed:
        needed = needed_for(name)
        lacking[name] = [
            _text(each) for each, is_held in zip(needed, _has(session, needed), strict=True) if not is_held
        ]
    data = {"role": role, "may": allowed, "lacks": {name: texts for name, texts in lacking.items() if texts}}
    fix = _("Run the grants of docs/production/security.md again: a migration can have added columns or tables.")
    if data["lacks"]:
        purpose, texts = next(iter(data["lacks"].items()))
        what = PARTLY[purpose] % {"role": role, "privileges": "; ".join(texts)}
        instead = _("Or: %(statements)s") % {"statements": " ".join(f"GRANT {text} TO {role};" for text in texts)}
        return Result(Level.ERROR, what, f"{fix} {instead}", data)
    if not allowed:
        what = _("The role %(role)s may neither enqueue jobs nor run or change them.") % {"role": role}
        return Result(Level.WARNING, what, fix, data)
    purposes = ", ".join(str(WORDS[name]) for name in allowed)
    return ok(_("The role %(role)s has all grants to %(purposes)s.") % {"role": role, "purposes": purposes}, **data)


def _first(needed: tuple[Privilege, ...]) -> Privilege:
    return needed[0]._replace(columns=needed[0].columns.partition(", ")[0])


def _has(session: Session, wanted: tuple[Privilege, ...]) -> list[bool]:
    kinds, relations, columns = zip(*wanted, strict=True)
    params = {"privileges": list(kinds), "relations": list(relations), "columns": list(columns)}
    return [bool(row[0]) for row in session.rows(PRIVILEGES, **params)]


def _text(wanted: Privilege) -> str:
    columns = f" ({wanted.columns})" if wanted.columns else ""
    return f"{wanted.privilege}{columns} ON {'SEQUENCE ' if _is_sequence(wanted) else ''}{wanted.relation}"


def _is_sequence(wanted: Privilege) -> bool:
    return wanted.relation.endswith("_id_seq")


ACCESS_CHECKS: Final = (_migrations, _grants)
