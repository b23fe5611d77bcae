"""A worker whose completer gets no connection claims nothing, reports this, and leaves the jobs to other workers."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.db import connection

from django_pgqueue import health
from django_pgqueue.models import Execution, Job, Worker
from tests.app import tasks

from . import harness

pytestmark = pytest.mark.process
SESSIONS = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s"


@pytest.fixture
def role(committing: None, watcher: psycopg.Connection[Any]) -> Iterator[str]:
    """Create a role for the worker, so that the test can count and limit its connections."""
    [is_superuser] = watcher.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user").fetchone() or [False]
    if not is_superuser:
        pytest.skip("making a role needs a superuser in DATABASE_URL")
    name = f"{connection.settings_dict['NAME']}_starved"
    drop_role(watcher, name)  # an interrupted run leaves it behind, because roles belong to the server
    watcher.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'made-up'")
    watcher.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {name}")
    watcher.execute(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {name}")
    yield name
    drop_role(watcher, name)


def drop_role(watcher: psycopg.Connection[Any], name: str) -> None:
    """Remove the role, with its sessions and its grants in this database, if it exists."""
    if not watcher.execute("SELECT FROM pg_roles WHERE rolname = %s", [name]).fetchall():
        return
    watcher.execute(f"ALTER ROLE {name} NOLOGIN")
    watcher.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", [name])
    watcher.execute(f"DROP OWNED BY {name}")
    watcher.execute(f"DROP ROLE {name}")


def as_role(role: str) -> dict[str, Any]:
    connection.ensure_connection()  # an embedded server's address is known only then
    own = {key: connection.settings_dict[key] for key in harness.DATABASE_KEYS}
    return own | {"ENGINE": "django.db.backends.postgresql", "USER": role, "PASSWORD": "made-up"}


def read_health(path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {"status": ""}


def starve(watcher, role: str) -> None:
    """End the completer's connection and allow no other. Connections that are already open stay open.

    With a limit of 1, the completer could take the place of another connection of the worker that was lost.
    """
    watcher.execute(f"ALTER ROLE {role} CONNECTION LIMIT 0")
    for [pid] in watcher.execute(SESSIONS, ["pgqueue:completer"]).fetchall():
        watcher.execute("SELECT pg_terminate_backend(%s)", [pid])


def job_of_starved(worker: harness.Worker, watcher: psycopg.Connection[Any], role: str) -> Any:
    """Starve the completer, and return a job whose completion it cannot write.

    The completer can have opened another connection just before the limit applied. Then end that one too. Before it is
    starved, the listener has sent its test on the same connection, and needs no other one.
    """
    worker.wait_until(lambda: watcher.execute(SESSIONS, ["pgqueue:fetcher (listens)"]).fetchall())

    def starved_with() -> Any:
        starve(watcher, role)
        job = tasks.noop.enqueue()
        return None if is_completed(worker, job, 2) else job

    return worker.wait_until(starved_with)


def is_completed(worker: harness.Worker, job: Any, seconds: float) -> bool:
    """Wait until a job is claimed, and return whether its success is written within so many seconds."""
    worker.wait_until(lambda: Job.objects.get(pk=job.pk).state != "ready")
    try:
        worker.wait_until(lambda: Job.objects.get(pk=job.pk).state == "succeeded", seconds)
    except AssertionError:
        return False
    return True


@pytest.mark.promise("starved-worker-claims-nothing")
def test_starved_worker_leaves_its_jobs_to_a_healthy_one(start, role, watcher, tmp_path):
    path = tmp_path / "health.json"
    starved = start("--concurrency", "4", "--health-file", str(path), database=as_role(role))
    starved.wait_until(lambda: read_health(path)["status"] == "ok")
    tasks.noop.enqueue()
    starved.wait_until(lambda: Job.objects.filter(state="succeeded").count() == 1)
    own_id = Worker.objects.get().pk
    job_of_starved(starved, watcher, role)
    done = Job.objects.filter(state="succeeded").count()
    starved.wait_until(lambda: read_health(path)["status"] == "completions stuck")
    assert read_health(path)["processes"][0]["completions_behind_seconds"] > 1
    assert health.judge(str(path), ready=True)[0] is False
    assert health.judge(str(path))[0] is True
    before = Execution.objects.filter(worker_id=own_id).count()
    tasks.noop.enqueue_many([((), {})] * 300)
    healthy = start("--concurrency", "4")
    healthy.wait_until(lambda: Job.objects.filter(state="succeeded").count() >= done + 300)
    assert Execution.objects.filter(worker_id=own_id).count() == before, "the starved worker must claim nothing more"
    assert Execution.objects.filter(worker_id=own_id, outcome=None).count() <= 1
    watcher.execute(f"ALTER ROLE {role} CONNECTION LIMIT -1")
    starved.wait_until(lambda: Job.objects.filter(state="succeeded").count() == done + 301)
    starved.wait_until(lambda: read_health(path)["status"] == "ok")
    assert set(Execution.objects.values_list("outcome", flat=True)) == {"succeeded"}


def test_starved_worker_process_ends_after_a_lease(start, role, watcher):
    """The job whose completion could not be written is requeued, and another worker runs it."""
    starved = start("--concurrency", "4", database=as_role(role), LEASE=4.0)
    tasks.noop.enqueue()
    starved.wait_until(lambda: Job.objects.filter(state="succeeded").count() == 1)
    child = starved.children[0]
    job = job_of_starved(starved, watcher, role)
    starved.wait_until(lambda: child not in starved.children, 40)
    assert "could not write the results of 1 job" in starved.said
    start("--concurrency", "1").wait_until(lambda: Job.objects.get(pk=job.pk).state == "succeeded")
    assert Job.objects.get(pk=job.pk).crashes == 0


@pytest.mark.promise("starved-worker-claims-nothing")
def test_worker_without_room_for_its_completer_claims_nothing(start, role, watcher):
    """The completer cannot connect when the worker starts. It must connect before the first claim."""
    tasks.noop.enqueue_many([((), {})] * 50)
    watcher.execute(f"ALTER ROLE {role} CONNECTION LIMIT 1")  # the supervisor uses this connection
    start("--concurrency", "4", database=as_role(role)).wait_until_ready()
    start("--concurrency", "4").wait_until(lambda: Job.objects.filter(state="succeeded").count() == 50)
    assert Execution.objects.count() == 50


def test_frozen_statement_of_the_completer_stops_claims(start, watcher):
    """The completer's session is stopped during a statement. A second later, the worker claims nothing more."""
    worker = start("--concurrency", "2", "--no-listen", LEASE=60.0)
    tasks.noop.enqueue()
    worker.wait_until(lambda: Job.objects.filter(state="succeeded").count() == 1)
    [[pid]] = watcher.execute(SESSIONS, ["pgqueue:completer"]).fetchall()
    try:
        worker.wait_until(lambda: _stops_the_completer(worker, pid))
        worker.wait_until(lambda: _enqueued_job_stays_ready(worker))
    finally:
        os.kill(pid, signal.SIGCONT)
    worker.wait_until(lambda: not Job.objects.exclude(state="succeeded").exists())


def _stops_the_completer(worker, pid) -> bool:
    """Stop a session, and return whether the completer waits for it.

    Another service may be the first that needs the session. The completer then uses the other connection.
    """
    os.kill(pid, signal.SIGSTOP)
    if not is_completed(worker, tasks.noop.enqueue(), 5.0):
        return True
    os.kill(pid, signal.SIGCONT)
    return False


def _enqueued_job_stays_ready(worker) -> bool:
    """Enqueue a job, and return whether it is still ready after four polls."""
    job = tasks.noop.enqueue()
    try:
        worker.wait_until(lambda: Job.objects.get(pk=job.pk).state != "ready", 1.0)
    except AssertionError:
        return True
    return False
