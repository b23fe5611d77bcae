"""Test workers and applications of two releases on the schema of either: no job is lost, and none runs twice."""

from __future__ import annotations

import signal
from collections import Counter

import pytest

from .trees import ENQUEUED_BY_NEXT

pytestmark = pytest.mark.process

ENQUEUE = "ship.using(queue_name={queue!r}).enqueue_many([((path, n), {{}}) for n in range({first}, {first} + 200)])"


def enqueue(deployment, tree, **first):
    """Enqueue 200 jobs into each queue, with numbers that begin at the given one, as an application of a release."""
    deployment.run(tree, "\n".join(ENQUEUE.format(queue=queue, first=number) for queue, number in first.items()))


def ran(deployment):
    """Return how many jobs each release ran, by their number divided by 200. Fail if a job ran twice."""
    lines = [line.split() for line in deployment.lines()]
    assert max(Counter(number for number, _ in lines).values()) == 1
    return Counter((int(number) // 200, release) for number, release in lines)


@pytest.mark.promise("both-releases-share-later-schema")
def test_both_releases_on_later_schema_run_each_job_once(releases, deployed):
    deployment = deployed(releases.next)
    old = deployment.worker(releases.previous, "--queues", "old,any")
    new = deployment.worker(releases.next, "--queues", "new,any")
    old.wait_until_ready()
    new.wait_until_ready()
    enqueue(deployment, releases.next, old=0, any=600)
    enqueue(deployment, releases.previous, new=200, any=400)
    new.wait_until(lambda: deployment.counts() == {"succeeded": 800})
    for worker in (old, new):
        worker.send(signal.SIGTERM)
        assert worker.exit_code() == 0, worker.said
    runs = ran(deployment)
    assert (runs[0, "previous"], runs[1, "next"]) == (200, 200)
    assert sum(runs.values()) == 800
    by_next = "SELECT count(*) FROM pgqueue_job WHERE note = %s AND queue_name IN ('old', 'any')"
    assert deployment.watcher.execute(by_next, [ENQUEUED_BY_NEXT]).fetchone() == (400,)
    closed = "SELECT count(*) FROM pgqueue_execution WHERE outcome = 'succeeded' AND host = ''"
    assert deployment.watcher.execute(closed).fetchone() == (800,)


@pytest.mark.promise("worker-waits-for-schema")
def test_new_worker_on_earlier_schema_waits_for_migrate(releases, deployed):
    deployment = deployed(releases.previous)
    new = deployment.worker(releases.next)
    new.wait_until(lambda: "manage.py migrate" in new.said)
    assert "pgqueue.8001_note" in new.said
    enqueue(deployment, releases.previous, default=0)
    assert deployment.worker(releases.previous, "--until-empty").has_drained()
    assert ran(deployment) == {(0, "previous"): 200}
    enqueue(deployment, releases.previous, default=200)
    assert deployment.counts() == {"succeeded": 200, "ready": 200}
    assert deployment.watcher.execute("SELECT count(*) FROM pgqueue_worker").fetchone() == (1,)
    assert deployment.migrate(releases.next, deployment.home / "migrate.log").wait(30) == 0
    new.wait_until(lambda: deployment.counts() == {"succeeded": 400})
    assert ran(deployment) == {(0, "previous"): 200, (1, "next"): 200}
