"""The rules for every migration after the first: workers of the last release must keep working during and after it.

`docs/production/upgrading.md` explains the rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.db import connection
from django.db.migrations import AddField, CreateModel, Migration
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState
from django.db.models.fields import NOT_PROVIDED
from django.db.models.functions import Now

from django_pgqueue.db.migration_operations import BuildIndex, LockTable


def broken_rules(migration: Migration, before: ProjectState) -> Iterator[str]:
    """Yield a message for each rule that a migration breaks. `before` is the state that it is applied to."""
    if any(isinstance(operation, BuildIndex) for operation in migration.operations):
        if len(migration.operations) > 1 or migration.atomic:
            yield "BuildIndex has a migration of its own, with atomic = False: one that broke off is run again"
        return
    if not migration.atomic:
        yield "only BuildIndex may do without a transaction"
    yield from _broken_by_locks(migration)
    state = before
    for operation in migration.operations:
        yield from _broken_by(operation, migration.app_label, state)
        state = state.clone()
        operation.state_forwards(migration.app_label, state)


def _broken_by_locks(migration: Migration) -> Iterator[str]:
    locks = [place for place, operation in enumerate(migration.operations) if isinstance(operation, LockTable)]
    locked = {operation.model_name for operation in migration.operations if isinstance(operation, LockTable)}
    altered = {operation.model_name.lower() for operation in migration.operations if isinstance(operation, AddField)}
    if altered - locked or locks not in ([], [0]):
        yield "a migration that alters a table begins with its LockTable, and alters no other"


def _broken_by(operation: Operation, app_label: str, before: ProjectState) -> Iterator[str]:
    if isinstance(operation, LockTable):
        return
    if isinstance(operation, AddField):
        yield from (f"{operation.name}: {wrong}" for wrong in _wrong_field(operation.field))
    elif isinstance(operation, CreateModel):
        for name, field in operation.fields:
            if _is_constrained(field):
                yield f"{name}: a foreign key of the database locks the other table: db_constraint=False"
    elif not operation.reduces_to_sql or _sql(operation, app_label, before):
        yield f"{operation.describe()}: not additive, or not known to be: old code runs on the new schema"


def _wrong_field(field: Any) -> Iterator[str]:
    default = field.db_default
    if not field.null and default is NOT_PROVIDED:
        yield "null=True or db_default=…: old code leaves the column out"
    if not isinstance(default, Now | str | int | float | bool) and default is not NOT_PROVIDED:
        yield "db_default must be a constant or Now(): others rewrite the table"
    if field.unique or field.db_index or field.primary_key:
        yield "no index: BuildIndex adds one without a lock"
    if _is_constrained(field):
        yield "db_constraint=False: a foreign key of the database locks the other table"
    elif field.get_internal_type() in connection.data_type_check_constraints:
        yield "no field with a constraint of its own, such as PositiveIntegerField: old code does not know its rule"


def _is_constrained(field: Any) -> bool:
    return bool(getattr(field, "db_constraint", False))


def _sql(operation: Operation, app_label: str, before: ProjectState) -> list[str]:
    after = before.clone()
    operation.state_forwards(app_label, after)
    with connection.schema_editor(collect_sql=True, atomic=False) as editor:
        operation.database_forwards(app_label, editor, before, after)
    return [line for line in editor.collected_sql if not line.startswith("--")]
