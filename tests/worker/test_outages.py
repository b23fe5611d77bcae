"""One voice for all services of all processes: what is said of the database's trouble, and how often."""

from __future__ import annotations

import os
import time

import psycopg
import pytest

from django_pgqueue.worker.runtime import outages as module
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
def outage_log(clock) -> OutageLog:
    return OutageLog()


def said(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_the_first_error_is_told_at_once_in_a_line_and_repeats_are_rare(outage_log, clock, caplog):
    for _ in range(3000):  # five minutes
        outage_log.report("fetcher", AWAY)
        clock.now += 0.1
    assert said(caplog)[0].endswith("fetcher: connection failed: no such host")
    assert len(said(caplog)) == 7  # at 0, 2, 10, 60, 120, 180 and 240 s
    assert "after 10 s" in said(caplog)[2]


def test_its_end_is_told_once_with_how_long_it_lasted(outage_log, clock, caplog):
    outage_log.report("fetcher", AWAY)
    clock.now += 3
    outage_log.report("completer", AWAY)
    clock.now += 1
    outage_log.succeeded()
    clock.now += 6
    outage_log.succeeded()
    outage_log.settle()
    assert outage_log.since
    clock.now += 1
    outage_log.settle()
    outage_log.settle()
    assert [line for line in said(caplog) if "is over" in line] == [
        "database outage is over: it lasted 4.0 s",
    ]
    assert not outage_log.since


def test_it_is_not_over_before_something_has_succeeded(outage_log, clock, caplog):
    outage_log.succeeded()
    outage_log.report("fetcher", AWAY)
    clock.now += 3600
    outage_log.settle()
    assert outage_log.since
    assert len(said(caplog)) == 1


def test_after_its_end_the_next_trouble_is_told_at_once(outage_log, clock, caplog):
    for _ in range(2):
        outage_log.report("fetcher", AWAY)
        clock.now += 1
        outage_log.succeeded()
        clock.now += 8
        outage_log.settle()
        clock.now += 1
    assert len(said(caplog)) == 4


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # of 3.12, for the runner has threads
def test_of_several_processes_one_may_speak_in_a_second():
    """A real race: all of them ask at once, each many times."""
    shared = OutageLog()
    reader, writer = os.pipe()
    begin_at = time.monotonic() + 0.2
    children = []
    for _ in range(4):
        pid = os.fork()
        if not pid:
            while time.monotonic() < begin_at:
                pass
            os.write(writer, b"x" * sum(shared.may_speak() for _ in range(2000)))
            os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)
    os.close(writer)
    with os.fdopen(reader, "rb") as spoken:
        assert 1 <= len(spoken.read()) <= 1 + time.monotonic() - begin_at
