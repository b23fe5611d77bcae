"""Workers that die, freeze, or lose their database: nothing is lost, and only who is to blame is charged."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psycopg
import pytest
from django.contrib.auth.models import Group
from django.db import connection

from django_pgqueue.lifecycle import Lane
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
def test_a_killed_child_is_noticed_at_once_and_only_started_jobs_are_charged(start, tmp_path):
    started, done = tmp_path / "started", tmp_path / "done"
    running = tasks.wait_for_file.using(priority=10).enqueue(str(done), started=str(started))
    worker = start("--concurrency", "1", LEASE=60.0)
    worker.wait_until(started.exists)
    child = worker.children[0]
    # Its neighbours, claimed and not started: as the fetcher would, by the same statement, under the child's id.
    tasks.noop.enqueue_many([((), {})] * 499)
    os.kill(child, signal.SIGSTOP)
    claim_for(Execution.objects.get(job=running).worker_id, 499)
    os.kill(child, signal.SIGKILL)
    worker.wait_until(lambda: Execution.objects.get(job=running, attempt=1).outcome == "crashed", 5)
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
def test_everything_killed_is_rescued_by_another_worker(start, tmp_path):
    started = tmp_path / "started"
    job = tasks.wait_for_file.enqueue(str(tmp_path / "done"), started=str(started))
    lost = start()
    lost.wait_until(started.exists)
    started.unlink()
    other = start("--queues", "nothing")  # it rescues, and runs nothing
    other.wait_until_ready()
    lost.send_all(signal.SIGKILL)
    other.wait_until(lambda: Job.objects.get(pk=job.pk).state == "ready")
    job.refresh_from_db()
    assert (job.attempt, job.crashes) == (1, 1)
    assert Execution.objects.get(job=job).outcome == "crashed"


def test_what_was_rescued_wakes_an_idle_worker(start, tmp_path):
    started, done = tmp_path / "started", tmp_path / "done"
    job = tasks.wait_again.enqueue(str(done), str(started))
    lost = start("--concurrency", "1")
    lost.wait_until(started.exists)
    other = start(POLL_INTERVAL=120.0)
    other.wait_until_ready()
    wait_until(lambda: Worker.objects.count() == 2)
    started.unlink()
    lost.send_all(signal.SIGKILL)
    other.wait_until(started.exists, 15)
    done.touch()
    other.wait_until(lambda: Job.objects.get(pk=job.pk).state == "succeeded")


@pytest.mark.promise("late-end-of-frozen-process-is-refused")
def test_a_zombie_counts_for_nothing(start, tmp_path):
    started, done = tmp_path / "started", tmp_path / "done"
    job = tasks.create_group_and_wait.enqueue("zombie", str(done), started=str(started))
    zombie = start()
    zombie.wait_until(started.exists)
    zombie.send_all(signal.SIGSTOP)
    other = start("--queues", "nothing")
    other.wait_until(lambda: Execution.objects.get(job=job).outcome == "crashed", 30)
    done.touch()
    zombie.send_all(signal.SIGCONT)
    zombie.wait_until(lambda: "lease" in zombie.said or "no longer" in zombie.said or "closed by" in zombie.said)
    zombie.send(signal.SIGTERM)
    zombie.exit_code()
    assert Execution.objects.get(job=job, attempt=1).outcome == "crashed"
    finished = Execution.objects.filter(job=job, outcome="succeeded").count()
    assert Group.objects.filter(name="zombie").count() == finished


@pytest.mark.promise("atomic-lost-lease-rolls-back")
def test_an_atomic_task_that_lost_its_lease_leaves_no_row(start, engine, tmp_path):
    started, done = tmp_path / "started", tmp_path / "done"
    job = tasks.create_group_and_wait.enqueue("lost", str(done), started=str(started))
    worker = start(LEASE=60.0)
    worker.wait_until(started.exists)
    # As a rescue by somebody to whom this worker looked lost.
    engine.execute(
        "UPDATE pgqueue_execution SET outcome = 'crashed', finished_at = now() WHERE job_id = %(id)s", {"id": job.pk}
    )
    engine.execute("UPDATE pgqueue_job SET state = 'cancelled', finished_at = now() WHERE id = %(id)s", {"id": job.pk})
    done.touch()
    worker.wait_until(lambda: "does not count" in worker.said)
    assert not Group.objects.filter(name="lost").exists()
    assert Job.objects.get(pk=job.pk).state == "cancelled"


@pytest.mark.promise("crashing-job-becomes-dead")
def test_a_segfault_among_two_hundred_ends_dead_and_the_rest_succeed(start):
    poison = tasks.segfault.enqueue()
    tasks.noop.enqueue_many([((), {})] * 200)
    worker = start()
    worker.wait_until(lambda: states() == {"succeeded": 200, "dead": 1}, 30)
    poison.refresh_from_db()
    assert (poison.state, poison.crashes, poison.attempt) == ("dead", 3, 3)
    assert list(Execution.objects.filter(job=poison).values_list("outcome", flat=True)) == ["crashed"] * 3


@pytest.mark.parametrize("code", [0, 1])
def test_a_task_that_ends_the_process_is_a_crash_whatever_its_exit_code(start, code):
    poison = tasks.exit_at_once.enqueue(code)
    tasks.noop.enqueue_many([((), {})] * 20)
    worker = start()
    worker.wait_until(lambda: states() == {"succeeded": 20, "dead": 1}, 30)
    poison.refresh_from_db()
    assert poison.crashes == 3


def test_c_code_that_holds_the_interpreter_keeps_its_lease(start):
    job = tasks.hold_the_interpreter.enqueue(5)  # more than two leases
    worker, rescuer = start(), start("--queues", "nothing")
    rescuer.wait_until_ready()
    worker.wait_until(lambda: Job.objects.get(pk=job.pk).state == "succeeded", 30)
    assert Execution.objects.filter(job=job).count() == 1


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_restart_of_the_database_ends_no_worker_and_loses_nothing(start, server, tmp_path, mode):
    worker = start(database=server.settings)
    worker.wait_until_ready()
    with server.connect() as connection:
        fill(connection, 3000)
    server.cluster.stop(mode)
    server.cluster.start()
    wait_for_all(server, worker)
    assert worker.process.poll() is None


def test_terminated_sessions_under_load_lose_nothing(start, server):
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


def test_what_nobody_holds_is_given_back_by_an_idle_worker_too(start):
    """As after a claim whose commit came long after its worker had given it up."""
    worker = start()
    worker.wait_until_ready()
    [worker_id] = Worker.objects.values_list("pk", flat=True)
    session = helpers.connect()
    try:
        with session.transaction():  # so that the worker sees them claimed, and not before
            helpers.make_jobs(session, 5, queue_name="elsewhere")
            assert (
                len(helpers.claim_all(session, Lane("elsewhere", 0), limit=5, free_slots=0, worker_id=worker_id)) == 5
            )
    finally:
        session.close()
    worker.wait_until(lambda: states() == {"succeeded": 5})
    assert set(Job.objects.values_list("attempt", flat=True)) == {1}


def test_a_subtask_that_exits_fails_its_job_and_leaves_the_loop_to_the_others(start):
    poison = tasks.end_the_loop.using(max_attempts=1, priority=1).enqueue()
    tasks.async_add.enqueue_many([((1, 2), {})] * 50)
    worker = start()
    worker.wait_until(lambda: states() == {"succeeded": 50, "dead": 1})
    poison.refresh_from_db()
    assert poison.crashes == 0


def test_a_drain_by_several_processes_outlives_the_death_of_one(start):
    tasks.segfault.enqueue()
    tasks.noop.enqueue_many([((), {})] * 100)
    assert start("--until-empty", "--processes", "2").exit_code(60) == 0
    assert states() == {"succeeded": 100, "dead": 1}


def test_a_worker_whose_output_nobody_reads_any_more_ends_all_the_same(committing):
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
        wait_until(lambda: not members_of(process.pid), 5)
    finally:
        for pid in members_of(process.pid):
            os.kill(pid, signal.SIGKILL)


def test_a_task_that_closes_the_output_neither_silences_nor_ends_its_process(start):
    tasks.close_output.enqueue()
    worker = start("--concurrency", "2")
    worker.wait_until(lambda: states() == {"succeeded": 1})
    child = worker.children[0]
    tasks.raise_directive.using(max_attempts=1).enqueue("dead")
    worker.wait_until(lambda: states() == {"succeeded": 1, "dead": 1})
    worker.wait_until(lambda: "hopeless" in worker.said)
    assert worker.children == [child]


def members_of(session: int) -> list[int]:
    """The living processes of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(int(path.parent.name))
    return found


def test_children_do_not_share_a_pool_of_connections(start):
    database = {**{key: connection.settings_dict[key] for key in DATABASE_KEYS}, "OPTIONS": {"pool": True}}
    jobs = [tasks.add.enqueue(number, 1000) for number in range(60)]
    own = [tasks.echo.enqueue(number) for number in range(60)]
    worker = start("--processes", "2", "--concurrency", "4", "--until-empty", database=database)
    assert worker.exit_code(60) == 0
    for number, (job, other) in enumerate(zip(jobs, own, strict=True)):
        job.refresh_from_db()
        other.refresh_from_db()
        assert (job.result, other.result) == (number + 1000, number)
