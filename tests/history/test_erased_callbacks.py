"""`history.erase()` erases the arguments of callbacks that complete batches keep."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

import pytest
from django.utils import timezone

from django_pgqueue import Batch, TaskCall, history
from django_pgqueue.ground.envelope import ERASED
from django_pgqueue.models import Job, JobBatch
from django_pgqueue.task import Task
from django_pgqueue.testing import run_jobs
from tests.app import tasks

pytestmark = pytest.mark.django_db
NAMES = ("on_success", "on_complete", "on_failure")


def secret(name: str) -> TaskCall[Any]:
    return tasks.noop.using(headers={"customer": "secret"}).s(f"secret {name}")


def batch_of(*jobs: TaskCall[Any], close: bool = True) -> int:
    success, complete, failure = map(secret, NAMES)
    batch = Batch(on_success=success, on_complete=complete, on_failure=failure).open()
    for call in jobs:
        cast("Task[..., Any]", call.task).using(batch=batch).enqueue(*call.args)
    if close:
        batch.close()
    run_jobs()
    assert batch.id is not None
    return batch.id


def secrets(batch_id: int) -> set[str]:
    """Return the callbacks of a batch that still have a secret."""
    row = JobBatch.objects.get(pk=batch_id)
    calls = {name: str(getattr(row, name)) for name in NAMES}
    assert all((ERASED in text) != ("secret" in text) for text in calls.values())
    return {name for name in NAMES if "secret" in calls[name]}


def test_erase_by_task_erases_callbacks_of_complete_batches():
    fails = tasks.fail.using(max_attempts=1).s()
    succeeded, dead, incomplete = batch_of(tasks.noop.s()), batch_of(fails), batch_of(fails, close=False)
    erased = history.erase(tasks=[tasks.noop])
    assert (secrets(succeeded), secrets(dead)) == (set(), set())
    assert secrets(incomplete) == {"on_success", "on_complete"}  # its callback for a failure was called
    assert erased.callbacks == 7
    assert history.erase(tasks=[tasks.noop]).callbacks == 0
    row = JobBatch.objects.get(pk=succeeded)
    assert row.on_success["task_name"] == tasks.noop.name


@pytest.mark.parametrize(
    "choice",
    [
        {"tasks": [tasks.fail]},
        {"queues": ["other"]},
        {"tasks": [tasks.noop], "before": timezone.now() - timedelta(days=1)},
        {"tasks": [tasks.noop], "arguments": False},
        {"jobs": [10**9]},
    ],
    ids=["another task", "another queue", "earlier", "results only", "another job"],
)
def test_erase_of_other_values_keeps_the_callbacks(choice):
    batch_id = batch_of(tasks.noop.s())
    assert history.erase(**choice).callbacks == 0
    assert secrets(batch_id) == set(NAMES)


def test_erase_by_id_erases_the_callback_of_this_job():
    batch_id = batch_of(tasks.noop.s())
    [job] = [job for job in Job.objects.all() if job.arguments["args"] == ["secret on_complete"]]
    assert history.erase(jobs=[job.pk]).callbacks == 1
    assert secrets(batch_id) == {"on_success", "on_failure"}
