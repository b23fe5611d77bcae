"""A real worker serves two databases: one goes away and comes back, and the worker starts and stops as a whole."""

from __future__ import annotations

import json
import os
import re
import signal
from contextlib import suppress

import pytest
from django.db import connections
from django.db.backends.postgresql.base import DatabaseWrapper

from tests.app import tasks
from tests.helpers import scalar

from .harness import Worker, descendants, page

pytestmark = pytest.mark.process

BOTH = ("--database", "default", "--database", "second")
ADD = "INSERT INTO pgqueue_job (task_name, arguments, run_after) VALUES (%s, %s::json, now())"
LEFT = "SELECT count(*) FROM pgqueue_job WHERE state <> 'succeeded'"
NAMES = {"default": "postgres", "second": "second"}
SHARDS = {"shard0": "postgres", "shard1": "second"}
"""Aliases of the test's own process that lead to the same databases."""


class Databases:
    """A worker with the two databases of a server."""

    def __init__(self, server, tmp_path):
        self.server, self.tmp_path = server, tmp_path
        with server.connect("template1") as admin:
            admin.execute("CREATE DATABASE second TEMPLATE postgres")

    def start(self, *arguments, **options):
        more = {"PGQUEUE_TEST_MORE_DATABASES": json.dumps({"second": self.server.settings_for("second")})}
        log = self.tmp_path / "worker.log"
        self.worker = Worker(log, *arguments, database=self.server.settings, variables=more, **options)
        return self.worker

    def enqueue(self, alias, task=tasks.noop, **kwargs):
        call = json.dumps({"args": [], "kwargs": kwargs})
        with self.server.connect(NAMES[alias]) as session:
            session.execute(ADD, [task.name, call])

    def left(self, alias):
        with self.server.connect(NAMES[alias]) as session:
            return scalar(session, LEFT)

    def admin(self, *statements):
        with self.server.connect("template1") as admin:
            for statement in statements:
                admin.execute(statement)


@pytest.fixture
def two(server, tmp_path, committing):
    databases = Databases(server, tmp_path)
    for alias, name in SHARDS.items():
        connections.settings[alias] = {**connections.settings["default"], **server.settings_for(name)}
        connections[alias] = DatabaseWrapper(connections.settings[alias], alias)
        connections[alias].connect()  # bypasses Django's guard, which does not know aliases that were added later
    yield databases
    for alias in SHARDS:
        connections[alias].close()
        del connections[alias], connections.settings[alias]
    started = descendants(databases.worker.process.pid)
    databases.worker.end()
    for pid in started:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.promise("several-databases-outage", "several-databases-signals")
def test_worker_with_lost_database_serves_the_other(two, tmp_path):
    path, started, done = tmp_path / "health.json", tmp_path / "started", tmp_path / "done"
    worker = two.start(*BOTH, "--metrics-port", "0", "--queue-metrics", "--health-file", str(path), GRACE=20.0)
    port = worker.wait_until(lambda: re.search(r"metrics on port (\d+)", worker.said))[1]
    for alias in NAMES:
        two.enqueue(alias)
    sharded = tasks.add.using(database=lambda a: f"shard{a % 2}", unique_key="one", unique_while=3600)
    jobs = [sharded.enqueue(number) for number in range(4)]
    assert [job.enqueued_on for job in jobs] == ["shard0", "shard1"] * 2
    assert [job.is_duplicate for job in jobs] == [False, False, True, True], "a key is unique in its database"
    worker.wait_until(lambda: not two.left("default") and not two.left("second"))
    worker.wait_until(lambda: page(port, "/readyz")[0] == 200)
    _, metrics = page(port, "/metrics")
    for alias in NAMES:
        name = (
            f'pgqueue_attempts_total{{database="{alias}",outcome="succeeded",queue="default",task="{tasks.noop.name}"}}'
        )
        assert f"{name} 1.0" in metrics
        assert f'pgqueue_database_up{{database="{alias}"}} 1.0' in metrics
    two.admin(
        "ALTER DATABASE second ALLOW_CONNECTIONS false",
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'second'",
    )
    worker.wait_until(lambda: "[second] database outage" in worker.said)
    two.enqueue("default")
    worker.wait_until(lambda: not two.left("default"))
    worker.wait_until(lambda: page(port, "/readyz")[0] == 503)
    assert page(port, "/livez")[0] == 200
    assert page(port, "/readyz")[1].splitlines()[1].startswith("- second: statements have been failing")
    worker.wait_until(lambda: json.loads(path.read_text())["databases"]["second"]["status"] == "database away")
    assert json.loads(path.read_text())["databases"]["default"]["status"] == "ok"
    two.admin("ALTER DATABASE second ALLOW_CONNECTIONS true")
    two.enqueue("second")
    worker.wait_until(lambda: not two.left("second"))
    assert "[default] database outage" not in worker.said
    two.enqueue("second", tasks.wait_for_file, path=str(done), started=str(started))
    worker.wait_until(started.exists)
    for pid in [*descendants(worker.process.pid), worker.process.pid]:  # as Ctrl-C does
        os.kill(pid, signal.SIGTERM)
    worker.wait_until(lambda: page(port, "/readyz")[1].startswith("stopping"))
    done.touch()
    assert worker.exit_code() == 0, worker.said
    assert not two.left("second")
    assert not path.exists()
    assert worker.said.count("signal: stopping") == 1
