"""The integration with OpenTelemetry in a real worker: no span is lost at its end, and its own work makes none."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from django_pgqueue.models import Job
from tests.app import tasks
from tests.process.conftest import start as start

pytestmark = pytest.mark.process


@pytest.mark.promise("opentelemetry-nothing-lost", "opentelemetry-idle-worker-silent")
def test_otel_worker_sends_the_spans_of_its_jobs_only(start, tmp_path: Path):
    """The exporter would send its spans once an hour, so only the end of each process sends them."""
    jobs = [tasks.add.enqueue(1), tasks.async_add.enqueue(1), tasks.isolated_pid.enqueue()]
    sent = tmp_path / "spans"
    variables = {"DJANGO_SETTINGS_MODULE": "tests.contrib.opentelemetry_settings", "PGQUEUE_TEST_SPANS": str(sent)}
    middleware = ["django_pgqueue.contrib.opentelemetry.OpenTelemetryMiddleware"]
    worker = start("--concurrency", "2", variables=variables, MIDDLEWARE=middleware)
    worker.wait_until(lambda: Job.objects.filter(state="succeeded").count() == len(jobs))
    worker.send(signal.SIGTERM)
    assert worker.exit_code() == 0
    lines = [line.split(" ", 2) for line in sent.read_text().splitlines()]
    ran = [(pid, int(start_ns), name) for pid, start_ns, name in lines if pid != str(worker.process.pid)]
    assert sorted(name for _, _, name in ran) == [f"process default {job.pk}" for job in jobs]
    assert len({pid for pid, _, _ in ran}) == 2  # the worker process and the isolated process
    first_ns = min(start_ns for _, start_ns, _ in ran)
    checks = [int(start_ns) for pid, start_ns, _ in lines if pid == str(worker.process.pid)]
    assert all(start_ns < first_ns for start_ns in checks)  # the supervisor looks for missing migrations at its start
