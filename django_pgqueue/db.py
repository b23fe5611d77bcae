"""Run statements on Django connections and on the worker's own engine connections, and notify workers.

`lifecycle`, `stats` and the worker pass both kinds of connection to `execute()`, which adds the time shift of the
testing kit. An engine connection is a psycopg connection made from Django's settings: autocommit, prepared statements,
a client-side time limit on every wait. It keeps no session state, so it also works through a transaction pooler.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

import psycopg
from django.db import connections, transaction

from .conf import get_settings
from .db_errors import TRANSIENT as TRANSIENT
from .db_errors import is_of_rows as is_of_rows
from .db_errors import message_without_detail as message_without_detail
from .exceptions import StatementTimeout
from .server import refuse_an_old_primary

if TYPE_CHECKING:
    from collections.abc import Mapping

    from django.db.backends.base.base import BaseDatabaseWrapper
    from psycopg.abc import RV, PQGen

logger = logging.getLogger("django_pgqueue.db")

CHANNEL: Final = "pgqueue"
LOOK_AGAIN: Final = "look"
"""Payload of a notification: a pause began or ended. An empty payload announces new jobs."""
CANCEL_ASKED: Final = "cancel"
"""Payload of a notification: the cancellation of a running job was requested."""
WORDS: Final = frozenset({LOOK_AGAIN, CANCEL_ASKED})
STATEMENT_TIMEOUT_SECONDS: Final = 30.0
"""How long an engine connection waits for an answer by default before it is closed."""

KEEPALIVE: Final = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
"""A silent network failure is detected in 10 to 11 s. With the system's defaults it takes two hours."""

PLANNER: Final = (
    "-c jit=off -c plan_cache_mode=force_generic_plan -c max_parallel_workers_per_gather=0 "
    "-c enable_seqscan=off -c enable_bitmapscan=off -c enable_hashjoin=off -c enable_mergejoin=off"
)
"""JIT compilation and parallel workers cost more than any statement here. Planning a completion again cost up to 180
µs. A bitmap scan loses the order of the index: a prune of 1,000 jobs sorted 824,000 rows, in 250 ms instead of 4 ms.
Behind a pooler that refuses these options, connections work without them."""

SESSION: Final = (
    "-c default_transaction_isolation=read\\ committed -c lock_timeout=2s "
    "-c idle_in_transaction_session_timeout=0 -c idle_session_timeout=0 "
    "-c array_nulls=on -c transform_null_equals=off -c DateStyle=ISO"
)
"""Settings that an engine connection needs, whatever the role's own settings are. No statement here waits for a row, so
`lock_timeout` ends waits for a table lock, with an error that names the cause. `default_transaction_read_only` is not
set, because the administrator decides whether a role may write. The last three change the meaning of statements and of
their results: NULL in an array, a comparison with NULL, and timestamps, which psycopg reads in ISO style only."""

Row = tuple[Any, ...]


class Cursor(Protocol):
    """The methods that Django's cursors and psycopg's cursors have in common."""

    def execute(self, query: Any, params: Any = None, /) -> Any: ...
    def fetchall(self) -> list[Any]: ...


class Connection(Protocol):
    """A Django connection or an engine connection."""

    alias: str

    def cursor(self) -> AbstractContextManager[Any]: ...


class _Clock:
    """Time travel of the testing kit: seconds added to the database's clock in every statement of this process."""

    shift_seconds = 0.0


clock = _Clock()


def execute(connection: Connection, statement: str, params: Mapping[str, Any]) -> list[Row]:
    """Run one statement and return its rows, in the transaction that is open on `connection`, if there is one.

    Errors pass through: Django's on a Django connection, psycopg's on an engine connection.
    """
    with connection.cursor() as cursor:
        cursor.execute(statement, {**params, "time_shift_seconds": clock.shift_seconds})
        return cursor.fetchall() if _has_rows(cursor) else []


def _has_rows(cursor: Any) -> bool:
    return cursor.description is not None


class EngineConnection(psycopg.Connection[Row]):
    """A psycopg connection that stops waiting for an answer after `statement_timeout_seconds`.

    The server's `statement_timeout` does not help if the server is frozen or the network drops packets.
    """

    statement_timeout_seconds = STATEMENT_TIMEOUT_SECONDS
    alias = "default"
    """Alias of the database in DATABASES. Django's own connections have this attribute too."""
    is_worn = False
    """Whether a statement failed although the connection is intact. Its prepared statements may be the cause."""

    @contextmanager
    def unprepared(self) -> Iterator[None]:
        """Run statements unprepared inside the `with` block, and mark the connection for replacement.

        After a migration, a prepared statement can fail for every row ("cached plan must not change result type").
        Without this, the caller would take that failure for the fault of a row.
        """
        threshold, self.prepare_threshold, self.is_worn = self.prepare_threshold, None, True
        try:
            yield
        finally:
            self.prepare_threshold = threshold

    def wait(self, gen: PQGen[RV], *args: Any, **kwargs: Any) -> RV:
        """Wait for a statement as psycopg does. After the time limit, close and raise `StatementTimeout`."""
        deadline = time.monotonic() + self.statement_timeout_seconds
        return super().wait(self._until(deadline, gen), *args, **kwargs)

    def _until(self, deadline: float, gen: PQGen[RV]) -> PQGen[RV]:
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if not ready and time.monotonic() > deadline:
                    self.pgconn.finish()
                    raise StatementTimeout(f"no answer from PostgreSQL in {self.statement_timeout_seconds:g} s")
                wanted = gen.send(ready)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # a generator's value is Any to mypy


_for_django: dict[str, set[str]] = {}  # by alias; engine connections omit them


def add_options(alias: str, options: Mapping[str, Any]) -> None:
    """Add connection options for Django's connections of this process. The project's own OPTIONS take precedence."""
    if alias in _for_django:  # inherited from the parent process
        return
    existing = connections[alias].settings_dict["OPTIONS"]
    _for_django[alias] = set(options) - set(existing)
    existing.update({**options, **existing})


def connect(alias: str, role: str, statement_timeout_seconds: float = STATEMENT_TIMEOUT_SECONDS) -> EngineConnection:
    """Open an engine connection to the database of a Django alias; its `application_name` contains `role`.

    The server stops a statement a second after the connection stops waiting, because it would not notice that. Raises
    `psycopg.OperationalError` if the server cannot be reached, or is an old primary after a failover.
    """
    connection = _connect(alias, role, statement_timeout_seconds)
    connection.statement_timeout_seconds = statement_timeout_seconds
    connection.alias = alias
    try:
        refuse_an_old_primary(connection, alias)
    except psycopg.Error:
        connection.close()
        raise
    return connection


def _connect(alias: str, role: str, statement_timeout_seconds: float) -> EngineConnection:
    params = connections[alias].get_connection_params()
    for name in ("cursor_factory", "context", "prepare_threshold", "application_name", *_for_django.get(alias, ())):
        params.pop(name, None)
    params = {**KEEPALIVE, **params, "application_name": f"pgqueue:{role}"}
    limit = f"-c statement_timeout={1000 * statement_timeout_seconds + 1000:.0f}"
    options = f"{params.pop('options', '')} {PLANNER} {SESSION} {limit}".strip()
    try:
        connection = EngineConnection.connect(**params, options=options, autocommit=True, prepare_threshold=1)
    except psycopg.OperationalError as error:
        if "startup parameter" not in str(error):
            raise
    else:
        if _has_its_options(connection):
            return connection
        connection.close()
    # A transaction pooler may run each statement on another server connection, which lacks the prepared statements.
    return EngineConnection.connect(**params, autocommit=True, prepare_threshold=None)


def _has_its_options(connection: EngineConnection) -> bool:
    """Return whether the options reached the server. A pooler that is configured to ignore them looks like a server.

    Behind it, "_pg3_1" is the statement that any client last prepared under that name: it fails, or a wrong one runs.
    """
    try:
        [[setting]] = connection.execute("SHOW enable_seqscan", prepare=False).fetchall()
    except psycopg.Error:
        connection.close()
        raise
    return bool(setting == "off")


def is_lost(connection: EngineConnection) -> bool:
    """Return whether the connection can no longer be used."""
    return connection.closed or connection.broken


def open_transaction_elsewhere(alias: str) -> str | None:
    """Return an alias with an open transaction in this thread if `alias` itself has none; otherwise None."""
    if connections[alias].in_atomic_block:
        return None
    return next((c.alias for c in connections.all(initialized_only=True) if c.in_atomic_block), None)


def is_in_transaction(connection: BaseDatabaseWrapper) -> bool:
    """Return whether a write on this Django connection takes effect only when the caller commits."""
    return connection.in_atomic_block or not connection.get_autocommit()


def sees_new_commits(connection: BaseDatabaseWrapper) -> bool:
    """Return whether the transaction open on a Django connection sees what others commit while it is open."""
    [[level]] = execute(connection, "SHOW transaction_isolation", {})
    return str(level) in ("read committed", "read uncommitted")


_last_wake_at: dict[str, float] = {}
WAKE_INTERVAL_SECONDS: Final = 0.005
"""Minimum time between two notifications of a process about new jobs. A skipped one needs no replacement: a woken
worker polls again after 5, 20, 80 and 320 ms, and the jobs in question are committed before that."""


def wake_workers_after_commit(connection: BaseDatabaseWrapper, payload: str = "", *, channel: str = CHANNEL) -> None:
    """Notify idle workers after the transaction on `connection` commits: of new jobs, or of the event in `payload`.

    NOTIFY is a statement of its own after the commit. Inside the transaction it holds a lock on the whole database
    until the commit is on disk, and 8 clients fell from 21,484 inserts a second to 7,255. A lost notification delays a
    job by a poll interval at most, and a failure never reaches the caller. A notification about new jobs is skipped if
    another was sent just before. One with a payload never is; without autocommit it is part of the transaction.
    """
    if not get_settings().NOTIFY:
        return
    if connection.in_atomic_block:
        transaction.on_commit(lambda: _wake_workers(connection, payload, channel), using=connection.alias, robust=True)
    elif connection.get_autocommit():
        _wake_workers(connection, payload, channel)
    elif payload:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_notify(%s, %s)", (channel, payload))


def _wake_workers(connection: BaseDatabaseWrapper, payload: str, channel: str) -> None:
    now, raw = time.monotonic(), connection.connection
    if not payload and now - _last_wake_at.get(connection.alias, 0.0) < WAKE_INTERVAL_SECONDS:
        return
    if channel == CHANNEL:  # idle workers listen to no other channel, so only these notifications wake them
        _last_wake_at[connection.alias] = now
    if raw is None or raw.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
        return
    try:
        raw.execute("SELECT pg_notify(%s, %s)", (channel, payload))  # by psycopg: Django does not log it as a query
    except psycopg.Error:
        logger.debug("notification to workers could not be sent", exc_info=True)


def wake_workers(connection: Connection) -> None:
    """Notify idle workers that jobs are ready, on an engine connection. On a Django connection this does nothing."""
    if not isinstance(connection, EngineConnection) or not get_settings().NOTIFY:
        return
    try:
        connection.execute(f"NOTIFY {CHANNEL}")
    except psycopg.Error:
        logger.debug("notification to workers could not be sent", exc_info=True)


@contextmanager
def read_committed(connection: BaseDatabaseWrapper) -> Iterator[bool]:
    """Open a transaction at READ COMMITTED, whatever the database's default is; yield whether it is the outermost one.

    At REPEATABLE READ, completing an atomic task would fail whenever a heartbeat has updated its execution.
    """
    outermost = not connection.in_atomic_block
    with transaction.atomic(using=connection.alias):
        if outermost:  # inside another transaction, as in a test, the level can no longer be changed
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        yield outermost
