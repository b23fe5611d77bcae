"""Checks of the server: version, durability, connections, clock, and the settings of the role."""

from __future__ import annotations

import time
from typing import Any, Final

from django.utils.text import get_text_list
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgqueue.display import number

from .findings import Level, Result, check, level_of, ok, percent, quoted, span
from .session import Session

MIN_VERSION: Final = 15
CONNECTIONS_WARNING, CONNECTIONS_ERROR = 0.8, 0.95
CLOCK_WARNING_SECONDS, CLOCK_ERROR_SECONDS = 2.0, 60.0
CLOCK_SAMPLES: Final = 3
STATEMENT_TIMEOUT_MS: Final = 5000
TRANSACTION_TIMEOUT_MS: Final = 31_000

SERVER: Final = """/* pgqueue:doctor_server */
SELECT current_setting('server_version_num')::integer, current_setting('server_version'), pg_is_in_recovery(),
       current_setting('default_transaction_read_only') = 'on'
"""
DURABILITY: Final = """/* pgqueue:doctor_durability */
SELECT current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit')
"""
# All sessions are counted from the statistics of databases, because those are visible to every role.
CONNECTIONS: Final = """/* pgqueue:doctor_connections */
SELECT 'server', (SELECT sum(numbackends) FROM pg_stat_database)::integer,
       current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer
           - coalesce(current_setting('reserved_connections', true), '0')::integer
UNION ALL
SELECT 'database', (SELECT count(*) FROM pg_stat_activity WHERE datid = pg_database.oid), datconnlimit
FROM pg_database
WHERE datname = current_database() AND datconnlimit > 0
UNION ALL
SELECT 'role', (SELECT count(*) FROM pg_stat_activity WHERE usesysid = pg_roles.oid), rolconnlimit
FROM pg_roles
WHERE rolname = session_user AND rolconnlimit > 0
"""
CLOCK: Final = """/* pgqueue:doctor_clock */
SELECT date_part('epoch', clock_timestamp())
"""
# The values that a session of this role starts with, because the doctor changes its own.
ROLE_SETTINGS: Final = """/* pgqueue:doctor_role_settings */
SELECT name, reset_val
FROM pg_settings
WHERE name IN ('statement_timeout', 'transaction_timeout', 'default_transaction_isolation')
"""
# The places where a setting of new sessions can come from, the one that applies first, and the names to write.
SOURCES: Final = """/* pgqueue:doctor_sources */
SELECT stored.setrole <> 0, stored.setdatabase <> 0
FROM pg_db_role_setting AS stored
CROSS JOIN LATERAL unnest(stored.setconfig) AS config
WHERE stored.setrole IN (0, (SELECT oid FROM pg_roles WHERE rolname = session_user))
  AND stored.setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))
  AND starts_with(config, %(name)s || '=')
ORDER BY stored.setrole <> 0 AND stored.setdatabase <> 0 DESC, stored.setrole DESC
LIMIT 1
"""
NAMES: Final = """/* pgqueue:doctor_names */
SELECT quote_ident(session_user), quote_ident(current_database())
"""


@check(
    "server",
    f"Error: the server cannot be reached, is a standby or read-only, or is older than PostgreSQL {MIN_VERSION}.",
    gettext_lazy("Without a server that accepts writes, no job is enqueued or run."),
)
def _server(session: Session) -> Result:
    number, version, is_standby, is_read_only = session.row(SERVER)
    data = {"version": version, "is_standby": is_standby, "is_read_only": is_read_only}
    if is_standby:
        fix = _("Point DATABASES at the primary: see target_session_attrs in docs/production/connections.md.")
        return Result(Level.ERROR, _("The server is a standby, which refuses all writes."), fix, data)
    if is_read_only:
        fix = reset_statement(session, "default_transaction_read_only")
        return Result(Level.ERROR, _("default_transaction_read_only is on, so nothing can be written."), fix, data)
    if number // 10_000 < MIN_VERSION:
        fix = _("Upgrade to PostgreSQL %(version)s or later.") % {"version": MIN_VERSION}
        what = _("The server is PostgreSQL %(version)s, which is not supported.") % {"version": version}
        return Result(Level.ERROR, what, fix, data)
    return ok(_("The server is PostgreSQL %(version)s, and accepts writes.") % {"version": version}, **data)


@check(
    "durability",
    "Error: `fsync` or `full_page_writes` is off. Warning: `synchronous_commit` is off for this role.",
    gettext_lazy("A job that was enqueued or completed can be lost when the server crashes."),
)
def _durability(session: Session) -> Result:
    fsync, full_page_writes, synchronous_commit = session.row(DURABILITY)
    data = {"fsync": fsync, "full_page_writes": full_page_writes, "synchronous_commit": synchronous_commit}
    unsafe = [name for name in ("fsync", "full_page_writes") if data[name] == "off"]
    if unsafe:
        names = get_text_list(unsafe, _("and"))
        what = _("Off: %(names)s. A crash of the server can destroy the database.") % {"names": names}
        fix = "; ".join(f"ALTER SYSTEM SET {name} = on" for name in unsafe) + "; SELECT pg_reload_conf();"
        return Result(Level.ERROR, what, fix, data)
    if synchronous_commit == "off":
        what = _("synchronous_commit is off: a crash of the server loses the last commits, although they succeeded.")
        return Result(Level.WARNING, what, reset_statement(session, "synchronous_commit"), data)
    return ok(_("Commits wait until they are on disk."), **data)


IN_USE: Final = {
    "server": gettext_lazy("%(used)s of %(limit)s connections of the server are in use."),
    "database": gettext_lazy("%(used)s of %(limit)s connections of the database are in use."),
    "role": gettext_lazy("%(used)s of %(limit)s connections of the role are in use."),
}


@check(
    "connections",
    f"Warning: {percent(CONNECTIONS_WARNING)} of the connections that the server, the database or the role allows "
    f"are in use. Error: {percent(CONNECTIONS_ERROR)}.",
    gettext_lazy("A worker that gets no connection cannot extend its leases, and its jobs run again elsewhere."),
)
def _connections(session: Session) -> Result:
    found = [
        {"limit_of": of, "used": used, "limit": limit, "share": round(used / max(limit, 1), 2)}
        for of, used, limit in session.rows(CONNECTIONS)
    ]
    fullest = max(found, key=lambda each: float(each["share"]))
    level = level_of(fullest["share"], warning=CONNECTIONS_WARNING, error=CONNECTIONS_ERROR)
    what = IN_USE[fullest["limit_of"]] % {"used": fullest["used"], "limit": fullest["limit"]}
    fix = _raised_limit(session, fullest["limit_of"], 2 * fullest["limit"]) if level is not Level.OK else ""
    return Result(level, what, fix, {"limits": found})


def _raised_limit(session: Session, limit_of: str, limit: int) -> str:
    """Return what raises a limit of connections."""
    role, database = session.row(NAMES)
    if limit_of == "role":
        return f"ALTER ROLE {role} CONNECTION LIMIT {limit};"
    if limit_of == "database":
        return f"ALTER DATABASE {database} CONNECTION LIMIT {limit};"
    return _("Raise max_connections in postgresql.conf, start fewer workers, or put a pooler in front.")


def reset_statement(session: Session, name: str) -> str:
    """Return the statement that resets a setting of new sessions, where it is stored."""
    role, database = session.row(NAMES)
    found = session.rows(SOURCES, name=name)
    if not found:
        places = _("Reset %(name)s in postgresql.conf, or in OPTIONS of DATABASES[%(alias)s].")
        return places % {"name": name, "alias": quoted(session.alias)}
    [(is_of_role, is_of_database)] = found
    if not is_of_role:
        return f"ALTER DATABASE {database} RESET {name};"
    return f"ALTER ROLE {role}{f' IN DATABASE {database}' if is_of_database else ''} RESET {name};"


def clock_difference(session: Session) -> tuple[float, float]:
    """Return the server's clock minus this host's in seconds, and how wrong that can be: half of a round trip."""
    samples = []
    for _sample in range(CLOCK_SAMPLES):
        asked_at, began = time.time(), time.perf_counter()
        [server_at] = session.row(CLOCK)
        uncertainty = (time.perf_counter() - began) / 2
        samples.append((uncertainty, server_at - asked_at - uncertainty))
    uncertainty, difference = min(samples)
    return difference, uncertainty


@check(
    "clock",
    f"Warning: the clocks of this host and the server differ by more than {CLOCK_WARNING_SECONDS:g} s. "
    f"Error: by more than {CLOCK_ERROR_SECONDS:g} s.",
    gettext_lazy("Due times that your code computes from its own clock are early or late by the difference."),
)
def _clock(session: Session) -> Result:
    difference, uncertainty = clock_difference(session)
    least = max(abs(difference) - uncertainty, 0.0)
    level = level_of(least, warning=CLOCK_WARNING_SECONDS, error=CLOCK_ERROR_SECONDS)
    data = {"difference_seconds": round(difference, 3), "uncertainty_seconds": round(uncertainty, 4)}
    what = _("The clock of this host differs from the server's by %(seconds)s s (± %(uncertainty)s s).") % {
        "seconds": number(abs(difference), 2),
        "uncertainty": number(uncertainty, 3),
    }
    fix = _("Synchronize the clocks of this host and of the server by NTP.")
    return Result(level, what, fix if level is not Level.OK else "", data)


@check(
    "role_settings",
    f"Warning: `statement_timeout` is below {STATEMENT_TIMEOUT_MS / 1000:g} s, `transaction_timeout` is below "
    f"{TRANSACTION_TIMEOUT_MS / 1000:g} s, or transactions are not READ COMMITTED by default.",
    gettext_lazy(
        "Jobs, large enqueues and, behind a pooler, the worker's own statements fail because of such settings."
    ),
)
def _role_settings(session: Session) -> Result:
    values: dict[str, str] = dict(session.rows(ROLE_SETTINGS))
    problems, resets = [], []
    for name, least in (("statement_timeout", STATEMENT_TIMEOUT_MS), ("transaction_timeout", TRANSACTION_TIMEOUT_MS)):
        milliseconds = int(values.get(name, "0"))
        if 0 < milliseconds < least:
            problem = _("%(name)s is %(milliseconds)s ms, which is less than %(least)s")
            problems.append(problem % {"name": name, "milliseconds": milliseconds, "least": span(least / 1000)})
            resets.append(name)
    isolation = values["default_transaction_isolation"]
    if isolation != "read committed":
        problems.append(_("default_transaction_isolation is %(isolation)s") % {"isolation": quoted(isolation)})
        resets.append("default_transaction_isolation")
    data: dict[str, Any] = {"settings": values, "unsuitable": resets}
    if not problems:
        return ok(_("The settings of the role suit the queue."), **data)
    what = _("Settings of the role do not suit the queue: %(problems)s.") % {"problems": "; ".join(problems)}
    return Result(Level.WARNING, what, " ".join(reset_statement(session, name) for name in resets), data)


SERVER_CHECKS: Final = (_server, _durability, _connections, _clock, _role_settings)
