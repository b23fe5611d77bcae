"""Requests of operators to single workers: who can be asked, how each is answered, and what an idle worker pays."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection as django_connection
from django.utils import timezone

from django_pgqueue import sql
from django_pgqueue.control import workers as worker_control
from django_pgqueue.lifecycle import audit, leases, worker_requests, workers
from django_pgqueue.models import AuditedJob, AuditEntry, Execution, Worker, WorkerRequest
from django_pgqueue.states import RequestKind
from django_pgqueue.worker.claiming.waking.request_answers import ANSWER_BYTES, RequestAnswers
from django_pgqueue.worker.slots.inflight import InFlight, Running
from tests.helpers import make_job
from tests.test_sql import nodes

pytestmark = pytest.mark.django_db

STOP, STACK = RequestKind.STOP, RequestKind.STACK


@pytest.fixture
def add_worker() -> Callable[..., int]:
    """Return a function that registers a worker process in the transaction of the test."""

    def add(**columns: Any) -> int:
        about: dict[str, Any] = {"hostname": "vm", "pid": 7, "version": "1", "queue_names": "", "concurrency": 2}
        return workers.register_worker(django_connection, **{**about, "supervisor_pid": 6, **columns})

    return add


@pytest.fixture
def answers(add_worker: Callable[..., int]) -> RequestAnswers:
    """Return the part of a worker process that answers, with one running job whose stack is "a frame"."""
    in_flight = InFlight(1)
    claimed: Any = SimpleNamespace(execution_id=5, job_id=9, task_name="app.hang", attempt=1)
    in_flight.running[5] = Running(claimed, 0.0, 0)
    pool: Any = SimpleNamespace(
        stack_of=lambda execution_id: "a frame" if execution_id == 5 else None,
        options=SimpleNamespace(grace_seconds=30.0),
    )
    state: Any = SimpleNamespace(has_requests=False, stop_requested=False)
    return RequestAnswers(in_flight, pool, state, add_worker())


def answer_of(answers: RequestAnswers, kind: RequestKind, execution_id: int = 0) -> str:
    asked = worker_control.request(answers.worker_id, kind, "default", execution_id=execution_id, by="ada")
    assert asked is not None and asked.is_new
    answers.answer(django_connection)  # type: ignore[arg-type]  # Django's connection has the same methods here
    return WorkerRequest.objects.get(pk=asked.request_id, answered_at__isnull=False).answer


def test_request_repeated_while_open_is_one_request(add_worker):
    worker_id = add_worker()
    first = worker_control.request(worker_id, STACK, "default", execution_id=5, by="ada")
    assert first is not None and first.is_new
    assert worker_control.request(worker_id, STACK, "default", execution_id=5) == (first.request_id, False)
    other = worker_control.request(worker_id, STACK, "default", execution_id=6)
    assert other is not None and other.is_new and other != first
    worker_requests.answer_request(django_connection, first.request_id, "frames")
    worker_requests.answer_request(django_connection, first.request_id, "other")
    again = worker_control.request(worker_id, STACK, "default", execution_id=5)
    assert again is not None and again.is_new and again != first
    assert WorkerRequest.objects.get(pk=first.request_id).answer == "frames"


def test_request_is_audited_once_with_its_worker_and_job(add_worker):
    worker_id = add_worker()
    job_id = make_job(django_connection)
    columns = {"attempt": 1, "claimed_at": timezone.now(), "lease_expires_at": timezone.now()}
    execution = Execution.objects.create(job_id=job_id, worker_id=worker_id, **columns)
    for _ in range(2):
        worker_control.request(worker_id, STACK, "default", execution_id=execution.pk, by="ada")
        worker_control.request(worker_id, STOP, "default", by="bob")
    stack, stop = AuditEntry.objects.order_by("pk")
    assert (stack.action, stack.done_by, stack.outcome, stack.job_count) == ("live_stack", "ada", "done", 1)
    assert (stop.action, stop.done_by, stop.outcome, stop.job_count) == ("stop_worker", "bob", "done", 0)
    assert stack.filter == stop.filter == {"worker": "vm:7", "worker_id": worker_id}
    assert list(AuditedJob.objects.values_list("entry", "job_id")) == [(stack.pk, job_id)]
    worker_control.request(add_worker(), STACK, "default", execution_id=execution.pk)
    assert AuditedJob.objects.count() == 1, "that worker does not run the job"


def test_request_whose_audit_fails_is_not_added(add_worker, monkeypatch):
    def fail(*args, **options):
        raise OSError

    monkeypatch.setattr(audit, "add_audit", fail)
    with pytest.raises(OSError):
        worker_control.request(add_worker(), STOP, "default")
    assert not WorkerRequest.objects.exists()


@pytest.mark.parametrize("case", ["unknown", "stopped", "without supervisor"])
def test_request_worker_that_cannot_answer_is_refused(add_worker, case):
    worker_id = add_worker(supervisor_pid=None if case == "without supervisor" else 6)
    if case == "stopped":
        workers.unregister_worker(django_connection, worker_id)
    assert worker_control.request(worker_id + (case == "unknown"), STOP, "default") is None
    assert not WorkerRequest.objects.exists() and not AuditEntry.objects.exists()


def has_requests(worker_ids, resident_mib=None):
    answers = leases.extend(django_connection, worker_ids, lease_seconds=60.0, resident_mib=resident_mib or {})
    return {worker_id: answer.has_requests for worker_id, answer in answers.items()}


def test_heartbeat_record_says_which_worker_has_open_requests(add_worker):
    asked, other = add_worker(), add_worker()
    request = worker_control.request(asked, STOP, "default")
    assert request is not None
    assert has_requests([asked, other], {asked: 64}) == {asked: True, other: False}
    assert dict(Worker.objects.values_list("pk", "resident_mib")) == {asked: 64, other: None}
    worker_requests.answer_request(django_connection, request.request_id, "")
    assert has_requests([asked, other]) == {asked: False, other: False}


def test_answers_stack_of_running_and_of_ended_job(answers):
    assert answer_of(answers, STACK, 5) == "a frame"
    assert answer_of(answers, STACK, 6) == "The job does not run in this process any more."
    assert answer_of(answers, STACK) == "Job 9 (app.hang), attempt 1\na frame"
    answers.in_flight.running.clear()
    assert answer_of(answers, STACK) == "No job runs in this process."
    assert not answers.process_state.stop_requested


def test_answers_stop_tells_supervisor_and_says_grace(answers):
    assert "its running jobs have 30 s to finish" in answer_of(answers, STOP)
    assert answers.process_state.stop_requested


def test_answers_large_stack_with_nul_is_cut_and_stored(answers):
    answers.pool.stack_of = lambda execution_id: "\0" + "x" * 1_000_000
    for number in range(100):
        claimed = SimpleNamespace(execution_id=number, job_id=number, task_name="app.hang", attempt=1)
        answers.in_flight.running[number] = Running(claimed, 0.0, 0)
    assert len(answer_of(answers, STACK, 5)) <= 20_000
    assert 100_000 < len(answer_of(answers, STACK).encode()) <= ANSWER_BYTES


def test_answers_failed_read_is_expected_again(answers, monkeypatch):
    def fail(*args):
        raise OSError

    answers.process_state.has_requests = True
    assert answers.are_expected
    monkeypatch.setattr(worker_requests, "open_requests", fail)
    with pytest.raises(OSError):
        answers.answer(None)
    assert answers.are_expected and not answers.process_state.has_requests


def test_prune_removes_old_requests_only(add_worker):
    worker_id = add_worker()
    worker_control.request(worker_id, STOP, "default")
    worker_requests.prune_worker_requests(django_connection, 60.0)
    assert WorkerRequest.objects.count() == 1
    worker_requests.prune_worker_requests(django_connection, -60.0)
    assert WorkerRequest.objects.count() == 0


@pytest.mark.parametrize("name", ["EXTEND", "WORKER_REQUESTS"])
def test_plan_with_many_answered_requests_reads_no_history(add_worker, name):
    """The requests that wait have an index of their own, so the history of answers costs nothing."""
    worker_id = add_worker()
    with django_connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO pgqueue_worker_request (worker_id, kind, answered_at) "
            "SELECT %s, 'stack', statement_timestamp() FROM generate_series(1, 5000)",
            [worker_id],
        )
        cursor.execute("ANALYZE pgqueue_worker_request")
        cursor.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off")
        text = getattr(sql.leases if name == "EXTEND" else sql.worker_requests, name)
        parameters = {"worker_ids": [worker_id], "worker_id": worker_id, "resident_mib": [1], "limit": 20}
        parameters["lease_seconds"] = 60.0
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {text}", {**parameters, "time_shift": "0 s"})
        [[answer]] = cursor.fetchall()
    plan = json.loads(answer) if isinstance(answer, str) else answer
    scans = [node for node in nodes(plan[0]["Plan"]) if node.get("Relation Name") == "pgqueue_worker_request"]
    assert {node["Index Name"] for node in scans} == {"pgqueue_worker_request_open"}
    assert sum(node["Actual Rows"] + node.get("Rows Removed by Filter", 0) for node in scans) == 0
