"""The migration operation that gives columns of names the collation "C".

Migrations use it, after `operations.LockTable`. It protects the indexes on names: an upgrade of the system's library
may change how text sorts, and an index that was built before then misses rows.
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
"""One statement each, which builds each index once."""


class SortByBytes(Operation):
    """Give columns of names the collation "C", so that an upgrade of the system's library cannot spoil their indexes.

    A new glibc or ICU may sort text in another way than the one that built an index, and then searches miss rows. The
    table is not rewritten, but its indexes on these columns are built anew under the lock: see the migration.
    """

    def __init__(self, model_name: str, fields: dict[str, Field[Any, Any]]) -> None:
        self.model_name = model_name
        self.fields = fields

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        """Return how to make this again."""
        return type(self).__name__, [], {"model_name": self.model_name, "fields": self.fields}

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Change the fields."""
        for name, field in self.fields.items():
            AlterField(self.model_name, name, field).state_forwards(app_label, state)

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        """Change all columns in one statement, which builds each index once."""
        self._alter(app_label, schema_editor, to_state, BY_BYTES)

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        """Give the columns the database's collation again."""
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
        """Return what `migrate --plan` shows."""
        return f"Sort {', '.join(self.fields)} of {self.model_name} by bytes"
