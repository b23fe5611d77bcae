"""The migration operation that adds CHECK constraints to tables with rows while workers run.

Only this package's migrations use it. It protects the other sessions: no table is locked for longer than an instant,
and no row that an earlier release could write is refused. docs/production/upgrading.md has the rules for migrations.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from django.contrib.postgres.operations import AddConstraintNotValid, ValidateConstraint
from django.db import transaction
from django.db.migrations.operations.base import Operation

from .db.migration_operations import take_table
from .lifecycle import repair_rows

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.backends.base.schema import BaseDatabaseSchemaEditor
    from django.db.migrations.state import ProjectState
    from django.db.models import CheckConstraint


class AddRowChecks(Operation):
    """Add the checks of one or more tables that have rows.

    It needs a migration of its own with `atomic = False`. For each table it repairs the rows that break the checks,
    adds the checks as NOT VALID under a short lock, and validates them while readers and writers continue. It can be
    run again: it skips existing checks.
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
            if not schema_editor.collect_sql:
                repair_rows(connection, model_name)
            self._add(app_label, schema_editor, (from_state, to_state), model_name)
            if not schema_editor.collect_sql:
                repair_rows(connection, model_name)  # rows written between the first repair and the lock
            for constraint in constraints:
                validate = ValidateConstraint(model_name, constraint.name)
                validate.database_forwards(app_label, schema_editor, from_state, to_state)

    def _add(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        states: tuple[ProjectState, ProjectState],
        model_name: str,
    ) -> None:
        """Add the missing checks without validating them. An interrupted migration has left some of them."""
        connection, constraints = schema_editor.connection, self.checks[model_name]
        existing = set() if schema_editor.collect_sql else _constraints(connection, f"pgqueue_{model_name}")
        missing = [AddConstraintNotValid(model_name, check) for check in constraints if check.name not in existing]
        if not missing:
            return
        with nullcontext() if schema_editor.collect_sql else transaction.atomic(using=connection.alias):
            if not schema_editor.collect_sql:
                take_table(connection, model_name)
            for operation in missing:
                operation.database_forwards(app_label, schema_editor, *states)

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
        """Return the text for `migrate --plan`."""
        return f"Add row checks to {', '.join(self.checks)}"


def _constraints(connection: BaseDatabaseWrapper, table: str) -> set[str]:
    """Return the names of the constraints that a table has."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT conname FROM pg_constraint WHERE conrelid = to_regclass(%s)", [table])
        return {row[0] for row in cursor.fetchall()}
