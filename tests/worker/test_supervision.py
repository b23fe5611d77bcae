"""Test parts of the supervisor and of its services that a test with real processes would reach too slowly."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import subprocess
import time

import psycopg
import pytest
from psycopg import errors

from django_pgqueue.lifecycle import worker_requests, workers
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.states import RequestKind
from django_pgqueue.worker.options import Options
from django_pgqueue.worker.runtime.connection import Link
from django_pgqueue.worker.runtime.outages import outage_log
from django_pgqueue.worker.runtime.process_info import exit_code_text
from django_pgqueue.worker.runtime.service import Service
from django_pgqueue.worker.runtime.shared_memory import (
    ELSEWHERE,
    ENDED_LIMIT,
    NO_EXECUTION,
    ExitReason,
    ProcessState,
    lease_clock,
)
from django_pgqueue.worker.supervision import settlement as settlement_module
from django_pgqueue.worker.supervision.crash_charges import settle
from django_pgqueue.worker.supervision.heartbeat import RETRY_SECONDS, ChildProcess, HeartbeatSender, register
from django_pgqueue.worker.supervision.settlement import WITHOUT_SIGNALS, DeadProcesses, Settlement
from tests import helpers


class Failing(Service):
    """A service whose every round fails."""

    def tick(self):
        raise OSError("away")


def test_service_many_errors_in_a_row_continues():
    service = Failing("failing")
    service._pauses.errors_in_a_row = 5000
    service.stop()  # a stopped service does not pause after an error
    assert service._survive() == 0.0
    assert service._pauses.errors_in_a_row == 5001


def test_service_error_cannot_be_logged_continues(monkeypatch):
    def refuse(*args):
        raise RuntimeError("the log's own trouble")

    monkeypatch.setattr(outage_log, "report", refuse)
    service = Failing("failing")
    service.stop()
    assert service._survive() == 0.0


@pytest.mark.parametrize(
    ("exit_code", "words"), [(-9, "signal SIGKILL"), (-35, "signal 35"), (0, "exit code 0"), (3, "exit code 3")]
)
def test_exit_code_text_any_exit_code_is_described(exit_code, words):
    assert exit_code_text(exit_code) == words


@pytest.fixture
def heartbeat_sender(committing):
    link = Link("default", "supervisor")
    yield HeartbeatSender(link, Options(database="default"))
    link.close()


@pytest.fixture
def process(engine):
    worker_id = workers.register_worker(engine, hostname="h", pid=1, version="v", queue_names="", concurrency=1)
    return ChildProcess(ProcessState(1), 1, 0, worker_id)


def test_release_is_stored_with_the_worker(engine):
    named, unnamed = Options(database="default", release="v2"), Options(database="default")
    found = [register(engine, options, 1) for options in (named, unnamed)]
    rows = [helpers.scalar(engine, f"SELECT release FROM pgqueue_worker WHERE id = {each}") for each in found]
    assert rows == ["v2", ""]


def test_heartbeat_sent_updates_the_state_of_the_child(engine, heartbeat_sender, process):
    heartbeat_sender.send([process])
    assert process.state.lease_left_seconds > 50
    assert process.health_memory.lease_until == process.state.lease_until


def test_heartbeat_any_number_of_jobs_writes_one_row_a_process(engine, heartbeat_sender, process):
    helpers.make_jobs(engine, 30)
    claimed = helpers.claim_all(engine, worker_id=process.worker_id)
    before = helpers.rows_of(engine, "pgqueue_execution")
    helpers.end_lease(engine)
    ended = helpers.rows_of(engine, "pgqueue_execution")
    heartbeat_sender.send([process])
    assert helpers.rows_of(engine, "pgqueue_execution") == ended != before
    assert helpers.rescue(engine) == {}, "the lease of the worker is that of all its executions"
    assert len(claimed) == 30


def test_heartbeat_marks_only_executions_that_have_started(engine, heartbeat_sender, process):
    helpers.make_jobs(engine, 2)
    started, prefetched = helpers.claim_all(engine, worker_id=process.worker_id, free_slots=0)
    process.state.started(0, started.execution_id)
    heartbeat_sender.send([process])
    assert helpers.execution_row(engine, started.execution_id)["started_at"] is not None
    assert helpers.execution_row(engine, prefetched.execution_id)["started_at"] is None


@pytest.mark.promise("heartbeat-needs-no-jobs")
@pytest.mark.parametrize("table", ["pgqueue_job", "pgqueue_execution"])
def test_heartbeat_locked_table_of_jobs_does_not_delay_it(engine, second, heartbeat_sender, process, table):
    """The start of a job waits for the lock of the executions, but only after the lease has been extended."""
    helpers.make_jobs(engine, 1)
    [claimed] = helpers.claim_all(engine, worker_id=process.worker_id)
    process.state.started(0, claimed.execution_id)
    began, locked = lease_clock(), f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE"
    with helpers.transaction(second, locked), contextlib.suppress(psycopg.OperationalError):
        heartbeat_sender.send([process])
    assert process.state.lease_until >= began + get_settings().LEASE


def test_heartbeat_record_announces_requests_and_stores_memory(engine, heartbeat_sender, process):
    """Without notifications, an idle process learns of a request only from this record."""
    process.pid = os.getpid()
    engine.execute("UPDATE pgqueue_worker SET supervisor_pid = 1")
    heartbeat_sender.send([process])
    assert not process.state.has_requests
    worker_requests.request_of_worker(engine, process.worker_id, RequestKind.STOP)
    heartbeat_sender.due_at = 0.0
    heartbeat_sender.send([process])
    assert process.state.has_requests
    assert helpers.scalar(engine, "SELECT resident_mib FROM pgqueue_worker") > 5


def test_heartbeat_silent_child_is_left_out(engine, heartbeat_sender, process):
    process.silent = True
    heartbeat_sender.send([process])
    assert process.state.lease_until == 0.0


def test_heartbeat_locked_worker_record_does_not_block(engine, second, heartbeat_sender, process):
    """The process keeps the lease that it has, and the next heartbeat comes soon."""
    engine.statement_timeout_seconds = 5.0
    with helpers.transaction(second, "SELECT 1 FROM pgqueue_worker FOR UPDATE"):
        heartbeat_sender.send([process])
        workers.unregister_worker(engine, process.worker_id)
    assert process.state.lease_until == 0.0
    assert heartbeat_sender.due_at <= time.monotonic() + RETRY_SECONDS


def test_settle_crashed_execution_is_recorded_as_started(engine, heartbeat_sender, process):
    """The row must show why the crash counts, even if no heartbeat was sent between the start and the crash."""
    helpers.make_jobs(engine, 2)
    started, prefetched = helpers.claim_all(engine, worker_id=process.worker_id, free_slots=0)
    process.state.started(0, started.execution_id)
    settle(heartbeat_sender.link, process, WITHOUT_SIGNALS, by_default=False)
    crashed, released = (helpers.execution_row(engine, execution.execution_id) for execution in (started, prefetched))
    assert (crashed["outcome"], released["outcome"]) == ("crashed", "released")
    assert helpers.job_row(engine, started.job_id)["crashes"] == 1
    assert crashed["started_at"] is not None
    assert crashed["started_at"] <= crashed["finished_at"]
    assert released["started_at"] is None


@pytest.mark.promise("only-started-jobs-charged")
@pytest.mark.parametrize(
    ("is_expected", "outcomes"),
    [
        (False, ["crashed", "failed", "released", "crashed"]),
        (True, ["failed", "failed", "released", "released"]),
    ],
)
def test_settle_ended_execution_counts_after_a_crash(engine, heartbeat_sender, process, is_expected, outcomes):
    """The process died before it wrote the results of jobs that had ended. One of them ran in an isolated process."""
    helpers.make_jobs(engine, 4)
    ended, isolated, prefetched, running = helpers.claim_all(engine, worker_id=process.worker_id, free_slots=0)
    process.state.started(0, ended.execution_id)
    process.state.note_ended(0, ended.execution_id)
    process.state.ended(0)
    process.state.started(0, isolated.execution_id, ELSEWHERE)
    process.state.note_ended(0, isolated.execution_id)
    process.state.ended(0)
    process.state.started(0, running.execution_id)
    process.expected_to_end = is_expected
    settle(heartbeat_sender.link, process, WITHOUT_SIGNALS, by_default=False)
    rows = [helpers.execution_row(engine, each.execution_id) for each in (ended, isolated, prefetched, running)]
    assert [row["outcome"] for row in rows] == outcomes
    jobs = [helpers.job_row(engine, each.job_id) for each in (ended, isolated, prefetched, running)]
    counted = [(1, 0), (1, 0), (0, 0), (0, 0)] if is_expected else [(1, 1), (1, 0), (0, 0), (1, 1)]
    assert [(job["attempt"], job["crashes"]) for job in jobs] == counted


@pytest.mark.promise("ended-job-counts-in-every-end")
@pytest.mark.parametrize("end", ["overdue", "STUCK", "LEASE_LOST", "STOPPED", "PROMOTED", "FOREIGN"])
def test_settle_ended_execution_counts_in_every_other_end(engine, heartbeat_sender, process, end):
    """Otherwise a job whose result is never written would run again for ever. Other databases reuse ids."""
    helpers.make_jobs(engine, 3)
    ended, running, prefetched = helpers.claim_all(engine, worker_id=process.worker_id)
    process.state.note_ended(0, ended.execution_id)
    process.state.started(0, running.execution_id)
    if end == "overdue":
        process.overdue = frozenset([running.execution_id])
    else:
        process.state.exit_reason, process.expected_to_end = ExitReason[end], True
    settle(heartbeat_sender.link, process, WITHOUT_SIGNALS, by_default=False)
    jobs = [helpers.job_row(engine, each.job_id) for each in (ended, running, prefetched)]
    of_ended = (0, 0) if end in ("PROMOTED", "FOREIGN") else (1, 0)
    of_running = (1, 1) if end == "overdue" else (0, 0)
    assert [(job["attempt"], job["crashes"]) for job in jobs] == [of_ended, of_running, (0, 0)]


def test_process_state_lists_the_executions_that_ended_last():
    state = ProcessState(1)
    state.started(0, 1, ELSEWHERE)
    state.note_ended(0, 1)
    state.started(0, 2)
    for execution_id in range(2, ENDED_LIMIT + 2):
        state.note_ended(0, execution_id)
    state.ended(0)
    state.note_delayed([3])
    here, elsewhere = state.ended_last()
    assert (len(here), min(here), elsewhere) == (ENDED_LIMIT - 2, 4, {3})
    assert state.running() == []
    assert state.unwritten() == set()


def test_process_state_lists_each_delayed_attempt_once():
    """Results that wait for locks are reported every 50 ms. They must not push other attempts out of the list."""
    state = ProcessState(1)
    state.note_ended(0, 1)
    state.note_ended(0, 2)
    for _ in range(ENDED_LIMIT):
        state.note_delayed([2, 3])
    here, elsewhere = state.ended_last()
    assert (here, elsewhere) == ({1}, {2, 3}), "a delayed attempt cannot have ended the process"
    for execution_id in range(10, ENDED_LIMIT + 10):
        state.note_ended(0, execution_id)
    state.note_delayed([2])
    assert state.ended_last()[1] == {2}, "it is listed again if others have replaced it"


def test_heartbeat_worker_record_removed_inserts_it_again(engine, heartbeat_sender, process):
    helpers.empty_tables(engine)
    heartbeat_sender.send([process])
    row = helpers.rows_of(engine, "pgqueue_worker")[process.worker_id]
    assert (row["pid"], row["stopped_at"], row["lease_expires_at"]) == (process.pid, None, None)
    assert heartbeat_sender.due_at <= time.monotonic() + RETRY_SECONDS
    heartbeat_sender.due_at = 0.0
    heartbeat_sender.send([process])
    assert helpers.rows_of(engine, "pgqueue_worker")[process.worker_id]["lease_expires_at"] is not None


@pytest.mark.promise("defect-restarted-ids")
def test_worker_ids_after_ids_restart_do_not_recur(engine):
    def register():
        return workers.register_worker(engine, hostname="h", pid=1, version="v", queue_names="", concurrency=1)

    before = {register() for _ in range(20)}
    helpers.empty_tables(engine)
    assert not before & {register() for _ in range(20)}


def test_settlement_hanging_process_is_killed_others_are_not(process, monkeypatch):
    """A process that still writes has a few seconds. A process that only calls receivers has longer."""
    helpers.Clock(monkeypatch, settlement_module)
    hanging, writing = (subprocess.Popen(["sleep", "60"]) for _ in range(2))
    settlement = Settlement(Link("default", "supervisor"), fork=lambda function, name: 0)
    for sleeper, age_seconds in ((hanging, 100.0), (writing, 0.0)):
        batch = DeadProcesses([process], mmap.mmap(-1, 1))
        batch.began_at -= age_seconds
        settlement._batches[sleeper.pid] = batch
    try:
        settlement.tick()
        assert hanging.wait(10) == -signal.SIGKILL
        assert writing.poll() is None
    finally:
        writing.kill()
        writing.wait()


@pytest.mark.promise("lost-process-jobs-return")
@pytest.mark.parametrize(
    ("error", "wanted"), [(errors.LockNotAvailable("locked"), [0, 1]), (errors.AdminShutdown("ends"), [0, 0])], ids=repr
)
def test_settlement_one_process_fails_others_are_settled(monkeypatch, error, wanted):
    """An outage ends it, because the others would fail too."""

    def settle(link, process, reactions, *, by_default):
        if process == "bad":
            raise error
        return True

    monkeypatch.setattr(settlement_module, "settle", settle)
    written = [0, 0]
    link = Link("default", "settlement")
    assert settlement_module._settle_all(link, ["bad", "good"], written, WITHOUT_SIGNALS) == (not wanted[1])
    assert written == wanted


def test_settlement_finds_a_claim_that_commits_later(process, engine, monkeypatch):
    """The process died while its claim was under way. The server executed the claim after the settlement."""
    clock = helpers.Clock(monkeypatch, settlement_module)
    forked = []
    settlement = Settlement(Link("default", "supervisor"), fork=lambda function, name: forked.append(name) or 1)
    settlement.add(process)
    settlement.tick()
    assert settlement.is_done
    helpers.make_job(engine)
    helpers.claim_one(engine, worker_id=process.worker_id)
    settlement.tick()
    assert (settlement.is_done, forked) == (True, []), "no statement is sent in each round"
    clock.now += 1.0
    settlement.tick()
    settlement.link.close()
    assert (settlement.ended, forked) == ([process], [settlement_module.NAME])


def test_settlement_looks_again_beside_a_hanging_receiver(process, engine, monkeypatch):
    clock = helpers.Clock(monkeypatch, settlement_module)
    monkeypatch.setattr(settlement_module, "LOOK_AGAIN_SECONDS", (0.5,))
    settlement = Settlement(Link("default", "supervisor"), fork=lambda function, name: 2)
    settlement.add(process)
    settlement._batches[1] = DeadProcesses([process], mmap.mmap(-1, 1))
    settlement._batches[1].written[0] = 1
    settlement.tick()
    assert settlement.ended == []
    helpers.make_job(engine)
    helpers.claim_one(engine, worker_id=process.worker_id)
    clock.now += 1.0
    settlement._retry_at = clock.now + 0.5  # another settlement has just been tried
    settlement.tick()
    clock.now += 1.0
    settlement.tick()
    settlement.link.close()
    assert set(settlement._batches) == {1, 2}


@pytest.mark.promise("receiver-that-exits-charges-nobody")
@pytest.mark.parametrize("cause", ["receiver", "job"])
def test_settle_after_os_exit_charges_only_its_cause(engine, heartbeat_sender, process, cause):
    helpers.make_jobs(engine, 4)
    ended, locked, running, exiting = helpers.claim_all(engine, worker_id=process.worker_id)
    process.state = ProcessState(2)
    process.state.note_ended(0, ended.execution_id)
    process.state.note_delayed([locked.execution_id])
    process.state.started(0, running.execution_id)
    process.state.started(1, exiting.execution_id)
    process.state.ended_by = NO_EXECUTION if cause == "receiver" else exiting.execution_id
    settle(heartbeat_sender.link, process, WITHOUT_SIGNALS, by_default=False)
    jobs = [helpers.job_row(engine, each.job_id) for each in (ended, locked, running, exiting)]
    of_ended, of_exiting = ((0, 0), (0, 0)) if cause == "receiver" else ((1, 0), (1, 1))
    assert [(job["attempt"], job["crashes"]) for job in jobs] == [of_ended, (1, 0), (0, 0), of_exiting]


def test_settlement_after_its_process_died_runs_no_callback(process, engine):
    """Otherwise a backoff function that ends its process would also end each process that follows."""
    helpers.make_job(engine)
    claimed = helpers.claim_one(engine, worker_id=process.worker_id)
    process.state.started(0, claimed.execution_id)
    settlement = Settlement(Link("default", "supervisor"), fork=lambda function, name: pytest.fail("forked again"))
    settlement.ended.append(process)
    settlement._batches[1] = DeadProcesses([process], mmap.mmap(-1, 1))
    assert settlement.reaped(1, -signal.SIGKILL)
    settlement.tick()
    settlement.link.close()
    assert settlement.is_done
    assert helpers.state_of(engine, claimed.job_id) == "ready"
