"""What a process logs about a database outage, and how often."""

from __future__ import annotations

import threading
import time

import psycopg
import pytest

from django_pgqueue.worker.runtime import outages as module
from django_pgqueue.worker.runtime.health_memory import HealthMemory
from django_pgqueue.worker.runtime.outages import OutageLog

AWAY = psycopg.OperationalError("connection failed:\n\tno such host")


@pytest.fixture
def clock(monkeypatch):
    """The time, which the test moves on."""

    class Clock:
        now: float = 1000.0

        def monotonic(self) -> float:
            return float(self.now)

    own = Clock()
    monkeypatch.setattr(module, "time", own)
    return own


@pytest.fixture
def health() -> HealthMemory:
    return HealthMemory()


@pytest.fixture
def outage_log(clock, health) -> OutageLog:
    return OutageLog(health)


def said(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_the_first_error_is_told_at_once_in_a_line_and_repeats_are_rare(outage_log, clock, caplog):
    for _ in range(3000):  # five minutes
        outage_log.report("fetcher", AWAY)
        clock.now += 0.1
    assert said(caplog)[0].endswith("fetcher: connection failed: no such host")
    assert len(said(caplog)) == 7  # at 0, 2, 10, 60, 120, 180 and 240 s
    assert "after 10 s" in said(caplog)[2]


def test_its_end_is_told_once_with_how_long_it_lasted(outage_log, health, clock, caplog):
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
    assert [line for line in said(caplog) if "is over" in line] == [
        "database outage is over: it lasted 4.0 s",
    ]
    assert not health.outage_since


def test_it_is_not_over_before_something_has_succeeded(outage_log, health, clock, caplog):
    outage_log.succeeded()
    outage_log.report("fetcher", AWAY)
    clock.now += 3600
    outage_log.log_end_if_over()
    assert health.outage_since
    assert len(said(caplog)) == 1


def test_after_its_end_the_next_trouble_is_told_at_once(outage_log, clock, caplog):
    for _ in range(2):
        outage_log.report("fetcher", AWAY)
        clock.now += 1
        outage_log.succeeded()
        clock.now += 8
        outage_log.log_end_if_over()
        clock.now += 1
    assert len(said(caplog)) == 4


def test_the_outage_of_a_helper_process_ends_without_a_line(outage_log, health, clock, caplog):
    """A helper process shares its supervisor's health memory, but the supervisor has logged nothing about it."""
    test_its_end_is_told_once_with_how_long_it_lasted(outage_log, health, clock, caplog)
    clock.now += 3600
    health.outage_since = clock.now
    outage_log.log_end_if_over()
    assert health.outage_since
    outage_log.succeeded()
    outage_log.log_end_if_over()
    assert not health.outage_since
    assert sum("is over" in line for line in said(caplog)) == 1


def test_one_of_many_threads_may_log_in_a_second():
    """A real race: all threads ask at once, each many times."""
    outage_log = OutageLog(HealthMemory())
    begin = threading.Barrier(4)
    allowed: list[int] = []

    def ask() -> None:
        begin.wait()
        allowed.append(sum(outage_log.may_log() for _ in range(2000)))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    began_at = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 1 <= sum(allowed) <= 1 + time.monotonic() - began_at


def test_a_worker_process_begins_without_its_supervisors_outage(clock, caplog):
    """The first error in a new process is logged at once, whatever its supervisor has logged before the fork."""
    health, of_child = HealthMemory(), HealthMemory()
    outage_log = OutageLog(health)
    outage_log.report("supervisor", AWAY)
    clock.now += 2
    health.become(of_child)
    assert not health.outage_since
    outage_log.report("fetcher", AWAY)
    assert "the worker retries until it works" in said(caplog)[1]
    assert of_child.outage_since == clock.now
