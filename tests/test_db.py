"""Engine connections: what they take from the project's settings, and what they decide themselves."""

from contextlib import closing

import pytest
from django.db import connection, connections

from django_pgqueue import db
from tests.helpers import scalar

pytestmark = pytest.mark.django_db


@pytest.fixture
def impatient(committing):
    """A database that gives its applications a millisecond."""
    name = connection.ops.quote_name(connection.settings_dict["NAME"])
    with connection.cursor() as cursor:
        for setting in ("statement_timeout", "lock_timeout", "idle_session_timeout"):
            cursor.execute(f"ALTER DATABASE {name} SET {setting} = '1ms'")
    yield
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER DATABASE {name} RESET ALL")


def test_timeouts_of_the_database_are_for_its_applications(impatient):
    with closing(db.connect("default", "test")) as engine:
        scalar(engine, "SELECT pg_sleep(0.05)::text")
        assert [scalar(engine, f"SHOW {name}") for name in ("lock_timeout", "idle_session_timeout")] == ["0", "0"]


def test_the_projects_own_options_are_obeyed(impatient, monkeypatch):
    given = {"options": "-c statement_timeout=5s -c enable_seqscan=on"}
    monkeypatch.setitem(connections["default"].settings_dict, "OPTIONS", given)
    with closing(db.connect("default", "test")) as engine:
        assert scalar(engine, "SHOW statement_timeout") == "5s"
        assert scalar(engine, "SHOW enable_seqscan") == "off"
