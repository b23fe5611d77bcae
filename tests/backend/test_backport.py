"""An app that imports the backport `django_tasks`, on a Django that has the framework itself.

The backport reads the same setting TASKS and builds its tasks with the backend's task class. That class belongs to
Django's own framework, so these tasks are Django's own.
"""

from __future__ import annotations

import types

import django
import pytest
from django.core.checks import run_checks
from django.test import override_settings

from django_pgqueue.backend import JobResult, PgQueueBackend, PgQueueTask, compat
from django_pgqueue.schedules import declarations
from django_pgqueue.tasks import registry
from django_pgqueue.testing import run_jobs
from tests.framework import tasks

backport = pytest.importorskip("django_tasks")
backport_signals = pytest.importorskip("django_tasks.signals")
pytestmark = [
    pytest.mark.django_db,
    pytest.mark.skipif(django.VERSION < (6, 0), reason="this Django has no framework of its own"),
]


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    """Remove the tasks of a test at its end."""
    monkeypatch.setattr(registry, "_tasks", {**registry._tasks})
    monkeypatch.setattr(declarations, "_declared", {**declarations._declared})


def decorated(decorator):
    """Return a task that an app has made with this decorator of the backport."""
    function = types.FunctionType(tasks.bare.func.__code__, {"__name__": "tests.framework.tasks"}, "of_an_app")
    function.__qualname__ = "of_an_app"
    return decorator(function)


def test_backport_decorator_makes_a_task_of_this_backend():
    task = decorated(backport.task(queue_name="mail", priority=3))
    assert type(task) is PgQueueTask
    assert isinstance(task.get_backend(), PgQueueBackend)
    assert (task.queue_name, task.priority) == ("mail", 3)


def test_backport_task_runs_and_has_a_result():
    task = decorated(backport.task())
    result = task.enqueue(5)
    assert run_jobs(raising=True) == 1
    result.refresh()
    assert (type(result), result.status, result.return_value) == (JobResult, compat.TaskResultStatus.SUCCESSFUL, 5)
    assert result.status == backport.TaskResultStatus.SUCCESSFUL.value
    assert task.get_result(result.id) == backport.default_task_backend.get_result(result.id) == result


def test_backport_task_sends_the_signals_of_django():
    sent = []

    def receiver(signal, **kwargs):
        sent.append(signal)

    signals = (compat.task_enqueued, compat.task_finished)
    of_backport = (backport_signals.task_enqueued, backport_signals.task_finished)
    for signal in (*signals, *of_backport):
        signal.connect(receiver)
    try:
        decorated(backport.task()).enqueue(5)
        run_jobs(raising=True)
    finally:
        for signal in (*signals, *of_backport):
            signal.disconnect(receiver)
    assert sent == [*signals], "the backport's own signals are not sent"


def test_backport_errors_are_those_of_django():
    with pytest.raises(compat.TaskResultDoesNotExist):
        backport.default_task_backend.get_result("0")


def test_checks_with_the_backport_installed_report_nothing(monkeypatch):
    from django.conf import settings

    found = registry._tasks.items()  # other tests define tasks too, outside the installed apps
    of_apps = {
        name: task for name, task in found if task.func.__module__.startswith(("tests.app.", "tests.framework."))
    }
    monkeypatch.setattr(registry, "_tasks", of_apps)
    with override_settings(INSTALLED_APPS=[*settings.INSTALLED_APPS, "django_tasks"]):
        assert [message for message in run_checks() if "tasks" in str(message.id) or "pgqueue" in str(message.id)] == []
