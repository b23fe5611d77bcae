"""Two entries in TASKS whose backends use different databases."""

from __future__ import annotations

import pytest
from django.db import connections, transaction

from django_pgqueue.backend.compat import task_backends, task_enqueued, task_finished, task_started
from django_pgqueue.models import Job
from django_pgqueue.testing import run_jobs
from tests.backend.conftest import BACKEND
from tests.framework import tasks


@pytest.fixture
def two_databases(other, settings):
    """Configure the backends `default` and `second`, each with its own database."""
    settings.TASKS = {
        "default": {"BACKEND": BACKEND, "QUEUES": []},
        "second": {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": {"DATABASE": "other"}},
    }


def test_enqueue_second_backend_uses_its_database(two_databases):
    with transaction.atomic(using="other"):
        result = tasks.add.using(backend="second").enqueue(1)
        assert not Job.objects.using("default").exists()
        assert Job.objects.using("other").get().pk == int(result.id)
        assert task_backends["second"].get_result(result.id) == result
    assert (result.backend, result.task.backend) == ("second", "second")


@pytest.mark.parametrize("task", [tasks.told, tasks.atold, tasks.within], ids=lambda task: task.name)
def test_run_jobs_second_backend_is_named_in_signals(two_databases, task):
    seen = []

    def receiver(sender, task_result, **_):
        seen.append((task_result.backend, task_result.enqueued_at is not None))

    for signal in (task_enqueued, task_started, task_finished):
        signal.connect(receiver)
    try:
        result = task.using(backend="second").enqueue(*(["x"] if task is tasks.within else []))
        assert run_jobs(database="other") == 1
    finally:
        for signal in (task_enqueued, task_started, task_finished):
            signal.disconnect(receiver)
    result.refresh()
    assert result.status == "SUCCESSFUL"
    assert seen == [("second", True)] * 3
    assert connections["other"].get_autocommit()
