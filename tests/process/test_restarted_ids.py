"""Live workers whose ids recur, because `manage.py flush` emptied the tables or an older dump was restored."""

from __future__ import annotations

import time

import pytest

from django_pgqueue.models import Execution, Job, Worker
from tests import helpers
from tests.app import tasks

pytestmark = pytest.mark.process


def flush(session):
    helpers.empty_tables(session)


def restore_an_older_dump(session):
    """Restore a dump from before the first claim, and from before the running job was enqueued."""
    session.execute("DELETE FROM pgqueue_execution; DELETE FROM pgqueue_job")
    session.execute("SELECT setval('pgqueue_execution_id_seq', 1, false)")


@pytest.mark.promise("restarted-ids-do-no-harm")
@pytest.mark.parametrize("ids_recur", [flush, restore_an_older_dump])
def test_completion_of_old_job_after_ids_restart_is_discarded(start, tmp_path, ids_recur):
    old_end, new_end, old_started, new_started = (tmp_path / name for name in ("a", "b", "old", "new"))
    tasks.wait_for_file.enqueue(str(old_end), started=str(old_started))
    first = start("--queues", "default", LEASE=60.0)
    start("--queues", "other", LEASE=60.0)
    first.wait_until(old_started.exists)
    [old_id] = Execution.objects.values_list("pk", flat=True)
    with helpers.connect() as session:
        ids_recur(session)
    new = tasks.wait_for_file.using(queue_name="other").enqueue(str(new_end), started=str(new_started))
    first.wait_until(new_started.exists)
    [execution] = Execution.objects.all()
    assert (execution.pk, execution.job_id) == (old_id, new.pk)
    old_end.touch()
    first.wait_until(lambda: "was closed by another process" in first.said)
    execution.refresh_from_db()
    assert execution.outcome is None
    new_end.touch()
    first.wait_until(lambda: Job.objects.filter(pk=new.pk, state="succeeded").exists())
    new.refresh_from_db()
    assert (new.result, new.attempt) == (str(new_end), 1)


@pytest.mark.promise("worker-survives-emptied-tables")
def test_worker_after_flush_interrupts_old_jobs_keeps_new_ones(start, tmp_path):
    """The heartbeat must extend ids far below those that were open before, and the worker's record must return."""
    tasks.noop.enqueue_many([((), {})] * 300)
    worker = start("--concurrency", "2", LEASE=6.0)
    worker.wait_until(lambda: Job.objects.filter(state="succeeded").count() == 300)
    started, again, may_end = tmp_path / "started", tmp_path / "again", tmp_path / "may end"
    tasks.wait_for_file.enqueue(str(tmp_path / "never"), started=str(started))
    worker.wait_until(started.exists)
    ran_from = time.monotonic()
    worker.wait_until(lambda: time.monotonic() - ran_from > 7.5)  # five heartbeats: the mark has reached this job's id
    with helpers.connect() as session:
        flush(session)
    new = tasks.wait_for_file.enqueue(str(may_end), started=str(again))
    worker.wait_until(again.exists)
    worker.wait_until(lambda: "no longer belong to this worker: interrupted" in worker.said)
    ran_from = time.monotonic()
    worker.wait_until(lambda: time.monotonic() - ran_from > 13)  # more than two leases
    may_end.touch()
    worker.wait_until(lambda: Job.objects.filter(pk=new.pk, state="succeeded").exists())
    new.refresh_from_db()
    assert (new.attempt, new.crashes) == (1, 0)
    assert set(Execution.objects.filter(job=new).values_list("outcome", flat=True)) <= {"succeeded", "released"}
    [record] = Worker.objects.all()
    assert (record.pid, record.stopped_at) == (worker.children[0], None)


def test_process_whose_running_id_recurs_runs_both_jobs(start, tmp_path):
    """Both executions have the same id in one process.

    The new execution would replace the old one, so the process releases the new job and claims it again.
    """
    old_started, new_started, may_end = tmp_path / "old", tmp_path / "new", tmp_path / "may end"
    tasks.stay_all_the_same.enqueue(str(old_started), str(may_end))
    worker = start("--concurrency", "2", LEASE=60.0)
    worker.wait_until(old_started.exists)
    with helpers.connect() as session:
        flush(session)
    new = tasks.stay_all_the_same.enqueue(str(new_started), str(tmp_path / "new may end"))
    worker.wait_until(new_started.exists)
    assert list(Execution.objects.order_by("pk").values_list("pk", "outcome")) == [(1, "released"), (2, None)]
    may_end.touch()
    worker.wait_until(lambda: "was closed by another process" in worker.said)
    (tmp_path / "new may end").touch()
    worker.wait_until(lambda: Job.objects.filter(pk=new.pk, state="succeeded").exists())
    new.refresh_from_db()
    assert new.attempt == 1
