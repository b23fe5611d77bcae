"""The migration operation that sets the collation "C" on columns of names.

This package's migrations use it, after `operations.LockTable`. It protects the indexes on names: an upgrade of glibc or
ICU can change how text sorts, and searches in an index that was built before then miss rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django.db.migrations.operations import AlterField
from django.db.migrations.operations.base import Operation

if TYPE_CHECKING:
    from django.db.backends.base.schema import BaseDatabaseSchemaEditor
    from django.db.migrations.state import ProjectState
    from django.db.models import Field

BY_BYTES: Final = {
    "job": """
ALTER TABLE pgqueue_job
ALTER COLUMN task_name TYPE varchar(100) COLLATE "C",
ALTER COLUMN queue_name TYPE varchar(100) COLLATE "C",
ALTER COLUMN unique_key TYPE varchar(200) COLLATE "C"
""",
    "hold": """
ALTER TABLE pgqueue_hold
ALTER COLUMN task_name TYPE varchar(100) COLLATE "C",
ALTER COLUMN unique_key TYPE varchar(200) COLLATE "C"
""",
    "pause": """
ALTER TABLE pgqueue_pause ALTER COLUMN name TYPE varchar(100) COLLATE "C"
""",
    "schedule": """
ALTER TABLE pgqueue_schedule ALTER COLUMN name TYPE varchar(200) COLLATE "C"
""",
}
BY_DATABASE: Final = {
    "job": """
ALTER TABLE pgqueue_job
ALTER COLUMN task_name TYPE varchar(100) COLLATE "default",
ALTER COLUMN queue_name TYPE varchar(100) COLLATE "default",
ALTER COLUMN unique_key TYPE varchar(200) COLLATE "default"
""",
    "hold": """
ALTER TABLE pgqueue_hold
ALTER COLUMN task_name TYPE varchar(100) COLLATE "default",
ALTER COLUMN unique_key TYPE varchar(200) COLLATE "default"
""",
    "pause": """
ALTER TABLE pgqueue_pause ALTER COLUMN name TYPE varchar(100) COLLATE "default"
""",
    "schedule": """
ALTER TABLE pgqueue_schedule ALTER COLUMN name TYPE varchar(200) COLLATE "default"
""",
}
"""One statement per table, so that each index is rebuilt only once."""


class SortByBytes(Operation):
    """Set the collation "C" on columns of names, so that an upgrade of glibc or ICU cannot corrupt their indexes.

    PostgreSQL does not rewrite the table, but rebuilds the indexes on these columns under the lock; see the migration.
    """

    def __init__(self, model_name: str, fields: dict[str, Field[Any, Any]]) -> None:
        self.model_name = model_name
        self.fields = fields

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        """Return the arguments that recreate this operation."""
        return type(self).__name__, [], {"model_name": self.model_name, "fields": self.fields}

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Change the fields of the model."""
        for name, field in self.fields.items():
            AlterField(self.model_name, name, field).state_forwards(app_label, state)

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        """Change all columns in one statement, which rebuilds each index only once."""
        self._alter(app_label, schema_editor, to_state, BY_BYTES)

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        """Set the columns back to the database's collation."""
        self._alter(app_label, schema_editor, to_state, BY_DATABASE)

    def _alter(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState, statements: dict[str, str]
    ) -> None:
        model = state.apps.get_model(app_label, self.model_name)
        if schema_editor.connection.vendor == "postgresql" and self.allow_migrate_model(
            schema_editor.connection.alias, model
        ):
            schema_editor.execute(statements[self.model_name])

    def describe(self) -> str:
        """Return the text for `migrate --plan`."""
        return f"Sort {', '.join(self.fields)} of {self.model_name} by bytes"
