"""Test when a worker tries again after a lost connection: at once, and in an outage more and more rarely."""

from __future__ import annotations

import random
import time
from collections import Counter
from itertools import count
from types import SimpleNamespace

import psycopg
import pytest

from django_pgqueue.contrib.remote.client import RemoteError
from django_pgqueue.contrib.remote.remote_services import RemoteService
from django_pgqueue.db import reconnects
from django_pgqueue.db.reconnects import NotConnected, ReconnectGate, is_lost_connection, pause_seconds
from django_pgqueue.exceptions import StatementTimeout
from django_pgqueue.worker.runtime import connection as connection_module
from django_pgqueue.worker.runtime import service
from django_pgqueue.worker.runtime.connection import Link
from django_pgqueue.worker.runtime.service import RetryPauses, Service
from django_pgqueue.worker.supervision.heartbeat import HeartbeatSender
from django_pgqueue.worker.supervision.settlement import Settlement
from tests import helpers

LOST = psycopg.OperationalError("server closed the connection unexpectedly")
WORKERS, CONNECTIONS = 200, 3
"""Each worker of the storm has two connections of its process, and one of its supervisor."""


@pytest.fixture
def now(monkeypatch):
    clock = [1000.0]
    for module in (reconnects, service):
        monkeypatch.setattr(module, "time", type("Time", (), {"monotonic": staticmethod(lambda: clock[0])}))
    return clock


# ------------------------------------------------------------------ which errors


@pytest.mark.parametrize(
    "error",
    [
        LOST,
        psycopg.InterfaceError("the connection is closed"),
        psycopg.errors.AdminShutdown("terminating connection due to administrator command"),
        psycopg.errors.CrashShutdown("x"),
        psycopg.errors.CannotConnectNow("the database system is starting up"),
        psycopg.errors.IdleSessionTimeout("x"),
        psycopg.errors.IdleInTransactionSessionTimeout("x"),
        psycopg.errors.ConnectionFailure("x"),
        ConnectionResetError("reset by peer"),
        NotConnected("refused", 0.0),
    ],
    ids=lambda error: type(error).__name__,
)
def test_lost_connection_first_retry_comes_at_once(error):
    assert is_lost_connection(error)
    assert RetryPauses().after(error) == 0.0


@pytest.mark.parametrize(
    "error",
    [
        psycopg.errors.DiskFull("x"),
        psycopg.errors.InsufficientPrivilege("x"),
        psycopg.errors.LockNotAvailable("x"),
        psycopg.errors.QueryCanceled("x"),
        psycopg.errors.ReadOnlySqlTransaction("x"),
        StatementTimeout("no answer"),
        FileNotFoundError("x"),
        ValueError("x"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_other_errors_keep_the_backoff_of_seconds(error):
    pauses = RetryPauses()
    for seconds in (1, 2, 4, 5, 5):
        assert seconds <= pauses.after(error) <= 1.3 * seconds


def test_pauses_of_losses_grow_to_the_limit():
    found = [pause_seconds(losses) for losses in range(60)]
    assert found[0] == 0.0
    for losses, pause in enumerate(found[1:]):
        assert 0.69 <= pause / min(5.0, 0.025 * 2**losses) <= 1.31


def test_pauses_after_a_success_begin_anew():
    pauses = RetryPauses()
    assert [pauses.after(LOST) > 0 for _ in range(3)] == [False, True, True]
    pauses.succeeded()
    assert pauses.after(LOST) == 0.0


# ------------------------------------------------------------------ the gate


def test_gate_thread_that_comes_too_early_gets_the_last_error(now):
    gate = ReconnectGate()
    gate.check()
    assert isinstance(gate.failed(LOST), NotConnected)
    gate.check()  # the first retry comes at once
    refused = gate.failed(LOST)
    with pytest.raises(NotConnected, match="closed the connection") as early:
        gate.check()
    assert early.value.retry_at == refused.retry_at > now[0]
    now[0] = refused.retry_at
    gate.check()
    gate.opened()
    assert gate.failed(LOST).retry_at == now[0]


def test_gate_other_errors_pass_and_close_nothing(now):
    gate, error = ReconnectGate(), ValueError("no such alias")
    assert [gate.failed(error) for _ in range(3)] == [error] * 3
    gate.check()


def tries_of(gate, now, from_time: float, seconds: float) -> list[float]:
    """Return when a connection is tried to a server that is down. The services of a worker wait for the gate."""
    now[0], tries = from_time, []
    while now[0] < from_time + seconds:
        gate.check()
        tries.append(now[0])
        now[0] = gate.failed(LOST).retry_at
    return tries


@pytest.mark.promise("reconnects-are-bounded")
def test_one_worker_while_the_server_is_down_for_10_s_tries_rarely(now):
    for _ in range(200):
        assert 9 <= len(tries_of(ReconnectGate(), now, 1000.0, 10.0)) <= 14


@pytest.mark.promise("reconnects-are-bounded")
def test_storm_of_200_workers_stays_bounded(now):
    """All lose their connections at the same moment. The tries per second fall to those of the limit."""
    per_second: Counter[int] = Counter()
    random.seed(7)
    for _ in range(WORKERS * CONNECTIONS):
        per_second.update(int(at - 1000.0) for at in tries_of(ReconnectGate(), now, 1000.0, 60.0))
    assert per_second[0] <= 8 * WORKERS * CONNECTIONS
    assert max(per_second[second] for second in range(2, 60)) <= WORKERS * CONNECTIONS
    assert max(per_second[second] for second in range(20, 60)) <= WORKERS * CONNECTIONS / 2


def test_delay_after_an_outage_is_no_longer_than_the_outage(now):
    for seconds in (0.5, 2.0, 10.0, 100.0):
        for _ in range(50):
            tries = tries_of(ReconnectGate(), now, 1000.0, seconds)
            assert now[0] - 1000.0 - seconds <= min(1.3 * seconds, 6.5) + 0.04, tries


# ------------------------------------------------------------------ the loops


class Working(Service):
    """A service whose first rounds lose their connection."""

    def __init__(self, losses: int) -> None:
        super().__init__("working")
        self.left = losses
        self.done_at = 0.0

    def tick(self) -> float:
        if self.left:
            self.left -= 1
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        self.done_at = self.done_at or time.monotonic()
        return 60.0


@pytest.mark.promise("lost-connection-costs-no-pause")
def test_service_after_one_loss_works_without_a_pause(monkeypatch):
    service = Working(losses=1)
    paused = []
    monkeypatch.setattr(service._stopping, "wait", paused.append)
    assert service._survive() == 0.0
    assert service._survive() == 60.0
    assert paused == [0.0]


def test_services_of_a_link_share_the_tries(committing, monkeypatch):
    """Six services use one connection of a server that is down. Without the gate, each of them would try."""
    tries = count()
    down_until = time.monotonic() + 1.0
    connect = connection_module.connect

    def refuse(*arguments):
        next(tries)
        if time.monotonic() < down_until:
            raise psycopg.OperationalError("connection refused")
        return connect(*arguments)

    monkeypatch.setattr(connection_module, "connect", refuse)
    link, loops = Link("default", "test"), [RetryPauses() for _ in range(6)]
    due = dict.fromkeys(range(6), 0.0)
    while due:
        for number, at in list(due.items()):
            if time.monotonic() < at:
                continue
            try:
                with link.use() as connection:
                    assert helpers.scalar(connection, "SELECT 1") == 1
                del due[number]
            except psycopg.OperationalError as error:
                due[number] = time.monotonic() + loops[number].after(error)
        time.sleep(0.001)
    link.close()
    assert 5 <= next(tries) <= 10
    assert time.monotonic() - down_until < 2.0


# ------------------------------------------------------------------ the supervisor and the remote worker


@pytest.fixture
def heartbeats():
    link = Link("default", "supervisor")
    yield HeartbeatSender(link, None)
    link.close()


def test_supervisor_tries_again_at_once_and_then_within_a_second(heartbeats):
    assert heartbeats.retry_in_seconds() == float("inf")
    heartbeats.postpone(LOST)
    assert heartbeats.retry_in_seconds() == 0.0
    for _ in range(20):
        heartbeats.postpone(LOST)
        assert 0.0 < heartbeats.retry_in_seconds() <= 1.0
    assert heartbeats.retry_in_seconds() == float("inf"), "without another error it does not try sooner"


def test_supervisor_after_other_errors_waits_a_second(heartbeats):
    heartbeats.postpone(StatementTimeout("no answer"))
    assert 0.9 < heartbeats.retry_in_seconds() <= 1.0


def test_settlement_after_a_lost_connection_may_be_tried_at_once(committing, monkeypatch):
    link = Link("default", "supervisor")
    settlement = Settlement(link, lambda main, name: 1)
    settlement.ended.append(SimpleNamespace(worker_id=1))
    for error, is_at_once in ((LOST, True), (psycopg.errors.DiskFull("x"), False)):

        def fail(process, error=error):
            raise error

        monkeypatch.setattr(settlement, "_settle_here", fail)
        with pytest.raises(psycopg.Error):
            settlement.tick()
        assert (settlement._retry_at <= time.monotonic()) is is_at_once
        settlement._retry_at = 0.0


@pytest.mark.parametrize(("status", "shortest", "longest"), [(0, 0.0, 0.0), (503, 0.5, 0.65)])
def test_remote_service_without_an_answer_tries_again_at_once(monkeypatch, status, shortest, longest):
    service = RemoteService("remote")
    paused = []
    monkeypatch.setattr(service._stopping, "wait", paused.append)
    service._after(RemoteError("x", status))
    service._after(RemoteError("x", status))
    assert shortest <= paused[0] <= longest < paused[1]
