"""Test what the slots of a worker do with a chunk: cancelling, lost leases, timeouts, and the messages of isolation."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from django.contrib.auth.models import Group
from django.db import connection

from django_pgqueue import ChunkJob
from django_pgqueue.ground.endings import Ending
from django_pgqueue.lifecycle import chunks, completions
from django_pgqueue.lifecycle.types import Claimed, Lane, OpenExecution
from django_pgqueue.models import Job
from django_pgqueue.tasks import registry
from django_pgqueue.worker.completion.progress_writer import Notes
from django_pgqueue.worker.execution.attempt_plan import plan_of
from django_pgqueue.worker.execution.chunk_attempt import ChunkAttempt, attempt_of
from django_pgqueue.worker.execution.report import Report
from django_pgqueue.worker.foreground import attempt, run_here
from django_pgqueue.worker.isolation import wire
from django_pgqueue.worker.isolation.isolated_attempt import IsolatedAttempt
from django_pgqueue.worker.options import Options
from django_pgqueue.worker.runtime.shared_memory import ProcessState
from django_pgqueue.worker.slots import pool as pools
from django_pgqueue.worker.slots.inflight import InFlight
from django_pgqueue.worker.supervision import crash_charges
from tests import helpers

from . import tasks
from .test_claims import add, claim


def claimed(number, task=tasks.wait_for_file, item="", **changes):
    arguments = json.dumps({"args": [str(item)], "kwargs": {}})
    values = {"attempt": 1, "max_attempts": 5, "crashes": 0, "isolated": False, "unknown_seconds": None}
    place = {"queue_name": "default", "priority": 0, "run_after": datetime.now(UTC), "claimed_ms": 5.0}
    job = Claimed(job_id=number, execution_id=100 + number, task_name=task.name, arguments=arguments, **place, **values)
    return job._replace(**changes)


def chunk_of(count, **options):
    first, *others = [claimed(number, **options) for number in range(1, count + 1)]
    return first._replace(others=tuple(others))


@pytest.fixture
def pool():
    """A pool with a running thread and a service for deadlines. It needs no database."""
    reports = []
    in_flight = InFlight(2)
    options = Options(database="default", concurrency=2)
    pool = pools.Pool(options, in_flight, ProcessState(4), None, reports.append, Notes(), lambda: None)
    pool.reports = reports
    pool.start()
    pool.deadlines.start()
    yield pool
    pool.stop()
    pool.deadlines.stop()
    for thread in (*pool.threads, pool.deadlines, pool.loop):
        thread.join()


@pytest.fixture
def run(pool, tmp_path):
    """Start a chunk of three jobs that waits for a file, and return the path."""
    path = tmp_path / "done"

    def start(**options):
        chunk = chunk_of(3, item=path, **options)
        pool.in_flight.add([chunk])
        assert pool.in_flight.free_slots == 1
        pool.submit([chunk])
        helpers.wait_until(path.with_suffix(".started").exists)
        return path

    return start


def endings(pool):
    helpers.wait_until(lambda: len(pool.reports) == 3)
    return [report.ending for report in sorted(pool.reports, key=lambda report: report.claimed.job_id)]


def test_each_job_of_a_chunk_is_reported_and_the_slot_is_free(pool, run):
    run().touch()
    assert endings(pool) == [Ending.SUCCEEDED] * 3
    assert [report.result for report in pool.reports] == ["3"] * 3
    helpers.wait_until(lambda: pool.in_flight.free_slots == 2)
    assert pool.in_flight._first_ids == {}


def test_coroutine_runs_on_the_event_loop(pool):
    jobs = [job._replace(arguments='{"args":[7],"kwargs":{}}') for job in chunk_of(3, task=tasks.on_loop).members]
    chunk = jobs[0]._replace(others=tuple(jobs[1:]))
    assert tasks.on_loop.plan is None  # known from now on, as after its first job
    pool.in_flight.add([chunk])
    pool.submit([chunk])
    assert endings(pool) == [Ending.SUCCEEDED] * 3
    assert tasks.seen == [[7, 7, 7]]


def test_cancel_of_one_job_is_seen_by_that_job_only(pool, run):
    run()
    asked = pool.ask_to_cancel([103])
    assert not pool.deadlines._cancel_at  # nothing stops the call
    assert asked == {103}
    assert endings(pool) == [Ending.SUCCEEDED] * 3  # the function has looked, and returned


def test_cancel_of_all_jobs_stops_the_call(pool, run, monkeypatch):
    monkeypatch.setattr(ChunkJob, "cancel_requested", lambda self: False)
    monkeypatch.setattr(pools, "get_settings", lambda: SimpleNamespace(CANCEL_GRACE=0.01))
    run()
    assert pool.ask_to_cancel([101, 102]) == {101, 102}
    assert not pool.reports
    assert pool.ask_to_cancel([101, 102, 103]) == {101, 102, 103}
    assert endings(pool) == [Ending.CANCELLED] * 3


def test_lost_lease_of_one_job_does_not_stop_the_others(pool, run):
    path = run()
    assert pool.in_flight.known_before(float("inf")) == {101, 102, 103}
    pool.interrupt([101])
    assert {key.execution_id for key in pool.in_flight.keys_before(float("inf"))} == {102, 103}
    path.touch()
    assert endings(pool) == [Ending.SUCCEEDED] * 3  # the fence refuses the first one


def test_lost_leases_of_all_jobs_stop_the_call(pool, run):
    run()
    pool.interrupt([101, 102, 103])
    assert endings(pool) == [Ending.RELEASED] * 3


def test_lost_lease_of_one_job_stops_a_chunk_in_one_transaction(pool, run, monkeypatch):
    path = run()
    atomic = SimpleNamespace(atomic=True)
    with monkeypatch.context() as patch:
        patch.setattr(pools.registry, "get", lambda name: atomic)
        pool.interrupt([102])
    path.touch()
    assert set(endings(pool)) == {Ending.RELEASED}


def test_timeout_fails_all_jobs(pool, run, monkeypatch):
    monkeypatch.setitem(registry._tasks, tasks.wait_for_file.name, with_timeout(0.1))
    run()
    assert endings(pool) == [Ending.FAILED] * 3
    assert {report.exception_class for report in pool.reports} == {"django_pgqueue.exceptions.TaskTimeout"}
    assert None not in {report.delay_seconds for report in pool.reports}


def with_timeout(seconds):
    return replace(tasks.wait_for_file, timeout=seconds)


def test_chunk_that_is_given_up_is_reported_for_each_job(pool, run):
    path = run()
    pool.give_up(101)
    assert endings(pool) == [Ending.FAILED] * 3
    path.touch()


def test_stack_of_any_job_is_that_of_the_chunk(pool, run):
    path = run()
    assert "wait_for_file" in pool.stack_of(103)
    assert pool.stack_of(999) is None
    path.touch()
    endings(pool)


def test_prefetched_chunk_is_released_as_a_whole():
    in_flight = InFlight(1)
    in_flight.add([chunk_of(3)])
    assert [job.job_id for job in in_flight.take([102])] == [1, 2, 3]
    assert len(in_flight) == 0
    assert in_flight._first_ids == {}
    in_flight.add([chunk_of(2)])
    assert [job.job_id for job in in_flight.take_waiting()] == [1, 2]


# ------------------------------------------------------------------ isolation and crashes


def test_messages_of_isolated_processes_have_all_jobs():
    chunk = chunk_of(3, item="x")
    assert wire.as_claimed(json.loads(json.dumps(wire.as_json(chunk)))) == chunk
    assert wire.as_claimed(json.loads(json.dumps(wire.as_json(claimed(1))))).others is None
    report = Report(chunk, Ending.SUCCEEDED, 1.0, 2.0, result="1")
    report.others = tuple(Report(job, Ending.FAILED, 1.0, 2.0, error=str(job.job_id)) for job in chunk.others)
    answer = json.loads(json.dumps(wire.from_report(report)))
    read = wire.as_report(chunk, answer)
    assert (read.ending, read.result, read.claimed) == (Ending.SUCCEEDED, "1", chunk)
    assert [(each.ending, each.error, each.claimed) for each in read.others] == [
        (Ending.FAILED, str(job.job_id), job) for job in chunk.others
    ]


def test_isolated_process_that_dies_charges_each_job():
    chunk, process = chunk_of(2), SimpleNamespace(ask_to_cancel=lambda: None)
    isolated = IsolatedAttempt(plan_of(chunk.task_name), chunk, "default", process, Notes())
    report = isolated._report_died(9)
    assert [each.ending for each in (report, *report.others)] == [Ending.CRASHED] * 2
    assert [each.delay_seconds for each in (report, *report.others)] == [0.0, 0.0]
    isolated.ask_to_cancel({101})
    assert not isolated.asked
    isolated.ask_to_cancel({101, 102})
    assert isolated.asked


def test_crash_of_a_process_charges_each_job_of_the_chunk():
    def execution(number, task_name=tasks.double.name, claimed_ms=5.0):
        return OpenExecution(number, number, task_name, "default", 1, 5, 0, started=True, claimed_ms=claimed_ms)

    left_open = [execution(1), execution(2), execution(3, "tests.app.tasks.noop"), execution(4, claimed_ms=6.0)]
    assert crash_charges._others_of_chunks(left_open, {1}) == {1, 2}
    assert crash_charges._others_of_chunks(left_open, {3}) == set()


# ------------------------------------------------------------------ lost leases at the end


def closed_by_another(job):
    """Close an execution as a rescue does."""
    completions.fail(connection, helpers.failed(job.key, None))


@pytest.mark.django_db
def test_lost_job_of_a_chunk_keeps_its_state():
    add(connection, 3)
    chunk = claim(connection).first
    closed_by_another(chunk.others[0])
    run_here("default", chunk)
    assert list(Job.objects.order_by("id").values_list("state", flat=True)) == ["succeeded", "dead", "succeeded"]


@pytest.mark.django_db
def test_lost_job_of_an_atomic_chunk_rolls_back_the_others():
    for number in range(3):
        tasks.in_transaction.enqueue(f"job {number}")
    lane = Lane("default", 0, chunk_key="+tests.chunks.tasks.in_transaction")
    rule = chunks.ChunkRule(3, 0.0)
    chunk = chunks.claim_chunk(connection, lane, rule, worker_id=1, lease_seconds=9.0).first
    closed_by_another(chunk.others[1])
    run_here("default", chunk)
    assert not Group.objects.exists()
    states = Job.objects.order_by("id").values_list("state", "attempt")
    assert list(states) == [("ready", 0), ("ready", 0), ("dead", 1)]


def test_attempt_of_a_chunk_without_its_task_is_left_to_other_workers():
    chunk = chunk_of(2)._replace(task_name="unknown")
    assert isinstance(attempt_of(chunk, "default", Notes()), ChunkAttempt)
    report = attempt("default", chunk, Notes())
    assert [each.ending for each in (report, *report.others)] == [Ending.UNKNOWN] * 2
