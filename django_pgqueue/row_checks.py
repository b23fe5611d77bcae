"""The migration operation that adds CHECK constraints to tables that have rows, while workers work.

Used by this package's migrations alone. It protects the other sessions: no table is locked for longer than an instant,
and no row that an earlier release could write is refused. docs/deploys.md has the rules for migrations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django.db import transaction
from django.db.migrations.operations.base import Operation

from .operations import take_table

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.backends.base.schema import BaseDatabaseSchemaEditor
    from django.db.migrations.state import ProjectState
    from django.db.models import CheckConstraint

REPAIRS: Final = {
    "job": """
UPDATE pgqueue_job
SET attempt = greatest(attempt, 0), crashes = greatest(crashes, 0), max_attempts = greatest(max_attempts, 1),
    unique_ready_only = CASE WHEN unique_ready_only IS NOT NULL THEN true END,
    enqueued_at = least(greatest(enqueued_at, '0001-01-03 UTC'), '9999-12-28 UTC'),
    unknown_since = CASE
        WHEN unknown_since IS NOT NULL THEN least(greatest(unknown_since, '0001-01-03 UTC'), '9999-12-28 UTC')
    END,
    expires_at = CASE WHEN expires_at < '9999-12-29 UTC' THEN greatest(expires_at, '0001-01-03 UTC') END,
    finished_at = CASE
        WHEN state NOT IN ('ready', 'running', 'succeeded', 'dead', 'cancelled', 'waiting') THEN statement_timestamp()
        WHEN finished_at IS NOT NULL THEN least(greatest(finished_at, '0001-01-03 UTC'), '9999-12-28 UTC')
    END,
    state = CASE
        WHEN state IN ('ready', 'running', 'succeeded', 'dead', 'cancelled', 'waiting') THEN state ELSE 'dead'
    END
WHERE attempt < 0 OR crashes < 0 OR max_attempts < 1 OR NOT unique_ready_only
   OR state NOT IN ('ready', 'running', 'succeeded', 'dead', 'cancelled', 'waiting')
   OR least(enqueued_at, unknown_since, expires_at, finished_at) < '0001-01-03 UTC'
   OR greatest(enqueued_at, unknown_since, expires_at, finished_at) >= '9999-12-29 UTC'
""",
    "execution": """
UPDATE pgqueue_execution
SET outcome = CASE
        WHEN outcome IS NULL OR outcome IN ('succeeded', 'failed', 'crashed', 'cancelled', 'released', 'snoozed')
        THEN outcome ELSE 'failed'
    END,
    claimed_at = least(greatest(claimed_at, '0001-01-03 UTC'), '9999-12-28 UTC'),
    started_at = CASE
        WHEN started_at IS NOT NULL THEN least(greatest(started_at, '0001-01-03 UTC'), '9999-12-28 UTC')
    END,
    finished_at = CASE
        WHEN finished_at IS NOT NULL THEN least(greatest(finished_at, '0001-01-03 UTC'), '9999-12-28 UTC')
    END,
    lease_expires_at = CASE
        WHEN lease_expires_at >= '0001-01-03 UTC' AND lease_expires_at < '9999-12-29 UTC'
        THEN lease_expires_at ELSE statement_timestamp()
    END
WHERE outcome NOT IN ('succeeded', 'failed', 'crashed', 'cancelled', 'released', 'snoozed')
   OR least(claimed_at, started_at, finished_at, lease_expires_at) < '0001-01-03 UTC'
   OR greatest(claimed_at, started_at, finished_at, lease_expires_at) >= '9999-12-29 UTC'
""",
    "schedule": """
UPDATE pgqueue_schedule
SET next_run_at = CASE
        WHEN next_run_at >= '0001-01-03 UTC' AND next_run_at < '9999-12-29 UTC'
        THEN next_run_at ELSE '9999-12-28 UTC'
    END,
    last_run_at = CASE
        WHEN last_run_at IS NOT NULL THEN least(greatest(last_run_at, '0001-01-03 UTC'), '9999-12-28 UTC')
    END,
    vouched_at = CASE WHEN vouched_at IS NOT NULL THEN statement_timestamp() END
WHERE least(next_run_at, last_run_at, vouched_at) < '0001-01-03 UTC'
   OR greatest(next_run_at, last_run_at, vouched_at) >= '9999-12-29 UTC'
""",
    "pause": """
UPDATE pgqueue_pause
SET paused_at = least(greatest(paused_at, '0001-01-03 UTC'), '9999-12-28 UTC'),
    paused_until = CASE WHEN paused_until < '9999-12-29 UTC' THEN greatest(paused_until, '0001-01-03 UTC') END
WHERE least(paused_at, paused_until) < '0001-01-03 UTC' OR greatest(paused_at, paused_until) >= '9999-12-29 UTC'
""",
}
"""What makes rows fit the checks: the nearest instant, no end where it was infinite, dead where the state was unknown.
A schedule without a readable next tick gets one far ahead, which the next worker that looks at it replaces."""


class AddRowChecks(Operation):
    """Add the checks of one or more tables that have rows, in a migration of its own with `atomic = False`.

    For each table: repair the rows that break the checks, add the checks as NOT VALID under a lock of an instant, and
    validate them while readers and writers go on. It can be run again: what is there already is left alone.
    """

    def __init__(self, checks: dict[str, list[CheckConstraint]]) -> None:
        self.checks = checks

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Add the checks to the models."""
        for model_name, constraints in self.checks.items():
            for constraint in constraints:
                state.add_constraint(app_label, model_name, constraint)

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        """Repair, add and validate, table by table."""
        connection = schema_editor.connection
        for model_name, constraints in self.checks.items():
            model = to_state.apps.get_model(app_label, model_name)
            if not self.allow_migrate_model(connection.alias, model):
                continue
            if connection.vendor != "postgresql":
                for constraint in constraints:
                    schema_editor.add_constraint(model, constraint)
                continue
            schema_editor.execute(REPAIRS[model_name])
            self._add(schema_editor, model, model_name, constraints)
            schema_editor.execute(REPAIRS[model_name])  # what was written between the first repair and the lock
            for constraint in constraints:
                schema_editor.execute(f"ALTER TABLE pgqueue_{model_name} VALIDATE CONSTRAINT {constraint.name}")

    def _add(
        self, schema_editor: BaseDatabaseSchemaEditor, model: Any, model_name: str, constraints: list[CheckConstraint]
    ) -> None:
        connection = schema_editor.connection
        names = set() if schema_editor.collect_sql else _constraints(connection, f"pgqueue_{model_name}")
        missing = [one for one in constraints if one.name not in names]
        if schema_editor.collect_sql:
            for one in missing:
                schema_editor.execute(f"{one.create_sql(model, schema_editor)} NOT VALID")
        elif missing:
            with transaction.atomic(using=connection.alias):
                take_table(connection, model_name)
                for one in missing:
                    schema_editor.execute(f"{one.create_sql(model, schema_editor)} NOT VALID")

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        """Remove the checks."""
        for model_name, constraints in self.checks.items():
            model = from_state.apps.get_model(app_label, model_name)
            if self.allow_migrate_model(schema_editor.connection.alias, model):
                for constraint in constraints:
                    schema_editor.remove_constraint(model, constraint)

    def describe(self) -> str:
        """Return what `migrate --plan` shows."""
        return f"Check the rows of {', '.join(self.checks)}"


def _constraints(connection: BaseDatabaseWrapper, table: str) -> set[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT conname FROM pg_constraint WHERE conrelid = to_regclass(%s)", [table])
        return {row[0] for row in cursor.fetchall()}
