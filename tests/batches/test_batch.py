"""`Batch`: callbacks once, in the caller's transaction, and errors before anything is written."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from django_pgqueue import Batch, BatchFinished, BatchProgress, InvalidTask, TaskCall, enqueue_many
from django_pgqueue.models import BatchRemoval, Job, JobBatch
from django_pgqueue.testing import run_jobs
from tests.app import tasks
from tests.framework import tasks as framework_tasks

pytestmark = pytest.mark.django_db


def marker(name: str) -> TaskCall[None]:
    """Return a callback that `calls()` finds."""
    return tasks.noop.s(name)


def calls() -> list[str]:
    """Return the names of the callbacks that were enqueued, in the order of their ids."""
    jobs = Job.objects.filter(task_name=tasks.noop.name, batch_id=None).order_by("pk")
    return [job.arguments["args"][0] for job in jobs]


def batch_with_all(**options: Any) -> Batch:
    return Batch(
        on_success=marker("success"), on_complete=marker("complete"), on_failure=marker("failure"), **options
    )


def test_batch_block_enqueues_callbacks_after_the_last_job():
    with batch_with_all() as batch:
        tasks.add.using(batch=batch).enqueue_many([(1,), (2,), (3,)])
    assert run_jobs(max_jobs=2) == 2
    assert calls() == []
    run_jobs()
    assert calls() == ["complete", "success"]
    assert batch.progress() == BatchProgress(succeeded=3)
    assert batch.record.succeeded_at is not None


def test_batch_dead_job_calls_failure_at_once_and_never_success():
    with batch_with_all() as batch:
        tasks.fail.using(batch=batch, max_attempts=1).enqueue()
        tasks.add.using(batch=batch, priority=-1).enqueue(1)
    assert run_jobs(max_jobs=1) == 1
    assert calls() == ["failure"]
    run_jobs()
    assert calls() == ["failure", "complete"]
    assert batch.progress() == BatchProgress(succeeded=1, dead=1)
