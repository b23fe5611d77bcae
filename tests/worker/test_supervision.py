"""Parts of the supervisor, and of the loops under it, that a process test would take too long to reach."""

from __future__ import annotations

import mmap
import signal
import subprocess

import pytest

from django_pgqueue import lifecycle
from django_pgqueue.worker.options import Options
from django_pgqueue.worker.runtime.connection import Link
from django_pgqueue.worker.runtime.outages import outage_log
from django_pgqueue.worker.runtime.process_info import exit_code_text
from django_pgqueue.worker.runtime.service import Service
from django_pgqueue.worker.runtime.shared_memory import ProcessState
from django_pgqueue.worker.supervision.heartbeat import ChildProcess, HeartbeatSender
from django_pgqueue.worker.supervision.settlement import WITHOUT_SIGNALS, Batch, Settlement, settle
from tests import helpers


class Failing(Service):
    """A loop whose every round fails."""

    def tick(self):
        raise OSError("away")


def test_a_loop_survives_any_number_of_errors_in_a_row():
    service = Failing("failing")
    service._errors_in_a_row = 5000
    service.stop()  # so that its pauses are none
    assert service._survive() == 0.0
    assert service._errors_in_a_row == 5001


def test_a_log_handler_that_raises_ends_no_loop(monkeypatch):
    def refuse(*args):
        raise RuntimeError("the log's own trouble")

    monkeypatch.setattr(outage_log, "report", refuse)
    service = Failing("failing")
    service.stop()
    assert service._survive() == 0.0


@pytest.mark.parametrize(
    ("exit_code", "words"), [(-9, "signal SIGKILL"), (-35, "signal 35"), (0, "exit code 0"), (3, "exit code 3")]
)
def test_any_way_to_die_can_be_named(exit_code, words):
    assert exit_code_text(exit_code) == words


@pytest.fixture
def leases(committing):
    link = Link("default", "supervisor")
    yield HeartbeatSender(link, Options(database="default"))
    link.close()


@pytest.fixture
def process(engine):
    worker_id = lifecycle.register_worker(engine, hostname="h", pid=1, version="v", queue_names="", concurrency=1)
    return ChildProcess(ProcessState(1), 1, 0, worker_id)


def test_a_beat_tells_the_child_how_much_is_open_and_until_when_it_holds(engine, leases, process):
    helpers.make_jobs(engine, 3)
    helpers.claim_all(engine, worker_id=process.worker_id)
    leases.send([process])
    assert process.state.open_executions == 3
    assert process.state.lease_left_seconds > 50


def test_the_mark_of_the_beat_does_not_outlive_its_connection(engine, leases, process):
    """A failover may lead to a server whose ids are behind: nothing there would ever be extended."""
    leases.send([process])
    leases._oldest_open.extend([10**9] * 4)
    leases.due_at = 0.0
    leases.link.close()
    helpers.make_job(engine)
    helpers.claim_one(engine, worker_id=process.worker_id)
    leases.send([process])
    assert process.state.open_executions == 1


def test_a_silent_child_is_not_beaten_for(engine, leases, process):
    helpers.make_job(engine)
    helpers.claim_one(engine, worker_id=process.worker_id)
    process.silent = True
    leases.send([process])
    assert process.state.open_executions == 0


def test_a_locked_record_of_a_worker_holds_nobody_up(engine, second, process):
    engine.statement_timeout_seconds = 5.0
    with helpers.transaction(second, "SELECT 1 FROM pgqueue_worker FOR UPDATE"):
        lifecycle.record_heartbeats(engine, [process.worker_id])
        lifecycle.unregister_worker(engine, process.worker_id)


def test_what_is_charged_with_a_crash_is_recorded_as_started(engine, leases, process):
    """The record has to say why the job was charged, also where no beat came between its start and the crash."""
    helpers.make_jobs(engine, 2)
    ran, waited = helpers.claim_all(engine, worker_id=process.worker_id, free_slots=0)
    process.state.started(0, ran.execution_id)
    settle(leases.link, process, WITHOUT_SIGNALS, by_default=False)
    charged, given_back = (helpers.execution_row(engine, one.execution_id) for one in (ran, waited))
    assert (charged["outcome"], given_back["outcome"]) == ("crashed", "released")
    assert helpers.job_row(engine, ran.job_id)["crashes"] == 1
    assert charged["started_at"] is not None
    assert charged["started_at"] <= charged["finished_at"]
    assert given_back["started_at"] is None


@pytest.mark.promise("defect-restarted-ids")
def test_heartbeat_after_ids_restart_extends_smaller_ids(engine, leases, process):
    """The mark of four beats ago must not leave out what runs under the ids that came again."""
    leases.send([process])
    leases._oldest_open.extend([10**6] * 4)
    helpers.make_jobs(engine, 2)
    running, _ = helpers.claim_all(engine, worker_id=process.worker_id)
    process.state.started(0, running.execution_id)
    leases.due_at = 0.0
    leases.send([process])
    assert process.state.open_executions == 2


def test_heartbeat_that_finds_nothing_open_forgets_its_mark(engine, leases, process):
    leases.send([process])
    leases._oldest_open.extend([10**6] * 4)
    for _ in range(5):
        leases.due_at = 0.0
        leases.send([process])
    helpers.make_job(engine)
    helpers.claim_one(engine, worker_id=process.worker_id)
    leases.due_at = 0.0
    leases.send([process])
    assert process.state.open_executions == 1


def test_worker_record_removed_by_a_flush_is_made_again(engine, leases, process):
    helpers.empty_tables(engine)
    leases.send([process])
    row = helpers.rows_of(engine, "pgqueue_worker")[process.worker_id]
    assert (row["pid"], row["stopped_at"]) == (process.pid, None)


@pytest.mark.promise("defect-restarted-ids")
def test_worker_ids_after_ids_restart_do_not_recur(engine):
    def register():
        return lifecycle.register_worker(engine, hostname="h", pid=1, version="v", queue_names="", concurrency=1)

    before = {register() for _ in range(20)}
    helpers.empty_tables(engine)
    assert not before & {register() for _ in range(20)}


def test_settlement_process_that_hangs_is_killed_others_are_not(process):
    """One that writes gets seconds; one that only calls receivers has longer."""
    hanging, writing = (subprocess.Popen(["sleep", "60"]) for _ in range(2))
    settlement = Settlement(Link("default", "supervisor"), fork=lambda function, name: 0)
    for sleeper, age_seconds in ((hanging, 100.0), (writing, 0.0)):
        batch = Batch([process], mmap.mmap(-1, 1))
        batch.began_at -= age_seconds
        settlement._batches[sleeper.pid] = batch
    try:
        settlement.tick()
        assert hanging.wait(10) == -signal.SIGKILL
        assert writing.poll() is None
    finally:
        writing.kill()
        writing.wait()


def test_settlement_after_its_process_died_calls_no_application(process, engine):
    """Otherwise a backoff that ends its process would end every next one too."""
    helpers.make_job(engine)
    claimed = helpers.claim_one(engine, worker_id=process.worker_id)
    process.state.started(0, claimed.execution_id)
    settlement = Settlement(Link("default", "supervisor"), fork=lambda function, name: pytest.fail("forked again"))
    settlement.ended.append(process)
    settlement._batches[1] = Batch([process], mmap.mmap(-1, 1))
    assert settlement.reaped(1, -signal.SIGKILL)
    settlement.tick()
    settlement.link.close()
    assert settlement.is_done
    assert helpers.state_of(engine, claimed.job_id) == "ready"
