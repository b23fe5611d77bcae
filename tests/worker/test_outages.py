"""Test what a process logs about a database outage, and how often."""

from __future__ import annotations

import threading
import time
from collections import Counter

import psycopg
import pytest
from psycopg import errors

from django_pgqueue.exceptions import StatementTimeout
from django_pgqueue.worker.maintenance import maintenance as maintenance_module
from django_pgqueue.worker.maintenance.maintenance import Duty, Maintenance
from django_pgqueue.worker.runtime import outages as module
from django_pgqueue.worker.runtime import service as service_module
from django_pgqueue.worker.runtime.connection import Link
from django_pgqueue.worker.runtime.outages import OutageLog
from django_pgqueue.worker.runtime.service import Service
from django_pgqueue.worker.runtime.shared_memory import HealthMemory
from tests import helpers

AWAY = psycopg.OperationalError("connection failed:\n\tno such host")


@pytest.fixture
def clock(monkeypatch):
    """Replace the time with a clock that the test advances."""

    class Clock:
        now: float = 1000.0

        def monotonic(self) -> float:
            return float(self.now)

    fake = Clock()
    monkeypatch.setattr(module, "time", fake)
    return fake


@pytest.fixture
def health() -> HealthMemory:
    return HealthMemory()


@pytest.fixture
def outage_log(clock, health) -> OutageLog:
    return OutageLog(health)


def messages(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_outage_log_repeated_errors_are_logged_rarely(outage_log, clock, caplog):
    for _ in range(3000):  # five minutes
        outage_log.report("fetcher", AWAY)
        clock.now += 0.1
    assert messages(caplog)[0].endswith("fetcher: connection failed: no such host")
    assert len(messages(caplog)) == 7  # at 0, 2, 10, 60, 120, 180 and 240 s
    assert "after 10 s" in messages(caplog)[2]


def test_outage_log_end_is_logged_once_with_duration(outage_log, health, clock, caplog):
    outage_log.report("fetcher", AWAY)
    clock.now += 3
    outage_log.report("completer", AWAY)
    clock.now += 1
    outage_log.succeeded()
    clock.now += 6
    outage_log.succeeded()
    outage_log.log_end_if_over()
    assert health.outage_since
    clock.now += 1
    outage_log.log_end_if_over()
    outage_log.log_end_if_over()
    assert [line for line in messages(caplog) if "is over" in line] == [
        "database outage is over: it lasted 4.0 s",
    ]
    assert not health.outage_since


def test_outage_log_is_not_over_while_a_service_fails(outage_log, health, clock, caplog):
    """Its next try comes late, or waits for a server that does not answer, while other services succeed."""
    outage_log.report("maintenance", AWAY)
    outage_log.failing("maintenance")
    clock.now += 1
    outage_log.succeeded()
    clock.now += 30
    outage_log.log_end_if_over()
    assert not health.outage_since, "the worker is ready, because most statements succeed"
    outage_log.report("maintenance", AWAY)
    assert "still failing after 31 s" in messages(caplog)[-1]
    clock.now += 1
    outage_log.succeeded()
    outage_log.recovered("maintenance")
    clock.now += 8
    outage_log.log_end_if_over()
    assert [line for line in messages(caplog) if "is over" in line] == ["database outage is over: it lasted 32.0 s"]


def test_outage_log_forked_process_forgets_the_failing_services(outage_log, clock, caplog, monkeypatch):
    outage_log.report("supervisor", AWAY)
    outage_log.failing("supervisor")
    monkeypatch.setattr(module.os, "getpid", lambda: -1)
    outage_log._health = HealthMemory()
    test_outage_log_end_is_logged_once_with_duration(outage_log, outage_log._health, clock, caplog)


class Failing(Service):
    def tick(self):
        if self.error is not None:
            raise self.error
        return 0.0


def test_service_reports_failure_and_recovery(outage_log, clock, monkeypatch):
    monkeypatch.setattr(service_module, "outage_log", outage_log)
    service = Failing("failing")
    service.stop()  # it does not pause
    service.error = AWAY
    service._survive()
    assert outage_log._failing == {"pgqueue-failing"}
    service.error = None
    service._survive()
    assert outage_log._failing == set()


def test_maintenance_with_failing_duty_has_not_recovered(committing):
    link = Link("default", "maintenance")
    maintenance = Maintenance(link)
    failing = Duty("prune", 60.0, lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        maintenance._run_duty(failing)
    assert not maintenance.has_recovered()
    maintenance._run_duty(Duty("expire", 60.0, lambda: False))
    assert not maintenance.has_recovered()
    failing.function = lambda: False
    maintenance._run_duty(failing)
    assert maintenance.has_recovered()
    link.close()


@pytest.fixture
def duties(committing, monkeypatch):
    """Return a maintenance whose only duties fail, as `failing` says, and work; `ran` counts the calls of each."""
    link = Link("default", "maintenance")
    maintenance = Maintenance(link)
    maintenance.clock = helpers.Clock(monkeypatch, maintenance_module)
    monkeypatch.setattr(maintenance_module.outage_log, "_next_log_at", 0.0)
    maintenance.ran, maintenance.error = Counter(), None

    def fail():
        maintenance.ran["failing"] += 1
        if maintenance.error is not None:
            with link.use() as connection:
                connection.execute("SELECT 1")
                raise maintenance.error

    def work():
        maintenance.ran["working"] += 1

    maintenance.duties = [Duty("failing", 5.0, fail), Duty("working", 60.0, work)]
    yield maintenance
    link.close()


@pytest.mark.promise("duty-fails-alone")
@pytest.mark.parametrize(
    "error",
    [
        ZeroDivisionError("no"),
        SystemExit(1),
        FileNotFoundError("no such file"),
        errors.UndefinedTable("no table"),
        errors.LockNotAvailable("locked"),
        errors.DeadlockDetected("deadlock"),
        errors.QueryCanceled("took too long"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_maintenance_failing_duty_others_run(duties, caplog, error):
    """The failing one is tried again after a growing time, and after its interval when it works."""
    duties.error, waits = error, []
    for _ in range(7):
        assert duties.tick() <= 60
        waits.append(duties.duties[0].due_at - duties.clock.now)
        duties.clock.pass_by(waits[-1])
    assert duties.ran["failing"] == 7 and duties.ran["working"] >= 3
    assert waits == pytest.approx([5, 10, 20, 40, 60, 60, 60])
    record = next(record for record in caplog.records if record.event == "duty_failed")
    assert (record.duty, record.levelname) == ("failing", "ERROR")
    assert duties.has_recovered(), "the connection works"
    duties.error = None
    caplog.set_level("INFO", "django_pgqueue.worker")
    assert duties.tick() <= 5 and duties.duties[0].failures == 0
    assert [record.duty for record in caplog.records if record.event == "duty_recovered"] == ["failing"]


@pytest.mark.parametrize(
    "error",
    [
        errors.AdminShutdown("ends"),
        psycopg.OperationalError("lost"),
        errors.ReadOnlySqlTransaction("read-only"),
        StatementTimeout("no answer"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_maintenance_outage_ends_the_round(duties, error):
    """The service reports it and waits. The other duties would fail too."""
    duties.error = error
    with pytest.raises(type(error)):
        duties.tick()
    assert duties.ran == {"failing": 1}
    assert not duties.has_recovered()
    duties.tick()
    assert duties.ran == {"failing": 1, "working": 1}
    assert not duties.has_recovered()


@pytest.mark.promise("defect-hourly-duty-of-an-outage")
def test_maintenance_duty_of_an_outage_is_tried_again_within_seconds(duties):
    """Otherwise an hourly duty keeps the outage in the log open for an hour, and is an hour late."""
    duties.duties[0].interval_seconds, duties.error = 3600.0, psycopg.OperationalError("lost")
    with pytest.raises(psycopg.OperationalError):
        duties.tick()
    assert 0 < duties.duties[0].due_at - duties.clock.now <= maintenance_module.OUTAGE_RETRY_SECONDS
    duties.error = None
    duties.clock.pass_by(maintenance_module.OUTAGE_RETRY_SECONDS)
    duties.tick()
    assert duties.has_recovered() and duties.duties[0].due_at - duties.clock.now > 3000


def test_outage_log_no_success_outage_continues(outage_log, health, clock, caplog):
    outage_log.succeeded()
    outage_log.report("fetcher", AWAY)
    clock.now += 3600
    outage_log.log_end_if_over()
    assert health.outage_since
    assert len(messages(caplog)) == 1


def test_outage_log_next_outage_is_logged_at_once(outage_log, clock, caplog):
    for _ in range(2):
        outage_log.report("fetcher", AWAY)
        clock.now += 1
        outage_log.succeeded()
        clock.now += 8
        outage_log.log_end_if_over()
        clock.now += 1
    assert len(messages(caplog)) == 4


def test_outage_log_outage_of_helper_ends_without_a_record(outage_log, health, clock, caplog):
    """A helper process shares its supervisor's health memory, but the supervisor has not logged the helper's outage."""
    test_outage_log_end_is_logged_once_with_duration(outage_log, health, clock, caplog)
    clock.now += 3600
    health.outage_since = clock.now
    outage_log.log_end_if_over()
    assert health.outage_since
    outage_log.succeeded()
    outage_log.log_end_if_over()
    assert not health.outage_since
    assert sum("is over" in line for line in messages(caplog)) == 1


def test_may_log_many_threads_allows_one_record_a_second():
    """In a real race, all threads call `may_log()` at once, each of them many times."""
    outage_log = OutageLog(HealthMemory())
    begin = threading.Barrier(4)
    allowed: list[int] = []

    def call_may_log() -> None:
        begin.wait()
        allowed.append(sum(outage_log.may_log() for _ in range(2000)))

    threads = [threading.Thread(target=call_may_log) for _ in range(4)]
    began_at = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 1 <= sum(allowed) <= 1 + time.monotonic() - began_at


def test_health_memory_new_process_has_no_outage(clock, caplog):
    """A new process logs its first error at once, whatever its supervisor has logged before the fork."""
    health, child_health = HealthMemory(), HealthMemory()
    outage_log = OutageLog(health)
    outage_log.report("supervisor", AWAY)
    clock.now += 2
    health.become(child_health)
    assert not health.outage_since
    outage_log.report("fetcher", AWAY)
    assert "the worker retries until it works" in messages(caplog)[1]
    assert child_health.outage_since == clock.now
