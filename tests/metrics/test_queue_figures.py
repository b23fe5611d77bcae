"""Test the figures of the queue on a worker's metrics port: how they are read, and what happens if they cannot be."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from django.core.management import CommandError, call_command
from django.db import connections

from django_pgqueue.ground.readings import DATABASE_UP, NOT_READ, Gauge, Reading
from django_pgqueue.metrics import collect
from django_pgqueue.worker.monitoring import metrics_process
from django_pgqueue.worker.monitoring.http_server import Request
from django_pgqueue.worker.monitoring.metrics_process import Pages, ScrapedFigures
from django_pgqueue.worker.runtime.health_report import HealthReport
from django_pgqueue.worker.runtime.shared_memory import HealthMemory
from django_pgqueue.worker.runtime.worker_memory import WorkerMemory
from tests import helpers
from tests.stats.conftest import connection as connection

UP = Reading(DATABASE_UP, (((), 1.0),))
DEPTH = Reading(Gauge("pgqueue_jobs", "Jobs by state.", ("queue", "state")), ((('ma"il', "due"), 3.0),))


def page(read, accept=""):
    """Return the page /metrics of a worker without processes."""
    pages = Pages(HealthReport(WorkerMemory(1)), read)
    return asyncio.run(pages.metrics(Request("/metrics", "", accept))).body.decode()


@pytest.fixture(autouse=True)
def supervisor_memory(monkeypatch):
    monkeypatch.setattr("django_pgqueue.worker.runtime.worker_memory.health_memory", HealthMemory())


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text"])
def test_metrics_page_has_figures_of_worker_and_queue(accept):
    text = page(lambda: [UP, DEPTH], accept)
    assert 'pgqueue_jobs{queue="ma\\"il",state="due"} 3.0' in text
    assert "pgqueue_database_up 1.0" in text
    assert "pgqueue_processes 0.0" in text


def test_metrics_page_without_option_reads_no_database():
    text = page(None)
    assert "pgqueue_database_up" not in text
    assert "pgqueue_processes 0.0" in text


def test_metrics_page_of_failing_read_has_figures_of_worker(caplog):
    def fail():
        raise LookupError("no such alias")

    text = page(fail)
    assert "pgqueue_database_up 0.0" in text
    assert "pgqueue_processes 0.0" in text
    assert "could not be read" in caplog.text


def test_figures_of_hanging_database_are_left_out_until_they_are_read(monkeypatch):
    monkeypatch.setattr(metrics_process, "WAIT_SECONDS", 0.05)
    released, begun = threading.Event(), []

    def read():
        begun.append(threading.current_thread().daemon)
        released.wait(10.0)
        return [UP]

    async def scrape():
        figures = ScrapedFigures(read)
        hanging = [await figures.get(), *await asyncio.gather(figures.get(), figures.get())]
        released.set()
        while await figures.get() == (NOT_READ,):
            await asyncio.sleep(0.01)
        return hanging, await figures.get()

    hanging, read_later = asyncio.run(scrape())
    assert hanging == [(NOT_READ,)] * 3
    assert read_later == [UP]
    assert begun == [True], "one thread at a time reads, and it does not delay the end of the process"


def test_figures_are_read_once_in_cache_seconds(monkeypatch):
    reads = []

    async def scrape(count):
        figures = ScrapedFigures(lambda: reads.append(1) or [UP])
        for _ in range(count):
            await asyncio.gather(figures.get(), figures.get())

    asyncio.run(scrape(3))
    assert len(reads) == 1
    monkeypatch.setattr(metrics_process, "CACHE_SECONDS", -1.0)
    asyncio.run(scrape(3))
    assert len(reads) == 4


def test_figures_leave_no_connection_open(connection, watcher):
    helpers.make_jobs(connection, 2, queue_name="mail")
    seen = []

    def read():
        found = collect()
        seen.append(connections["default"].connection.info.backend_pid)
        return found

    readings = asyncio.run(ScrapedFigures(read).get())
    [jobs] = [dict(samples) for gauge, samples in readings if gauge.name == "pgqueue_jobs"]
    assert jobs["mail", "due"] == 2
    stop_at = time.monotonic() + 20.0
    while helpers.scalar(watcher, "SELECT count(*) FROM pg_stat_activity WHERE pid = %s", seen):
        assert time.monotonic() < stop_at, "the connection is still open"
        time.sleep(0.01)


def test_runworker_reload_until_empty_is_refused(db):
    with pytest.raises(CommandError, match="--reload waits for changes of the code when no job is left"):
        call_command("runworker", reload=True, until_empty=True)


def test_runworker_queue_metrics_without_port_is_refused(db):
    with pytest.raises(CommandError, match="--queue-metrics needs a port: pass --metrics-port too"):
        call_command("runworker", queue_metrics=True)
