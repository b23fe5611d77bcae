"""Batches with real workers: callbacks once, and the sweep after a worker was killed before it could check a batch."""

from __future__ import annotations

import signal

import pytest

from django_pgqueue import Batch
from django_pgqueue.models import Execution, Job
from tests import helpers
from tests.app import tasks
from tests.helpers import wait_until

pytestmark = [pytest.mark.process]


def callbacks() -> list[str]:
    return sorted(job.arguments["args"][0] for job in Job.objects.filter(queue_name="callbacks"))


def callback(name: str):
    return tasks.noop.using(queue_name="callbacks").s(name)


@pytest.mark.promise("batch-callbacks-once")
def test_workers_end_a_batch_each_callback_once(start):
    """A second batch is nested in the first one, and its jobs leave no row."""
    with Batch(on_success=callback("success"), on_complete=callback("complete"), on_failure=callback("no")) as batch:
        with Batch(parent=batch, on_success=callback("inner")) as inner:
            tasks.keeps_nothing.using(batch=inner).enqueue_many([()] * 300)
        tasks.add.using(batch=batch).enqueue_many((number,) for number in range(700))
    workers = [start("--processes", "2", "--queues", "default,callbacks") for _ in range(2)]
    workers[0].wait_until(lambda: batch.record.succeeded_at)
    workers[0].wait_until(lambda: Job.objects.filter(queue_name="callbacks", state="succeeded").count() == 3)
    assert callbacks() == ["complete", "inner", "success"]
    assert batch.progress().succeeded == 1000


@pytest.mark.promise("batch-end-found-by-sweep")
def test_worker_killed_before_the_check_another_finds_the_end(start, engine):
    """Another session locks the batch, so the worker cannot check it before it is killed."""
    with Batch(on_complete=callback("complete")) as batch:
        tasks.add.using(batch=batch).enqueue(1)
    with helpers.transaction(engine, f"SELECT id FROM pgqueue_batch WHERE id = {batch.id} FOR UPDATE"):
        worker = start()
        worker.wait_until(lambda: Job.objects.filter(state="succeeded").exists())
        worker.send_all(signal.SIGKILL)
        worker.exit_code()
        engine.execute("COMMIT")
    assert callbacks() == []
    worker = start()
    worker.wait_until_ready()
    wait_until(callbacks, 20)
    assert callbacks() == ["complete"]


def test_worker_that_stops_checks_its_batches_first(start):
    """Without the check at the end, only another worker's sweep would find the end."""
    with Batch(on_complete=callback("complete")) as batch:
        tasks.add.using(batch=batch).enqueue_many([(1,)] * 20)
    assert start("--until-empty", "--queues", "default").has_drained()
    assert callbacks() == ["complete"]
    assert Execution.objects.count() == 20
