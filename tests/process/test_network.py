"""A network that loses data: replies are lost after the commit, or connections become black holes."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from django_pgqueue.worker.supervision.stop_deadline import EXIT_AFTER_GRACE_SECONDS
from tests import helpers
from tests.helpers import scalar

from .proxy import Proxy
from .server import Server
from .test_crashes import fill, wait_for_all

pytestmark = pytest.mark.process


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with closing(Proxy(f"{server.settings['HOST']}/.s.PGSQL.5432")) as between:
        yield between


ONE_ID = b"\0\1id\0"
"""Part of the answer to a completion, which consists of one column of this name. No other statement of these tests gets
such rows."""


def outcomes(server) -> dict[str, int]:
    with server.connect() as connection:
        rows = connection.execute("SELECT outcome, count(*) FROM pgqueue_execution GROUP BY 1").fetchall()
        assert scalar(connection, "SELECT max(attempt) FROM pgqueue_job") == 1
    return dict(rows)


@pytest.mark.promise("lost-claim-reply-leaves-no-job-stuck")
def test_lost_claim_reply_releases_jobs_and_runs_them_uncharged(start, server, proxy):
    worker = start("--no-listen", database=proxy.settings(server.settings), LEASE=6.0)
    worker.wait_until_ready()
    # Only the answer to a claim has arguments. The names of tasks are also in the answers to other statements.
    proxy.swallow = lambda name, reply: name.startswith("pgqueue:") and b'"args"' in reply
    with server.connect() as connection:
        fill(connection, 5)
    wait_for_all(server, worker)
    assert proxy.swallowed == 1
    ended = outcomes(server)
    assert ended["succeeded"] == 5
    assert ended.get("released", 0) >= 1, ended
    assert set(ended) == {"succeeded", "released"}


@pytest.mark.promise("lost-completion-reply-is-looked-up")
def test_lost_completion_reply_is_looked_up(start, server, proxy):
    worker = start("--no-listen", database=proxy.settings(server.settings), LEASE=6.0)
    worker.wait_until_ready()
    proxy.swallow = lambda name, reply: name.startswith("pgqueue:") and ONE_ID in reply and b"SELECT 0" not in reply
    with server.connect() as connection:
        fill(connection, 5)
    wait_for_all(server, worker)
    worker.wait_until(lambda: proxy.swallowed == 1)
    assert outcomes(server) == {"succeeded": 5}
    assert "does not count" not in worker.said


@pytest.mark.promise("lost-network-jobs-return")
def test_network_black_hole_is_noticed_and_loses_no_job(start, server, proxy):
    worker = start("--no-listen", database=proxy.settings(server.settings), LEASE=6.0)
    worker.wait_until_ready()
    proxy.black_hole.set()
    with server.connect() as connection:
        fill(connection, 200)
    worker.wait_until(lambda: "no answer from PostgreSQL" in worker.said)
    proxy.black_hole.clear()
    wait_for_all(server, worker)
    assert worker.process.poll() is None
    assert outcomes(server)["succeeded"] == 200


@pytest.mark.promise("atomic-lost-commit-reply-counts-once")
def test_lost_atomic_commit_reply_counts_once(start, server, proxy):
    worker = start("--no-listen", database=proxy.settings(server.settings), LEASE=6.0)
    worker.wait_until_ready()
    proxy.swallow = lambda name, reply: not name and b"COMMIT\0" in reply
    with server.connect() as connection:
        connection.execute(
            "INSERT INTO pgqueue_job (task_name, arguments)"
            ' VALUES (\'tests.app.tasks.create_group\', \'{"args":["once"],"kwargs":{}}\')'
        )
    wait_for_all(server, worker)
    worker.wait_until(lambda: proxy.swallowed == 1)
    assert outcomes(server) == {"succeeded": 1}
    with server.connect() as connection:
        assert scalar(connection, "SELECT count(*) FROM auth_group WHERE name = 'once'") == 1
    worker.wait_until(lambda: "the reply to its COMMIT was lost" in worker.said)


@pytest.mark.promise("stop-ends-in-time")
@pytest.mark.parametrize("has_job", [True, False], ids=["with a job", "idle"])
def test_stop_beside_frozen_proxy_ends_12_s_after_grace(start, server, proxy, tmp_path, has_job):
    """No connection is closed, and nothing answers. Each wait for an answer could outlast the limit."""
    started, done = tmp_path / "started", tmp_path / "done"
    worker = start("--no-listen", database=proxy.settings(server.settings), GRACE=2.0)
    worker.wait_until_ready()
    if has_job:
        with server.connect() as connection:
            call = f'{{"args":["{done}"],"kwargs":{{"started":"{started}","seconds":300}}}}'
            helpers.make_job(connection, task_name="tests.app.tasks.wait_for_file", arguments=[call])
        worker.wait_until(started.exists)
    proxy.black_hole.set()
    time.sleep(1)  # some statements are under way; others begin after the signal
    began = time.monotonic()
    worker.send(signal.SIGTERM)
    worker.exit_code(60)
    assert time.monotonic() - began < 2.0 + EXIT_AFTER_GRACE_SECONDS + 1.0
    assert not worker.children
