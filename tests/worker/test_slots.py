"""What the slots do in moments that no test can bring about from outside."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from django_pgqueue.exceptions import LeaseLost, TaskTimeout
from django_pgqueue.lifecycle import Claimed
from django_pgqueue.worker.completion.progress_writer import Notes
from django_pgqueue.worker.execution.attempt import Attempt
from django_pgqueue.worker.isolation import fork_server, wire
from django_pgqueue.worker.isolation.isolated_attempt import IsolatedAttempt
from django_pgqueue.worker.isolation.isolated_process import KEPT, IsolatedProcess
from django_pgqueue.worker.options import Options
from django_pgqueue.worker.runtime.shared_memory import ProcessState
from django_pgqueue.worker.slots import pool, query_cancel
from django_pgqueue.worker.slots.inflight import InFlight
from django_pgqueue.worker.slots.thread_slot import ThreadSlot


class Throwing:
    """A lock that something is thrown at, each time that it is waited for, until nothing is left to be thrown."""

    def __init__(self, *exceptions: BaseException) -> None:
        self.exceptions = list(exceptions)

    def __enter__(self) -> None:
        if self.exceptions:
            raise self.exceptions.pop()

    def __exit__(self, *args: object) -> None: ...


@pytest.mark.parametrize("finished", [True, False])
def test_two_exceptions_thrown_at_once_end_the_job_and_not_the_thread(finished):
    """`TaskTimeout`, and `LeaseLost` while it is being caught."""

    def run() -> str:
        if finished:
            return "its report"
        raise TaskTimeout

    attempt: Any = SimpleNamespace(claimed=None, run=run, ended_by=lambda thrown: type(thrown).__name__)
    slot = ThreadSlot(SimpleNamespace(started=lambda *args, **kwargs: None), 0)
    slot._guard = Throwing(LeaseLost(), *([TaskTimeout()] if finished else []))
    assert slot._guarded(attempt) == ("its report" if finished else "LeaseLost")
    assert slot.attempt is None


@pytest.mark.parametrize("is_new", [True, False])
def test_who_is_asked_before_its_process_has_the_job_hears_of_it(is_new):
    """While the process is forked, or between two jobs of one."""
    ours, theirs = socket.socketpair()
    pipes = [os.pipe(), os.pipe()]
    isolated_process = IsolatedProcess(0, ours, pipes[0][0], pipes[1][0])
    claimed = Claimed(
        1,
        1,
        "no task",
        "default",
        0,
        datetime.now(UTC),
        "{}",
        1,
        10,
        0,
        isolated=True,
        unknown_seconds=None,
        claimed_ms=0.0,
    )
    answer = dict.fromkeys(KEPT) | {"ending": "succeeded", "started_at": 0.0, "finished_at": 0.0, "is_worn": False}
    answer |= {"resident_mib": 1.0, "execution_id": 1, "progress": None, "may_be_committed": False}
    heard = []

    def be_the_process() -> None:
        with contextlib.suppress(TimeoutError):
            heard.extend(wire.receive(theirs) for _ in range(2))
        theirs.sendall(wire.packed(answer))

    def start_process() -> Any:
        attempt.ask_to_cancel()
        return isolated_process

    slot: Any = SimpleNamespace(isolated_process=None)
    attempt: Any = IsolatedAttempt(claimed, slot, Notes(), start_process, max_rss_mb=None)
    if not is_new:
        slot.isolated_process = isolated_process
        attempt.ask_to_cancel()
    theirs.settimeout(2)
    threading.Thread(target=be_the_process, daemon=True).start()
    attempt.run()
    isolated_process.close()
    theirs.close()
    for _, end in pipes:
        os.close(end)
    assert [letter.keys() & {"job_id", "cancel"} for letter in heard] == [{"job_id"}, {"cancel"}]


def test_cancelling_waits_for_no_server(monkeypatch):
    """Else one server out of reach holds up the deadlines of all jobs, and the supervisor kills the process."""
    may_end = threading.Event()
    raw = psycopg.Connection.__new__(psycopg.Connection)
    monkeypatch.setattr(psycopg.Connection, "__del__", lambda self: None)
    monkeypatch.setattr(raw, "cancel_safe", lambda timeout: may_end.wait(10), raising=False)
    monkeypatch.setattr(query_cancel, "_is_busy", lambda raw: True)
    monkeypatch.setitem(query_cancel._connections, 7, [SimpleNamespace(connection=raw)])
    started_at = time.monotonic()
    query_cancel.cancel_queries(7)
    assert time.monotonic() - started_at < 5
    may_end.set()


def test_a_slot_is_used_again_only_when_its_last_job_is_forgotten(monkeypatch):
    """Else the next job's words on the board are wiped out, and nobody knows that it runs."""
    process_state, reports = ProcessState(4), []
    in_flight = InFlight(2)
    own = pool.Pool(
        Options(database="default", concurrency=2),
        in_flight,
        process_state,
        None,
        reports.append,
        Notes(),
        lambda: None,
    )
    claimed = Claimed(
        1,
        1,
        "no task",
        "default",
        0,
        datetime.now(UTC),
        "{}",
        1,
        10,
        0,
        isolated=False,
        unknown_seconds=None,
        claimed_ms=0.0,
    )
    in_flight.add([claimed])
    in_flight.start(1, 0, wait=False)
    own.threads[0].attempt = Attempt(claimed, "default", own.notes)

    def next_job(slot: int) -> None:
        process_state.started(slot, 2)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(own, "_replace_thread", next_job)
    with pytest.raises(RuntimeError, match="new thread"):
        own.give_up(1)
    assert [report.claimed.execution_id for report in reports] == [1]
    assert process_state.running() == [2]
    own.loop.loop.close()


@pytest.fixture
def idle_nursery(monkeypatch) -> Iterator[fork_server.ForkServer]:
    """One whose process never answers."""
    monkeypatch.setattr(fork_server, "ANSWER_SECONDS", 0.05)
    own = fork_server.ForkServer.__new__(fork_server.ForkServer)
    own.is_gone, own._lock = False, threading.Lock()
    own._socket, theirs = socket.socketpair()
    with own._socket, theirs:
        yield own


def descriptors() -> list[str]:
    return os.listdir("/dev/fd")


def test_a_nursery_that_does_not_answer_is_as_good_as_gone(idle_nursery):
    before = len(descriptors())
    with pytest.raises(OSError, match="does not answer"):
        idle_nursery.start_process()
    assert idle_nursery.is_gone
    assert len(descriptors()) == before


def test_no_descriptor_stays_open_when_there_are_no_more(idle_nursery, monkeypatch):
    pipes = [os.pipe()]
    before = len(descriptors())
    monkeypatch.setattr(os, "pipe", pipes.pop)
    with pytest.raises(IndexError):
        idle_nursery.start_process()
    assert len(descriptors()) == before - 2
