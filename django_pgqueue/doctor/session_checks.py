"""Checks of other sessions: who pins old row versions, who idles in a transaction, slots, and the NOTIFY queue."""

from __future__ import annotations

from typing import Any, Final

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_pgqueue.display import number
from django_pgqueue.display import percent as shown_percent

from .findings import Level, Result, cannot_see, check, level_of, literal, ok, percent, quoted, span, worst
from .session import Session

PINNED_WARNING_SECONDS, PINNED_ERROR_SECONDS = 300.0, 3600.0
PINNED_WARNING_TRANSACTIONS, PINNED_ERROR_TRANSACTIONS = 100_000, 1_000_000
IDLE_WARNING_SECONDS, IDLE_ERROR_SECONDS = 60.0, 600.0
SLOT_ERROR_BYTES: Final = 10 * 1024**3
NOTIFY_WARNING, NOTIFY_ERROR = 0.1, 0.5
SHOWN: Final = 20
MIB: Final = 1024**2

# The transactions of sessions, the standbys with hot_standby_feedback (which have no start), the prepared transactions
# and the slots that keep VACUUM from removing dead rows of this database, the oldest first. VACUUM itself pins nothing.
PINNING: Final = """/* pgqueue:doctor_pinning */
SELECT kind, name, pid, application_name, state, seconds, transactions
FROM (
    SELECT 'session' AS kind, coalesce(usename, backend_type) AS name, pid, application_name, state,
           date_part('epoch', clock_timestamp() - xact_start) AS seconds,
           greatest(age(backend_xmin), age(backend_xid)) AS transactions
    FROM pg_stat_activity
    WHERE (datname = current_database() OR datid IS NULL)
      AND pid <> pg_backend_pid()
      AND coalesce(backend_xmin, backend_xid) IS NOT NULL
      AND pid NOT IN (SELECT pid FROM pg_stat_progress_vacuum WHERE pid IS NOT NULL)
    UNION ALL
    SELECT 'prepared', gid, NULL, owner, 'prepared', date_part('epoch', clock_timestamp() - prepared), age(transaction)
    FROM pg_prepared_xacts
    WHERE database = current_database()
    UNION ALL
    SELECT 'slot', slot_name, active_pid, '', CASE WHEN active THEN 'active' ELSE 'inactive' END, NULL, age(xmin)
    FROM pg_replication_slots
    WHERE xmin IS NOT NULL
) AS pinning
ORDER BY transactions DESC, seconds DESC NULLS LAST
LIMIT %(shown)s
"""
IDLE: Final = """/* pgqueue:doctor_idle */
SELECT pid, usename, application_name, date_part('epoch', clock_timestamp() - state_change),
       date_part('epoch', clock_timestamp() - xact_start)
FROM pg_stat_activity
WHERE datname = current_database()
  AND pid <> pg_backend_pid()
  AND state LIKE 'idle in transaction%%'
ORDER BY state_change
LIMIT %(shown)s
"""
SLOTS: Final = """/* pgqueue:doctor_slots */
SELECT slot_name, slot_type, active, wal_status,
       pg_wal_lsn_diff(
           CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END, restart_lsn
       )::bigint AS held_bytes
FROM pg_replication_slots
WHERE restart_lsn IS NOT NULL
ORDER BY held_bytes DESC
LIMIT %(shown)s
"""
NOTIFY_QUEUE: Final = """/* pgqueue:doctor_notify_queue */
SELECT pg_notification_queue_usage()
"""


@check(
    "pinned_rows",
    f"Warning: a transaction, a prepared transaction, a standby or a slot pins row versions for "
    f"{PINNED_WARNING_SECONDS / 60:.0f} minutes or {PINNED_WARNING_TRANSACTIONS:,} transactions. "
    f"Error: for {PINNED_ERROR_SECONDS / 3600:.0f} hour or {PINNED_ERROR_TRANSACTIONS:,} transactions.",
    gettext_lazy("VACUUM cannot remove newer dead rows, so the tables and indexes grow and every claim reads more."),
)
def _pinned_rows(session: Session) -> Result:
    keys = ("kind", "name", "pid", "application_name", "state", "seconds", "transactions")
    found = [dict(zip(keys, row, strict=True)) for row in session.rows(PINNING, shown=SHOWN)]
    old = [(_pin_level(each), each) for each in found if _pin_level(each) is not Level.OK]
    hidden = session.hidden_sessions()
    data = {"pinning": [each for _level, each in old], "hidden_sessions": hidden}
    if old:
        level = worst(each for each, _pin in old)
        what = _pin_text(next(each for of, each in old if of is level))
        if more := len(old) - 1:
            too = ngettext("%(count)s more pins them too.", "%(count)s more pin them too.", more)
            what = f"{what} {too % {'count': more}}"
        return Result(level, what, " ".join(_pin_fix(each) for _level, each in old[:3]), data)
    if hidden:
        what = ngettext(
            "Cannot see the transactions of %(count)s session.",
            "Cannot see the transactions of %(count)s sessions.",
            hidden,
        ) % {"count": number(hidden)}
        return cannot_see(what, session.grant_to_see_sessions(), **data)
    return ok(_("No transaction, slot or standby pins row versions for long."), **data)


def _pin_level(pin: dict[str, Any]) -> Level:
    if pin["seconds"] is not None:
        return level_of(pin["seconds"], warning=PINNED_WARNING_SECONDS, error=PINNED_ERROR_SECONDS)
    return level_of(pin["transactions"], warning=PINNED_WARNING_TRANSACTIONS, error=PINNED_ERROR_TRANSACTIONS)


def _pin_text(pin: dict[str, Any]) -> str:
    values = {
        "name": quoted(pin["name"]),
        "pid": pin["pid"],
        "application": quoted(pin["application_name"] or ""),
        "state": pin["state"] or "replicating",
        "count": number(pin["transactions"]),
    }
    if pin["seconds"] is None:
        return _pin_of_unknown_time(pin) % values
    values["span"] = span(pin["seconds"])
    if pin["kind"] == "prepared":
        return _("The prepared transaction %(name)s has pinned row versions for %(span)s.") % values
    return (
        _(
            "A transaction (process %(pid)s of %(name)s, application %(application)s, %(state)s) has pinned row "
            "versions for %(span)s."
        )
        % values
    )


def _pin_of_unknown_time(pin: dict[str, Any]) -> str:
    """Return the text of a slot or of the WAL sender of a standby: the server does not know since when they pin."""
    if pin["kind"] == "slot":
        return ngettext(
            "The replication slot %(name)s (%(state)s) has pinned row versions for %(count)s transaction.",
            "The replication slot %(name)s (%(state)s) has pinned row versions for %(count)s transactions.",
            pin["transactions"],
        )
    return ngettext(
        "A transaction (process %(pid)s of %(name)s, application %(application)s, %(state)s) has pinned row versions "
        "for %(count)s transaction.",
        "A transaction (process %(pid)s of %(name)s, application %(application)s, %(state)s) has pinned row versions "
        "for %(count)s transactions.",
        pin["transactions"],
    )


def _pin_fix(pin: dict[str, Any]) -> str:
    if pin["kind"] == "prepared":
        return f"ROLLBACK PREPARED {literal(pin['name'])};"
    if pin["state"] == "inactive":
        return f"SELECT pg_drop_replication_slot({literal(pin['name'])});"
    if pin["seconds"] is None:  # the slot or the WAL sender of a running standby
        return _("End the long query on the standby, or turn off hot_standby_feedback there.")
    return f"SELECT pg_terminate_backend({pin['pid']});"


@check(
    "idle_in_transaction",
    f"Warning: a session idles in a transaction for {IDLE_WARNING_SECONDS:.0f} s. "
    f"Error: for {IDLE_ERROR_SECONDS / 60:.0f} minutes.",
    gettext_lazy("It keeps its row locks and pins old row versions, although it does nothing."),
)
def _idle_in_transaction(session: Session) -> Result:
    keys = ("pid", "user", "application_name", "idle_seconds", "transaction_seconds")
    found = [dict(zip(keys, row, strict=True)) for row in session.rows(IDLE, shown=SHOWN)]
    idle = [each for each in found if each["idle_seconds"] >= IDLE_WARNING_SECONDS]
    hidden = session.hidden_sessions()
    data = {"sessions": idle, "hidden_sessions": hidden}
    if idle:
        longest = idle[0]
        level = level_of(longest["idle_seconds"], warning=IDLE_WARNING_SECONDS, error=IDLE_ERROR_SECONDS)
        what = ngettext(
            "%(count)s session idles in a transaction, the longest (process %(pid)s, application %(application)s) for "
            "%(span)s.",
            "%(count)s sessions idle in a transaction, the longest (process %(pid)s, application %(application)s) for "
            "%(span)s.",
            len(idle),
        ) % {
            "count": len(idle),
            "pid": longest["pid"],
            "application": quoted(longest["application_name"]),
            "span": span(longest["idle_seconds"]),
        }
        fix = _("%(statement)s and set idle_in_transaction_session_timeout for the role of that application.")
        return Result(level, what, fix % {"statement": f"SELECT pg_terminate_backend({longest['pid']});"}, data)
    if hidden:
        what = ngettext(
            "Cannot see the state of %(count)s session.", "Cannot see the state of %(count)s sessions.", hidden
        ) % {"count": number(hidden)}
        return cannot_see(what, session.grant_to_see_sessions(), **data)
    return ok(_("No session idles in a transaction."), **data)


@check(
    "replication_slots",
    f"Warning: nothing uses a replication slot. Error: a slot holds {SLOT_ERROR_BYTES / 1024**3:.0f} GiB of WAL, "
    "or the server has removed WAL that it needs.",
    gettext_lazy("The WAL that an unused slot holds fills the disk, and a full disk stops the server."),
)
def _replication_slots(session: Session) -> Result:
    keys = ("name", "type", "is_active", "wal_status", "held_bytes")
    slots = [dict(zip(keys, row, strict=True)) for row in session.rows(SLOTS, shown=SHOWN)]
    bad = [(level, slot) for slot in slots if (level := _slot_level(slot)) is not Level.OK]
    data = {"slots": slots}
    if not bad:
        what = ngettext(
            "%(count)s replication slot, and none holds much WAL.",
            "%(count)s replication slots, and none holds much WAL.",
            len(slots),
        ) % {"count": len(slots)}
        return ok(what, **data)
    level = worst(each for each, _slot in bad)
    slot = next(each for of, each in bad if of is level)
    values = {
        "name": quoted(slot["name"]),
        "size": number(slot["held_bytes"] / MIB),
        "status": slot["wal_status"],
        "statement": f"SELECT pg_drop_replication_slot({literal(slot['name'])});",
    }
    if slot["is_active"]:
        what = _("The replication slot %(name)s is in use and holds %(size)s MiB of WAL (%(status)s).")
    else:
        what = _("The replication slot %(name)s is unused and holds %(size)s MiB of WAL (%(status)s).")
    fix = _("%(statement)s unless its standby or consumer comes back.")
    return Result(level, what % values, fix % values, data)


def _slot_level(slot: dict[str, Any]) -> Level:
    if slot["wal_status"] in ("unreserved", "lost") or slot["held_bytes"] >= SLOT_ERROR_BYTES:
        return Level.ERROR
    return Level.OK if slot["is_active"] else Level.WARNING


@check(
    "notify_queue",
    f"Warning: the queue of notifications is {percent(NOTIFY_WARNING)} full. Error: {percent(NOTIFY_ERROR)}.",
    gettext_lazy("When the queue is full, every transaction of the server that sends a notification fails."),
)
def _notify_queue(session: Session) -> Result:
    [usage] = session.row(NOTIFY_QUEUE)
    level = level_of(usage, warning=NOTIFY_WARNING, error=NOTIFY_ERROR)
    fix = _("End the oldest transaction of a session that listens: it keeps the queue from being emptied.")
    what = _("The queue of notifications is %(share)s full.") % {"share": shown_percent(usage)}
    return Result(level, what, fix if level is not Level.OK else "", {"usage": usage})


SESSION_CHECKS: Final = (_pinned_rows, _idle_in_transaction, _replication_slots, _notify_queue)
