"""What one job leaves behind in its thread must not reach the next: on database connections, and in context variables.

A connection with a transaction open, in error, or with session settings changed is closed, and the next job gets a
new one, with all that the project does at its creation. Closing blindly would cost 2.4 ms a job. Context variables (the
active time zone and language among them) need no undoing: each job runs in a copy of a clean context.

What a job changes for the whole process is `drift`'s. `tests/benchmarks/hygiene.py` measures what each measure costs.
"""

from __future__ import annotations

import re
import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from typing import Any, Final
from weakref import ReferenceType, WeakKeyDictionary, ref

import psycopg
from django.core.cache import caches
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from django_pgqueue.conf import get_settings
from django_pgqueue.db import add_options
from django_pgqueue.server import refuse_an_old_primary

BEFORE_IT: Final = r"(?:[\s(]|--[^\n]*\n|/\*.*?\*/)*"
ORDINARY: Final = re.compile(
    BEFORE_IT + r"(SELECT|INSERT|UPDATE|DELETE|WITH|VALUES|MERGE|LOCK|TRUNCATE|SHOW|NOTIFY"
    r"|SAVEPOINT|RELEASE|ROLLBACK|BEGIN|COMMIT|SET\s+(LOCAL|TRANSACTION|CONSTRAINTS))\b",
    re.IGNORECASE | re.DOTALL,
)
"""How statements begin that leave nothing behind, unless they have one of `LASTING` in them."""
LASTING: Final = ("set_config", "advisory_lock", ";")
INTO_TEMPORARY: Final = re.compile(r"\binto\s+(local\s+)?temp(orary)?\b")
KNOWN_LIMIT: Final = 2000
KNOWN_LENGTH: Final = 1000
"""Verdicts are kept for so many statements of at most so many characters: the ORM sends the same again and again."""
CONNECT_SECONDS: Final = 10
"""How long a job waits for a connection to one host, unless the project's settings say something else."""

_known: dict[str, bool] = {}
_generation = [0]
_off_slots = [0]


def changes_the_session(statement: str) -> bool:
    """Say whether a statement may leave something behind on its connection: anything out of the ordinary may."""
    if not ORDINARY.match(statement):
        return True
    text = statement.lower().rstrip("; \n")
    if any(word in text for word in LASTING):
        return True
    return "temp" in text and INTO_TEMPORARY.search(text) is not None


def _is_known_to_change(statement: str) -> bool:
    verdict = _known.get(statement)
    if verdict is None:
        verdict = changes_the_session(statement)
        if len(statement) <= KNOWN_LENGTH:
            if len(_known) >= KNOWN_LIMIT:
                _known.clear()
            _known[statement] = verdict
    return verdict


class Watched:
    """One thread's connection of one alias, and what is known of its present session."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self._connection: ReferenceType[BaseDatabaseWrapper] = ref(connection)
        self.is_slot_s = threading.current_thread().name.startswith(("pgqueue-job", "pgqueue-call"))
        connection.execute_wrappers.insert(0, self._note)  # whoever is opened inside one of its own pops the last
        self.wrappers = list(connection.execute_wrappers)  # what `connection_created` has added is the project's
        self.opened()

    @property
    def connection(self) -> BaseDatabaseWrapper | None:
        """The connection, if it is still there; open or not."""
        return self._connection()

    def opened(self) -> None:
        """Take note that a new session has begun."""
        self.opened_at = time.monotonic()
        self.generation = _generation[0]
        self.is_dirty = False
        self.named_cursors = -1  # one may be what the session was opened for

    def is_outlived(self) -> bool:
        """Say whether the session is too old, or older than a loss of the server."""
        age_seconds = time.monotonic() - self.opened_at
        return self.generation != _generation[0] or age_seconds > get_settings().CONN_MAX_AGE

    def tidy(self, connection: BaseDatabaseWrapper) -> None:
        """Take away what a job may leave on a connection that is kept."""
        if connection.queries_log:  # with DEBUG: 9,000 statements with all that is in them
            connection.queries_log.clear()
        connection.force_debug_cursor = False
        if connection.execute_wrappers != self.wrappers:
            if connection.execute_wrappers == self.wrappers[:-1]:  # the session was opened inside of one, now gone
                self.wrappers.pop()
            connection.execute_wrappers[:] = self.wrappers
        named_cursors = getattr(connection, "_named_cursor_idx", 0)
        if named_cursors != self.named_cursors and connection.connection is not None:
            self.named_cursors = named_cursors  # iterator() outside of a transaction: WITH HOLD, and perhaps half read
            connection.connection.execute("CLOSE ALL")

    def _note(self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: dict[str, Any]) -> Any:  # noqa: FBT001 -- Django's signature
        if not self.is_slot_s:
            _off_slots[0] += 1
        if _is_known_to_change(str(sql)):
            self.is_dirty = True
        return execute(sql, params, many, context)


class _Here(threading.local):
    """The connections of this thread that were ever opened. To ask Django for them cost each job 16 µs."""

    def __init__(self) -> None:
        self.watched: list[Watched] = []


_here = _Here()
_all: WeakKeyDictionary[BaseDatabaseWrapper, Watched] = WeakKeyDictionary()


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


def _watch_connection(sender: Any, connection: BaseDatabaseWrapper, **kwargs: Any) -> None:
    raw = connection.connection
    if isinstance(raw, psycopg.Connection) and raw.autocommit:
        try:
            refuse_an_old_primary(raw, connection.alias)
        except psycopg.OperationalError:
            connection.close()
            raise
    if connection in _all:
        _all[connection].opened()
        return
    watched = _all[connection] = Watched(connection)
    _here.watched = [one for one in _here.watched if one.connection is not None] + [watched]


def distrust_all() -> None:
    """Make every thread close its connections before its next job: the server was lost a moment ago."""
    _generation[0] += 1


def distrust_since(losses: int) -> None:
    """Close connections before the next job if this number has changed: another process counts the losses.

    A process of isolated jobs asks the database nothing itself. After a restart of the server it would fail the next
    job on a connection that is gone.
    """
    _generation[0] = losses


def generation() -> int:
    """Return how often the server was lost."""
    return _generation[0]


def statements_off_slots() -> int:
    """Return how many statements other threads than the slots' have run: the asynchronous ORM's among them."""
    return _off_slots[0]


def clean_context() -> Context:
    """Return a context for this thread's jobs to run in copies of, without anything of any job's.

    It begins empty. The thread's own context may have a library's mutable object in it, such as the scope that Sentry
    sets when a thread starts; jobs in copies of that context would share the object.
    The caches are made in it: Django keeps them in context variables, and each job would connect anew.
    """
    context = Context()
    context.run(_make_caches)
    return context


def _make_caches() -> None:
    with suppress(Exception):  # a cache that cannot be made is the business of the job that wants it
        caches.all()


def before_job() -> None:
    """Close this thread's connections that are too old, or older than a loss of the server."""
    for watched in _here.watched:
        connection = watched.connection
        if connection is not None and connection.connection is not None and watched.is_outlived():
            connection.close()


def close_ended() -> None:
    """Close this thread's connections that the server has ended while they were idle: there is something to read."""
    for watched in _here.watched:
        connection = watched.connection
        raw = None if connection is None else connection.connection
        if connection and isinstance(raw, psycopg.Connection) and (raw.closed or _has_something_to_read(raw)):
            connection.close()


def _has_something_to_read(raw: psycopg.Connection[Any]) -> bool:
    poll = select.poll()
    poll.register(raw.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def after_job() -> None:
    """Close this thread's connections that the job left in a state of its own; tidy the others."""
    for watched in _here.watched:
        connection = watched.connection
        if connection is None:
            continue
        if connection.connection is not None and (watched.is_dirty or _is_spoilt(connection)):
            _abandon(connection)
        try:
            watched.tidy(connection)
        except psycopg.OperationalError:  # the server was lost since the job's last statement
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


def _is_spoilt(connection: BaseDatabaseWrapper) -> bool:
    return (
        connection.in_atomic_block
        or connection.needs_rollback
        or connection.errors_occurred
        or not connection.autocommit
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
