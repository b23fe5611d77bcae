"""What all tests rely on: the tables are empty after each test that commits, and the slow files run first."""

from pathlib import Path

from django.apps import apps
from django.contrib.auth.models import Group
from django.db import connection
from django.test import TransactionTestCase

from tests import distribution, helpers
from tests.conftest import OWN_APPS

TOP = Path(__file__).parents[1]


class Committed(TransactionTestCase):
    """A test with the fixture `committing`, as pytest-django runs it."""

    available_apps = OWN_APPS


def test_emptied_tables_are_those_of_all_models(db):
    """The models that some tests add to the app `tests.app` have tables in the transactions of these tests only."""
    models = apps.get_app_config("pgqueue").get_models()
    assert set(helpers.TABLES) == {model._meta.db_table for model in models}
    assert not [name for name in connection.introspection.table_names() if name.startswith("app_")]


def test_teardown_of_committing_test_empties_all_tables(engine, job_in):
    job_in("dead")
    Group.objects.create(name="left behind")
    Committed()._fixture_teardown()
    assert {table: rows for table, rows in helpers.everything(engine).items() if rows} == {}
    assert not Group.objects.exists()
    assert job_in("new").job_id == 1, "sequences start again"


def test_order_of_files_names_each_file_once():
    names = (*distribution.WAITING, *distribution.BUSY)
    assert [name for name in names if not (TOP / name).exists()] == []
    assert len(set(names)) == len(names) == len(distribution.PLACES)


def test_order_alternates_between_waiting_and_busy_files():
    first = sorted(distribution.PLACES, key=lambda name: distribution.place_of(f"{name}::test_it"))[:4]
    assert first == [distribution.WAITING[0], distribution.BUSY[0], distribution.WAITING[1], distribution.BUSY[1]]
    assert distribution.place_of("tests/test_words.py::test_it") == len(distribution.PLACES)
