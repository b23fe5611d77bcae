"""What one job leaves behind on its thread's database connections must not reach the next.

A connection with a transaction open, in error, or with session settings changed is closed, and the next job gets a
new one, with all that the project does at its creation. Closing blindly would cost 2.4 ms a job.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

import psycopg
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from django_pgqueue.conf import get_settings
from django_pgqueue.db import add_options, refuse_an_old_primary

ORDINARY: Final = (
    "SELECT",
    "INSERT",
    "UPDATE",
    "DELETE",
    "WITH",
    "SAVEPO",
    "RELEAS",
    "ROLLBA",
    "BEGIN",
    "COMMIT",
    "/*",
)
"""How statements begin that leave nothing behind, unless they call one of `LASTING`; compared by six letters."""
LASTING: Final = ("set_config", "advisory_lock", "TEMP")
CONNECT_SECONDS: Final = 10
"""How long a job waits for a connection to one host, unless the project's settings say something else."""
HARMLESS_SETTING: Final = re.compile(r"\s*SET\s+(LOCAL|TRANSACTION|CONSTRAINTS)\b", re.IGNORECASE)

_dirty: WeakKeyDictionary[BaseDatabaseWrapper, bool] = WeakKeyDictionary()
_opened_at: WeakKeyDictionary[BaseDatabaseWrapper, float] = WeakKeyDictionary()
_generation = [0]
_off_slots = [0]
_seen: WeakKeyDictionary[BaseDatabaseWrapper, int] = WeakKeyDictionary()


def changes_the_session(statement: str) -> bool:
    """Say whether a statement may leave something behind on its connection: anything out of the ordinary may."""
    if statement.lstrip()[:6].upper().rstrip().startswith(ORDINARY):
        return any(word in statement for word in LASTING)
    return HARMLESS_SETTING.match(statement) is None


def watch() -> None:
    """From now on, note on which connections of this process the session is changed; once per process."""
    connection_created.connect(_watch_connection, dispatch_uid="pgqueue-hygiene")
    notice_lost_servers()


def notice_lost_servers() -> None:
    """Have the jobs' connections notice within a lease that a server is gone, where OPTIONS says nothing else.

    By the system's defaults a job would wait for its answer for a quarter of an hour, or two hours, while its lease is
    extended at the server that took over. Sooner than a lease would fail jobs that outlive a short break.
    """
    lease_seconds = get_settings().LEASE
    patience = {
        "connect_timeout": CONNECT_SECONDS,
        "keepalives": 1,
        "keepalives_idle": max(1, round(lease_seconds / 2)),
        "keepalives_interval": max(1, round(lease_seconds / 8)),
        "keepalives_count": 4,
        "tcp_user_timeout": round(lease_seconds * 1000),
    }
    for connection in connections.all():
        if connection.vendor == "postgresql":
            add_options(connection.alias, patience)


def distrust_all() -> None:
    """Make every thread close its connections before its next job: the server was lost a moment ago."""
    _generation[0] += 1


def generation() -> int:
    """Return how often the server was lost."""
    return _generation[0]


def statements_off_slots() -> int:
    """Return how many statements other threads than the slots' have run: the asynchronous ORM's among them."""
    return _off_slots[0]


def before_job() -> None:
    """Close this thread's connections that are too old, or older than a loss of the server."""
    for connection in connections.all(initialized_only=True):
        if connection.connection is not None and (_is_old(connection) or _seen.get(connection) != _generation[0]):
            connection.close()


def after_job() -> None:
    """Close this thread's connections that the job left in a state of its own."""
    for connection in connections.all(initialized_only=True):
        if connection.connection is not None and _is_spoilt(connection):
            _abandon(connection)


def close_all() -> None:
    """Close all of this thread's connections, whatever state they are in."""
    for connection in connections.all(initialized_only=True):
        _abandon(connection)


def close_for_good() -> None:
    """Close this process's Django connections for good, psycopg's pools with their threads included, before a fork.

    A child that inherits a pool shares its sockets with its siblings, and reads their answers.
    """
    connections.close_all()
    for connection in connections.all(initialized_only=True):
        if connection.alias in getattr(connection, "_connection_pools", ()):
            connection.close_pool()  # type: ignore[attr-defined]  # PostgreSQL's wrapper has it


def _watch_connection(sender: Any, connection: BaseDatabaseWrapper, **kwargs: Any) -> None:
    raw = connection.connection
    if isinstance(raw, psycopg.Connection) and raw.autocommit:
        try:
            refuse_an_old_primary(raw, connection.alias)
        except psycopg.OperationalError:
            connection.close()
            raise
    _dirty[connection] = False
    _opened_at[connection] = time.monotonic()
    _seen[connection] = _generation[0]
    if _note not in connection.execute_wrappers:
        connection.execute_wrappers.append(_note)


def _note(execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: dict[str, Any]) -> Any:  # noqa: FBT001 -- Django's signature
    if not threading.current_thread().name.startswith("pgqueue-job"):
        _off_slots[0] += 1
    if changes_the_session(str(sql)):
        _dirty[context["connection"]] = True
    return execute(sql, params, many, context)


def _is_old(connection: BaseDatabaseWrapper) -> bool:
    return time.monotonic() - _opened_at.get(connection, 0.0) > get_settings().CONN_MAX_AGE


def _is_spoilt(connection: BaseDatabaseWrapper) -> bool:
    return (
        connection.in_atomic_block
        or connection.needs_rollback
        or connection.errors_occurred
        or not connection.autocommit
        or _dirty.get(connection, False)
        or not _is_idle(connection)
        or "pool" in connection.settings_dict.get("OPTIONS", {})
    )


def _is_idle(connection: BaseDatabaseWrapper) -> bool:
    raw = connection.connection
    if not isinstance(raw, psycopg.Connection):
        return True
    return raw.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def _abandon(connection: BaseDatabaseWrapper) -> None:
    """Close a connection also from within a transaction that was never ended."""
    connection.in_atomic_block = False
    connection.savepoint_ids.clear()
    connection.atomic_blocks.clear()
    connection.needs_rollback = False
    connection.closed_in_transaction = False
    connection.run_on_commit = []
    connection.close()
