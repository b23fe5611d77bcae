"""`WidenCheck` replaces a check constraint by a wider one without reading the table, and back."""

from __future__ import annotations

from typing import Any

import pytest
from django.apps import apps
from django.db import IntegrityError, connection, migrations, models, transaction
from django.db.migrations.loader import MigrationLoader
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from django_pgqueue.db.migration_operations import WidenCheck
from tests import helpers

NAME = "pgqueue_execution_outcome"
NARROW = ("succeeded", "failed", "crashed", "cancelled", "released", "snoozed")
WIDE = models.CheckConstraint(condition=models.Q(outcome__in=[*NARROW, "paused"]), name=NAME)
IS_VALID = "SELECT convalidated FROM pg_constraint WHERE conname = %s"
VALIDATE = f"ALTER TABLE pgqueue_execution VALIDATE CONSTRAINT {NAME}"


class Elsewhere:
    """A router that keeps the queue's tables out of every database."""

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool:
        return app_label != "pgqueue"


@pytest.fixture
def first(db: None) -> Any:
    """Return the state of the models after the first migration, with its narrow constraint in the database."""
    before = MigrationLoader(connection).project_state(("pgqueue", "0001_initial"))
    current = apps.get_model("pgqueue", "Execution")
    old = before.apps.get_model("pgqueue", "Execution")
    with connection.schema_editor() as editor:
        for model, change in ((current, editor.remove_constraint), (old, editor.add_constraint)):
            change(model, next(one for one in model._meta.constraints if one.name == NAME))
    return before


@pytest.fixture
def execution_id(first: Any) -> int:
    helpers.make_job(connection)
    return helpers.claim_one(connection).execution_id


def migrate(before: Any, *, backwards: bool = False) -> list[str]:
    """Apply the operation, or take it back. Return its statements."""
    migration = migrations.Migration("next", "pgqueue")
    vars(migration)["operations"] = [WidenCheck("execution", WIDE)]
    with CaptureQueriesContext(connection) as queries, connection.schema_editor() as editor:
        if backwards:
            migration.unapply(before.clone(), editor)
        else:
            migration.apply(before.clone(), editor)
    return [query["sql"] for query in queries if "ALTER" in query["sql"]]


def is_allowed(execution_id: int, outcome: str) -> bool:
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(
                "UPDATE pgqueue_execution SET outcome = %s, finished_at = claimed_at WHERE id = %s",
                [outcome, execution_id],
            )
    except IntegrityError:
        return False
    return True


def is_valid() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(IS_VALID, [NAME])
        return bool(cursor.fetchone()[0])


def validates() -> bool:
    """Return whether all rows have a value that the constraint allows."""
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(VALIDATE)
    except IntegrityError:
        return False
    return True


def test_forwards_allows_the_new_value_without_reading_the_table(first, execution_id):
    assert not is_allowed(execution_id, "paused")
    assert is_allowed(execution_id, "failed")
    statements = migrate(first)
    assert len(statements) == 2
    assert statements[1].endswith("NOT VALID")
    assert is_valid() is False
    assert is_allowed(execution_id, "paused")
    assert not is_allowed(execution_id, "anything")
    assert validates()  # an administrator can do that later, while workers run
    assert is_valid() is True


def test_backwards_works_with_rows_that_have_the_new_value(first, execution_id):
    migrate(first)
    assert is_allowed(execution_id, "paused")
    other_job = helpers.make_job(connection)
    other = helpers.claim_one(connection)
    assert other.job_id == other_job
    migrate(first, backwards=True)
    assert not is_allowed(other.execution_id, "paused")
    assert is_allowed(other.execution_id, "failed")
    assert not validates()
    assert is_allowed(execution_id, "failed")
    assert validates()


def test_state_forwards_replaces_the_constraint(first):
    after = first.clone()
    WidenCheck("execution", WIDE).state_forwards("pgqueue", after)
    constraints = after.apps.get_model("pgqueue", "Execution")._meta.constraints
    assert [one for one in constraints if one.name == NAME] == [WIDE]
    assert len(constraints) == len(first.apps.get_model("pgqueue", "Execution")._meta.constraints)


def test_table_that_a_router_excludes_is_left_alone(first):
    with override_settings(DATABASE_ROUTERS=["tests.test_widen_check.Elsewhere"]):
        assert migrate(first) == []


def test_describe_names_the_constraint():
    assert NAME in WidenCheck("execution", WIDE).describe()
