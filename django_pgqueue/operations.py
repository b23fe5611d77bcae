"""Operations for this package's migrations, which run while workers work and applications enqueue.

`ALTER TABLE` takes its table for itself. Behind a long transaction it waits, and everybody who comes later waits behind
it. `LockTable`, first in a migration, gets the lock without that; `BuildIndex` needs none. docs/deploys.md has the
rules, and tests/test_migrations.py holds every migration to them.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import NotSupportedError, OperationalError, transaction
from django.db.migrations.operations import AddConstraint, AlterField
from django.db.migrations.operations.base import Operation
from psycopg import errors

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.backends.base.schema import BaseDatabaseSchemaEditor
    from django.db.migrations.state import ProjectState

logger = logging.getLogger("django_pgqueue.migrations")

LOCK_WAIT_SECONDS: Final = 1.2
"""How long others may have to wait behind one try. Over PostgreSQL's `deadlock_timeout`, 1 s, after which an autovacuum
that is in the way gives up."""
PAUSE_SECONDS: Final = 2.0
"""Between two tries, for what had to wait."""
PATIENCE_SECONDS: Final = 600.0
"""Then the migration fails, with nothing changed: a transaction as long as that is somebody's mistake, or a dump."""

LOCKS: Final = {
    "job": "LOCK TABLE pgqueue_job IN ACCESS EXCLUSIVE MODE",
    "execution": "LOCK TABLE pgqueue_execution IN ACCESS EXCLUSIVE MODE",
    "worker": "LOCK TABLE pgqueue_worker IN ACCESS EXCLUSIVE MODE",
    "schedule": "LOCK TABLE pgqueue_schedule IN ACCESS EXCLUSIVE MODE",
    "hold": "LOCK TABLE pgqueue_hold IN ACCESS EXCLUSIVE MODE",
    "pause": "LOCK TABLE pgqueue_pause IN ACCESS EXCLUSIVE MODE",
}
UNIQUE_INDEXES: Final = {
    "pgqueue_job_unique": """
CREATE UNIQUE INDEX CONCURRENTLY "pgqueue_job_unique" ON "pgqueue_job" ("task_name", "unique_key")
WHERE ("unique_key" IS NOT NULL AND ("state" = 'ready' OR ("state" = 'running' AND "unique_ready_only" IS NULL)))
""",
}
"""As Django would make them, but for CONCURRENTLY."""
DROPPED_INDEXES: Final = {
    "execution.job": 'DROP INDEX CONCURRENTLY IF EXISTS "pgqueue_execution_job_id_8443aa2e"',
}
"""By the names that Django has given them."""
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
    """Take the table of one model for this migration, trying again and again rather than waiting in line for long.

    The first operation of an atomic migration that changes this table, and only this one: nothing is held while it
    waits, so it can be part of no deadlock. Raises `OperationalError` after ten minutes, naming who holds the table.
    On a database that is not PostgreSQL, or that a router keeps the model away from, it does nothing.
    """

    def __init__(self, model_name: str) -> None:
        if model_name not in LOCKS:
            raise ValueError(f"LockTable is for {', '.join(LOCKS)}, not {model_name!r}")
        self.model_name = model_name

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Leave the models as they are."""

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        """Take the lock; it is held until the migration's transaction ends."""
        connection = schema_editor.connection
        model = to_state.apps.get_model(app_label, self.model_name)
        if connection.vendor != "postgresql" or not self.allow_migrate_model(connection.alias, model):
            return
        if schema_editor.collect_sql:
            schema_editor.execute(LOCKS[self.model_name])
        elif not connection.in_atomic_block:
            raise NotSupportedError("LockTable needs the transaction of an atomic migration, which ends the lock.")
        else:
            take_table(connection, self.model_name)

    def database_backwards(self, *args: Any) -> None:
        """Nothing: backwards this comes last, when the locks are held already."""

    def describe(self) -> str:
        """Return what `migrate --plan` shows."""
        return f"Lock the table of {self.model_name}"


class BuildIndex(AddIndexConcurrently):
    """Django's `AddIndexConcurrently`, in a migration of its own with `atomic = False`, that can be run again.

    What a build that was broken off has left behind, an invalid index, is removed first; an index that is complete,
    because only the record of the migration is missing, is left alone. On a database that is not PostgreSQL it is a
    plain `AddIndex`.
    """

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        """Build the index; readers and writers go on meanwhile."""
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


class BuildUniqueIndex(AddConstraint):
    """Django's `AddConstraint` for a `UniqueConstraint` with a condition, built without a lock, as by `BuildIndex`."""

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        """Build the index; readers and writers go on meanwhile."""
        model = to_state.apps.get_model(app_label, self.model_name)
        connection = schema_editor.connection
        if connection.vendor != "postgresql" or not self.allow_migrate_model(connection.alias, model):
            super().database_forwards(app_label, schema_editor, from_state, to_state)
            return
        valid = None if schema_editor.collect_sql else _is_valid(connection, self.constraint.name)
        if valid is False:
            schema_editor.remove_constraint(model, self.constraint)
        if not valid:
            schema_editor.execute(UNIQUE_INDEXES[self.constraint.name])

    def describe(self) -> str:
        """Return what `migrate --plan` shows."""
        return f"Build the unique index {self.constraint.name} of {self.model_name} beside the others' work"


class DropColumnIndex(AlterField):
    """Drop the index that Django made for a foreign key, without a lock: the field gets `db_index=False`.

    Belongs after the `BuildIndex` of the index that takes its place. It can be run again.
    """

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        """Drop the index; readers and writers go on meanwhile."""
        model = from_state.apps.get_model(app_label, self.model_name)
        connection = schema_editor.connection
        if connection.vendor != "postgresql" or not self.allow_migrate_model(connection.alias, model):
            super().database_forwards(app_label, schema_editor, from_state, to_state)
            return
        schema_editor.execute(DROPPED_INDEXES[f"{self.model_name}.{self.name}"])

    def describe(self) -> str:
        """Return what `migrate --plan` shows."""
        return f"Drop the index of {self.name} of {self.model_name} beside the others' work"


def take_table(connection: BaseDatabaseWrapper, model_name: str) -> None:
    """Lock the table of one model for the transaction that is open; see `LockTable`."""
    table = f"pgqueue_{model_name}"
    deadline = time.monotonic() + PATIENCE_SECONDS
    said = ""
    while not _try(connection, LOCKS[model_name]):
        holder = _holder(connection, table)
        if time.monotonic() > deadline:
            raise OperationalError(f"{table} was not to be had in 10 minutes, held by {holder}: nothing was changed")
        if holder != said:
            logger.warning("%s is held by %s: trying again until it is free", table, holder)
            said = holder
        time.sleep(PAUSE_SECONDS)


def _try(connection: BaseDatabaseWrapper, lock: str) -> bool:
    """Say whether the lock was got in time; if not, the savepoint's end takes the request out of everybody's way."""
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
    """Return who has held the table for longest: it may be gone by now."""
    with connection.cursor() as cursor:
        cursor.execute(HOLDER, {"table": table})
        found = cursor.fetchone()
    if found is None:
        return "a transaction that has ended since"
    pid, application, seconds = found
    since = "" if seconds is None else f", in a transaction for {seconds:.0f} s"
    return f"process {pid} ({application or 'without application_name'}{since})"


def _is_valid(connection: BaseDatabaseWrapper, index_name: str) -> bool | None:
    """Say whether an index is complete; None if there is none of that name."""
    with connection.cursor() as cursor:
        cursor.execute(INDEX_IS_VALID, {"name": index_name})
        found = cursor.fetchone()
    return None if found is None else bool(found[0])
