"""The number of transactions that idle worker processes send to the database when one job is enqueued."""

from __future__ import annotations

import time

import pytest
from django.db import connection

from django_pgqueue.models import Job
from tests import helpers
from tests.app import tasks

pytestmark = pytest.mark.process

PROCESSES = 8
ENQUEUES = 10
FACTOR = 2
"""How much longer than usual idle processes wait, because a loaded host often stalls for a few milliseconds."""
APART_SECONDS = 1.2
"""Longer than all waits between the scans after a job. Processes scan for themselves at least every five seconds."""
LIMIT = 20
DELIVERIES = PROCESSES
"""Transactions that the server itself needs for each enqueue: each listening session reads the notification in one."""
QUIET = {"LEASE": 600.0, "RESCUE_INTERVAL": 600.0, "PRUNE_INTERVAL": 600.0, "POLL_INTERVAL": 600.0}
"""Settings with which hardly any transaction reaches the database, except those that the test measures."""
FLUSH_SECONDS = 11.0
"""An idle session reports its counters to PostgreSQL after ten seconds at the latest."""


def wait(seconds: float) -> None:
    until = time.monotonic() + seconds
    helpers.wait_until(lambda: time.monotonic() > until, seconds + 5)


def transactions() -> int:
    wait(FLUSH_SECONDS)
    with connection.cursor() as cursor:
        cursor.execute("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()")
        return int(cursor.fetchone()[0])


def enqueue_and_wait(times: int) -> None:
    for _ in range(times):
        tasks.noop.enqueue()
        wait(APART_SECONDS)


def transactions_per_enqueue(worker) -> float:
    worker.wait_until(lambda: worker.said.count("is ready") == PROCESSES, 40)
    enqueue_and_wait(2)
    before = transactions()
    enqueue_and_wait(ENQUEUES)
    during = transactions() - before
    assert not Job.objects.exclude(state="succeeded").exists()
    return during / ENQUEUES - DELIVERIES


@pytest.mark.promise("defect-idle-fleet-transactions")
@pytest.mark.timeout(180)
def test_enqueue_with_idle_fleet_costs_few_transactions(start_with):
    """The process that claims the job needs about nine transactions."""
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")  # otherwise autovacuum comes for what earlier tests have left in the tables
    worker = start_with(f"slow_idle_scans:{FACTOR}", "--processes", str(PROCESSES), "--concurrency", "2", **QUIET)
    measured = transactions_per_enqueue(worker)
    for _ in range(2):
        if measured > LIMIT:  # the server counts the transactions of autovacuum too, which come now and then
            measured = min(measured, transactions_per_enqueue(worker))
    print(f"{PROCESSES} processes: {measured:.1f} transactions for each enqueue")  # noqa: T201 -- the measured figure
    assert measured <= LIMIT
