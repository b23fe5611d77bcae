"""How statements reach PostgreSQL: on a Django connection, or on an engine connection of the worker's own.

Both kinds are given to `execute`, which adds the time shift. An engine connection is psycopg's, made from
Django's settings: autocommit, prepared statements, a client-side time limit on every wait, and no session
state, so that it also works through a transaction pooler.
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
from .db_errors import told as told
from .exceptions import StatementTimeout
from .server import refuse_an_old_primary

if TYPE_CHECKING:
    from collections.abc import Mapping

    from django.db.backends.base.base import BaseDatabaseWrapper
    from psycopg.abc import RV, PQGen

logger = logging.getLogger("django_pgqueue.db")

CHANNEL: Final = "pgqueue"
LOOK_AGAIN: Final = "look"
"""What a notification says if it is not that there are jobs: what may be claimed has changed."""
CANCEL_ASKED: Final = "cancel"
"""Or: somebody has asked a running job to stop."""
WORDS: Final = frozenset({LOOK_AGAIN, CANCEL_ASKED})
STATEMENT_TIMEOUT_SECONDS: Final = 30.0
"""How long an engine connection waits for an answer, unless told otherwise, before it is given up."""

KEEPALIVE: Final = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
"""A black hole is noticed in 10 to 11 s; by the system's defaults it takes two hours."""

PLANNER: Final = (
    "-c jit=off -c plan_cache_mode=force_generic_plan -c max_parallel_workers_per_gather=0 "
    "-c enable_seqscan=off -c enable_bitmapscan=off -c enable_hashjoin=off -c enable_mergejoin=off"
)
"""Compiling a plan, or parallel workers, cost more than any statement here; planning a finish anew cost up to 180 µs.
A bitmap knows no order: to prune 1,000 jobs, 824,000 were sorted, in 250 ms instead of 4. A pooler that refuses the
options goes without."""

SESSION: Final = (
    "-c default_transaction_isolation=read\\ committed -c lock_timeout=2s "
    "-c idle_in_transaction_session_timeout=0 -c idle_session_timeout=0 "
    "-c array_nulls=on -c transform_null_equals=off -c DateStyle=ISO"
)
"""What an engine connection needs, whatever the role's own settings are. Nothing here waits for a row: a lock that is
waited for is one on a table, and whoever waits is better off with an error that says so. Whether a role may write at
all (`default_transaction_read_only`) stays the administrator's to say. The last three change what statements and their
answers mean: NULL in an array, a comparison with NULL, and timestamps, which psycopg reads in ISO style alone."""

Row = tuple[Any, ...]


class Cursor(Protocol):
    """What Django's cursors and psycopg's have in common."""

    def execute(self, query: Any, params: Any = None, /) -> Any: ...
    def fetchall(self) -> list[Any]: ...


class Connection(Protocol):
    """A Django connection, or an engine connection."""

    alias: str

    def cursor(self) -> AbstractContextManager[Any]: ...


class _Clock:
    """The testing kit's time travel: seconds added to the database's clock in every statement of this process."""

    shift_seconds = 0.0


clock = _Clock()


def execute(connection: Connection, statement: str, params: Mapping[str, Any]) -> list[Row]:
    """Run one statement and return its rows, in the transaction that is open on `connection`, if any.

    Errors pass through: Django's on a Django connection, psycopg's on an engine connection.
    """
    with connection.cursor() as cursor:
        cursor.execute(statement, {**params, "time_shift_seconds": clock.shift_seconds})
        return cursor.fetchall() if _has_rows(cursor) else []


def _has_rows(cursor: Any) -> bool:
    return cursor.description is not None


class EngineConnection(psycopg.Connection[Row]):
    """A psycopg connection that gives up waiting for an answer after `statement_timeout_seconds`.

    `statement_timeout` on the server does not help against a server that is stopped, or a network that swallows.
    """

    statement_timeout_seconds = STATEMENT_TIMEOUT_SECONDS
    alias = "default"
    """Of the database in DATABASES, as Django's own connections have it."""
    is_worn = False
    """Whether a statement failed here without losing the connection: its prepared statements may be the cause."""

    @contextmanager
    def unprepared(self) -> Iterator[None]:
        """Run statements as they are, without prepared ones, and mark the connection to be replaced afterwards.

        After a migration a prepared statement can fail for every row ("cached plan must not change result type").
        Without this, that failure would look like the fault of a row.
        """
        threshold, self.prepare_threshold, self.is_worn = self.prepare_threshold, None, True
        try:
            yield
        finally:
            self.prepare_threshold = threshold

    def wait(self, gen: PQGen[RV], *args: Any, **kwargs: Any) -> RV:
        """Wait for a statement as psycopg does; raises `StatementTimeout`, and closes, if it takes too long."""
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


_for_django: dict[str, set[str]] = {}


def add_options(alias: str, options: Mapping[str, Any]) -> None:
    """Add to what Django's connections of this process are opened with; what the project's OPTIONS say wins."""
    if alias in _for_django:  # in a fork of a process that did it
        return
    given = connections[alias].settings_dict["OPTIONS"]
    _for_django[alias] = set(options) - set(given)
    given.update({**options, **given})


def connect(alias: str, role: str, statement_timeout_seconds: float = STATEMENT_TIMEOUT_SECONDS) -> EngineConnection:
    """Open an engine connection to the database of a Django alias; `role` goes into its `application_name`.

    The server is told to give up a second after the connection does, for it does not see that nobody waits any more.
    Raises `psycopg.OperationalError` if the server cannot be reached, or is a primary that was left behind.
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
    for not_ours in ("cursor_factory", "context", "prepare_threshold", "application_name", *_for_django.get(alias, ())):
        params.pop(not_ours, None)
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
    # A transaction pooler: each statement may run on another server connection, where nothing is prepared.
    return EngineConnection.connect(**params, autocommit=True, prepare_threshold=None)


def _has_its_options(connection: EngineConnection) -> bool:
    """Say whether the options reached the server: a pooler can be told to ignore them, and looks like a server then.

    There, "_pg3_1" is whatever any client prepared last under that name: an error at best, another statement at worst.
    """
    try:
        [[setting]] = connection.execute("SHOW enable_seqscan", prepare=False).fetchall()
    except psycopg.Error:
        connection.close()
        raise
    return bool(setting == "off")


def is_lost(connection: EngineConnection) -> bool:
    """Say whether the connection can no longer be used."""
    return connection.closed or connection.broken


def open_transaction_elsewhere(alias: str) -> str | None:
    """Return another alias that has a transaction open in this thread while `alias` has none, if there is one."""
    if connections[alias].in_atomic_block:
        return None
    return next((c.alias for c in connections.all(initialized_only=True) if c.in_atomic_block), None)


def is_in_transaction(connection: BaseDatabaseWrapper) -> bool:
    """Say whether what is written on a Django connection now waits for a commit of its caller's."""
    return connection.in_atomic_block or not connection.get_autocommit()


def sees_new_commits(connection: BaseDatabaseWrapper) -> bool:
    """Say whether the transaction open on a Django connection sees what others commit meanwhile."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW transaction_isolation")
        return str(cursor.fetchone()[0]) in ("read committed", "read uncommitted")


_last_wake_at: dict[str, float] = {}
WAKE_INTERVAL_SECONDS: Final = 0.005
"""At most one notification per process in this time. What it leaves out needs no other: a worker that was woken
looks again after 5, 20, 80 and 320 ms or somewhat later, and what was left out was committed before that."""


def wake_workers_after_commit(connection: BaseDatabaseWrapper, word: str = "") -> None:
    """Hint to idle workers that there are jobs, or tell them a word, once the transaction on `connection` is committed.

    Its own statement after the commit: inside the transaction NOTIFY holds a lock of the whole database until
    the commit is on disk, and 8 clients fell from 21,484 inserts a second to 7,255. A hint that is lost costs a
    poll interval, and no failure of it reaches the caller. Hints soon after another are left out, words never: an
    operator's are few, and without autocommit they go along with the transaction.
    """
    if not get_settings().NOTIFY:
        return
    if connection.in_atomic_block:
        transaction.on_commit(lambda: _wake_workers(connection, word), using=connection.alias, robust=True)
    elif connection.get_autocommit():
        _wake_workers(connection, word)
    elif word:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_notify(%s, %s)", (CHANNEL, word))


def _wake_workers(connection: BaseDatabaseWrapper, word: str) -> None:
    now, raw = time.monotonic(), connection.connection
    if not word and now - _last_wake_at.get(connection.alias, 0.0) < WAKE_INTERVAL_SECONDS:
        return
    _last_wake_at[connection.alias] = now
    if raw is None or raw.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
        return
    try:
        raw.execute("SELECT pg_notify(%s, %s)", (CHANNEL, word))  # psycopg's own: no query of the application's
    except psycopg.Error:
        logger.debug("no notification sent", exc_info=True)


def wake_workers(connection: Connection) -> None:
    """Hint to idle workers, from an engine connection, that jobs were given back; on others this does nothing."""
    if not isinstance(connection, EngineConnection) or not get_settings().NOTIFY:
        return
    try:
        connection.execute(f"NOTIFY {CHANNEL}")
    except psycopg.Error:
        logger.debug("no notification sent", exc_info=True)


@contextmanager
def read_committed(connection: BaseDatabaseWrapper) -> Iterator[bool]:
    """Open a transaction at READ COMMITTED, whatever the database's default is; give whether it is not inside another.

    At REPEATABLE READ an atomic finish fails whenever a beat has touched its execution, which is always.
    """
    outermost = not connection.in_atomic_block
    with transaction.atomic(using=connection.alias):
        if outermost:  # inside another transaction, as in a test, it is too late to choose
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        yield outermost
