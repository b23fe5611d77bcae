"""The checks of the tables: the migration adds them under rows that break them, and can be run again."""

from __future__ import annotations

import psycopg
import pytest
from django.db import connection
from django.db.migrations.loader import MigrationLoader

from tests import helpers

BAD_JOBS = (
    {"attempt": -3, "crashes": -1, "max_attempts": 0},
    {"unique_ready_only": False, "unique_key": "k"},
    {"state": "nonsense"},
    {"expires_at": "infinity", "enqueued_at": "-infinity", "unknown_since": "294276-01-01"},
    {"state": "dead", "finished_at": "infinity"},
)


def put(engine, table, **row):
    names = ", ".join(row)
    marks = ", ".join(["%s"] * len(row))
    engine.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", list(row.values()))


def put_bad_rows(engine):
    for changes in BAD_JOBS:
        put(engine, "pgqueue_job", task_name=helpers.NOOP, arguments=helpers.NO_ARGUMENTS, **changes)
    put(engine, "pgqueue_execution", job_id=1, attempt=1, worker_id=1, lease_expires_at="infinity")
    put(engine, "pgqueue_pause", kind="queue", name="q", paused_until="infinity")
    schedule = {"name": "s", "task_name": "t", "arguments": "{}", "expression": "* * * * *"}
    put(engine, "pgqueue_schedule", **schedule, next_run_at="infinity", vouched_at="-infinity")


def operation():
    migration = MigrationLoader(connection).get_migration("pgqueue", "0013_row_checks")
    return migration.operations[0]


def apply_checks():
    """Apply the operation of the migration as `migrate` does, outside of a transaction."""
    loader = MigrationLoader(connection)
    state = loader.project_state(("pgqueue", "0013_row_checks"))
    with connection.schema_editor(atomic=False) as editor:
        operation().database_forwards("pgqueue", editor, state, state)


@pytest.mark.promise("bad-row-constraints")
@pytest.mark.django_db(transaction=True)
def test_row_checks_bad_rows_are_repaired(engine):
    with helpers.without_row_checks(engine):
        put_bad_rows(engine)
        apply_checks()
        checks = engine.execute("SELECT convalidated FROM pg_constraint WHERE conname ~ '^pgqueue_.*_instants$'")
        assert checks.fetchall() == [(True,)] * 4
        apply_checks()
        jobs = list(helpers.rows_of(engine, "pgqueue_job").values())
        assert [job["state"] for job in jobs] == ["ready", "ready", "dead", "ready", "dead"]
        assert (jobs[0]["attempt"], jobs[0]["crashes"], jobs[0]["max_attempts"]) == (0, 0, 1)
        assert jobs[1]["unique_ready_only"] is True
        assert jobs[3]["expires_at"] is None
        assert helpers.scalar(engine, "SELECT paused_until FROM pgqueue_pause") is None
        helpers.schedule_of(engine, 1)
        for table, name, _ in engine.execute(helpers.CHECKS).fetchall():
            engine.execute(f"ALTER TABLE {table} DROP CONSTRAINT {name}")


@pytest.mark.parametrize("until", ["infinity", "-infinity", "294276-01-01"])
def test_pause_infinite_end_is_refused(engine, until):
    with pytest.raises(psycopg.errors.CheckViolation):
        put(engine, "pgqueue_pause", kind="queue", name="q", paused_until=until)
