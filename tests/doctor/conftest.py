"""Helpers and fixtures for the tests of the doctor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection, connections
from django.db.backends.postgresql.base import DatabaseWrapper

from django_pgqueue.doctor import Finding, Level, examine, session_checks, storage_checks
from django_pgqueue.doctor.catalogue import CHECKS
from tests.admin.conftest import client_of as client_of
from tests.admin.conftest import known_content_types as known_content_types
from tests.admin.conftest import make_job as make_job
from tests.admin.conftest import make_user as make_user
from tests.admin.conftest import many_jobs as many_jobs
from tests.admin.conftest import operator as operator

Finder = Callable[..., Finding]


def find(check_id: str, alias: str = "default") -> Finding:
    """Run one check and return its finding."""
    [finding] = examine(alias, [check for check in CHECKS if check.id == check_id])
    return finding


def run_sql(statement: str, *params: Any) -> None:
    """Run a statement on Django's connection, in the transaction of the test if there is one."""
    with connection.cursor() as cursor:
        cursor.execute(statement, params or None)


def assert_finding(finding: Finding, level: Level, *texts: str) -> None:
    """Assert the level of a finding, and that its sentence and its fix together contain these texts."""
    assert finding.level is level, finding
    for text in texts:
        assert text in f"{finding.what} | {finding.fix}", finding


@pytest.fixture
def alias(other: Any) -> Iterator[str]:
    """Return the name of a second alias, whose settings `change_alias()` can change.

    It has Django's own backend, because that of the example project always leads to its own server. Django's guard
    would refuse to open a connection of this alias again.
    """
    changeable = DatabaseWrapper({**other.settings_dict, "ENGINE": "django.db.backends.postgresql"}, "other")

    def ensure_connection() -> None:
        if changeable.connection is None:
            with changeable.wrap_database_errors:
                changeable.connect()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(changeable, "ensure_connection", ensure_connection)
        connections["other"] = changeable
        yield "other"
        changeable.close()
        connections["other"] = other


def change_alias(alias: str, **settings: Any) -> None:
    """Close the connection of an alias, and change its settings for the next one."""
    connections[alias].close()
    connections[alias].settings_dict.update(settings)


@pytest.fixture
def calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide what other tests leave behind or do at the same time: dead rows, bloat, and replication slots."""
    monkeypatch.setattr(storage_checks, "DEAD_ROWS", 10**9)
    monkeypatch.setattr(storage_checks, "BLOAT_BYTES", 2**50)
    monkeypatch.setattr(session_checks, "SLOTS", session_checks.SLOTS.replace("restart_lsn IS NOT NULL", "false"))


@pytest.fixture
def role(db: None) -> Iterator[str]:
    """Make a role without any privilege, within the transaction of the test, and return its name."""
    name = f"{connection.settings_dict['NAME']}_doctor"
    run_sql(f"CREATE ROLE {name} NOSUPERUSER")
    yield name
