"""How many connections a worker has, idle and busy, and what happens when it loses them."""

from __future__ import annotations

import threading
import time
from statistics import median
from typing import Any

import psycopg
import pytest

from django_pgqueue.models import Job
from tests import helpers
from tests.app import tasks

pytestmark = pytest.mark.process

SESSIONS = (
    "SELECT application_name FROM pg_stat_activity WHERE datname = current_database()"
    " AND application_name LIKE 'pgqueue:%' AND application_name <> 'pgqueue:test'"
)
END_SESSION = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND application_name LIKE %s"
)


def sessions(connection: psycopg.Connection[Any]) -> list[str]:
    """Return the names of the engine connections of all workers."""
    return sorted(name for (name,) in connection.execute(SESSIONS).fetchall())


class Sampler:
    """Samples the number of engine connections in a thread of its own."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.seen: list[list[str]] = []
        self._ended = threading.Event()
        self._connection = connection
        self._thread = helpers.Background(self._sample)

    def _sample(self) -> None:
        while not self._ended.is_set():
            self.seen.append(sessions(self._connection))
            time.sleep(0.01)

    def end(self) -> list[str]:
        """Return the largest sample."""
        self._ended.set()
        self._thread.result()
        assert len(self.seen) > 10
        return max(self.seen, key=len)


def succeeded() -> int:
    return Job.objects.filter(state="succeeded").count()


@pytest.mark.promise("few-connections")
def test_worker_has_few_connections_idle_and_busy(start_with, engine, second):
    """It drains jobs, prunes, fires schedules, waits for a lock of a schedule, and loses its connections.

    One worker serves for all, because each start of one takes a second.
    """
    helpers.make_schedule(engine, expression="every 1 second")
    sampler = Sampler(second)
    worker = start_with("quick_idle", "--concurrency", "4", PRUNE_INTERVAL=0.2, SCHEDULE_INTERVAL=0.2, LEASE=30.0)
    worker.wait_until_ready()
    tasks.noop.enqueue_many([((), {})] * 3000)
    worker.wait_until(lambda: succeeded() >= 3000)
    _wait_for_a_lock_in_the_background(worker, engine)
    most = sampler.end()
    assert len(most) == 3, most
    _lose_and_go_on(worker, engine, ("%:fetcher%",), ("%:completer",), ("%:fetcher%", "%:completer"))
    _close_idle_connections_of_jobs(worker, engine)
    engine.execute("UPDATE pgqueue_schedule SET enabled = false")
    worker.wait_until(lambda: sessions(engine) == ["pgqueue:fetcher (listens)", "pgqueue:supervisor"])


def _lose_and_go_on(worker, engine, *names: tuple[str, ...]) -> None:
    """Terminate sessions while jobs run. All jobs succeed, in one attempt."""
    for lost in names:
        before = succeeded()
        tasks.noop.enqueue_many([((), {})] * 300)
        worker.wait_until(lambda before=before: succeeded() > before)
        for name in lost:
            engine.execute(END_SESSION, [name])
        worker.wait_until(lambda before=before: succeeded() >= before + 300)
    assert not Job.objects.exclude(attempt=1).exclude(state="ready").exists()


def _wait_for_a_lock_in_the_background(worker, engine) -> None:
    """Lock a table that only the maintenance and the schedules write. Jobs start and end as soon as before."""
    waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%%pgqueue:%%'"
    with engine.transaction():
        engine.execute("LOCK TABLE pgqueue_schedulerun IN ACCESS EXCLUSIVE MODE")
        took = []
        for _ in range(20):
            worker.wait_until(lambda: helpers.scalar(engine, waits))
            began, job = time.monotonic(), tasks.noop.enqueue()
            worker.wait_until(lambda job=job: Job.objects.get(pk=job.pk).state == "succeeded")
            took.append(time.monotonic() - began)
    assert median(took) < 1.0, f"jobs took {took} s while a statement of the background waited for a lock"


def _close_idle_connections_of_jobs(worker, engine) -> None:
    """Run jobs that use the ORM in a thread and on the event loop. Their sessions end soon afterwards."""
    jobs = [tasks.backend.enqueue(), tasks.async_orm.enqueue()]
    worker.wait_until(lambda: Job.objects.filter(pk__in=[job.pk for job in jobs], state="succeeded").count() == 2)
    in_thread, on_loop = (Job.objects.get(pk=job.pk).result for job in jobs)
    pids = [int(in_thread), int(on_loop[1])]
    gone = "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = ANY(%s)"
    worker.wait_until(lambda: engine.execute(gone, [pids]).fetchall() == [(True,)])
