"""Migrations: projects with several databases, and the rules that let old code run on the new schema."""

import re
import time
from types import SimpleNamespace

import psycopg
import pytest
from django.apps import apps
from django.db import NotSupportedError, OperationalError, connections, migrations, models
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader
from django.db.models.functions import Now
from django.test import override_settings

from django_pgqueue.db import migration_operations
from django_pgqueue.db.migration_operations import LOCKS, BuildIndex, LockTable
from tests import helpers
from tests.deploys import trees
from tests.migration_rules import broken_rules

FIRST = ("pgqueue", "0001_initial")
LATEST = FIRST


class Elsewhere:
    """A router that keeps the queue's tables out of `lite`."""

    def allow_migrate(self, db, app_label, **hints):
        return not (db == "lite" and app_label == "pgqueue")


@pytest.fixture
def lite(django_db_blocker):
    """Provide a second alias, `lite`, for a SQLite database."""
    settings = {**connections.settings["default"], "ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    connections.settings["lite"] = {**settings, "OPTIONS": {}, "USER": "", "HOST": ""}
    with django_db_blocker.unblock():  # not a test database, but one in memory
        connections["lite"].connect()
        yield connections["lite"]
    connections["lite"].connection.close()
    del connections["lite"]
    del connections.settings["lite"]


def tables(connection):
    return {name for name in connection.introspection.table_names() if name.startswith("pgqueue_")}


@pytest.mark.django_db
def test_migrate_on_postgresql_sets_storage_parameters():
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT reloptions FROM pg_class WHERE relname = 'pgqueue_execution'")
        assert "fillfactor=42" in cursor.fetchone()[0]


def test_migrate_on_sqlite_creates_all_tables(lite):
    MigrationExecutor(lite).migrate([LATEST])
    assert tables(lite) == {model._meta.db_table for model in apps.get_app_config("pgqueue").get_models()}


@override_settings(DATABASE_ROUTERS=["tests.test_migrations.Elsewhere"])
def test_migrate_excluded_by_router_creates_no_table(lite):
    MigrationExecutor(lite).migrate([LATEST])
    assert tables(lite) == set()


# ------------------------------------------------------------------ the rules for migrations after the first


def test_every_table_of_the_queue_can_be_locked():
    models_of_queue = apps.get_app_config("pgqueue").get_models()
    assert {model._meta.model_name for model in models_of_queue if not model._meta.proxy} == LOCKS.keys()


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
    "a column with a constraint": (
        [LockTable("job"), migrations.AddField("job", "level", models.PositiveSmallIntegerField(null=True))],
        "constraint of its own",
    ),
    "a constraint of some rows": (
        [migrations.AddConstraint("job", models.UniqueConstraint(fields=["limit_key"], name="c"))],
        "not additive",
    ),
    "code": ([migrations.RunPython(migrations.RunPython.noop)], "not known to be"),
    "SQL": ([migrations.RunSQL("SELECT 1")], "not known to be"),
}


def migration_of(given, *, atomic):
    made = migrations.Migration("next", "pgqueue")
    made.operations, made.atomic = given, atomic
    return made


def state_after_the_first(connection):
    return MigrationLoader(connection).project_state(FIRST)


@pytest.mark.promise("migrations-are-additive")
@pytest.mark.django_db
def test_migrations_after_the_first_follow_the_rules():
    """The migrations of the next release in tests/deploys follow them too. Other tests run those under load."""
    loader = MigrationLoader(connections["default"])
    state = loader.project_state(FIRST)
    [leaf] = loader.graph.leaf_nodes("pgqueue")
    ours = [loader.get_migration(*key) for key in loader.graph.forwards_plan(leaf) if key != FIRST]
    for migration in [*ours, *next_release()]:
        assert list(broken_rules(migration, state)) == [], migration.name
        state = migration.mutate_state(state)


def next_release():
    for name, source in trees.migrations(LATEST[1]).items():
        module = {}
        exec(source, module)  # noqa: S102 -- the tests' own text
        yield module["Migration"](name, "pgqueue")


@pytest.mark.django_db
@pytest.mark.parametrize("what", ALLOWED)
def test_broken_rules_allowed_operations_pass(what):
    before = state_after_the_first(connections["default"])
    assert list(broken_rules(migration_of(ALLOWED[what], atomic=what != "an index"), before)) == []


@pytest.mark.django_db
@pytest.mark.parametrize("what", FORBIDDEN)
def test_broken_rules_forbidden_operation_is_reported(what):
    given, why = FORBIDDEN[what]
    before = state_after_the_first(connections["default"])
    broken = list(broken_rules(migration_of(given, atomic=True), before))
    assert len(broken) == 1, broken
    assert why in broken[0]


@pytest.mark.django_db
def test_broken_rules_wrong_atomic_attribute_is_reported():
    before = state_after_the_first(connections["default"])
    [broken] = broken_rules(migration_of(ALLOWED["a column that may be empty"], atomic=False), before)
    assert "transaction" in broken
    [broken] = broken_rules(migration_of(ALLOWED["an index"], atomic=True), before)
    assert "atomic = False" in broken


# ------------------------------------------------------------------ the operations that the rules ask for


def apply(given, *, atomic):
    """Apply operations to the test database as `migrate` does, without recording them."""
    connection = connections["default"]
    before = state_after_the_first(connection)
    with connection.schema_editor(atomic=atomic) as editor:
        migration_of(given, atomic=atomic).apply(before, editor)


def validity(engine):
    row = engine.execute("SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)", [INDEX.name]).fetchone()
    return row and row[0]


@pytest.fixture
def index_removed(engine):
    yield
    engine.execute(f"DROP INDEX IF EXISTS {INDEX.name}")


def test_lock_table_unavailable_lock_names_its_owner(engine, monkeypatch, caplog):
    monkeypatch.setattr(migration_operations, "LOCK_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(migration_operations, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(migration_operations, "PATIENCE_SECONDS", 0.2)
    with helpers.transaction(engine, "SELECT FROM pgqueue_job"):
        holder = rf"process {engine.info.backend_pid} \(pgqueue:test, in a transaction for \d s\)"
        with pytest.raises(OperationalError, match="nothing was changed") as error:
            apply(ALLOWED["a column that may be empty"], atomic=True)
    assert re.search(holder, str(error.value))
    [record] = caplog.records
    assert re.fullmatch(rf"pgqueue_job is locked by {holder}: retrying until it is free", record.getMessage())


def test_lock_table_between_attempts_does_not_block_others(engine, second, monkeypatch):
    monkeypatch.setattr(migration_operations, "LOCK_WAIT_SECONDS", 0.01)
    sleeps = []

    def fake_sleep(seconds):
        sleeps.append(seconds)
        with helpers.transaction(second, "SET LOCAL lock_timeout = '1ms'"):
            second.execute("LOCK TABLE pgqueue_job IN ROW EXCLUSIVE MODE")
        if len(sleeps) == 2:
            engine.execute("COMMIT")

    # Not the `sleep` of the module itself: a thread that an earlier test has left behind may call that too.
    monkeypatch.setattr(migration_operations, "time", SimpleNamespace(monotonic=time.monotonic, sleep=fake_sleep))
    with helpers.transaction(engine, "SELECT FROM pgqueue_job"):
        apply([LockTable("job")], atomic=True)
    assert sleeps == [migration_operations.PAUSE_SECONDS] * 2


def test_lock_table_needs_transaction_and_known_table(committing):
    with pytest.raises(NotSupportedError, match="atomic migration"):
        apply([LockTable("job")], atomic=False)
    with pytest.raises(ValueError, match="job, execution, worker"):
        LockTable("order")


def test_build_index_replaces_an_invalid_index_once(engine, second, index_removed, monkeypatch):
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


def test_operations_on_sqlite_add_column_and_index(lite):
    MigrationExecutor(lite).migrate([FIRST])
    before = state_after_the_first(lite)
    with lite.schema_editor() as editor:
        state = migration_of(ALLOWED["a column that may be empty"], atomic=True).apply(before, editor)
        migration_of(ALLOWED["an index"], atomic=False).apply(state, editor)
    with lite.cursor() as cursor:
        assert "note" in {column.name for column in lite.introspection.get_table_description(cursor, "pgqueue_job")}
        assert INDEX.name in lite.introspection.get_constraints(cursor, "pgqueue_job")


@override_settings(DATABASE_ROUTERS=["tests.test_migrations.Elsewhere"])
def test_operations_excluded_by_router_change_nothing(lite):
    before = state_after_the_first(lite)
    with lite.schema_editor() as editor:
        migration_of([*ALLOWED["a column that may be empty"], *ALLOWED["an index"]], atomic=True).apply(before, editor)
    assert tables(lite) == set()
