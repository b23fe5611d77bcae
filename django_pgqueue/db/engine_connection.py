"""Open the engine connections: the worker's own psycopg connections, made from Django's settings.

The worker, `job.wait()` and the commands open them. An engine connection uses autocommit and prepared statements, and
limits every wait on the client's side. It keeps no session state, so it also works through a transaction pooler.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Final

import psycopg
from django.db import connections
from psycopg.pq import TransactionStatus

from django_pgqueue.exceptions import StatementTimeout

from .server import refuse_an_old_primary
from .startup_options import StartupOptions, values_outside, with_defaults
from .statements import Row

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from psycopg.abc import RV, PQGen

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
    "-c array_nulls=on -c transform_null_equals=off -c standard_conforming_strings=on "
    "-c DateStyle=ISO -c IntervalStyle=postgres -c TimeZone=UTC -c extra_float_digits=1 -c bytea_output=hex"
)
"""Settings that an engine connection needs, whatever the role's own settings are. No statement here waits for a row, so
`lock_timeout` ends waits for a table lock, with an error that names the cause. `default_transaction_read_only` is not
set, because the administrator decides whether a role may write. The third line changes the meaning of statements: NULL
in an array, a comparison with NULL, and a backslash. The last line changes values as text: psycopg reads timestamps in
ISO style only, and a float with fewer digits is another number."""

FORMAT_OF_TIMES: Final = {"DateStyle": "ISO", "TimeZone": "UTC"}
"""libpq sends PGDATESTYLE and PGTZ of the environment after `SESSION`, so they win. The server reports both values."""
READABLE_TIMES: Final = {"DateStyle": "ISO"}
"""Settings that a connection without start-up options needs. A transaction pooler that does not restore settings for
each client would give them to other clients, so only what psycopg cannot do without is set."""


SLOW_SECONDS: Final = 0.05
SPENT_SECONDS: Final = 1.0
"""Statements that took so long together count like a slow one. A plan from a time when a table was empty can make small
batches five times as slow, which is still far less than `SLOW_SECONDS` for each."""
REPLAN_INTERVAL_SECONDS: Final = 5.0


class EngineConnection(psycopg.Connection[Row]):
    """A psycopg connection that stops waiting for an answer after `statement_timeout_seconds`.

    The server's `statement_timeout` does not help if the server is frozen or the network drops packets.
    """

    statement_timeout_seconds = STATEMENT_TIMEOUT_SECONDS
    alias = "default"
    """Alias of the database in DATABASES. Django's own connections have this attribute too."""
    is_worn = False
    """Whether a statement failed although the connection is intact. Its prepared statements may be the cause."""
    on_wait: Callable[[], None] | None = None
    """Called about every 0.1 s while a statement waits for its answer, by the thread that executes it."""
    record_statement: ClassVar[Callable[[str, float], None] | None] = None
    """Called with each statement of this package that succeeds, and the seconds that it took. None: nobody counts."""

    _replanned_at = float("-inf")
    _spent_seconds = 0.0
    """The time that statements have taken since the last plans were made."""
    _cursor: psycopg.Cursor[Row] | None = None
    """The cursor of all statements of this package. It keeps the last answer until the next statement."""

    def close(self) -> None:
        """Close the connection, and forget the cursor, which refers to it."""
        self._cursor = None
        super().close()

    def run_statement(self, statement: str, params: Mapping[str, Any]) -> list[Row]:
        """Execute a statement of this package, and return its rows.

        Each statement calls about 100 functions of psycopg less than with a cursor of its own, which copies all types,
        and with `description`, which makes an object of each column.
        """
        cursor = self._cursor
        if cursor is None:
            cursor = self._cursor = self.cursor()
        began = time.monotonic()
        cursor.execute(statement, params)
        rows = cursor.fetchall() if cursor.pgresult is not None and cursor.pgresult.nfields else []
        self.after_statement(statement, time.monotonic() - began)
        return rows

    def after_statement(self, statement: str, seconds: float) -> None:
        """Count a statement that has succeeded. After slow or many ones, have the server plan its statements anew.

        A plan from a time when a table had few rows can read all of it. Without this, a burst of jobs in a new project
        took 1 s for each 1,000 completions until autovacuum had analysed the tables.
        """
        record = type(self).record_statement
        if record is not None:
            record(statement, seconds)
        self._spent_seconds += seconds
        if seconds < SLOW_SECONDS and self._spent_seconds < SPENT_SECONDS:
            return
        if time.monotonic() - self._replanned_at < REPLAN_INTERVAL_SECONDS:
            return
        self._replanned_at, self._spent_seconds = time.monotonic(), 0.0
        is_committed = self.info.transaction_status is TransactionStatus.IDLE
        try:
            self.execute("DISCARD PLANS", prepare=False)
        except psycopg.Error:
            # A failed transaction has to raise. Its block would end without an error: psycopg sends no COMMIT on a lost
            # connection, and the server answers the COMMIT of an aborted transaction by a rollback.
            if not is_committed:
                raise

    def stop_preparing(self) -> bool:
        """Prepare no more statements, and mark the connection for replacement. Return whether no transaction is open.

        A statement that has failed in a transaction cannot be repeated alone: only the caller can repeat all of it.
        """
        self.prepare_threshold, self.is_worn = None, True
        return self.info.transaction_status is TransactionStatus.IDLE

    @contextmanager
    def unprepared(self) -> Iterator[None]:
        """Run statements unprepared inside the `with` block, and mark the connection for replacement.

        A prepared statement can fail for every row, although the same text would succeed. Without this, the caller
        would take that failure for the fault of a row.
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
                if not ready and self.on_wait is not None:
                    self.on_wait()
                wanted = gen.send(ready)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # a generator's value is Any to mypy


_for_django: dict[str, set[str]] = {}  # by alias; engine connections omit them
_startup: defaultdict[str, StartupOptions] = defaultdict(StartupOptions)  # by alias


def is_direct(alias: str) -> bool:
    """Return whether this process knows that its connections to a database pass through no transaction pooler."""
    return _startup[alias].are_accepted


def add_options(alias: str, options: Mapping[str, Any]) -> None:
    """Add connection options for Django's connections of this process, except for those that are set elsewhere."""
    if alias in _for_django:  # inherited from the parent process
        return
    given = values_outside(_params(alias), options)
    _for_django[alias] = set(options) - set(given)
    connections[alias].settings_dict["OPTIONS"].update({name: options[name] for name in _for_django[alias]})


def connect(alias: str, role: str, statement_timeout_seconds: float = STATEMENT_TIMEOUT_SECONDS) -> EngineConnection:
    """Open an engine connection to the database of a Django alias; its `application_name` contains `role`.

    The server stops a statement a second after the connection stops waiting, because it would not notice that. Raises
    `psycopg.OperationalError` if the server cannot be reached, is an old primary after a failover, or is a standby and
    this is a process of a worker.
    """
    connection = _connect(alias, role, statement_timeout_seconds)
    connection.statement_timeout_seconds = statement_timeout_seconds
    connection.alias = alias
    try:
        refuse_an_old_primary(connection, alias, is_engine=True)
    except psycopg.Error:
        connection.close()
        raise
    return connection


def _connect(alias: str, role: str, statement_timeout_seconds: float) -> EngineConnection:
    """Open a connection with start-up options and prepared statements, or without both behind a pooler.

    A transaction pooler may run each statement on another server connection, which lacks the prepared statements.
    """
    django_params = _params(alias)
    params = with_defaults(django_params, KEEPALIVE) | {"application_name": f"pgqueue:{role}"}
    outside = values_outside(django_params, ["options"]).get("options", "")
    limit = f"-c statement_timeout={1000 * statement_timeout_seconds + 1000:.0f}"
    options = f"{outside} {PLANNER} {SESSION} {limit}".strip()

    def with_options() -> EngineConnection | None:
        connection = _open(**params | {"options": options}, prepare_threshold=1)
        if _has_its_options(connection):
            return connection
        connection.close()
        return None

    def without_options() -> EngineConnection:
        connection = _open(**params, prepare_threshold=None)
        _set(connection, READABLE_TIMES)
        return connection

    return _startup[alias].connect(with_options, without_options)


def _params(alias: str) -> dict[str, Any]:
    """Return the parameters with which Django connects outside of a worker, without those of its cursors."""
    params = connections[alias].get_connection_params()
    for name in ("cursor_factory", "context", "prepare_threshold", *_for_django.get(alias, ())):
        params.pop(name, None)
    return params


def _open(**params: Any) -> EngineConnection:
    """Open a connection whose statements no library instruments, because an idle worker would make spans all the time.

    OpenTelemetry's instrumentation of psycopg replaces `connect()`, and with it the cursors of all connections.
    """
    connection = EngineConnection.connect(**params, autocommit=True)
    connection.cursor_factory = psycopg.Cursor
    return connection


def _has_its_options(connection: EngineConnection) -> bool:
    """Return whether the options reached the server. A pooler that is configured to ignore them looks like a server.

    Behind it, "_pg3_1" is the statement that any client last prepared under that name: it fails, or a wrong one runs.
    If they reached the server, set the format of times too, which the environment can override.
    """
    try:
        [[setting]] = connection.execute("SHOW enable_seqscan", prepare=False).fetchall()
    except psycopg.Error:
        connection.close()
        raise
    if setting != "off":
        return False
    _set(connection, FORMAT_OF_TIMES)
    return True


def _set(connection: EngineConnection, settings: Mapping[str, str]) -> None:
    """Change those settings whose values the server has reported as others. Usually this runs no statement."""
    try:
        for name, value in settings.items():
            reported = connection.pgconn.parameter_status(name.encode()) or b""
            if not reported.startswith(value.encode()):
                connection.execute("SELECT set_config(%s, %s, false)", (name, value), prepare=False)
    except psycopg.Error:
        connection.close()
        raise


def is_lost(connection: EngineConnection) -> bool:
    """Return whether the connection can no longer be used."""
    return connection.closed or connection.broken
