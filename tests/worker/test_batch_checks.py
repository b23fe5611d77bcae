"""When a worker process checks the batches of the jobs whose ends it has written."""

from __future__ import annotations

import logging
import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from django_pgqueue import batch_ends, lifecycle, signals
from django_pgqueue.batch_ends import Settled
from django_pgqueue.endings import Ending
from django_pgqueue.worker.completion import batch_checks
from django_pgqueue.worker.completion.batch_checks import NEVER, BatchChecks
from django_pgqueue.worker.completion.completer import Completer
from tests import helpers
from tests.concurrency.test_batches import batch_of, callbacks, end_job


@pytest.fixture
def settled(monkeypatch):
    """The calls of `settle()`, each with the batches that were checked. `settled.answers` are the results."""
    calls: Any = SimpleNamespace(batches=[], answers=[])

    def settle(connection, batch_ids, publish):
        calls.batches.append(set(batch_ids))
        answer = calls.answers.pop(0) if calls.answers else Settled(set(), [], 0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(batch_ends, "settle", settle)
    return calls


def report(batch_id: int | None = 7, ending: Ending = Ending.SUCCEEDED) -> Any:
    return SimpleNamespace(claimed=SimpleNamespace(batch_id=batch_id), ending=ending)


CONNECTION: Any = None


def test_job_without_a_batch_is_never_checked(settled):
    checks = BatchChecks()
    checks.note([report(None), report(7, Ending.SNOOZED), report(7, Ending.RELEASED)])
    checks.check(CONNECTION, at_once=True)
    assert (checks.due_in_seconds, settled.batches) == (NEVER, [])


def test_first_end_is_checked_at_once_and_later_ends_together(settled):
    checks = BatchChecks()
    checks.note([report(7), report(7), report(8, Ending.FAILED)])
    assert checks.due_in_seconds == 0.0
    checks.check(CONNECTION)
    for batch_id in (7, 9):
        checks.note([report(batch_id)])
        checks.check(CONNECTION)
    assert settled.batches == [{7, 8}]
    assert 0.0 < checks.due_in_seconds <= batch_checks.INTERVAL_SECONDS
    time.sleep(checks.due_in_seconds)
    checks.check(CONNECTION)
    assert settled.batches == [{7, 8}, {7, 9}]
    assert checks.due_in_seconds == NEVER


def test_locked_batch_is_checked_again_for_some_seconds(settled, monkeypatch):
    checks = BatchChecks()
    settled.answers = [Settled({7}, [], 0)] * 3
    checks.note([report(7), report(8)])
    checks.check(CONNECTION)
    checks.check(CONNECTION, at_once=True)
    assert settled.batches == [{7, 8}, {7}]
    monkeypatch.setattr(batch_checks, "LOCKED_SECONDS", 0.0)
    checks.check(CONNECTION, at_once=True)
    assert checks.due_in_seconds == NEVER


def test_lost_connection_keeps_the_batches(settled):
    checks = BatchChecks()
    settled.answers = [psycopg.OperationalError()]
    checks.note([report(7)])
    with pytest.raises(psycopg.OperationalError):
        checks.check(CONNECTION)
    checks.check(CONNECTION, at_once=True)
    assert settled.batches == [{7}, {7}]


@pytest.mark.parametrize("error", [psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled])
def test_locked_table_is_left_to_the_sweep(settled, caplog, error):
    """The connection works, so the completions of other jobs must not wait."""
    checks = BatchChecks()
    settled.answers = [error("no")]
    checks.note([report(7)])
    checks.check(CONNECTION, at_once=True)
    assert [record.__dict__["event"] for record in caplog.records] == ["batch_checks_refused"]
    assert checks.due_in_seconds == NEVER


def test_refused_check_is_logged_and_left_to_the_sweep(settled, caplog):
    checks = BatchChecks()
    settled.answers = [psycopg.errors.InsufficientPrivilege("no"), Settled(set(), [lifecycle.Refused(8, OSError())], 0)]
    with caplog.at_level(logging.WARNING):
        for batch_id in (7, 8):
            checks.note([report(batch_id)])
            checks.check(CONNECTION, at_once=True)
    assert [record.__dict__["event"] for record in caplog.records] == ["batch_checks_refused", "batch_refused"]
    assert checks.due_in_seconds == NEVER


def test_completer_that_stops_checks_at_once(settled):
    checks = BatchChecks()
    link: Any = SimpleNamespace(use=lambda: nullcontext(CONNECTION))
    for _ in range(2):
        checks.note([report(7)])
        checks.check(CONNECTION)
    assert settled.batches == [{7}]
    Completer(link, batches=checks).at_end()
    assert settled.batches == [{7}, {7}]


def test_callback_sends_the_signal_of_an_enqueue(engine):
    """The worker sends it in another thread, by the function that it passes."""
    sent: list[Any] = []

    def receiver(**kwargs: Any) -> None: ...

    signals.job_enqueued.connect(receiver)
    try:
        batch_id = batch_of(engine, 1)
        end_job(engine, helpers.claim_one(engine))
        batch_ends.settle(engine, [batch_id], lambda *given: sent.append(given))
    finally:
        signals.job_enqueued.disconnect(receiver)
    assert callbacks(engine) == ["complete", "success"]
    assert [(signal, task, about["queue_name"]) for signal, task, about in sent] == [
        (signals.job_enqueued, helpers.NOOP, "callbacks")
    ] * 2


def test_sweep_walks_over_all_batches_page_by_page(engine, monkeypatch):
    monkeypatch.setattr(batch_ends, "SWEEP_LIMIT", 2)
    for _ in range(5):
        batch_of(engine, 0)
    pages, last_id = [], 0
    while last_id is not None:
        swept = batch_ends.sweep(engine, last_id)
        pages.append(swept.settled.callbacks)
        last_id = swept.last_id
    assert pages == [4, 4, 2]


def test_only_the_rare_sweep_looks_at_complete_batches(engine):
    """Batches that failed are kept for weeks. One of them can be repaired just before its worker is lost."""
    batch_of(engine, 1)
    job = helpers.claim_one(engine)
    lifecycle.fail(engine, helpers.failed(job.key, None))
    batch_ends.sweep(engine)
    assert callbacks(engine) == ["complete", "failure"]
    engine.execute("UPDATE pgqueue_job SET state = 'succeeded' WHERE state = 'dead'")
    assert batch_ends.sweep(engine).settled.callbacks == 0
    assert batch_ends.sweep(engine, with_complete=True).settled.callbacks == 1
    assert callbacks(engine) == ["complete", "failure", "success"]
