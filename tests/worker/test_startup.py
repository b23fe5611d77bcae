"""Test what a worker imports and checks before it starts, and how often it checks a database that is not ready."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

from django_pgqueue.db import server
from django_pgqueue.worker import Options
from django_pgqueue.worker.supervision import startup
from tests.process.harness import database_url, environment

START = """
import json, sys
import django
django.setup()
print(json.dumps(sorted(sys.modules)))
from django_pgqueue.management.commands.runworker import Command
from django_pgqueue.worker.supervision.startup import missing_requirement
Command().check()
print(json.dumps(missing_requirement("default")))
print(json.dumps(sorted(sys.modules)))
"""
FOR_PEOPLE = ("admin", "doctor", "history", "job_search", "metrics", "stats", "testing")
"""Packages for operators and tests. A process that enqueues needs none of them, and neither does a worker."""


def imported(settings_module):
    """Return the modules of a new process of this project after Django's setup, and before it would fork a worker."""
    variables = environment(None) | {"DJANGO_SETTINGS_MODULE": settings_module, "DATABASE_URL": database_url()}
    command = [sys.executable, "-c", START]
    output = subprocess.run(command, env=os.environ | variables, stdout=subprocess.PIPE, check=True).stdout
    after_setup, reason, before_fork = map(json.loads, output.splitlines())
    assert reason == ""
    return after_setup, before_fork


@pytest.mark.process
def test_worker_start_imports_nothing_for_people(committing):
    after_setup, before_fork = imported("tests.tools.outside_harness.adapter.settings")
    for_people = tuple(f"django_pgqueue.{name}" for name in FOR_PEOPLE)
    assert [name for name in before_fork if name.startswith(for_people)] == []
    not_yet = ("django_pgqueue.worker", "django_pgqueue.management")
    assert [name for name in after_setup if name.startswith((*for_people, *not_yet))] == []


@pytest.mark.process
def test_worker_start_imports_no_migrations_of_other_apps(committing):
    """A large project has hundreds, and loading 400 of them takes 0.2 s."""
    _, before_fork = imported("tests.worker_settings")
    assert "django.contrib.auth.models" in before_fork
    assert [name for name in before_fork if ".migrations.0" in name] == []


@pytest.mark.django_db
def test_missing_migrations_not_applied_is_named(settings):
    assert server.missing_migrations("default") == []
    MigrationRecorder(connection).record_unapplied("pgqueue", "0001_initial")
    assert server.missing_migrations("default") == ["pgqueue.0001_initial"]
    settings.MIGRATION_MODULES = {"pgqueue": None}
    assert server.missing_migrations("default") == [], "the project makes the tables without migrations"


@pytest.mark.django_db
def test_missing_requirement_names_the_database_option(monkeypatch):
    monkeypatch.setattr(server, "missing_migrations", lambda alias: ["pgqueue.0001_initial"])
    monkeypatch.setattr(server, "is_read_only", lambda alias: False)
    monkeypatch.setattr(startup.django_connections, "close_for_good", lambda: None)
    monkeypatch.setattr(startup.clone_guard, "is_foreign", False)
    assert startup.missing_requirement("default").endswith("run `manage.py migrate`")
    assert startup.missing_requirement("second").endswith("run `manage.py migrate --database=second`")


def test_wait_until_ready_checks_again_soon_and_then_rarely(monkeypatch):
    """A worker that starts beside its database works soon. One that waits for hours checks every two seconds."""
    pauses: list[float] = []
    monkeypatch.setattr(startup, "missing_requirement", lambda alias: "no tables")
    startup.wait_until_ready(Options(database="default"), lambda: len(pauses) < 20, pauses.append)
    assert sum(pauses[:5]) < 1.0
    assert all(1.4 <= seconds <= 2.6 for seconds in pauses[-10:])
