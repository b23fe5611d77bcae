"""Test calls of the application with a time limit: a function that hangs blocks only the calls of its own owner."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from django_pgqueue.schedules.job_options import NotReturned
from django_pgqueue.tasks import registry
from django_pgqueue.worker.completion import receivers
from django_pgqueue.worker.completion.receivers import PendingCalls
from django_pgqueue.worker.execution import retry_policy
from django_pgqueue.worker.runtime.time_limit import HANGING_LIMIT, call_in_time, hanging_calls
from tests import helpers
from tests.app import hostile

SECONDS = 0.02


@pytest.fixture
def gate():
    """An event for which hanging functions wait. It is set at the end of the test."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def hang(gate):
    """Return a function that lets an owner hang until its calls are refused, and returns the last message."""

    def hang_until_refused(owner: str) -> str:
        for _ in range(HANGING_LIMIT):
            with pytest.raises(TimeoutError, match=f"^{owner} did not return within 0.02 s$"):
                call_in_time(lambda: gate.wait(60), SECONDS, owner)
        with pytest.raises(TimeoutError) as refused:
            call_in_time(lambda: gate.wait(60), SECONDS, owner)
        return str(refused.value)

    return hang_until_refused


def test_call_in_time_passes_on_result_and_exception():
    assert call_in_time(lambda: 7, 10.0, "seven") == 7
    with pytest.raises(ZeroDivisionError):
        call_in_time(lambda: 1 // 0, 10.0, "zero")


@pytest.mark.promise("hanging-code-blocks-only-its-owner")
def test_call_in_time_hanging_owner_does_not_block_others(hang):
    assert hang("first") == "first was not called, because 3 earlier calls have not returned"
    assert call_in_time(lambda: 7, 10.0, "second") == 7
    assert len(hanging_calls("first")) == HANGING_LIMIT
    assert not hanging_calls("second")


@pytest.mark.promise("hanging-code-blocks-only-its-owner")
def test_call_in_time_owner_that_returns_is_called_again(hang, gate):
    hang("first")
    gate.set()
    helpers.wait_until(lambda: not hanging_calls("first"))
    assert call_in_time(lambda: 7, 10.0, "first") == 7


@pytest.mark.promise("hanging-code-blocks-only-its-owner")
def test_hanging_backoff_of_one_task_does_not_stop_others(committing, engine, monkeypatch, gate):
    def delay(made) -> float | None:
        monkeypatch.setattr(registry, "get", lambda name: made)
        return retry_policy.delay_after_failure(claimed, RuntimeError(), in_time=True)

    monkeypatch.setattr(retry_policy, "BACKOFF_SECONDS", SECONDS)
    hanging = replace(hostile.crash_with_hanging_backoff, backoff=lambda attempt, exception: gate.wait(60) or 1.0)
    sound = replace(hostile.work, backoff=lambda attempt, exception: 7.0)
    helpers.make_job(engine, task_name=hanging.name)
    claimed = helpers.claim_one(engine)
    for _ in range(HANGING_LIMIT + 1):
        assert 30.0 <= delay(hanging) <= 39.0
    monkeypatch.setattr(retry_policy, "BACKOFF_SECONDS", 10.0)
    assert delay(sound) == 7.0


# ------------------------------------------------------------------ calls that their caller does not wait for


@pytest.fixture
def pending(monkeypatch):
    """Calls that hang until their time is over, which `expire()` brings about."""
    return PendingCalls(1000.0)


def expire(calls: PendingCalls) -> None:
    """Let the time of all calls be over."""
    for _, call in calls._calls.values():
        call.began_at -= calls._seconds


def test_pending_call_answers_at_once_if_it_returns(pending, monkeypatch):
    monkeypatch.setattr(receivers, "PATIENCE_SECONDS", 10.0)
    assert pending.ask(lambda: 7, "a", 1, str) == 7
    with pytest.raises(ZeroDivisionError):
        pending.ask(lambda: 1 // 0, "a", 1, str)


def test_pending_call_is_started_once_and_returns_its_result(pending, gate):
    started = []

    def wait() -> int:
        started.append(1)
        gate.wait(60)
        return len(started)

    for _ in range(3):
        with pytest.raises(NotReturned):
            pending.ask(wait, "a", 1, str)
    gate.set()
    assert helpers.wait_until(lambda: answer_of(pending, wait)) == 1
    assert started == [1]


def answer_of(calls: PendingCalls, function) -> object:
    """Return the result, or None if the function has not returned."""
    try:
        return calls.ask(function, "a", 1, str)
    except NotReturned:
        return None


@pytest.mark.promise("hanging-code-blocks-only-its-owner")
def test_pending_calls_hanging_owner_is_refused_and_others_are_not(pending, gate):
    """The message names what hung, not what would have been called first."""
    for _ in range(HANGING_LIMIT):
        with pytest.raises(NotReturned):
            pending.ask(lambda: gate.wait(60), "a", 1, lambda: "the unique key")
        expire(pending)
        with pytest.raises(TimeoutError, match=r"^the unique key did not return within 1000 s$"):
            pending.ask(lambda: gate.wait(60), "a", 1, lambda: "the middleware")
    with pytest.raises(TimeoutError, match=r"^the unique key was not called"):
        pending.ask(lambda: 7, "a", 1, lambda: "the middleware")
    assert helpers.wait_until(lambda: answer_of_other(pending)) == 7
    gate.set()
    helpers.wait_until(lambda: not hanging_calls("a"))
    assert helpers.wait_until(lambda: answer_of(pending, lambda: 8)) == 8


def answer_of_other(calls: PendingCalls) -> object:
    """Return the result of another owner, or None if its function has not returned."""
    try:
        return calls.ask(lambda: 7, "b", 1, str)
    except NotReturned:
        return None


def test_pending_call_of_other_occasion_is_not_used(pending, gate):
    with pytest.raises(NotReturned):
        pending.ask(lambda: gate.wait(60), "a", "first tick", str)
    gate.set()
    assert helpers.wait_until(lambda: next_answer(pending)) == "second"


def next_answer(calls: PendingCalls) -> object:
    """Return the result for the second tick, or None if the function has not returned."""
    try:
        return calls.ask(lambda: "second", "a", "second tick", str)
    except NotReturned:
        return None


def test_pending_calls_wait_for_one_function_only(pending, gate, monkeypatch):
    """The caller's delay must not grow with the number of functions that hang."""
    waits = []
    join = threading.Thread.join
    monkeypatch.setattr(threading.Thread, "join", lambda thread, timeout=None: waits.append(timeout) or join(thread, 0))
    for number in range(5):
        with pytest.raises(NotReturned):
            pending.ask(lambda: gate.wait(60), f"owner {number}", 1, str)
    assert waits == [receivers.PATIENCE_SECONDS]


def test_pending_call_that_nobody_asks_for_is_forgotten(pending, gate):
    with pytest.raises(NotReturned):
        pending.ask(lambda: gate.wait(60), "removed", 1, str)
    pending._calls["removed"][1].began_at -= 1000.0 + receivers.FORGOTTEN_SECONDS + 1
    helpers.wait_until(lambda: answer_of(pending, lambda: 7))
    assert "removed" not in pending._calls
    gate.set()
    helpers.wait_until(lambda: not hanging_calls("removed"))
