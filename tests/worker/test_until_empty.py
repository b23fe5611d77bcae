"""Which jobs a worker with `--until-empty` waits for, and which ones it leaves in the queue."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from django_pgqueue import Limit
from django_pgqueue.tasks import registry
from django_pgqueue.worker.worker_process import WorkerProcess
from tests import helpers
from tests.concurrency import limits
from tests.process.conftest import start
from tests.worker.test_fetcher import make_fetcher, take

__all__ = ["make_fetcher", "start"]

HOLD = (
    "INSERT INTO pgqueue_limit_state (limit_key, full_at, held_until) "
    "VALUES (%s, now(), now() + make_interval(secs => %s))"
)


@pytest.fixture
def limit(monkeypatch):
    """Declare limits. A test adds jobs with their keys by SQL."""
    declared = {"api": Limit("api", concurrency=1), "slow": Limit("slow", rate="1/h")}
    monkeypatch.setattr(registry, "_limits", declared)
    monkeypatch.setattr(registry, "limits", lambda: declared)


def test_jobs_of_a_held_key_are_left(engine, make_fetcher, limit):
    limits.add(engine, "api", 3)
    engine.execute(HOLD, ["api", 3600])
    fetcher = make_fetcher()
    helpers.wait_until(lambda: (fetcher.tick(), fetcher.empty_scans >= 2)[1])
    assert not fetcher.pool.submitted


def test_jobs_of_a_held_key_do_not_hide_those_of_others(engine, make_fetcher, limit):
    limits.add(engine, "api", 3)
    [wanted] = limits.add(engine, "slow")
    engine.execute(HOLD, ["api", 3600])
    fetcher = make_fetcher()
    helpers.wait_until(lambda: (fetcher.tick(), fetcher.pool.submitted)[1])
    assert [job.job_id for job in take(fetcher)] == [wanted]


def test_jobs_that_wait_for_a_token_are_awaited(engine, make_fetcher, limit):
    limits.add(engine, "slow", 2)
    fetcher = make_fetcher()
    helpers.wait_until(lambda: (fetcher.tick(), fetcher.pool.submitted)[1])
    take(fetcher)
    for _ in range(20):
        fetcher.restart_scans()
        fetcher.tick()
        assert fetcher.empty_scans == 0


def test_checks_that_are_left_to_the_maintenance_are_awaited():
    """They can add jobs, for example those of a batch's callbacks."""
    process, checks = WorkerProcess.__new__(WorkerProcess), [object()]
    fetcher = SimpleNamespace(empty_scans=2, restart_scans=lambda: None, wake=lambda: None)
    services = SimpleNamespace(later_checks=SimpleNamespace(is_empty=lambda: not checks))
    vars(process).update(in_flight=[], completer=[], fetcher=fetcher, services=services, _idle=False)
    assert [process._is_empty() for _ in range(3)] == [False] * 3
    checks.clear()
    assert [process._is_empty() for _ in range(2)] == [False, True]


@pytest.mark.process
def test_until_empty_ends_beside_a_held_key(start, engine):
    helpers.make_jobs(engine, 2)
    limits.add(engine, "tests.until_empty", 2, task_name="tests.app.tasks.noop")
    engine.execute(HOLD, ["tests.until_empty", 3600])
    assert start("--until-empty", TASK_MODULES=["tests.worker.until_empty_tasks"]).has_drained()
    states = engine.execute("SELECT state, count(*)::int FROM pgqueue_job GROUP BY state ORDER BY state").fetchall()
    assert states == [("ready", 2), ("succeeded", 2)]
