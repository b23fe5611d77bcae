"""Commits that hang while reads work, because no synchronous standby answers. No job is charged for that."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests import helpers
from tests.helpers import scalar

from .server import Server

pytestmark = pytest.mark.process
HANGING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"

ENDED = "SELECT max(lease_expires_at) < now() - interval '3 s' FROM pgqueue_worker"
"""Whether all leases that reads see have ended. 3 s are two heartbeats of these workers."""


@contextlib.contextmanager
def hanging_commits(server: Server) -> Iterator[None]:
    """Let all commits hang inside the block. They end together at its end."""

    def require_standbys(names: str) -> None:
        with server.connect() as admin:
            admin.execute("SET synchronous_commit = local")
            admin.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
            admin.execute("SELECT pg_reload_conf()")
            helpers.wait_until(lambda: scalar(admin, "SHOW synchronous_standby_names") == names)

    require_standbys("nobody")
    try:
        yield
    finally:
        require_standbys("")


def add_jobs(connection, task: str, count: int = 1, *arguments: str) -> None:
    """Add jobs that may run only once. This commit does not hang."""
    connection.execute("SET synchronous_commit = local")
    quoted = ",".join(f'"{argument}"' for argument in arguments)
    call = f'{{"args":[{quoted}],"kwargs":{{}}}}'
    helpers.make_jobs(connection, count, task_name=f"tests.app.tasks.{task}", arguments=[call] * count, max_attempts=1)
    connection.execute("SELECT pg_notify('pgqueue', 'default')")


@pytest.mark.promise("hanging-commits-lose-no-job")
def test_hanging_commits_for_longer_than_lease_charge_no_job(start, server, tmp_path):
    """Two hosts: the leases of the jobs that run, and those of claims whose commits hang, end unseen."""
    started, done = tmp_path / "started", tmp_path / "done"
    workers = [start("--concurrency", "4", database=server.settings, LEASE=6.0) for _ in range(2)]
    for worker in workers:
        worker.wait_until_ready()
    with server.connect() as connection:
        add_jobs(connection, "wait_again", 1, str(done), str(started))
        workers[0].wait_until(started.exists)
        with hanging_commits(server):
            add_jobs(connection, "noop", 40)
            workers[0].wait_until(lambda: scalar(connection, HANGING) >= 2)
            workers[0].wait_until(lambda: scalar(connection, ENDED), 60)
        done.touch()
        left = "SELECT count(*) FROM pgqueue_job WHERE state IN ('ready', 'running')"
        workers[0].wait_until(lambda: scalar(connection, left) == 0, 60)
        assert scalar(connection, "SELECT count(*) FROM pgqueue_job WHERE state <> 'succeeded'") == 0
        assert scalar(connection, "SELECT count(*) FROM pgqueue_execution WHERE outcome = 'crashed'") == 0
        assert scalar(connection, "SELECT max(attempt) FROM pgqueue_job") == 1
