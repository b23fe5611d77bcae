"""Make the tasks of this directory known to its tests only: a process with such tasks looks for their jobs."""

from __future__ import annotations

import pytest
from django.test import override_settings

from django_pgqueue.tasks import registry

from . import tasks

OWN = {name: task for name, task in registry._tasks.items() if task.func.__module__ == tasks.__name__}
for own_name in OWN:
    del registry._tasks[own_name]
registry._chunk_keys = None


@pytest.fixture(autouse=True)
def known_tasks(monkeypatch):
    monkeypatch.setattr(registry, "_tasks", {**registry._tasks, **OWN})
    monkeypatch.setattr(registry, "_chunk_keys", None)
    tasks.seen.clear()
    with override_settings(PGQUEUE={"TASK_MODULES": [tasks.__name__]}):
        yield
