"""Test what the slots do in situations that a test cannot cause from outside."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from django_pgqueue.exceptions import LeaseLost, TaskTimeout
from django_pgqueue.lifecycle.types import Claimed
from django_pgqueue.worker.completion.progress_writer import Notes
from django_pgqueue.worker.execution.attempt_plan import plan_of
from django_pgqueue.worker.execution.chunk_attempt import attempt_of
from django_pgqueue.worker.execution.report import released
from django_pgqueue.worker.isolation import fork_server, wire
from django_pgqueue.worker.isolation.isolated_attempt import EndingProcesses, IsolatedAttempt, SlotProcess
from django_pgqueue.worker.isolation.isolated_process import IsolatedProcess
from django_pgqueue.worker.options import Options
from django_pgqueue.worker.runtime.shared_memory import ProcessState
from django_pgqueue.worker.slots import deadlines, pool, query_cancel
from django_pgqueue.worker.slots.inflight import InFlight
from django_pgqueue.worker.slots.thread_slot import ThreadSlot
from tests.app import tasks


class Throwing:
    """A lock that raises one of its exceptions each time a thread acquires it, until none is left."""

    def __init__(self, *exceptions: BaseException) -> None:
        self.exceptions = list(exceptions)

    def __enter__(self) -> None:
        if self.exceptions:
            raise self.exceptions.pop()

    def __exit__(self, *args: object) -> None: ...


@pytest.mark.parametrize("finished", [True, False])
def test_thread_slot_two_exceptions_at_once_ends_only_the_job(finished):
    """A thread can receive `TaskTimeout`, and then `LeaseLost` while it handles `TaskTimeout`.

    The second exception must not end the thread, and the job must get a report.
    """

    def run() -> str:
        if finished:
            return "its report"
        raise TaskTimeout

    attempt: Any = SimpleNamespace(claimed=None, run=run, ended_by=lambda thrown: type(thrown).__name__)
    slot = ThreadSlot(SimpleNamespace(started=lambda *args, **kwargs: None), 0, None)
    slot._guard = Throwing(LeaseLost(), *([TaskTimeout()] if finished else []))
    assert slot._guarded(attempt) == ("its report" if finished else "LeaseLost")
    assert slot.attempt is None


@pytest.mark.parametrize("is_new", [True, False])
def test_isolated_attempt_early_cancel_request_is_delivered(is_new):
    """A cancel request can come while the process is forked, or while an existing process is between two jobs.

    The process does not have the job yet. The request must reach it after the job.
    """
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
    answer = dict.fromkeys(wire.KEPT) | {"ending": "succeeded", "started_at": 0.0, "finished_at": 0.0, "is_worn": False}
    answer |= {"resident_mib": 1.0, "execution_id": 1, "progress": None, "may_be_committed": False}
    received = []

    def act_as_process() -> None:
        with contextlib.suppress(TimeoutError):
            received.extend(wire.receive(theirs) for _ in range(2))
        theirs.sendall(wire.packed(answer))

    def start_process() -> Any:
        attempt.ask_to_cancel()
        return isolated_process

    process = SlotProcess(
        SimpleNamespace(start_process=start_process, has_start_receivers=False), EndingProcesses(), None
    )
    attempt: Any = IsolatedAttempt(plan_of("a.task"), claimed, "default", process, None)
    if not is_new:
        process._process = isolated_process
        attempt.ask_to_cancel()
    theirs.settimeout(20)
    threading.Thread(target=act_as_process, daemon=True).start()
    attempt.run()
    isolated_process.close()
    theirs.close()
    for _, descriptor in pipes:
        os.close(descriptor)
    assert [message.keys() & {"job_id", "cancel"} for message in received] == [{"job_id"}, {"cancel"}]


def test_cancel_queries_slow_server_returns_at_once(monkeypatch):
    """The call must not wait for the server.

    Otherwise one server that cannot be reached delays the deadlines of all jobs, and the supervisor kills the process.
    """
    may_end, ended = threading.Event(), threading.Event()
    raw = psycopg.Connection.__new__(psycopg.Connection)
    monkeypatch.setattr(psycopg.Connection, "__del__", lambda self: None)
    monkeypatch.setattr(raw, "cancel_safe", lambda timeout: (may_end.wait(60), ended.set()), raising=False)
    monkeypatch.setattr(query_cancel, "_is_busy", lambda raw: True)
    monkeypatch.setitem(query_cancel._connections, 7, [SimpleNamespace(connection=raw)])
    query_cancel.cancel_queries(7)
    assert not ended.is_set()
    may_end.set()
    assert ended.wait(20)


def test_pool_give_up_forgets_the_job_before_slot_is_reused(monkeypatch):
    """The pool must remove the old job from the shared memory before the slot gets a new thread.

    Otherwise it would erase the entry of the next job, and the supervisor would not know that this job runs.
    """
    process_state, reports = ProcessState(4), []
    in_flight = InFlight(2)
    job_pool = pool.Pool(
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
    job_pool.threads[0].attempt = attempt_of(claimed, "default", job_pool.notes)

    def next_job(slot: int) -> None:
        process_state.started(slot, 2)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(job_pool, "_replace_thread", next_job)
    with pytest.raises(RuntimeError, match="new thread"):
        job_pool.give_up(1)
    assert [report.claimed.execution_id for report in reports] == [1]
    assert process_state.running() == [2]
    job_pool.loop.loop.close()


@pytest.fixture
def silent_fork_server(monkeypatch) -> Iterator[fork_server.ForkServer]:
    """A fork server whose process never answers."""
    monkeypatch.setattr(fork_server, "ANSWER_SECONDS", 0.05)
    server = fork_server.ForkServer.__new__(fork_server.ForkServer)
    server.is_gone, server._lock = False, threading.Lock()
    server._socket, theirs = socket.socketpair()
    with server._socket, theirs:
        yield server


def descriptors() -> list[str]:
    return os.listdir("/dev/fd")


def test_fork_server_without_answer_counts_as_gone(silent_fork_server):
    before = len(descriptors())
    with pytest.raises(OSError, match="does not answer"):
        silent_fork_server.start_process()
    assert silent_fork_server.is_gone
    assert len(descriptors()) == before


def test_fork_server_pipe_fails_closes_its_descriptors(silent_fork_server, monkeypatch):
    pipes = [os.pipe()]
    before = len(descriptors())
    monkeypatch.setattr(os, "pipe", pipes.pop)
    with pytest.raises(IndexError):
        silent_fork_server.start_process()
    assert len(descriptors()) == before - 2


def test_deadlines_ended_job_with_a_timeout_is_forgotten(settings):
    settings.PGQUEUE = {"TIMEOUT": 60.0}
    in_flight = InFlight(2)
    options = Options(database="default", concurrency=2)
    job_pool = pool.Pool(options, in_flight, ProcessState(4), None, lambda report: None, Notes(), lambda: None)
    claimed = Claimed(1, 1, tasks.add.name, "default", 0, datetime.now(UTC), "{}", 1, 10, 0, False, None, 0.0)
    in_flight.add([claimed])
    in_flight.start(1, 0, wait=False)
    job_pool.started(attempt_of(claimed, "default", job_pool.notes), 0)
    assert job_pool.deadlines.watched == set(job_pool.deadlines._stop_at) == {1}
    job_pool.finished(released(claimed), 0)
    assert not job_pool.deadlines.watched and not job_pool.deadlines._stop_at
    job_pool.loop.loop.close()


def test_deadlines_request_after_the_end_of_a_job_is_forgotten(monkeypatch):
    """The request and the end of its job are noted by two threads."""
    monkeypatch.setattr(deadlines, "STAY_SECONDS", 0.0)
    watch = deadlines.Deadlines(lambda _: True, lambda _: True, lambda _: None)
    watch.remove(1)
    watch.add_cancel(1, 0.0)
    assert watch.watched == {1}
    watch.tick()
    assert not watch.watched and not watch._cancel_at and not watch._late
