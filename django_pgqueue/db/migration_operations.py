"""Migration operations that work while workers run jobs and applications enqueue.

This package's migrations use them. They protect the other sessions: no session waits longer than `LOCK_WAIT_SECONDS`
behind a migration that waits for a lock.

`ALTER TABLE` needs an exclusive lock on its table. Behind a long transaction it waits for that lock, and every later
session waits behind it. `LockTable`, as the first operation of a migration, gets the lock without that queue;
`BuildIndex` needs no such lock. docs/production/upgrading.md has the rules, and tests/test_migrations.py checks every
migration against them.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import NotSupportedError, OperationalError, transaction
from django.db.migrations.operations.base import Operation
from psycopg import errors

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.backends.base.schema import BaseDatabaseSchemaEditor
    from django.db.migrations.state import ProjectState

logger = logging.getLogger("django_pgqueue.migrations")

LOCK_WAIT_SECONDS: Final = 1.2
"""How long other sessions may wait behind one attempt. It is longer than PostgreSQL's `deadlock_timeout` of 1 s, after
which an autovacuum that blocks the lock is cancelled."""
PAUSE_SECONDS: Final = 2.0
"""Time between two attempts, in which the waiting sessions continue."""
PATIENCE_SECONDS: Final = 600.0
"""After this time the migration fails with nothing changed. A transaction open for so long is a mistake or a dump."""

LOCKS: Final = {
    "job": "LOCK TABLE pgqueue_job IN ACCESS EXCLUSIVE MODE",
    "execution": "LOCK TABLE pgqueue_execution IN ACCESS EXCLUSIVE MODE",
    "worker": "LOCK TABLE pgqueue_worker IN ACCESS EXCLUSIVE MODE",
    "schedule": "LOCK TABLE pgqueue_schedule IN ACCESS EXCLUSIVE MODE",
    "schedulerun": "LOCK TABLE pgqueue_schedulerun IN ACCESS EXCLUSIVE MODE",
    "uniquenesswindow": "LOCK TABLE pgqueue_uniqueness_window IN ACCESS EXCLUSIVE MODE",
    "limitstate": "LOCK TABLE pgqueue_limit_state IN ACCESS EXCLUSIVE MODE",
    "limitoverride": "LOCK TABLE pgqueue_limit_override IN ACCESS EXCLUSIVE MODE",
    "openbreaker": "LOCK TABLE pgqueue_open_breaker IN ACCESS EXCLUSIVE MODE",
    "breakercount": "LOCK TABLE pgqueue_breaker_count IN ACCESS EXCLUSIVE MODE",
    "rollup": "LOCK TABLE pgqueue_rollup IN ACCESS EXCLUSIVE MODE",
    "archivedjob": "LOCK TABLE pgqueue_archived_job IN ACCESS EXCLUSIVE MODE",
    "auditentry": "LOCK TABLE pgqueue_audit IN ACCESS EXCLUSIVE MODE",
    "auditedjob": "LOCK TABLE pgqueue_audit_job IN ACCESS EXCLUSIVE MODE",
    "installation": "LOCK TABLE pgqueue_installation IN ACCESS EXCLUSIVE MODE",
    "pause": "LOCK TABLE pgqueue_pause IN ACCESS EXCLUSIVE MODE",
    "searchkey": "LOCK TABLE pgqueue_search_key IN ACCESS EXCLUSIVE MODE",
    "jobstep": "LOCK TABLE pgqueue_step IN ACCESS EXCLUSIVE MODE",
    "sentevent": "LOCK TABLE pgqueue_event IN ACCESS EXCLUSIVE MODE",
    "executionlog": "LOCK TABLE pgqueue_execution_log IN ACCESS EXCLUSIVE MODE",
    "jobbatch": "LOCK TABLE pgqueue_batch IN ACCESS EXCLUSIVE MODE",
    "jobdependency": "LOCK TABLE pgqueue_dependency IN ACCESS EXCLUSIVE MODE",
    "batchremoval": "LOCK TABLE pgqueue_batch_removal IN ACCESS EXCLUSIVE MODE",
    "workerrequest": "LOCK TABLE pgqueue_worker_request IN ACCESS EXCLUSIVE MODE",
}
HOLDER: Final = """
/* pgqueue:lock_holder */
SELECT activity.pid, activity.application_name, extract(epoch FROM clock_timestamp() - activity.xact_start)::float8
FROM pg_locks AS held
JOIN pg_stat_activity AS activity USING (pid)
WHERE held.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND held.relation = to_regclass(%(table)s)
  AND held.granted
  AND held.pid <> pg_backend_pid()
ORDER BY activity.xact_start
LIMIT 1
"""
INDEX_IS_VALID: Final = """
/* pgqueue:index_is_valid */
SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%(name)s)
"""


class LockTable(Operation):
    """Lock the table of one model for a migration, with short repeated attempts instead of one long wait.

    It must be the first operation of an atomic migration that changes this table and no other. The migration then holds
    no other lock while it waits, so it cannot be part of a deadlock. Raises `OperationalError` after ten minutes; the
    message names the session that blocks the lock. It does nothing on a database that is not PostgreSQL, or if a router
    does not allow the model there.
    """

    def __init__(self, model_name: str) -> None:
        if model_name not in LOCKS:
            raise ValueError(f"LockTable cannot lock {model_name!r}: use one of {', '.join(LOCKS)}")
        self.model_name = model_name

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Do nothing: the models do not change."""

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        """Take the lock. It lasts until the migration's transaction ends."""
        connection = schema_editor.connection
        model = to_state.apps.get_model(app_label, self.model_name)
        if connection.vendor != "postgresql" or not self.allow_migrate_model(connection.alias, model):
            return
        if schema_editor.collect_sql:
            schema_editor.execute(LOCKS[self.model_name])
        elif not connection.in_atomic_block:
            raise NotSupportedError(
                "LockTable needs an atomic migration, because the end of its transaction releases the lock."
            )
        else:
            _take_table(connection, model._meta.db_table, LOCKS[self.model_name])

    def database_backwards(self, *args: Any) -> None:
        """Do nothing: in reverse this operation is the last one, and the table is locked by then."""

    def describe(self) -> str:
        """Return the text for `migrate --plan`."""
        return f"Lock the table of {self.model_name}"


class BuildIndex(AddIndexConcurrently):
    """Build an index without blocking writers, like Django's `AddIndexConcurrently`, in a way that can be repeated.

    It needs a migration of its own with `atomic = False`. It first removes the invalid index that an interrupted build
    leaves behind. It keeps a valid index, which exists if the migration was interrupted before it was recorded. On a
    database that is not PostgreSQL it is a plain `AddIndex`.
    """

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        """Build the index while readers and writers continue."""
        model = to_state.apps.get_model(app_label, self.model_name)
        connection = schema_editor.connection
        if not self.allow_migrate_model(connection.alias, model):
            return
        if connection.vendor != "postgresql":
            schema_editor.add_index(model, self.index)
            return
        valid = None if schema_editor.collect_sql else _is_valid(connection, self.index.name)
        if valid is False:
            schema_editor.remove_index(model, self.index, concurrently=True)  # type: ignore[call-arg]  # PostgreSQL's
        if not valid:
            super().database_forwards(app_label, schema_editor, from_state, to_state)


def _take_table(connection: BaseDatabaseWrapper, table: str, lock: str) -> None:
    """Run the statement `lock` until it succeeds; see `LockTable`."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    logged = ""
    while not _try_lock(connection, lock):
        holder = _holder(connection, table)
        if time.monotonic() > deadline:
            raise OperationalError(
                f"{table} could not be locked within 10 minutes, blocked by {holder}: nothing was changed"
            )
        if holder != logged:
            logger.warning("%s is locked by %s: retrying until it is free", table, holder)
            logged = holder
        time.sleep(PAUSE_SECONDS)


def _try_lock(connection: BaseDatabaseWrapper, lock: str) -> bool:
    """Return whether the lock was acquired in time. If not, the end of the savepoint withdraws the request."""
    try:
        with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
            cursor.execute("SELECT set_config('lock_timeout', %s, true)", [f"{LOCK_WAIT_SECONDS * 1000:.0f}ms"])
            cursor.execute(lock)
    except OperationalError as error:
        if not isinstance(error.__cause__, errors.LockNotAvailable):
            raise
        return False
    return True


def _holder(connection: BaseDatabaseWrapper, table: str) -> str:
    """Return a description of the session with the oldest transaction that locks the table."""
    with connection.cursor() as cursor:
        cursor.execute(HOLDER, {"table": table})
        found = cursor.fetchone()
    if found is None:
        return "a transaction that has ended in the meantime"
    pid, application, seconds = found
    since = "" if seconds is None else f", in a transaction for {seconds:.0f} s"
    return f"process {pid} ({application or 'without application_name'}{since})"


def _is_valid(connection: BaseDatabaseWrapper, index_name: str) -> bool | None:
    """Return whether an index is complete; None if there is no index of that name."""
    with connection.cursor() as cursor:
        cursor.execute(INDEX_IS_VALID, {"name": index_name})
        found = cursor.fetchone()
    return None if found is None else bool(found[0])
