"""Django's immediate and dummy backends, extended so that their tasks accept this package's options."""

from __future__ import annotations

import pytest

from django_pgqueue import testing
from django_pgqueue.backend import PgQueueTask
from django_pgqueue.backend import task as our_task
from django_pgqueue.backend.compat import TaskResultStatus, task_backends
from tests.framework import tasks


@pytest.mark.parametrize("name", ["ImmediateBackend", "DummyBackend"])
def test_backends_for_tests_accept_package_options(settings, name):
    settings.TASKS = {"default": {"BACKEND": f"django_pgqueue.testing.{name}", "QUEUES": []}}
    assert isinstance(task_backends["default"], getattr(testing, name))
    assert task_backends["default"].task_class is PgQueueTask
    assert our_task(max_attempts=5)(tasks.noop.func).max_attempts == 5


def test_immediate_backend_runs_the_task_at_enqueue(settings):
    settings.TASKS = {"default": {"BACKEND": "django_pgqueue.testing.ImmediateBackend", "QUEUES": []}}
    result = tasks.add.enqueue(1, b=2)
    assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, 3)


def test_dummy_backend_records_enqueued_tasks(settings):
    settings.TASKS = {"default": {"BACKEND": "django_pgqueue.testing.DummyBackend", "QUEUES": []}}
    tasks.add.enqueue(1, b=2)
    assert [result.args for result in task_backends["default"].results] == [[1]]


def test_testing_unknown_attribute_raises():
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = testing.Nonsense
