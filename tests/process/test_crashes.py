"""Workers that die, freeze or lose their database: no job is lost, and only jobs that can be the cause are charged."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psycopg
import pytest
from django.contrib.auth.models import Group
from django.db import connection

from django_pgqueue.lifecycle.types import Lane
from django_pgqueue.models import Execution, Job, Worker
from tests import helpers
from tests.app import tasks
from tests.helpers import scalar, wait_until

from .harness import DATABASE_KEYS, environment

pytestmark = pytest.mark.process


def states() -> dict[str, int]:
    counts: dict[str, int] = {}
    for state in Job.objects.values_list("state", flat=True):
        counts[state] = counts.get(state, 0) + 1
    return counts


@pytest.mark.promise("lost-process-jobs-return", "only-started-jobs-charged")
def test_killed_process_charges_only_started_jobs(start, tmp_path):
    """The supervisor notices the loss within some seconds, although the lease lasts 60 s."""
    started, done = tmp_path / "started", tmp_path / "done"
    running = tasks.wait_for_file.using(priority=10).enqueue(str(done), started=str(started))
    worker = start("--concurrency", "1", LEASE=60.0)
    worker.wait_until(started.exists)
    child = worker.children[0]
    # Claim the other jobs without starting them, as the fetcher would: with its statement and the child's worker id.
    os.kill(child, signal.SIGSTOP)  # first, because its own fetcher claims a job ahead
    tasks.noop.enqueue_many([((), {})] * 499)
    claim_for(Execution.objects.get(job=running).worker_id, 499)
    os.kill(child, signal.SIGKILL)
    worker.wait_until(lambda: Execution.objects.get(job=running, attempt=1).outcome == "crashed")
    done.touch()
    worker.wait_until(lambda: Job.objects.exclude(pk=running.pk).exclude(state="succeeded").count() == 0)
    running.refresh_from_db()
    assert (running.crashes, running.attempt) in ((1, 1), (1, 2))
    neighbours = Job.objects.exclude(pk=running.pk)
    assert set(neighbours.values_list("attempt", "crashes")) == {(1, 0)}


def claim_for(worker_id: int, count: int) -> None:
    session = helpers.connect()
    try:
        claimed = helpers.claim_all(session, limit=count, free_slots=0, worker_id=worker_id)
        assert len(claimed) == count
    finally:
        session.close()


@pytest.mark.promise("lost-worker-jobs-return")
def test_killed_worker_is_rescued_by_another_worker(start, tmp_path):
    started = tmp_path / "started"
    job = tasks.wait_for_file.enqueue(str(tmp_path / "done"), started=str(started))
    lost = start(LEASE=6.0)
    lost.wait_until(started.exists)
    started.unlink()
    other = start("--queues", "nothing", LEASE=2.0)  # it rescues jobs but runs none
    other.wait_until_ready()
    lost.send_all(signal.SIGKILL)
    other.wait_until(lambda: Job.objects.get(pk=job.pk).state == "ready")
    job.refresh_from_db()
    assert (job.attempt, job.crashes) == (1, 1)
    assert Execution.objects.get(job=job).outcome == "crashed"


def test_rescue_of_job_wakes_idle_worker(start, tmp_path):
    started, done = tmp_path / "started", tmp_path / "done"
    job = tasks.wait_again.enqueue(str(done), str(started))
    lost = start("--concurrency", "1", LEASE=6.0)
    lost.wait_until(started.exists)
    other = start(POLL_INTERVAL=120.0, LEASE=6.0)
    other.wait_until_ready()
    wait_until(lambda: Worker.objects.count() == 2)
    started.unlink()
    lost.send_all(signal.SIGKILL)
    other.wait_until(started.exists, 40)
    done.touch()
    other.wait_until(lambda: Job.objects.get(pk=job.pk).state == "succeeded")


@pytest.mark.promise("late-end-of-frozen-process-is-refused")
def test_late_completion_of_frozen_worker_is_refused(start, tmp_path):
    started, done = tmp_path / "started", tmp_path / "done"
    job = tasks.create_group_and_wait.enqueue("zombie", str(done), started=str(started))
    frozen = start(LEASE=6.0)
    frozen.wait_until(started.exists)
    frozen.send_all(signal.SIGSTOP)
    other = start("--queues", "nothing", LEASE=2.0)
    other.wait_until(lambda: Execution.objects.get(job=job).outcome == "crashed", 40)
    done.touch()
    frozen.send_all(signal.SIGCONT)
    frozen.wait_until(lambda: "lease" in frozen.said or "no longer" in frozen.said or "closed by" in frozen.said)
    frozen.send(signal.SIGTERM)
    frozen.exit_code()
    assert Execution.objects.get(job=job, attempt=1).outcome == "crashed"
    finished = Execution.objects.filter(job=job, outcome="succeeded").count()
    assert Group.objects.filter(name="zombie").count() == finished


@pytest.mark.promise("atomic-lost-lease-rolls-back")
def test_atomic_task_after_lost_lease_rolls_back(start, engine, tmp_path):
    started, done = tmp_path / "started", tmp_path / "done"
    job = tasks.create_group_and_wait.enqueue("lost", str(done), started=str(started))
    worker = start(LEASE=60.0)
    worker.wait_until(started.exists)
    # Do what a rescue does when another process considers this worker lost.
    engine.execute(
        "UPDATE pgqueue_execution SET outcome = 'crashed', finished_at = now() WHERE job_id = %(id)s", {"id": job.pk}
    )
    engine.execute("UPDATE pgqueue_job SET state = 'cancelled', finished_at = now() WHERE id = %(id)s", {"id": job.pk})
    done.touch()
    worker.wait_until(lambda: "does not count" in worker.said)
    assert not Group.objects.filter(name="lost").exists()
    assert Job.objects.get(pk=job.pk).state == "cancelled"


@pytest.mark.promise("crashing-job-becomes-dead")
def test_segfault_among_200_jobs_ends_dead_others_succeed(start):
    poison = tasks.segfault.enqueue()
    tasks.noop.enqueue_many([((), {})] * 200)
    worker = start()
    worker.wait_until(lambda: states() == {"succeeded": 200, "dead": 1}, 30)
    poison.refresh_from_db()
    assert (poison.state, poison.crashes, poison.attempt) == ("dead", 3, 3)
    assert list(Execution.objects.filter(job=poison).values_list("outcome", flat=True)) == ["crashed"] * 3


@pytest.mark.parametrize("code", [0, 1])
def test_process_exit_with_any_code_counts_as_crash(start, code):
    poison = tasks.exit_at_once.enqueue(code)
    tasks.noop.enqueue_many([((), {})] * 20)
    worker = start()
    worker.wait_until(lambda: states() == {"succeeded": 20, "dead": 1}, 30)
    poison.refresh_from_db()
    assert poison.crashes == 3


def test_lease_with_interpreter_blocked_in_c_is_kept(start):
    job = tasks.hold_the_interpreter.enqueue(13)  # longer than two leases
    worker, rescuer = start(LEASE=6.0), start("--queues", "nothing", LEASE=2.0)
    rescuer.wait_until_ready()
    worker.wait_until(lambda: Job.objects.get(pk=job.pk).state == "succeeded", 40)
    assert Execution.objects.filter(job=job).count() == 1


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_database_restart_keeps_worker_and_loses_no_job(start, server, tmp_path, mode):
    worker = start(database=server.settings, LEASE=6.0)
    worker.wait_until_ready()
    with server.connect() as connection:
        fill(connection, 3000)
    server.cluster.stop(mode)
    server.cluster.start()
    wait_for_all(server, worker)
    assert worker.process.poll() is None


def test_terminated_sessions_under_load_lose_no_job(start, server):
    worker = start(database=server.settings)
    worker.wait_until_ready()
    with server.connect() as connection:
        fill(connection, 20_000)
        for _ in range(10):
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )
            left = scalar(connection, "SELECT count(*) FROM pgqueue_job WHERE state = 'ready'")
            if not left:
                break
            wait_until(lambda: threading.Event().wait(0.05) or True)
    wait_for_all(server, worker)
    assert worker.process.poll() is None


@pytest.mark.promise("lost-connection-costs-no-pause")
def test_terminated_sessions_delay_work_by_less_than_a_second(start, server):
    """A pause after the first error would delay each of these jobs by a second or more."""
    worker = start(database=server.settings)
    worker.wait_until_ready()
    delays = []
    with server.connect() as connection:
        for _ in range(5):
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )
            began = time.monotonic()
            fill(connection, 1)
            worker.wait_until(lambda: not scalar(connection, "SELECT count(*) FROM pgqueue_job WHERE state = 'ready'"))
            delays.append(time.monotonic() - began)
            wait_for_all(server, worker)
    assert min(delays) < 0.9, delays


def fill(connection: psycopg.Connection, count: int) -> None:
    connection.execute(
        "INSERT INTO pgqueue_job (task_name, arguments) SELECT 'tests.app.tasks.noop', '{\"args\":[],\"kwargs\":{}}'"
        " FROM generate_series(1, %(count)s)",
        {"count": count},
    )


def wait_for_all(server, worker) -> None:
    with server.connect() as connection:
        worker.wait_until(
            lambda: scalar(connection, "SELECT count(*) FROM pgqueue_job WHERE state <> 'succeeded'") == 0, 60
        )
        assert scalar(connection, "SELECT count(*) FROM pgqueue_execution WHERE outcome IS NULL") == 0
        assert scalar(connection, "SELECT count(*) FROM pgqueue_job WHERE crashes > 0") == 0


def test_unknown_execution_in_idle_worker_is_released(start):
    """The state is the same as after a claim whose commit came long after its worker had given up the claim."""
    worker = start(LEASE=8.0)
    worker.wait_until_ready()
    [worker_id] = Worker.objects.values_list("pk", flat=True)
    session = helpers.connect()
    try:
        with session.transaction():  # the worker must not see the jobs before they are claimed
            helpers.make_jobs(session, 5, queue_name="elsewhere")
            assert (
                len(helpers.claim_all(session, Lane("elsewhere", 0), limit=5, free_slots=0, worker_id=worker_id)) == 5
            )
    finally:
        session.close()
    worker.wait_until(lambda: states() == {"succeeded": 5})
    assert set(Job.objects.values_list("attempt", flat=True)) == {1}


def test_subtask_exit_fails_its_job_and_keeps_event_loop(start):
    poison = tasks.end_the_loop.using(max_attempts=1, priority=1).enqueue()
    tasks.async_add.enqueue_many([((1, 2), {})] * 50)
    worker = start()
    worker.wait_until(lambda: states() == {"succeeded": 50, "dead": 1})
    poison.refresh_from_db()
    assert poison.crashes == 0


def test_until_empty_with_crashed_process_runs_all_jobs(start):
    tasks.segfault.enqueue()
    tasks.noop.enqueue_many([((), {})] * 100)
    assert start("--until-empty", "--processes", "2").exit_code(60) == 0
    assert states() == {"succeeded": 100, "dead": 1}


def test_worker_with_closed_output_pipe_stops_cleanly(committing):
    process = subprocess.Popen(
        [sys.executable, "-m", "django", "runworker"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment(None) | {"PYTHONUNBUFFERED": ""},
        start_new_session=True,
    )
    try:
        job = tasks.say.enqueue("hello")
        wait_until(lambda: Job.objects.get(pk=job.pk).state == "succeeded", 20)
        process.stdout.close()
        process.terminate()
        assert process.wait(20) == 0
        wait_until(lambda: not members_of(process.pid), 20)
    finally:
        for pid in members_of(process.pid):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.promise("defect-task-closes-output")
def test_task_that_closes_output_keeps_process_and_log(start):
    tasks.close_output.enqueue()
    worker = start("--concurrency", "2")
    worker.wait_until(lambda: states() == {"succeeded": 1})
    child = worker.children[0]
    tasks.raise_directive.using(max_attempts=1).enqueue("dead")
    worker.wait_until(lambda: states() == {"succeeded": 1, "dead": 1})
    worker.wait_until(lambda: "hopeless" in worker.said)
    assert worker.children == [child]


def members_of(session: int) -> list[int]:
    """Return the processes of a session that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(int(path.parent.name))
    return found


def test_connection_pool_in_two_processes_is_not_shared(start):
    database = {**{key: connection.settings_dict[key] for key in DATABASE_KEYS}, "OPTIONS": {"pool": True}}
    jobs = [tasks.add.enqueue(number, 1000) for number in range(60)]
    own = [tasks.echo.enqueue(number) for number in range(60)]
    worker = start("--processes", "2", "--concurrency", "4", "--until-empty", database=database)
    assert worker.exit_code(60) == 0
    for number, (job, other) in enumerate(zip(jobs, own, strict=True)):
        job.refresh_from_db()
        other.refresh_from_db()
        assert (job.result, other.result) == (number + 1000, number)
