"""Prevent leaks from one job to the next job in the same thread, through database connections or context variables.

The slots call `before_job()` and `after_job()` around each job, and run it in a copy of `clean_context()`.

- A connection with an open transaction, an error, or changed session settings is closed. The next job gets a new one,
  which the project's `connection_created` receivers set up. Closing every connection would cost 2.4 ms per job.
- Context variables, such as the active time zone and language, need no cleanup, because of that copy.

`slots.leak_detector` detects what a job changes for the whole process. `tests/tools/benchmarks/hygiene.py` measures the
costs.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import Context
from typing import Any, Final
from weakref import ReferenceType, WeakKeyDictionary, ref

import psycopg
from django.core.cache import caches
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from django_pgqueue.db.engine_connection import add_options
from django_pgqueue.db.server import refuse_an_old_primary
from django_pgqueue.exceptions import Dead
from django_pgqueue.ground.waker import readable_check
from django_pgqueue.settings.conf import get_settings

CONNECT_SECONDS: Final = 10
"""How long a job waits for a connection to one host, unless the project's OPTIONS set another value."""
IDLE_SECONDS: Final = 10.0
"""How long a thread that runs no job keeps its connections. To open one again costs 2.4 ms, 0.02 % of this time."""

LEADING_COMMENTS: Final = r"(?:[\s(]|--[^\n]*\n|/\*.*?\*/)*"
ORDINARY: Final = re.compile(
    LEADING_COMMENTS + r"(SELECT|INSERT|UPDATE|DELETE|WITH|VALUES|MERGE|LOCK|TRUNCATE|SHOW|NOTIFY"
    r"|SAVEPOINT|RELEASE|ROLLBACK|BEGIN|COMMIT|SET\s+(LOCAL|TRANSACTION|CONSTRAINTS))\b",
    re.IGNORECASE | re.DOTALL,
)
"""Beginnings of statements that do not change the session, unless they contain one of `LASTING`."""
HOOK: Final = "close_if_health_check_failed"
"""Django calls this method of a connection before each use. `Watched` sets another one on the connection itself."""
LASTING: Final = ("set_config", "advisory_lock", ";")
INTO_TEMPORARY: Final = re.compile(r"\binto\s+(local\s+)?temp(orary)?\b")
KNOWN_LIMIT: Final = 1000
KNOWN_LENGTH: Final = 2000
"""How many verdicts are kept, and for statements of which length. SUCCEED, which completes an atomic task, has 1,530
characters."""
IDLE: Final = psycopg.pq.TransactionStatus.IDLE
IN_TRANSACTION: Final = psycopg.pq.TransactionStatus.INTRANS
FAILED: Final = psycopg.pq.TransactionStatus.INERROR
HAS_WRITTEN: Final = "SELECT pg_current_xact_id_if_assigned() IS NOT NULL"


class Uses:
    """Events of this process's connections, counted. They are attributes because each coroutine job reads them."""

    losses = 0
    """How often the server was lost."""
    statements_off_slots = 0
    """How many statements were executed by threads that are not slots, such as the asynchronous ORM's thread."""


uses: Final = Uses()


class Watched:
    """The connection of one thread to one alias, with the state of its current session."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        # A connection that refers to itself would stay open after the end of its thread.
        self.connection: ReferenceType[BaseDatabaseWrapper] = ref(connection)
        """Returns the connection, open or not, or None if it was garbage collected."""
        thread = threading.current_thread()
        self.is_of_slot = thread.name.startswith(("pgqueue-job", "pgqueue-call")) or thread is threading.main_thread()
        """Whether `before_job()` is called in this thread before each job or receiver: also in an isolated process."""
        self.is_pooled = "pool" in connection.settings_dict.get("OPTIONS", {})
        # First in the list: if the connection opens inside `with execute_wrapper()`, that block pops the last wrapper.
        connection.execute_wrappers.insert(0, self._watch if self.is_of_slot else self._watch_off_slots)
        self.wrappers = list(connection.execute_wrappers)  # including those that `connection_created` receivers added
        self.opened(connection)

    def opened(self, connection: BaseDatabaseWrapper) -> None:
        """Record that a new session has begun."""
        if self.is_of_slot:
            vars(connection).pop(HOOK, None)
        else:
            vars(connection)[HOOK] = self.before_use
        self.expires_at = time.monotonic() + get_settings().CONN_MAX_AGE
        self.losses = uses.losses
        self.is_dirty = False
        self.named_cursors = -1  # unequal to any count, because the session may have been opened for a named cursor
        self._has_data: Callable[[], object] | None = None
        """Returns whether data waits on the socket of the session. None: it was not asked yet."""

    def before_use(self) -> None:
        """Check the session. In a slot, each job does so once.

        Django calls this before it opens a cursor or begins a transaction, for its own checks. A job may wait for a
        minute before its first statement, so a check when the job starts would come too early.
        """
        connection = self.connection()
        if connection is None:
            return
        if self.is_of_slot:
            vars(connection).pop(HOOK, None)
        self._close_if_ended(connection)
        type(connection).close_if_health_check_failed(connection)

    def _close_if_ended(self, connection: BaseDatabaseWrapper) -> None:
        """Close the connection if its session has ended and nobody relies on it, so that Django opens another one.

        The server ends idle sessions by `idle_session_timeout`, a pooler by its own limit, an operator by
        `pg_terminate_backend()`. A connection outlives its job, so without this check the next job would fail, which
        has done nothing wrong. The check polls the socket and sends nothing. A session that ends between the check and
        the statement still fails the job.

        Several coroutines use the session of the ORM's thread in turns. They may not change it, so none relies on it.

        Other data that waits on the socket, such as a changed setting of the server, is rare. It counts as the end too,
        because a new session costs little.
        """
        raw = connection.connection
        if self.is_dirty or connection.in_atomic_block or not isinstance(raw, psycopg.Connection):
            return
        if raw.pgconn.transaction_status != IDLE:
            return
        if self._has_data is None:
            self._has_data = readable_check(raw.fileno())
        if self._has_data():
            connection.close()

    def must_be_closed(self, connection: BaseDatabaseWrapper) -> bool:
        """Return whether the next job must not get the open session of the last one."""
        raw = connection.connection
        return (
            self.is_dirty
            or self.is_pooled
            or connection.in_atomic_block
            or connection.needs_rollback
            or connection.errors_occurred
            or not connection.autocommit
            or (isinstance(raw, psycopg.Connection) and raw.pgconn.transaction_status != IDLE)
        )

    def tidy(self, connection: BaseDatabaseWrapper) -> None:
        """Remove what a job may have left on a connection that stays open."""
        if connection.queries_log:  # with DEBUG it keeps 9,000 statements with their parameters
            connection.queries_log.clear()
        connection.force_debug_cursor = False
        if connection.execute_wrappers != self.wrappers:
            # The session was opened inside `with execute_wrapper()`, which has ended since.
            if connection.execute_wrappers == self.wrappers[:-1]:
                self.wrappers.pop()
            connection.execute_wrappers[:] = self.wrappers
        named_cursors = getattr(connection, "_named_cursor_idx", 0)
        if named_cursors != self.named_cursors and connection.connection is not None:
            self.named_cursors = named_cursors  # of `iterator()` outside a transaction: WITH HOLD, and maybe still open
            connection.connection.execute("CLOSE ALL")

    def _watch(self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: dict[str, Any]) -> Any:  # noqa: FBT001 -- Django's signature
        if verdicts[str(sql)]:
            self.is_dirty = True
        return execute(sql, params, many, context)

    def _watch_off_slots(self, execute: Callable[..., Any], sql: Any, params: Any, *more: Any) -> Any:
        uses.statements_off_slots += 1
        return self._watch(execute, sql, params, *more)


class _Here(threading.local):
    """All connections that this thread has ever opened. Asking Django for them would cost each job 16 µs."""

    def __init__(self) -> None:
        self.watched: list[Watched] = []


_here = _Here()
_all: WeakKeyDictionary[BaseDatabaseWrapper, Watched] = WeakKeyDictionary()


def watch() -> None:
    """Watch all connections of this process for changes of their sessions. Call it once per process."""
    connection_created.connect(_watch_connection, dispatch_uid="pgqueue-connections")
    notice_lost_servers()


def notice_lost_servers() -> None:
    """Set timeouts, so that the jobs' connections detect within a lease that the server is gone.

    Values in the project's OPTIONS have precedence. With the system's defaults, a job would wait for its answer for a
    quarter of an hour or for two hours, while its lease is extended at the server that took over. Timeouts shorter than
    a lease would fail jobs that survive a short interruption.
    """
    lease_seconds = get_settings().LEASE
    timeouts = {
        "connect_timeout": CONNECT_SECONDS,
        "keepalives": 1,
        "keepalives_idle": max(1, round(lease_seconds / 2)),
        "keepalives_interval": max(1, round(lease_seconds / 8)),
        "keepalives_count": 4,
        "tcp_user_timeout": round(lease_seconds * 1000),
    }
    for connection in connections.all():
        if connection.vendor == "postgresql":
            add_options(connection.alias, timeouts)


def _watch_connection(sender: Any, connection: BaseDatabaseWrapper, **kwargs: Any) -> None:
    raw = connection.connection
    if isinstance(raw, psycopg.Connection) and raw.autocommit:
        try:
            refuse_an_old_primary(raw, connection.alias)
        except psycopg.OperationalError:
            connection.close()
            raise
    if connection in _all:
        _all[connection].opened(connection)
        return
    watched = _all[connection] = Watched(connection)
    _here.watched[:] = [known for known in _here.watched if known.connection() is not None] + [watched]


def watched_here() -> Sequence[Watched]:
    """Return the connections that this thread has opened: always the same list. It is empty if no job has used one."""
    return _here.watched


def distrust_all() -> None:
    """Make every thread close its connections before its next job. Call it when the server was lost."""
    uses.losses += 1


def distrust_since(losses: int) -> None:
    """Close connections before the next job if this number of losses differs from the last one.

    A process that runs isolated jobs sends no statements of its own, so the worker process counts the losses for it.
    Without this the next job after a restart of the server would fail on a lost connection.
    """
    uses.losses = losses


def clean_context() -> Context:
    """Return a context that contains nothing of any job. Each job of this thread runs in a copy of it.

    It starts empty. The thread's own context may contain a mutable object of a library, such as the scope that Sentry
    sets when a thread starts. Jobs in copies of that context would share the object.
    Django keeps the caches in context variables. They are created here; otherwise each job would connect again.
    """
    context = Context()
    context.run(_make_caches)
    return context


def _make_caches() -> None:
    with suppress(Exception):  # a job that uses a broken cache gets the error itself
        caches.all()


def before_job() -> None:
    """Close this thread's connections that are too old, or older than the last loss of the server."""
    for watched in _here.watched:
        connection = watched.connection()
        if connection is None or connection.connection is None:
            continue
        vars(connection)[HOOK] = watched.before_use
        if watched.losses != uses.losses or time.monotonic() > watched.expires_at:
            connection.close()


def close_idle() -> None:
    """Close this thread's connections, because it has run no job for a while. Raise nothing."""
    with suppress(Exception):  # from a database backend; the next job gets a new connection anyway
        close_all()


def after_job() -> bool:
    """Close this thread's connections whose session the job has changed, and clean up the others.

    Return whether a connection is still open. Raise `Dead` if a closed one had writes that were not committed.
    """
    are_open, rolled_back = False, ""
    for watched in _here.watched:
        connection = watched.connection()
        if connection is None:
            continue
        if connection.connection is not None and watched.must_be_closed(connection):
            if has_uncommitted_writes(connection):
                rolled_back = connection.alias
            _abandon(connection)
        try:
            watched.tidy(connection)
        except psycopg.OperationalError:  # the server was lost after the job's last statement
            _abandon(connection)
        if connection.connection is not None:
            are_open = True
    if rolled_back:
        raise uncommitted(rolled_back)
    return are_open


def has_uncommitted_writes(connection: BaseDatabaseWrapper) -> bool:
    """Return whether a connection has an open transaction that has written, or that has failed.

    Only a transaction that has written has an id. In one that has failed, the server answers no question.
    """
    raw = connection.connection
    if not isinstance(raw, psycopg.Connection) or raw.pgconn.transaction_status not in (IN_TRANSACTION, FAILED):
        return False
    try:
        return raw.execute(HAS_WRITTEN).fetchone() == (True,)
    except psycopg.Error:
        return True


def uncommitted(alias: str) -> Dead:
    """Return the error of a task that has returned before it committed its writes."""
    return Dead(
        f"the task returned and left a transaction open on database {alias!r}, so its writes were rolled back: "
        "write inside `with transaction.atomic()`, or call transaction.commit() before the task returns"
    )


def close_all() -> None:
    """Close all connections of this thread, in any state."""
    for connection in connections.all(initialized_only=True):
        _abandon(connection)


def close_for_good() -> None:
    """Close this process's Django connections and psycopg's connection pools with their threads before a fork.

    A child that inherits a pool shares its sockets with its siblings, and reads their answers.
    """
    connections.close_all()
    for connection in connections.all(initialized_only=True):
        if connection.alias in getattr(connection, "_connection_pools", ()):
            connection.close_pool()  # type: ignore[attr-defined]  # PostgreSQL's wrapper has it


def _abandon(connection: BaseDatabaseWrapper) -> None:
    """Close a connection, even inside a transaction that the job left open."""
    connection.in_atomic_block = False
    connection.savepoint_ids.clear()
    connection.atomic_blocks.clear()
    connection.needs_rollback = False
    connection.closed_in_transaction = False
    connection.run_on_commit = []
    connection.close()


def changes_the_session(statement: str) -> bool:
    """Return whether a statement may change its session. Every statement that is not known to be harmless may."""
    if not ORDINARY.match(statement):
        return True
    text = statement.lower().rstrip("; \n")
    if any(marker in text for marker in LASTING):
        return True
    return "temp" in text and INTO_TEMPORARY.search(text) is not None


class Verdicts(dict[str, bool]):
    """The value of `changes_the_session()` for each statement. The ORM repeats the same statements."""

    def __missing__(self, statement: str) -> bool:
        verdict = changes_the_session(statement)
        if len(statement) <= KNOWN_LENGTH:
            if len(self) >= KNOWN_LIMIT:
                self.clear()
            self[statement] = verdict
        return verdict


verdicts: Final = Verdicts()
