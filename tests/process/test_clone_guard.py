"""A worker waits in front of the database of another installation, and works after `manage.py pgqueue adopt`."""

from __future__ import annotations

import json
import time
from io import StringIO

import pytest
from django.core.management import call_command

from django_pgqueue.models import Job
from tests import helpers
from tests.app import tasks
from tests.worker.test_clone_guard import restore_dump

pytestmark = pytest.mark.process

EVERYTHING = (
    "SELECT json_agg(job ORDER BY job.id), "
    "(SELECT json_agg(execution ORDER BY id) FROM pgqueue_execution AS execution), "
    "(SELECT json_agg(schedule) FROM pgqueue_schedule AS schedule), (SELECT count(*) FROM pgqueue_worker) "
    "FROM pgqueue_job AS job"
)


def everything(connection):
    """Return all rows that a worker would change: jobs, executions, schedules and its own record."""
    [row] = connection.execute(EVERYTHING).fetchall()
    return row


@pytest.mark.promise("clone-guard")
def test_worker_on_restored_dump_changes_nothing_until_adopt(start, engine, tmp_path):
    """The dump contains a job that waits, one to rescue, one to prune, one that has expired, and a schedule."""
    path = tmp_path / "health.json"
    restore_dump(engine)
    _, waiting = helpers.make_jobs(engine, 2)
    helpers.claim_one(engine, worker_id=5, lease_seconds=-1.0)
    helpers.make_jobs(engine, expires_seconds=-1.0)
    old = "INSERT INTO pgqueue_job (task_name, arguments, state, finished_at) VALUES (%s, '{}', 'dead', '2001-01-01')"
    engine.execute(old, [helpers.NOOP])
    helpers.make_schedule(engine)
    engine.execute("UPDATE pgqueue_schedule SET next_run_at = now() - interval '1 h'")
    before = everything(engine)
    worker = start("--health-file", str(path))
    worker.wait_until(lambda: "ERROR" in worker.said and "run `manage.py pgqueue adopt`" in worker.said)
    worker.wait_until(lambda: path.exists() and json.loads(path.read_text())["status"] == "foreign database")
    time.sleep(1.0)  # in which a worker with these settings would have rescued, expired and pruned
    assert everything(engine) == before
    call_command("pgqueue", "adopt", stdout=StringIO())
    worker.wait_until(lambda: states(waiting) == ["succeeded"])
    worker.wait_until(lambda: json.loads(path.read_text())["status"] == "ok")


@pytest.mark.promise("clone-guard")
def test_dump_restored_under_a_running_worker_stops_it(start, engine, tmp_path):
    """The connections stay open, as with `pg_restore --clean` into the same database."""
    started = tmp_path / "started"
    worker = start(LEASE=6.0)
    job = tasks.wait_for_file.enqueue(str(tmp_path / "never"), started=str(started))
    worker.wait_until(started.exists)
    restore_dump(engine)
    worker.wait_until(lambda: "this worker waits and runs no job" in worker.said)
    assert "outage" not in worker.said
    worker.wait_until(lambda: not worker.children)
    [later] = helpers.make_jobs(engine)
    time.sleep(0.5)
    assert states(job.pk, later) == ["running", "ready"]
    call_command("pgqueue", "adopt", "--force", stdout=StringIO())
    (tmp_path / "never").touch()
    worker.wait_until(lambda: states(job.pk, later) == ["succeeded", "succeeded"])
    assert Job.objects.get(pk=job.pk).crashes == 0  # it was interrupted, which is not its fault


def states(*job_ids):
    return [Job.objects.get(pk=job_id).state for job_id in job_ids]
