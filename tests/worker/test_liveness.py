"""Test how a worker process finds out that it cannot continue.

The causes are services that die or hang, completions that are stuck, and application code that misbehaves.
"""

from __future__ import annotations

import copy
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from django_pgqueue.ground.endings import Ending
from django_pgqueue.worker import liveness as liveness_module
from django_pgqueue.worker.completion import completer as completer_module
from django_pgqueue.worker.completion.completer import Completer
from django_pgqueue.worker.completion.progress_writer import Notes
from django_pgqueue.worker.completion.receiver_thread import CallbackRunner, CallbackThread
from django_pgqueue.worker.execution import retry_policy
from django_pgqueue.worker.execution.chunk_attempt import attempt_of
from django_pgqueue.worker.execution.error_text import message
from django_pgqueue.worker.execution.report import Report
from django_pgqueue.worker.liveness import Liveness
from django_pgqueue.worker.runtime import service as service_module
from django_pgqueue.worker.runtime import shared_memory, time_limit
from django_pgqueue.worker.runtime.connection import Link
from django_pgqueue.worker.runtime.service import Service
from django_pgqueue.worker.runtime.shared_memory import ProcessState
from django_pgqueue.worker.slots.event_loop import LoopSlots
from django_pgqueue.worker.slots.inflight import InFlight
from django_pgqueue.worker.slots.thread_slot import ThreadSlot
from tests import helpers
from tests.app import hostile
from tests.helpers import wait_until

EVIL = [SystemExit, KeyboardInterrupt, GeneratorExit, BaseException]


class Raising(Service):
    """A service that raises in every method that it can override."""

    def __init__(self, kind: type[BaseException]) -> None:
        super().__init__("raising")
        self.kind = kind
        self.rounds = 0
        self.naps = 0

    def tick(self):
        self.rounds += 1
        raise self.kind

    def _sleep(self, timeout_seconds):
        self.naps += 1
        raise self.kind

    def at_end(self):
        raise self.kind

    def _pause_after(self, error):
        super()._report(error, 0.0)
        return 0.0


@pytest.mark.parametrize("kind", EVIL)
def test_service_round_raises_any_exception_continues(kind):
    service = Raising(kind)
    service.start()
    wait_until(lambda: service.rounds > 3 and service.naps > 3)
    service.stop()
    service.join(20.0)
    assert not service.is_alive()


class Hanging(Service):
    """A service whose round lasts until the test sets `release`."""

    def __init__(self) -> None:
        super().__init__("hanging")
        self.entered, self.release = threading.Event(), threading.Event()

    def tick(self):
        self.entered.set()
        self.release.wait(60)
        return 60.0


class NoPool:
    """A pool without threads and jobs."""

    in_flight = InFlight(1)
    loops = SimpleNamespace(check=lambda: 0.0)

    def replace_dead_threads(self):
        pass


@pytest.fixture
def clock(monkeypatch):
    """Return the clock of this file and of the modules that it tests. A reading takes 1 µs."""
    modules = (completer_module, liveness_module, service_module, shared_memory, sys.modules[__name__])
    return helpers.Clock(monkeypatch, *modules, reading_seconds=1e-6)


@pytest.fixture
def process_state(clock):
    process_state = ProcessState(1)
    process_state.lease_until = time.monotonic() + 60.0
    return process_state


@pytest.fixture
def completer(clock):
    completer = Completer(Link("default", "completer"))
    completer._answered()
    return completer


def make_liveness(process_state, completer, *services):
    return Liveness(services, completer, CallbackRunner(), NoPool(), process_state)


@pytest.mark.promise("dead-service-replaces-process")
def test_liveness_service_stuck_in_a_round_reports_problem(process_state, completer):
    service = Hanging()
    service.start()
    try:
        assert service.entered.wait(10)
        liveness = make_liveness(process_state, completer, service)
        assert liveness.problem() is None
        service._busy_since -= 61.0
        assert "pgqueue-hanging has been in one round for 61 s" in liveness.problem()
        service.progressed()
        assert liveness.problem() is None, "a slow round that makes progress is no problem"
    finally:
        service.release.set()
        service.stop()


def test_liveness_sleeping_service_reports_no_problem(process_state, completer):
    service = Hanging()
    service.release.set()
    service.start()
    wait_until(lambda: service.entered.is_set() and service.busy_seconds == 0.0)
    assert make_liveness(process_state, completer, service).problem() is None
    service.stop()
    service.join(20.0)
    assert make_liveness(process_state, completer, service).problem() is None, "a stopped service is no problem"


def report(finished_ago: float) -> Report:
    finished_at = time.monotonic() - finished_ago
    claimed: Any = SimpleNamespace(execution_id=1, arguments="")
    return Report(claimed, Ending.SUCCEEDED, finished_at, finished_at)


def test_completer_before_first_connect_is_behind():
    assert Completer(Link("default", "completer")).is_behind


def test_completer_old_report_without_answer_is_behind(completer):
    assert not completer.is_behind
    completer.pending.append(report(finished_ago=0.5))
    completer._answered_at -= 100.0
    assert not completer.is_behind, "the report has waited for half a second only"
    completer.pending.append(report(finished_ago=0.0))
    completer.pending[0].finished_at -= 1.0
    assert completer.is_behind


def test_completer_backlog_with_answers_is_not_behind(completer):
    """Thousands of reports wait for seconds. The worker continues to claim as long as batches are written."""
    completer.pending.extend(report(finished_ago=5.0) for _ in range(3000))
    completer._answered()  # to make the reports can take a second
    assert not completer.is_behind
    completer._answered_at -= 1.1
    assert completer.is_behind
    completer._answered()
    assert not completer.is_behind


def test_liveness_completions_stuck_for_a_lease_is_a_problem(process_state, completer, monkeypatch):
    liveness = make_liveness(process_state, completer)
    completer.pending.append(report(finished_ago=5.0))
    completer._answered_at -= 100.0
    assert liveness.problem() is None
    liveness._stuck_since -= 59.0
    assert liveness.problem() is None
    liveness._stuck_since -= 2.0
    assert "could not write the results of 1 job" in liveness.problem()
    completer._answered()
    assert liveness.problem() is None
    assert liveness._stuck_since is None


def test_liveness_completions_stuck_in_outage_is_no_problem(process_state, completer):
    """In an outage the leases are not extended either. The reports are written when the database is back."""
    liveness = make_liveness(process_state, completer)
    completer.pending.append(report(finished_ago=5.0))
    completer._answered_at -= 100.0
    liveness.problem()
    process_state.lease_until = time.monotonic() + 20.0
    liveness._stuck_since -= 1000.0
    assert liveness.problem() is None
    assert liveness._stuck_since is None


def test_liveness_check_within_a_second_is_skipped(process_state, completer, monkeypatch):
    liveness = make_liveness(process_state, completer)
    assert not liveness.check()
    liveness._checked_at -= 1.1
    assert liveness.check()
    assert not liveness.check()


# ------------------------------------------------------------------------------- code of the application


@pytest.mark.parametrize("name", hostile.EXCEPTIONS)
def test_attempt_hostile_exception_is_reported(committing, engine, name):
    helpers.make_job(engine, task_name=hostile.raise_hostile.name, max_attempts=1)
    attempt = attempt_of(helpers.claim_one(engine), "default", Notes())
    try:
        hostile.raise_hostile.func(name)
    except BaseException as exception:  # noqa: BLE001 -- the test covers any exception
        report = attempt.ended_by(exception)
    assert report.claimed is attempt.claimed
    assert report.ending in (Ending.FAILED, Ending.SNOOZED)
    assert type(report.error) is type(report.exception_class) is type(report.traceback) is str


def test_error_text_hostile_str_returns_plain_text():
    assert message(hostile.StrIsHostile()) == "hostile"
    assert message(hostile.StrExits()) == "<StrExits whose __str__ raised SystemExit>"


@pytest.fixture
def with_backoff(monkeypatch):
    """Return a function that replaces the backoff of the task."""

    def change(backoff):
        task = copy.copy(hostile.raise_hostile)
        object.__setattr__(task, "backoff", backoff)
        monkeypatch.setattr(retry_policy.registry, "get", lambda name: task)

    return change


@pytest.mark.parametrize("name", hostile.BACKOFFS)
def test_retry_policy_hostile_backoff_uses_the_default(committing, engine, with_backoff, name):
    with_backoff(hostile.BACKOFFS[name])
    helpers.make_job(engine, task_name=hostile.raise_hostile.name)
    claimed = helpers.claim_one(engine)
    for delay_seconds in (
        retry_policy.delay_after_failure(claimed, RuntimeError()),
        retry_policy.delay_after_crash(claimed._replace(crashes=1)),
    ):
        assert type(delay_seconds) is float
        assert 30.0 <= delay_seconds <= 39.0


@pytest.mark.timeout(30)
def test_retry_policy_hanging_backoff_uses_the_default(committing, engine, with_backoff, monkeypatch):
    with_backoff(hostile.hangs)
    monkeypatch.setattr(retry_policy, "BACKOFF_SECONDS", 0.05)
    helpers.make_job(engine, task_name=hostile.raise_hostile.name)
    execution = helpers.claim_one(engine)._replace(crashes=1)
    before = threading.active_count()
    for _ in range(10):
        assert 30.0 <= retry_policy.delay_after_crash(execution) <= 39.0
    assert threading.active_count() <= before + time_limit.HANGING_LIMIT


@pytest.mark.parametrize("kind", [ThreadSlot, LoopSlots, CallbackThread, *Service.__subclasses__()])
def test_thread_class_shares_no_private_name_with_thread(kind):
    """A subclass must not override a private method of `Thread`.

    `ThreadSlot._stop()` did, and `is_alive()` of a dead slot raised `TypeError` up to Python 3.12.
    """
    assert not {name for name in vars(kind) if name.startswith("_") and not name.startswith("__")} & set(
        vars(threading.Thread)
    )
