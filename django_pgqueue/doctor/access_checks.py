"""Checks of what this process may do in the database: applied migrations, and the grants of its role."""

from __future__ import annotations

from typing import Final, NamedTuple

from django_pgqueue.db.server import missing_migrations

from .findings import Check, Level, Result, listed, no_tables, ok
from .session import ROLE, Session


class Privilege(NamedTuple):
    """A privilege on a table or a sequence, or on some columns of a table."""

    privilege: str
    relation: str
    columns: str = ""


JOB, EXECUTION = "pgqueue_job", "pgqueue_execution"
PURPOSES: Final[dict[str, tuple[Privilege, ...]]] = {
    "enqueue jobs": (
        Privilege(
            "INSERT",
            JOB,
            "task_name, queue_name, priority, arguments, max_attempts, enqueued_at, run_after, headers, "
            "expires_at, unique_key, unique_ready_only",
        ),
        Privilege("SELECT", JOB, "id, enqueued_at, run_after, expires_at"),
    ),
    "run jobs": (
        Privilege("INSERT", EXECUTION),
        Privilege("SELECT", EXECUTION),
        Privilege("DELETE", EXECUTION),
        Privilege(
            "UPDATE",
            EXECUTION,
            "outcome, started_at, finished_at, lease_expires_at, exception_class, error, traceback",
        ),
        Privilege("SELECT", JOB),
        Privilege("DELETE", JOB),
        Privilege(
            "UPDATE",
            JOB,
            "state, attempt, crashes, isolated, run_after, finished_at, unknown_since, result, unique_key, "
            "progress_done, progress_total, progress_message, progress_at",
        ),
        Privilege("USAGE", "pgqueue_execution_id_seq"),
        Privilege("SELECT", "pgqueue_worker"),
        Privilege("INSERT", "pgqueue_worker"),
        Privilege("DELETE", "pgqueue_worker"),
        Privilege("UPDATE", "pgqueue_worker", "last_heartbeat_at, stopped_at"),
        Privilege("SELECT", "pgqueue_pause"),
        Privilege("DELETE", "pgqueue_pause"),
        Privilege("SELECT", "pgqueue_uniqueness_window"),
        Privilege("DELETE", "pgqueue_uniqueness_window"),
        Privilege("UPDATE", "pgqueue_uniqueness_window", "ends_at"),
        Privilege("SELECT", "django_migrations"),
    ),
    "change jobs": (
        Privilege(
            "UPDATE",
            JOB,
            "cancel_requested_at, state, attempt, crashes, run_after, finished_at, unknown_since, result, "
            "expires_at, progress_done, progress_total, progress_message, progress_at",
        ),
        Privilege("INSERT", "pgqueue_pause"),
        Privilege("UPDATE", "pgqueue_pause"),
        Privilege("DELETE", "pgqueue_pause"),
        Privilege("SELECT", JOB),
        Privilege("SELECT", EXECUTION),
        Privilege("SELECT", "pgqueue_worker"),
        Privilege("SELECT", "pgqueue_pause"),
        Privilege("SELECT", "pgqueue_schedule"),
        Privilege("SELECT", "pgqueue_schedulerun"),
        Privilege("SELECT", "pgqueue_uniqueness_window"),
    ),
    "fire schedules": (
        Privilege("INSERT", "pgqueue_schedulerun"),
        Privilege("SELECT", "pgqueue_schedulerun"),
        Privilege("DELETE", "pgqueue_schedulerun"),
        Privilege("UPDATE", "pgqueue_schedulerun", "fired_at"),
        Privilege("SELECT", "pgqueue_schedule"),
        Privilege("INSERT", "pgqueue_schedule"),
        Privilege("UPDATE", "pgqueue_schedule"),
        Privilege("DELETE", "pgqueue_schedule"),
        Privilege("SELECT", JOB, "finished_at, task_name, state, unique_key, unique_ready_only"),
        Privilege("INSERT", JOB, "id"),
        Privilege("USAGE", "pgqueue_job_id_seq"),
        Privilege("SELECT", "pgqueue_uniqueness_window"),
        Privilege("INSERT", "pgqueue_uniqueness_window"),
        Privilege("UPDATE", "pgqueue_uniqueness_window", "job_id, ends_at"),
    ),
}
"""The grants of docs/production/security.md, by purpose. No other purpose needs the first privilege of a purpose (on
the first of its columns). A role that has that one is meant to have all of them."""

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


def _migrations(session: Session) -> Result:
    missing = missing_migrations(session.alias)
    if missing:
        option = "" if session.alias == "default" else f" --database={session.alias}"
        what = f"The database lacks {len(missing)} migrations: {listed(missing)}."
        return Result(Level.ERROR, what, f"manage.py migrate{option}", {"missing": missing})
    return ok("All migrations of this release are applied.", missing=[])


def _grants(session: Session) -> Result:
    if not session.has_tables():
        return no_tables()
    [role] = session.row(ROLE)
    allowed = [name for name, needed in PURPOSES.items() if all(_has(session, (_first(needed),)))]
    lacking = {}
    for name in allowed:
        has = _has(session, PURPOSES[name])
        lacking[name] = [_text(each) for each, is_held in zip(PURPOSES[name], has, strict=True) if not is_held]
    data = {"role": role, "may": allowed, "lacks": {name: texts for name, texts in lacking.items() if texts}}
    fix = "Run the grants of docs/production/security.md again: a migration can have added columns or tables."
    if data["lacks"]:
        purpose, texts = next(iter(data["lacks"].items()))
        what = f"The role {role} may {purpose} only in part: it lacks {'; '.join(texts)}."
        return Result(Level.ERROR, what, f"{fix} Or: {' '.join(f'GRANT {text} TO {role};' for text in texts)}", data)
    if not allowed:
        return Result(Level.WARNING, f"The role {role} may neither enqueue jobs nor run or change them.", fix, data)
    return ok(f"The role {role} has all grants to {', '.join(allowed)}.", **data)


def _first(needed: tuple[Privilege, ...]) -> Privilege:
    return needed[0]._replace(columns=needed[0].columns.partition(", ")[0])


def _has(session: Session, wanted: tuple[Privilege, ...]) -> list[bool]:
    privileges, relations, columns = zip(*wanted, strict=True)
    params = {"privileges": list(privileges), "relations": list(relations), "columns": list(columns)}
    return [bool(row[0]) for row in session.rows(PRIVILEGES, **params)]


def _text(wanted: Privilege) -> str:
    columns = f" ({wanted.columns})" if wanted.columns else ""
    return f"{wanted.privilege}{columns} ON {'SEQUENCE ' if _is_sequence(wanted) else ''}{wanted.relation}"


def _is_sequence(wanted: Privilege) -> bool:
    return wanted.relation.endswith("_id_seq")


ACCESS_CHECKS: Final = (
    Check(
        "migrations",
        "Error: a migration of this package is not applied.",
        "Workers wait until all migrations are applied, and other code fails at missing columns.",
        _migrations,
    ),
    Check(
        "grants",
        "Error: the role of this process has only a part of the grants to enqueue, run or change jobs, or to fire "
        "schedules. Warning: it has none of them.",
        "Statements fail with “permission denied”, often only in rare situations such as a rescue.",
        _grants,
    ),
)
