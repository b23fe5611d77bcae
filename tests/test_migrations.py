"""The migration beside other databases: routers keep it away, and one of another kind does not break it."""

import pytest
from django.db import connections
from django.db.migrations.executor import MigrationExecutor
from django.test import override_settings

LAST = ("pgqueue", "0001_initial")


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
        assert "fillfactor=70" in cursor.fetchone()[0]


def test_another_kind_of_database_can_be_migrated_too(lite):
    MigrationExecutor(lite).migrate([LAST])
    assert tables(lite) == {"pgqueue_job", "pgqueue_execution", "pgqueue_worker"}


@override_settings(DATABASE_ROUTERS=["tests.test_migrations.Elsewhere"])
def test_a_router_keeps_the_tables_away(lite):
    MigrationExecutor(lite).migrate([LAST])
    assert tables(lite) == set()
