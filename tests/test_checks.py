"""System checks: the messages of `manage.py check` for an invalid configuration, each with its id."""

import subprocess
import sys
import types
from unittest import mock

import pytest
from django.core.checks import run_checks
from django.db import connections
from django.test import override_settings

from django_pgqueue import checks, every
from django_pgqueue.schedules import declarations
from django_pgqueue.task import Task
from django_pgqueue.tasks import registry
from tests.app import tasks
from tests.process.harness import environment


@pytest.fixture(autouse=True)
def tasks_of_this_project(monkeypatch):
    """Keep only the tasks that a worker with these settings imports. Other tests can have imported other projects."""
    found = {name: task for name, task in registry._tasks.items() if registry.is_found_by_workers(task.func.__module__)}
    monkeypatch.setattr(registry, "_tasks", found)


def ids(messages):
    return [message.id for message in messages]


def test_checks_valid_configuration_reports_nothing():
    assert [message for message in run_checks() if str(message.id).startswith("pgqueue.")] == []


REGISTERED = """
import django
django.setup()
from django.core.checks.registry import registry
print(*(check.__name__ for check in registry.get_checks(include_deployment_checks=True)
        if check.__module__ == "django_pgqueue.checks"))
"""


@pytest.mark.promise("defect-checks-not-registered")
def test_project_that_only_installs_the_app_gets_every_check():
    """The tests import the module of the checks. A project does not."""
    command = [sys.executable, "-c", REGISTERED]
    done = subprocess.run(command, env=environment(None), capture_output=True, text=True, check=True)
    assert sorted(done.stdout.split()) == sorted(name for name in vars(checks) if name.startswith("check_"))


@override_settings(PGQUEUE={"LEASE": 0, "MAX_ATTEMTPS": 3})
def test_check_settings_each_invalid_setting_is_an_error():
    found = checks.check_settings(None)
    assert ids(found) == ["pgqueue.E001", "pgqueue.E001"]
    assert "Did you mean 'MAX_ATTEMPTS'?" in found[1].msg
    assert {"pgqueue.E001"} <= set(ids(run_checks()))


def test_check_tasks_task_outside_task_modules_is_an_error(monkeypatch):
    elsewhere = types.FunctionType(tasks.add.func.__code__, {"__name__": "tests.views"}, "lost")
    elsewhere.__qualname__ = "lost"
    monkeypatch.setattr(registry, "_tasks", {**registry._tasks})
    registry.register(Task(func=elsewhere))
    [error] = checks.check_tasks(None)
    assert error.id == "pgqueue.E002"
    assert "tests.views.lost" in error.msg
    assert "PGQUEUE['TASK_MODULES']" in error.msg
    with override_settings(PGQUEUE={"TASK_MODULES": ["tests.views"]}):
        assert checks.check_tasks(None) == []


def test_check_schedules_duplicate_and_invalid_are_errors(monkeypatch):
    monkeypatch.setattr(registry, "_tasks", {**registry._tasks})
    monkeypatch.setattr(declarations, "_declared", {})
    declarations.declare(tasks.noop, [every(hours=1, name="twice"), every(hours=2, name="twice")])
    declarations.declare(tasks.plus, every(hours=1, args=["x" * 300_000]))
    found = checks.check_schedules(None)
    assert ids(found) == ["pgqueue.E006", "pgqueue.E006"]
    assert "named 'twice'" in found[0].msg
    assert "MAX_ARGUMENTS_BYTES" in found[1].msg
    assert list(declarations.definitions("default")) == ["twice"], "an invalid schedule must not affect the others"
    with override_settings(PGQUEUE={"LEASE": 0}):
        assert checks.check_schedules(None) == []


def test_check_database_other_vendor_is_an_error():
    with mock.patch.object(type(connections["default"]), "vendor", "sqlite"):
        [error] = checks.check_database(None)
    assert error.id == "pgqueue.E003"
    assert "'default'" in error.msg
    assert "router" in str(error.hint)


@pytest.mark.parametrize(("first", "winner"), [("django_pgqueue", "django_pgqueue"), ("channels", "channels")])
def test_check_command_second_runworker_names_the_winner(monkeypatch, first, winner):
    second = {"django_pgqueue": "channels", "channels": "django_pgqueue"}[first]
    apps = mock.Mock()
    apps.is_installed.return_value = True
    apps.get_app_configs.return_value = [types.SimpleNamespace(name=name) for name in (first, second)]
    monkeypatch.setattr(checks, "apps", apps)
    [warning] = checks.check_command(None)
    assert warning.id == "pgqueue.W001"
    assert f"is {winner}'s" in warning.msg
