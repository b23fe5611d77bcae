"""Test how the completer writes reports in batches, and what it does with reports that cannot be written unchanged."""

from __future__ import annotations

import time

import pytest

from django_pgqueue.ground.endings import Ending
from django_pgqueue.lifecycle import leases
from django_pgqueue.worker.completion import completer as module
from django_pgqueue.worker.completion.completer import Completer
from django_pgqueue.worker.execution.report import Report
from django_pgqueue.worker.runtime.connection import Link
from tests import helpers

LARGE = '"' + "x" * 65_000 + '"'


@pytest.fixture
def completer(committing):
    link = Link("default", "completer")
    yield Completer(link)
    link.close()


def report(claimed, ending=Ending.SUCCEEDED, **changes):
    now = time.monotonic()
    return Report(claimed, ending, now - 0.02, now - 0.01, **changes)


def test_completer_flood_of_reports_is_written_in_batches(engine, completer):
    helpers.make_jobs(engine, 1200)
    claimed = [*helpers.claim_all(engine), *helpers.claim_all(engine), *helpers.claim_all(engine)]
    for job in claimed:
        completer.hand_over(report(job))
    rounds = 0
    while len(completer):
        completer.tick()
        rounds += 1
    assert rounds == 2
    assert {row["state"] for row in helpers.rows_of(engine, "pgqueue_job").values()} == {"succeeded"}


def test_completer_large_results_use_smaller_batches(engine, completer):
    helpers.make_jobs(engine, 40)
    for job in helpers.claim_all(engine):
        completer.hand_over(report(job, result=LARGE))
    written = []
    while len(completer):
        completer.tick()
        written.append(completer.finished)
    assert written == [17, 34, 40], "a batch ends with the report that exceeds 1 MiB"


def test_completer_large_reports_fill_the_buffer_sooner(engine, completer):
    helpers.make_job(engine)
    claimed = helpers.claim_one(engine)
    for _ in range(500):
        completer.hand_over(report(claimed))
    assert not completer.is_full
    for large in (report(claimed, result=LARGE), report(claimed._replace(arguments=LARGE)), failed(claimed)):
        completer.pending.clear()
        while not completer.is_full:
            completer.hand_over(large)
        assert 16 * 1024**2 / len(LARGE) - 1 < len(completer) < 16 * 1024**2 / len(LARGE) + 1


def failed(claimed):
    return report(claimed, Ending.FAILED, traceback=LARGE)


def test_completer_unstorable_result_fails_only_its_own_job(engine, completer):
    helpers.make_jobs(engine, 3)
    first, bad, last = helpers.claim_all(engine)
    completer.hand_over(report(first))
    completer.hand_over(report(bad, result="not json"))
    completer.hand_over(report(last))
    while len(completer):
        completer.tick()
    assert [helpers.state_of(engine, job.job_id) for job in (first, bad, last)] == ["succeeded", "dead", "succeeded"]
    assert "could not be stored" in helpers.execution_row(engine, bad.execution_id)["error"]


def test_completer_locked_row_delays_only_its_own_job(engine, second, completer):
    helpers.make_jobs(engine, 3)
    first, locked, last = helpers.claim_all(engine)
    delayed = []
    completer._on_locked = delayed.extend
    with helpers.transaction(second, f"SELECT 1 FROM pgqueue_job WHERE id = {locked.job_id} FOR UPDATE"):
        for claimed in (first, locked, last):
            completer.hand_over(report(claimed))
        completer.tick()
        assert len(completer) == 1
        assert [helpers.state_of(engine, job.job_id) for job in (first, locked, last)] == [
            "succeeded",
            "running",
            "succeeded",
        ]
    assert delayed == [locked.execution_id]
    completer.tick()
    assert helpers.state_of(engine, locked.job_id) == "succeeded"


@pytest.mark.parametrize("ending", [Ending.UNKNOWN, Ending.POSTPONED, Ending.RELEASED, Ending.SNOOZED])
def test_completer_locked_release_is_not_recorded(engine, second, completer, ending):
    """The attempt does not count, so a crash of the process must not charge it."""
    helpers.make_job(engine)
    claimed = helpers.claim_one(engine)
    delayed = []
    completer._on_locked = delayed.extend
    with helpers.transaction(second, f"SELECT 1 FROM pgqueue_job WHERE id = {claimed.job_id} FOR UPDATE"):
        completer.hand_over(report(claimed, ending, delay_seconds=1.0))
        completer.tick()
        assert len(completer) == 1
    assert delayed == []


def test_completer_lost_connection_keeps_the_report(engine, completer):
    helpers.make_job(engine)
    claimed = helpers.claim_one(engine)
    completer.tick()
    completer.hand_over(report(claimed))
    with completer.link.use() as connection:
        pid = connection.info.backend_pid
    engine.execute("SELECT pg_terminate_backend(%(pid)s)", {"pid": pid})
    helpers.wait_until(
        lambda: not helpers.scalar(engine, "SELECT count(*) FROM pg_stat_activity WHERE pid = %s", [pid])
    )
    completer._stopping.set()  # the interval after the error then ends at once
    completer._survive()
    assert len(completer) == 1
    completer._survive()
    assert len(completer) == 0
    assert helpers.state_of(engine, claimed.job_id) == "succeeded"


def test_completer_mixed_batch_writes_each_ending(engine, completer):
    helpers.make_jobs(engine, 5)
    endings = {
        Ending.SUCCEEDED: "succeeded",
        Ending.FAILED: "dead",
        Ending.RELEASED: "ready",
        Ending.SNOOZED: "ready",
        Ending.CANCELLED: "cancelled",
    }
    claimed = helpers.claim_all(engine)
    for job, ending in zip(claimed, endings, strict=True):
        completer.hand_over(report(job, ending))
    completer.tick()
    assert [helpers.state_of(engine, job.job_id) for job in claimed] == list(endings.values())
    assert leases.open_executions(engine, 1) == []


@pytest.mark.parametrize(("batch", "rests"), [(1000, 1), (1, 0)])
def test_completer_writes_begin_apart_unless_batch_is_full(engine, completer, monkeypatch, batch, rests):
    monkeypatch.setattr(module, "BATCH", batch)
    helpers.make_job(engine)
    completer.hand_over(report(helpers.claim_one(engine)))
    waits = []
    monkeypatch.setattr(completer._has_awaited, "wait", waits.append)
    completer.tick()
    assert [seconds <= module.LONGEST_INTERVAL_SECONDS for seconds in waits] == [True] * rests


@pytest.mark.parametrize(
    ("took_seconds", "interval_seconds"), [(0.0, 0.005), (0.0001, 0.005), (0.001, 0.01), (0.0015, 0.015), (3.0, 0.02)]
)
def test_completer_slower_writes_are_further_apart_within_bounds(took_seconds, interval_seconds):
    assert module.write_interval(took_seconds) == pytest.approx(interval_seconds)


@pytest.mark.parametrize("awaited", [{"limit_key": "one:a"}, {"in_graph": True}])
def test_completer_awaited_report_is_written_without_the_rest_between_writes(engine, committing, monkeypatch, awaited):
    monkeypatch.setattr(module, "write_interval", lambda took_seconds: 60.0)
    link = Link("default", "completer")
    completer = Completer(link, is_awaited=lambda report: True)
    helpers.make_jobs(engine, 2)
    first, second = helpers.claim_all(engine)
    completer.start()
    try:
        completer.hand_over(report(first))
        helpers.wait_until(lambda: helpers.state_of(engine, first.job_id) == "succeeded")
        completer.hand_over(report(second._replace(**awaited)))
        helpers.wait_until(lambda: helpers.state_of(engine, second.job_id) == "succeeded")
    finally:
        completer.stop()
        completer._has_awaited.set()
        completer.join()
        link.close()
