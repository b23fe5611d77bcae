"""Django's backends for tests, with our options on their tasks."""

from __future__ import annotations

import pytest

from django_pgqueue import testing
from django_pgqueue.backend import PgQueueTask
from django_pgqueue.backend import task as our_task
from django_pgqueue.backend.compat import TaskResultStatus, task_backends
from tests.framework import tasks


@pytest.mark.parametrize("name", ["ImmediateBackend", "DummyBackend"])
def test_their_tasks_take_our_options(settings, name):
    settings.TASKS = {"default": {"BACKEND": f"django_pgqueue.testing.{name}", "QUEUES": []}}
    assert isinstance(task_backends["default"], getattr(testing, name))
    assert task_backends["default"].task_class is PgQueueTask
    assert our_task(max_attempts=5)(tasks.noop.func).max_attempts == 5


def test_the_immediate_one_runs_at_once(settings):
    settings.TASKS = {"default": {"BACKEND": "django_pgqueue.testing.ImmediateBackend", "QUEUES": []}}
    result = tasks.add.enqueue(1, b=2)
    assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, 3)


def test_the_dummy_one_keeps_what_was_enqueued(settings):
    settings.TASKS = {"default": {"BACKEND": "django_pgqueue.testing.DummyBackend", "QUEUES": []}}
    tasks.add.enqueue(1, b=2)
    assert [result.args for result in task_backends["default"].results] == [[1]]


def test_the_kit_has_nothing_else():
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = testing.Nonsense
