"""Test that `migrate` stalls no session for more than 2 s.

Workers run jobs and applications enqueue meanwhile, and a long transaction blocks the migration. The promise covers
only the delay that the migration adds. The longest pause before the migration, which the machine causes, is therefore
added to the bound. Without `LockTable` every session would stall until the long transaction ends.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import pairwise
from typing import Any

import pytest

from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.db.notifications import wake_workers
from django_pgqueue.lifecycle import enqueueing
from django_pgqueue.lifecycle.enqueueing import NewJob
from tests import helpers

pytestmark = pytest.mark.process

PROMISED_SECONDS = 2.0
TRANSACTION_SECONDS = float(os.environ.get("PGQUEUE_TEST_HELD_SECONDS", "3"))
"""Duration of the long transaction. It is as much longer than the promise as CI has time for."""
CALM_SECONDS = 1.0
SHIP: dict[str, Any] = {
    "task_name": "shop.tasks.ship",
    "queue_name": "default",
    "priority": 0,
    "max_attempts": 10,
    "run_after": None,
    "delay_seconds": 0.0,
}


class Producer:
    """Enqueue a job every 10 ms, as an application of the earlier release does, and record when each was enqueued."""

    def __init__(self, connection: EngineConnection, path: str) -> None:
        self.connection = connection
        self.path = path
        self.stopping = threading.Event()
        self.enqueued: list[datetime] = []

    def run(self) -> None:
        """Enqueue until `stopping` is set."""
        while not self.stopping.wait(0.01):
            arguments = f'{{"args":["{self.path}",{len(self.enqueued)}],"kwargs":{{}}}}'
            enqueueing.enqueue(self.connection, NewJob(SHIP, arguments))
            wake_workers(self.connection)
            self.enqueued.append(helpers.scalar(self.connection, "SELECT clock_timestamp()"))


@contextmanager
def producing(connection: EngineConnection, path: str) -> Iterator[Producer]:
    """Run a producer in the background."""
    producer = Producer(connection, path)
    work = helpers.Background(producer.run)
    try:
        yield producer
    finally:
        producer.stopping.set()
        work.result()


class Observer:
    """Read the server's clock every 10 ms, without a lock. A long pause between two readings is one of the machine."""

    def __init__(self, connection: EngineConnection) -> None:
        self.connection = connection
        self.stopping = threading.Event()
        self.seen: list[datetime] = []

    def run(self) -> None:
        """Read until `stopping` is set."""
        while not self.stopping.wait(0.01):
            self.seen.append(helpers.scalar(self.connection, "SELECT clock_timestamp()"))

    def stalled_seconds(self, begin: datetime, end: datetime) -> float:
        """Return how long the machine stalled in this time. Pauses of up to 0.1 s do not count."""
        pauses = ((max(before, begin), min(after, end)) for before, after in pairwise(self.seen))
        return sum(max(0.0, (after - before).total_seconds() - 0.1) for before, after in pauses)


@contextmanager
def observing(connection: EngineConnection) -> Iterator[Observer]:
    """Run an observer in the background."""
    observer = Observer(connection)
    work = helpers.Background(observer.run)
    try:
        yield observer
    finally:
        observer.stopping.set()
        work.result()


def longest_pause(times: list[datetime], observer: Observer, keep: Callable[[datetime], bool]) -> float:
    """Return the longest pause between two successive times, in seconds, among those whose end `keep` accepts.

    The time in which the machine stalled does not count.
    """
    return max(
        (after - before).total_seconds() - observer.stalled_seconds(before, after)
        for before, after in pairwise(sorted(times))
        if keep(after)
    )


@pytest.mark.promise("migrate-stalls-no-session")
def test_migrate_long_transaction_stalls_no_session(releases, deployed, record_property):
    deployment = deployed(releases.previous)
    worker = deployment.worker(releases.previous, "--concurrency", "4", LEASE=60.0)
    worker.wait_until_ready()
    log = deployment.home / "migrate.log"
    with (
        observing(deployment.connect()) as observer,
        producing(deployment.connect(), str(deployment.record)) as producer,
    ):
        worker.wait_until(lambda: deployment.lines())
        calm_until = time.monotonic() + CALM_SECONDS
        worker.wait_until(lambda: time.monotonic() > calm_until)
        with helpers.transaction(deployment.connect(), "SELECT count(*) FROM pgqueue_job"):
            began = helpers.scalar(deployment.watcher, "SELECT clock_timestamp()")
            migrate = deployment.migrate(releases.next, log)
            is_retrying = helpers.wait_until(lambda: "retrying until" in log.read_text() or migrate.poll(), 30)
            assert is_retrying is True, log.read_text()
            free_at = time.monotonic() + TRANSACTION_SECONDS
            worker.wait_until(lambda: time.monotonic() > free_at, TRANSACTION_SECONDS + 20)
            assert migrate.poll() is None, log.read_text()
        assert migrate.wait(60) == 0, log.read_text()
        after = len(producer.enqueued)
        worker.wait_until(lambda: len(producer.enqueued) > after + 20)
    worker.wait_until(lambda: deployment.counts() == {"succeeded": len(producer.enqueued)})
    worker.send(signal.SIGTERM)
    assert worker.exit_code() == 0, worker.said
    executions = deployment.watcher.execute("SELECT outcome, finished_at FROM pgqueue_execution").fetchall()
    assert len(executions) == len(producer.enqueued) == len(deployment.lines())
    assert "ERROR" not in worker.said, worker.said
    for what, times in (("finishes", [at for _, at in executions]), ("enqueues", producer.enqueued)):
        calm = longest_pause(times, observer, lambda at: at <= began)
        longest = longest_pause(times, observer, lambda at: at > began)
        record_property(what, (round(calm, 3), round(longest, 3)))
        assert longest < PROMISED_SECONDS + calm, f"{what}: {longest:.2f} s, {calm:.2f} s before the migration"
