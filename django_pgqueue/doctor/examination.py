"""Run all checks of the doctor on one database. A check that fails reports that, and the others still run."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from django.apps import apps
from django.db import DEFAULT_DB_ALIAS, Error, router, transaction
from django.utils.translation import gettext as _
from psycopg import errors

from django_pgqueue.db.errors import message_without_detail

from .catalogue import CHECKS
from .findings import Check, Finding, Level, Result, cannot_see, no_tables, quoted
from .session import STATEMENT_TIMEOUT_SECONDS, Session

TIME_LIMIT_SECONDS: Final = 20.0
"""After this time, the remaining checks do not run, so that a page of the admin is shown on a very busy server too."""
MIGRATIONS: Final = "migrations"
"""The id of the check of migrations."""


def examine(database: str | None = None, checks: Iterable[Check] = CHECKS) -> list[Finding]:
    """Examine the database of the queue, its workers, and the settings of this process.

    Runs read-only statements in a transaction of its own, or in a savepoint if a transaction is open. It takes about
    20 ms. Each statement is limited to 5 s, and after 20 s no further check begins. It never raises an error of the
    database: if the database cannot be reached, the only finding says so.

    Args:
        database: Alias of the database that stores the jobs. Default: the alias that the routers choose.
        checks: The checks to run, from `doctor.catalogue.CHECKS`. Default: all of them.

    Returns:
        One finding for each check, in the order of the checks. Missing migrations come first.

    Example:
        >>> from django_pgqueue.doctor import Level, examine
        >>> [finding.id for finding in examine() if finding.level is Level.ERROR]
        []
    """
    job = apps.get_model("pgqueue", "Job")
    session = Session(database or router.db_for_write(job) or DEFAULT_DB_ALIAS)
    try:
        session.connection.ensure_connection()
        with session.read_only():
            deadline = time.monotonic() + TIME_LIMIT_SECONDS
            return _cause_first([_finding(check, session, deadline) for check in checks])
    except Error as error:
        return [_unreachable(session.alias, error)]


def _finding(check: Check, session: Session, deadline: float) -> Finding:
    result = _look(check, session) if time.monotonic() < deadline else _too_late()
    return Finding(
        id=check.id,
        level=result.level,
        what=result.what,
        why=result.why or str(check.why),
        fix=result.fix,
        data=dict(result.data),
    )


def _cause_first(findings: list[Finding]) -> list[Finding]:
    """Return the findings with missing migrations before all others, because they cause most of the others."""
    return sorted(findings, key=lambda finding: not (finding.id == MIGRATIONS and finding.level is Level.ERROR))


def _look(check: Check, session: Session) -> Result:
    try:
        with transaction.atomic(using=session.alias):
            return check.look(session)
    except Exception as error:  # noqa: BLE001 -- one failing check must not hide the others
        return _failed(error)


def _too_late() -> Result:
    what = _("Not examined, because the other checks took longer than %(seconds)s s.")
    fix = _("Run the doctor again when the server is less busy.")
    return cannot_see(what % {"seconds": f"{TIME_LIMIT_SECONDS:g}"}, fix)


def _failed(error: Exception) -> Result:
    """Return the result of a check that raised an error. It is never `OK`."""
    cause = error
    while isinstance(cause, Error) and isinstance(cause.__cause__, Exception):  # `db.statements` adds one of its own
        cause = cause.__cause__
    text = message_without_detail(cause).partition("\n")[0]
    if isinstance(cause, errors.UndefinedTable) and "pgqueue_" in text:
        return no_tables()
    if isinstance(cause, errors.InsufficientPrivilege):
        fix = _("Grant the role of this process what docs/production/security.md lists, or use another role.")
        return cannot_see(_("Cannot see this: %(error)s.") % {"error": text}, fix)
    what = _("Could not be examined: %(error)s.") % {"error": text or type(cause).__name__}
    if isinstance(cause, errors.QueryCanceled):
        what = _("Could not be examined: the statement took longer than %(seconds)s s.") % {
            "seconds": STATEMENT_TIMEOUT_SECONDS
        }
    return cannot_see(what, _("Fix the cause and run the doctor again."))


def _unreachable(alias: str, error: Error) -> Finding:
    text = str(error).strip().partition("\n")[0]
    what = _("Cannot examine the database %(alias)s: %(error)s") % {"alias": quoted(alias), "error": text}
    return Finding(
        id="server",
        level=Level.ERROR,
        what=what,
        why=_("Without the database, no job is enqueued or run."),
        fix=_("Start the server, or correct DATABASES[%(alias)s].") % {"alias": quoted(alias)},
        data={"cannot_see": what},
    )
