"""Migrations: beside other databases, which they leave in peace; and under the rules that let old code run on them."""

import psycopg
import pytest
from django.apps import apps
from django.db import NotSupportedError, OperationalError, connections, migrations, models
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader
from django.db.models.functions import Now
from django.test import override_settings

from django_pgqueue.db import migration_operations
from django_pgqueue.db.migration_operations import BuildIndex, LockTable
from tests import helpers
from tests.migration_rules import broken_rules

FIRST = ("pgqueue", "0001_initial")


class Elsewhere:
    """A router that keeps the queue's tables out of `lite`."""

    def allow_migrate(self, db, app_label, **hints):
        return not (db == "lite" and app_label == "pgqueue")


@pytest.fixture
def lite(django_db_blocker):
    """A second alias that is no PostgreSQL."""
    settings = {**connections.settings["default"], "ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    connections.settings["lite"] = {**settings, "OPTIONS": {}, "USER": "", "HOST": ""}
    with django_db_blocker.unblock():  # it is no test database, but one in memory
        connections["lite"].connect()
        yield connections["lite"]
    connections["lite"].connection.close()
    del connections["lite"]
    del connections.settings["lite"]


def tables(connection):
    return {name for name in connection.introspection.table_names() if name.startswith("pgqueue_")}


@pytest.mark.django_db
def test_the_settings_of_the_tables_are_set_on_postgresql():
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT reloptions FROM pg_class WHERE relname = 'pgqueue_execution'")
        assert "fillfactor=50" in cursor.fetchone()[0]


def test_another_kind_of_database_can_be_migrated_too(lite):
    MigrationExecutor(lite).migrate([FIRST])
    assert tables(lite) == {model._meta.db_table for model in apps.get_app_config("pgqueue").get_models()}


@override_settings(DATABASE_ROUTERS=["tests.test_migrations.Elsewhere"])
def test_a_router_keeps_the_tables_away(lite):
    MigrationExecutor(lite).migrate([FIRST])
    assert tables(lite) == set()


# ------------------------------------------------------------------ the rules for those after the first


NOTE = models.TextField(null=True)
INDEX = models.Index(fields=["enqueued_at"], name="pgqueue_job_enqueued")
OWNER = models.ForeignKey("pgqueue.Worker", models.CASCADE, null=True, db_index=False)
ALLOWED = {
    "a column that may be empty": [LockTable("job"), migrations.AddField("job", "note", NOTE)],
    "columns with defaults of the database": [
        LockTable("execution"),
        migrations.AddField("execution", "note", models.TextField(db_default="")),
        migrations.AddField("execution", "seen_at", models.DateTimeField(db_default=Now())),
    ],
    "a table": [migrations.CreateModel("Queue", [("id", models.BigAutoField(primary_key=True)), ("note", NOTE)])],
    "what only Django knows of": [
        migrations.AlterField("job", "state", models.CharField(max_length=12, choices=[("a", "b")], db_default="ready"))
    ],
    "an index": [BuildIndex("job", INDEX)],
}
FORBIDDEN = {
    "a column without a lock first": ([migrations.AddField("job", "note", NOTE)], "begins with its LockTable"),
    "the lock of another table": (
        [LockTable("worker"), migrations.AddField("job", "note", NOTE)],
        "begins with its LockTable",
    ),
    "two tables": (
        [LockTable("job"), migrations.AddField("job", "note", NOTE), LockTable("worker")],
        "alters no other",
    ),
    "a column that old code leaves out": (
        [LockTable("job"), migrations.AddField("job", "note", models.TextField(default=""))],
        "db_default",
    ),
    "a default that rewrites the table": (
        [LockTable("job"), migrations.AddField("job", "luck", models.FloatField(db_default=models.functions.Random()))],
        "rewrite",
    ),
    "an index with the column": (
        [LockTable("job"), migrations.AddField("job", "note", models.TextField(null=True, db_index=True))],
        "BuildIndex",
    ),
    "a foreign key": ([LockTable("job"), migrations.AddField("job", "owner", OWNER)], "db_constraint"),
    "a foreign key of a new table": (
        [migrations.CreateModel("Queue", [("id", models.BigAutoField(primary_key=True)), ("owner", OWNER)])],
        "db_constraint",
    ),
    "an index that locks": ([migrations.AddIndex("job", INDEX)], "not additive"),
    "an index among others": ([BuildIndex("job", INDEX), migrations.AddField("job", "note", NOTE)], "of its own"),
    "a column less": ([LockTable("job"), migrations.RemoveField("job", "crashes")], "not additive"),
    "a column that is narrowed": (
        [LockTable("job"), migrations.AlterField("job", "limit_key", models.CharField(max_length=9, null=True))],
        "not additive",
    ),
    "a constraint": (
        [migrations.AddConstraint("job", models.CheckConstraint(condition=models.Q(crashes__gte=0), name="c"))],
        "not additive",
    ),
    "code": ([migrations.RunPython(migrations.RunPython.noop)], "not known to be"),
    "SQL": ([migrations.RunSQL("SELECT 1")], "not known to be"),
}


def migration_of(given, *, atomic):
    made = migrations.Migration("next", "pgqueue")
    made.operations, made.atomic = given, atomic
    return made


def after_the_first(connection):
    return MigrationLoader(connection).project_state(FIRST)


@pytest.mark.promise("migrations-are-additive")
@pytest.mark.django_db
def test_every_migration_but_the_first_keeps_the_rules():
    loader = MigrationLoader(connections["default"])
    ours = [key for key in loader.graph.nodes if key[0] == "pgqueue" and key != FIRST]
    for key in ours:
        assert list(broken_rules(loader.get_migration(*key), loader.project_state(key, at_end=False))) == [], key


@pytest.mark.django_db
@pytest.mark.parametrize("what", ALLOWED)
def test_the_rules_allow(what):
    before = after_the_first(connections["default"])
    assert list(broken_rules(migration_of(ALLOWED[what], atomic=what != "an index"), before)) == []


@pytest.mark.django_db
@pytest.mark.parametrize("what", FORBIDDEN)
def test_the_rules_forbid(what):
    given, why = FORBIDDEN[what]
    before = after_the_first(connections["default"])
    broken = list(broken_rules(migration_of(given, atomic=True), before))
    assert len(broken) == 1, broken
    assert why in broken[0]


@pytest.mark.django_db
def test_the_rules_forbid_what_could_stop_half_way():
    before = after_the_first(connections["default"])
    [broken] = broken_rules(migration_of(ALLOWED["a column that may be empty"], atomic=False), before)
    assert "transaction" in broken
    [broken] = broken_rules(migration_of(ALLOWED["an index"], atomic=True), before)
    assert "atomic = False" in broken


# ------------------------------------------------------------------ the operations that the rules ask for


def apply(given, *, atomic):
    """Apply operations to the test database as `migrate` does; nothing is recorded."""
    connection = connections["default"]
    before = after_the_first(connection)
    with connection.schema_editor(atomic=atomic) as editor:
        migration_of(given, atomic=atomic).apply(before, editor)


def validity(engine):
    row = engine.execute("SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)", [INDEX.name]).fetchone()
    return row and row[0]


@pytest.fixture
def index_removed(engine):
    yield
    engine.execute(f"DROP INDEX IF EXISTS {INDEX.name}")


def test_a_lock_that_is_not_to_be_had_fails_and_names_who_has_it(engine, monkeypatch, caplog):
    monkeypatch.setattr(migration_operations, "LOCK_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(migration_operations, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(migration_operations, "PATIENCE_SECONDS", 0.2)
    with helpers.transaction(engine, "SELECT FROM pgqueue_job"):
        holder = f"process {engine.info.backend_pid} (pgqueue:test, in a transaction for 0 s)"
        with pytest.raises(OperationalError, match="nothing was changed") as error:
            apply(ALLOWED["a column that may be empty"], atomic=True)
    assert holder in str(error.value)
    assert [record.getMessage() for record in caplog.records] == [
        f"pgqueue_job is locked by {holder}: retrying until it is free"
    ]


def test_between_two_tries_nobody_waits_for_the_lock(engine, second, monkeypatch):
    monkeypatch.setattr(migration_operations, "LOCK_WAIT_SECONDS", 0.01)
    naps = []

    def nap(seconds):
        naps.append(seconds)
        with helpers.transaction(second, "SET LOCAL lock_timeout = '1ms'"):
            second.execute("LOCK TABLE pgqueue_job IN ROW EXCLUSIVE MODE")
        if len(naps) == 2:
            engine.execute("COMMIT")

    monkeypatch.setattr(migration_operations.time, "sleep", nap)
    with helpers.transaction(engine, "SELECT FROM pgqueue_job"):
        apply([LockTable("job")], atomic=True)
    assert naps == [migration_operations.PAUSE_SECONDS] * 2


def test_the_lock_needs_a_transaction_and_a_table_of_ours(committing):
    with pytest.raises(NotSupportedError, match="atomic migration"):
        apply([LockTable("job")], atomic=False)
    with pytest.raises(ValueError, match="job, execution, worker"):
        LockTable("order")


def test_an_index_is_built_once_and_what_broke_off_is_built_again(engine, second, index_removed, monkeypatch):
    with helpers.transaction(second, "SELECT FROM pgqueue_job FOR UPDATE"):
        helpers.make_job(engine)
        second.execute("LOCK TABLE pgqueue_job IN ROW EXCLUSIVE MODE")
        engine.execute("SET lock_timeout = '50ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            engine.execute(f"CREATE INDEX CONCURRENTLY {INDEX.name} ON pgqueue_job (enqueued_at)")
    assert validity(engine) is False
    apply(ALLOWED["an index"], atomic=False)
    assert validity(engine) is True
    apply(ALLOWED["an index"], atomic=False)
    assert validity(engine) is True


def test_on_another_kind_of_database_the_operations_are_plain(lite):
    MigrationExecutor(lite).migrate([FIRST])
    before = after_the_first(lite)
    with lite.schema_editor() as editor:
        state = migration_of(ALLOWED["a column that may be empty"], atomic=True).apply(before, editor)
        migration_of(ALLOWED["an index"], atomic=False).apply(state, editor)
    with lite.cursor() as cursor:
        assert "note" in {column.name for column in lite.introspection.get_table_description(cursor, "pgqueue_job")}
        assert INDEX.name in lite.introspection.get_constraints(cursor, "pgqueue_job")


@override_settings(DATABASE_ROUTERS=["tests.test_migrations.Elsewhere"])
def test_a_router_keeps_the_operations_away(lite):
    before = after_the_first(lite)
    with lite.schema_editor() as editor:
        migration_of([*ALLOWED["a column that may be empty"], *ALLOWED["an index"]], atomic=True).apply(before, editor)
    assert tables(lite) == set()
