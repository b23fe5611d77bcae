"""A real worker opens a circuit breaker, probes the key, closes the breaker, and writes its last counts at the stop."""

from __future__ import annotations

import signal

import pytest

from django_pgqueue.models import BreakerCount, Job, OpenBreaker, Pause
from tests import helpers
from tests.app import tasks
from tests.concurrency import limits

pytestmark = pytest.mark.process


def test_worker_pauses_a_failing_key_and_probes_it(start_with, engine):
    limits.add(engine, "service", 3, task_name=tasks.fail.name)
    engine.execute("UPDATE pgqueue_job SET max_attempts = 1")
    worker = start_with("breaker", "--concurrency", "2")
    worker.wait_until(OpenBreaker.objects.filter(limit_key="service").exists)
    limits.add(engine, "service", 1, task_name=helpers.NOOP)
    assert Pause.objects.get().paused_by == "circuit breaker"
    worker.wait_until(lambda: not OpenBreaker.objects.exists())
    limits.add(engine, "service", 2, task_name=helpers.NOOP)
    worker.wait_until(lambda: Job.objects.filter(state="succeeded").count() == 3)
    assert not Pause.objects.exists()
    lines = worker.log.read_text()
    assert lines.count("circuit breaker of limit key service is open for 1 s: 3 of 3 attempts failed") == 1
    assert lines.count("probes limit key service") == 1
    assert lines.count("circuit breaker of limit key service is closed") == 1
    with engine.transaction():
        limits.add(engine, "service", 1, task_name=tasks.fail.name)
        engine.execute("UPDATE pgqueue_job SET max_attempts = 1 WHERE state = 'ready'")
    worker.wait_until(lambda: Job.objects.filter(state="dead").count() == 4)
    worker.send(signal.SIGTERM)
    assert worker.exit_code(10) == 0
    assert sum(BreakerCount.objects.values_list("failed", flat=True)) == 1
