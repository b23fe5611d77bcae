"""Checks of the way to the server: a pooler in front of it, the alias for notifications, and who listens to them.

A pooler gives its clients process ids of its own. So if the process id that the client received at connecting differs
from that of the server process that answers, something is in between. Whether it pools transactions shows with two idle
connections: only then can one server process answer both.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import Any, Final

import psycopg
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_pgqueue.db.engine_connection import EngineConnection, connect
from django_pgqueue.db.notifications import LISTENS
from django_pgqueue.db.statements import execute
from django_pgqueue.display import number
from django_pgqueue.settings.conf import get_settings

from .findings import Level, Result, cannot_see, check, ok, quoted
from .session import STATEMENT_TIMEOUT_SECONDS, Session

ROLE: Final = "doctor"
TRIALS: Final = 3
LISTENERS: Final = f"pgqueue:%{LISTENS}"
"""Pattern of the `application_name` of the connections on which worker processes receive notifications."""
STARTING_SECONDS: Final = 60.0
"""A worker that started within this time may still be testing its connection for notifications."""

SERVER_PROCESS: Final = """/* pgqueue:doctor_server_process */
SELECT pg_backend_pid()
"""
# Together they identify a database: its name, and the start of the server with microseconds.
PLACE: Final = """/* pgqueue:doctor_place */
SELECT current_database(), pg_postmaster_start_time(), pg_is_in_recovery(), pg_backend_pid()
"""
# How many worker processes are live and not just starting, and how many connections receive notifications.
#
# Cost: reads the register of workers, and the sessions of the server
LISTENING: Final = """/* pgqueue:doctor_listening */
SELECT (
           SELECT count(*)
           FROM pgqueue_worker
           WHERE stopped_at IS NULL AND supervisor_pid IS NOT NULL
             AND last_heartbeat_at > statement_timestamp() + %(time_shift)s::interval
                 - make_interval(secs => 2 * %(lease_seconds)s::float8)
             AND started_at < statement_timestamp() + %(time_shift)s::interval
                 - make_interval(secs => %(starting_seconds)s::float8)
       ),
       (
           SELECT count(*)
           FROM pg_stat_activity
           WHERE datname = current_database() AND application_name LIKE %(listeners)s
             AND application_name NOT LIKE 'pgqueue:remote-%%'
       )
"""


def is_behind_pooler(raw: psycopg.Connection[Any], server_process: int) -> bool:
    """Return whether the process id that a connection got at its start is not that of the server's process."""
    return raw.info.backend_pid != server_process


def pools_transactions(alias: str) -> bool:
    """Return whether one server process answers two idle connections. Opens two connections for a moment."""
    with ExitStack() as stack:
        pair = [stack.enter_context(closing(connect(alias, ROLE, STATEMENT_TIMEOUT_SECONDS))) for _ in range(2)]
        seen = [{_server_process(each) for _ in range(TRIALS)} for each in pair]
    return bool(seen[0] & seen[1]) or any(len(processes) > 1 for processes in seen)


def _server_process(connection: EngineConnection) -> int:
    [[process]] = execute(connection, SERVER_PROCESS, {})
    return int(process)


@check(
    "pooler",
    "Warning: the connection leads through a pooler in transaction mode, and `LISTEN_DATABASE` is not set. "
    "Info: it leads through a pooler that does no harm.",
    gettext_lazy(
        "Such a pooler delivers no notifications, so workers find new jobs only when they poll, every second."
    ),
)
def _pooler(session: Session) -> Result:
    [server_process] = session.row(SERVER_PROCESS)
    settings = get_settings()
    if not is_behind_pooler(session.connection.connection, server_process):
        return ok(_("No pooler is between this process and the server."), pooler=None)
    if not pools_transactions(session.alias):
        what = _("A pooler is in front of the server, and keeps a server process for each client.")
        return Result(Level.INFO, what, data={"pooler": "session"})
    listen_database = None if settings.LISTEN_DATABASE is None else settings.listen_alias(session.alias)
    data = {"pooler": "transaction", "listen_database": listen_database}
    if listen_database not in (None, session.alias):
        what = _(
            "A pooler in transaction mode is in front of the server, and LISTEN_DATABASE names another alias for "
            "notifications."
        )
        return Result(Level.INFO, what, data=data)
    if not settings.NOTIFY:
        what = _("A pooler in transaction mode is in front of the server, and NOTIFY is off, so workers poll.")
        return Result(Level.INFO, what, data=data)
    what = _("A pooler in transaction mode is in front of the server, and LISTEN_DATABASE is not set, so workers poll.")
    fix = _('Set PGQUEUE["LISTEN_DATABASE"] to an alias that leads directly to the server.')
    return Result(Level.WARNING, what, fix, data)


@check(
    "listen_database",
    "Error: `LISTEN_DATABASE` cannot be reached, is a standby, or leads to another database than the jobs. "
    "Warning: it leads through a pooler in transaction mode.",
    gettext_lazy("Notifications from the wrong place never arrive, so workers find new jobs only when they poll."),
)
def _listen_database(session: Session) -> Result:
    settings = get_settings()
    alias = settings.listen_alias(session.alias)
    if alias == session.alias:
        named = None if settings.LISTEN_DATABASE is None else alias
        return ok(_("Notifications use the alias of the jobs."), listen_database=named)
    data: dict[str, Any] = {"listen_database": alias}
    values = {"alias": quoted(alias), "setting": 'PGQUEUE["LISTEN_DATABASE"]'}
    fix = _("Let DATABASES[%(alias)s] lead directly to the database of the jobs, or change %(setting)s.") % values
    name, started_at = session.row(PLACE)[:2]
    try:
        with closing(connect(alias, ROLE, STATEMENT_TIMEOUT_SECONDS)) as direct:
            [[other_name, other_start, is_standby, process]] = execute(direct, PLACE, {})
            is_pooled = is_behind_pooler(direct, process) and pools_transactions(alias)
    except psycopg.Error as error:
        what = _("%(setting)s is %(alias)s, which cannot be reached: %(error)s.")
        return Result(Level.ERROR, what % {**values, "error": str(error).partition("\n")[0]}, fix, data)
    if (other_name, other_start) != (name, started_at):
        what = _("%(setting)s is %(alias)s, which leads to another database than %(jobs)s.")
        return Result(Level.ERROR, what % {**values, "jobs": quoted(session.alias)}, fix, data)
    if is_standby:
        what = _("%(setting)s is %(alias)s, which is a standby and cannot listen.") % values
        return Result(Level.ERROR, what, fix, data)
    if is_pooled:
        what = _("%(setting)s is %(alias)s, which leads through a pooler in transaction mode too.") % values
        return Result(Level.WARNING, what, fix, data)
    return ok(_("Notifications use the alias %(alias)s, which leads to the same database.") % values, **data)


@check(
    "listening",
    f"Warning: workers have been running for {STARTING_SECONDS:.0f} s, and none has a connection that receives "
    "notifications.",
    gettext_lazy("Workers that poll start a job up to a second late, and query the database all the time."),
)
def _listening(session: Session) -> Result:
    settings = get_settings()
    params = {"lease_seconds": settings.LEASE, "starting_seconds": STARTING_SECONDS, "listeners": LISTENERS}
    workers, listeners = session.row(LISTENING, **params)
    data = {"workers": workers, "listeners": listeners}
    if not settings.NOTIFY:
        return ok(_("NOTIFY is off, so workers poll."), **data)
    if listeners or not workers:
        return ok(_("Connections that receive notifications: %(count)s.") % {"count": number(listeners)}, **data)
    if hidden := session.hidden_sessions():
        what = ngettext(
            "Cannot see whether %(count)s session listens.", "Cannot see whether %(count)s sessions listen.", hidden
        ) % {"count": number(hidden)}
        return cannot_see(what, session.grant_to_see_sessions(), **data)
    what = ngettext(
        "%(count)s worker is polling, because no connection receives notifications.",
        "%(count)s workers are polling, because no connection receives notifications.",
        workers,
    ) % {"count": number(workers)}
    fix = _('Read the log of the workers. Behind a pooler in transaction mode, set PGQUEUE["LISTEN_DATABASE"].')
    return Result(Level.WARNING, what, fix, data)


POOLER_CHECKS: Final = (_pooler, _listen_database, _listening)
