"""Test every way in which an attempt can end, with the real claim, executor and completion.

Everything runs in the test's own transaction.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from datetime import timedelta
from itertools import pairwise
from types import SimpleNamespace

import pytest
from django.contrib.auth.models import Group
from django.db import connection
from django.test import override_settings

from django_pgqueue import signals
from django_pgqueue.db.statements import clock
from django_pgqueue.ground.endings import Ending
from django_pgqueue.lifecycle import enqueueing
from django_pgqueue.lifecycle.enqueueing import NewJob
from django_pgqueue.models import Execution, Job
from django_pgqueue.testing import run_jobs
from django_pgqueue.worker.execution.attempt import Attempt
from django_pgqueue.worker.execution.attempt_plan import plan_of
from tests.app import tasks

pytestmark = pytest.mark.django_db


def run(job: Job) -> Job:
    """Run the due jobs and return the job as it is afterwards."""
    run_jobs()
    return Job.objects.get(pk=job.pk)


def last_execution(job: Job) -> Execution:
    return Execution.objects.filter(job=job).latest("id")


def test_attempt_success_stores_result_and_times():
    job = run(tasks.add.enqueue(2, b=3))
    assert (job.state, job.result, job.attempt) == ("succeeded", 5, 1)
    execution = last_execution(job)
    assert execution.outcome == "succeeded"
    assert execution.claimed_at <= execution.started_at <= execution.finished_at == job.finished_at


def test_attempt_coroutine_task_stores_result():
    assert run(tasks.async_add.enqueue(2, 3)).result == 5


def test_context_attempt_of_third_execution_is_three():
    job = run(tasks.fail_until.enqueue(3))
    assert (job.state, job.result, job.attempt) == ("succeeded", 3, 3)


def test_attempt_fails_each_time_records_all_and_job_is_dead():
    job = run(tasks.fail.enqueue("on purpose"))
    assert (job.state, job.attempt) == ("dead", 2)
    executions = Execution.objects.filter(job=job).order_by("id")
    assert [execution.outcome for execution in executions] == ["failed", "failed"]
    assert executions[0].exception_class == "builtins.RuntimeError"
    assert executions[0].error == "on purpose"
    assert "in fail" in executions[0].traceback


@override_settings(PGQUEUE={})
def test_retry_with_delay_runs_after_the_delay():
    job = tasks.raise_directive.enqueue("retry", after=100)
    assert run_jobs() == 1
    job.refresh_from_db()
    assert (job.state, job.attempt) == ("ready", 1)
    assert last_execution(job).outcome == "failed"
    assert run_jobs() == 0
    clock.shift_seconds = 101
    try:
        assert run_jobs() == 1
    finally:
        clock.shift_seconds = 0


def test_snooze_with_delay_keeps_attempt_count():
    job = tasks.raise_directive.enqueue("snooze", after=100)
    run_jobs()
    job.refresh_from_db()
    assert (job.state, job.attempt) == ("ready", 0)
    assert timedelta(seconds=100) <= job.run_after - last_execution(job).finished_at < timedelta(seconds=110)
    assert last_execution(job).outcome == "snoozed"


def test_cancel_or_dead_raised_ends_job_with_its_reason():
    cancelled, dead = tasks.raise_directive.enqueue("cancel"), tasks.raise_directive.enqueue("dead")
    run_jobs()
    assert Job.objects.get(pk=cancelled.pk).state == "cancelled"
    assert last_execution(cancelled).error == "not wanted"
    assert Job.objects.get(pk=dead.pk).state == "dead"
    assert last_execution(dead).error == "hopeless"


@pytest.mark.parametrize(("kind", "state", "attempts"), [("value", "dead", 1), ("os", "dead", 10), ("exit", "dead", 1)])
def test_retry_policy_error_type_decides_number_of_attempts(kind, state, attempts):
    job = run(tasks.picky.enqueue(kind))
    assert (job.state, job.attempt) == (state, attempts)


def test_retry_raised_outside_retry_for_is_retried():
    job = run(tasks.asks_for_more.enqueue())
    assert (job.state, job.attempt) == ("dead", 3)


@pytest.mark.parametrize(("text", "attempts"), [("at once", 1), ("later", 3)])
def test_backoff_of_task_result_gets_the_job(text, attempts):
    job = tasks.fail_by_result.enqueue(text)
    run_jobs(until=timedelta(minutes=1))
    job.refresh_from_db()
    assert (job.state, job.attempt) == ("dead", attempts)
    waits = [after.claimed_at - before.finished_at for before, after in pairwise(job.executions.order_by("id"))]
    expected = [pytest.approx(seconds + 5, abs=5.1) for seconds in (0, 30)]  # and up to 10 s until it was claimed
    assert [each.total_seconds() for each in waits] == expected[: attempts - 1]


def test_backoff_of_task_result_of_coroutine_needs_no_query():
    job = run(tasks.afail_by_result.enqueue())
    assert (job.state, job.attempt) == ("dead", 3)


@pytest.mark.parametrize(
    "kind", ["system_exit", "keyboard_interrupt", "generator_exit", "base", "recursion", "hostile", "unstorable"]
)
def test_attempt_any_exception_is_stored_as_failure(kind):
    job = tasks.raise_exception.enqueue(kind)
    with suppress(KeyboardInterrupt):  # `run_jobs()` passes it on, because jobs run in the caller's thread
        run(job)
    job.refresh_from_db()
    assert (job.state, job.attempt) == ("dead", 1)
    assert last_execution(job).exception_class
    assert len(last_execution(job).traceback.encode()) <= 16 * 1024


@pytest.mark.parametrize("kind", ["set", "nan", "nul", "large"])
def test_attempt_unstorable_result_fails_with_reason(kind):
    job = run(tasks.return_value.enqueue(kind))
    assert job.state == "dead"
    assert "return value" in last_execution(job).error


def test_result_nested_value_is_read_unchanged():
    assert run(tasks.return_value.enqueue("ok")).result == {"a": [1, 2.5, None]}


def test_attempt_store_result_off_ignores_return_value():
    job = run(tasks.return_unkept.enqueue())
    assert (job.state, job.result) == ("succeeded", None)


def test_attempt_zero_retention_deletes_job_on_success():
    job = tasks.keeps_nothing.enqueue()
    assert run_jobs() == 1
    assert not Job.objects.filter(pk=job.pk).exists()
    assert not Execution.objects.filter(job_id=job.pk).exists()


def test_atomic_task_success_stores_its_write_and_result():
    job = run(tasks.create_group.enqueue("made"))
    assert job.state == "succeeded"
    assert Group.objects.get(name="made").pk == job.result


def test_atomic_task_failure_rolls_back_its_write():
    job = run(tasks.create_group_and_fail.enqueue("made"))
    assert job.state == "dead"
    assert last_execution(job).error == "after the write"
    assert not Group.objects.exists()


def raw_job(task_name: str, arguments: str = '{"args":[],"kwargs":{}}') -> Job:
    row = {
        "task_name": task_name,
        "queue_name": "default",
        "priority": 0,
        "max_attempts": 3,
        "run_after": None,
        "delay_seconds": 0,
    }
    enqueued = enqueueing.enqueue(connection, NewJob(row, arguments))
    return Job.objects.get(pk=enqueued.job_id)


@pytest.mark.parametrize(
    ("task_name", "arguments", "says"),
    [
        ("os.system", '{"args":["true"],"kwargs":{}}', "has no task"),
        ("tests.app.tasks.add", '{"args":[1,2,3],"kwargs":{}}', "do not fit"),
        ("tests.app.tasks.async_add", '{"args":[],"kwargs":{"z":1}}', "do not fit"),
        ("tests.app.tasks.add", "[]", "cannot be read"),
        ("tests.app.tasks.add", '{"args":{},"kwargs":[]}', "cannot be read"),
        ("tests.app.tasks.add", "[" * 5000 + "]" * 5000, "cannot be read"),
    ],
)
def test_attempt_unrunnable_job_waits_uncounted_then_is_dead(task_name, arguments, says):
    job = raw_job(task_name, arguments)
    assert run_jobs() == 1
    job.refresh_from_db()
    assert (job.state, job.attempt) == ("ready", 0)
    assert job.unknown_since is not None
    assert says in last_execution(job).error
    delays = []
    try:
        for _ in range(20):
            job.refresh_from_db()
            if job.state != "ready":
                break
            delays.append((job.run_after - last_execution(job).finished_at).total_seconds())
            clock.shift_seconds += delays[-1] + 0.5
            assert run_jobs() == 1
    finally:
        clock.shift_seconds = 0
    assert job.state == "dead"
    assert delays[0] == pytest.approx(20, abs=5.1)  # 15 s, and up to 10 s until the release was written
    assert max(delays) == pytest.approx(605, abs=5.1)
    assert 3600 <= sum(delays) < 3600 + 700
    assert says in last_execution(job).error


def test_attempt_type_error_in_task_is_ordinary_failure():
    job = run(tasks.plus.using(max_attempts=1).enqueue(None))
    assert (job.state, job.attempt) == ("dead", 1)
    assert last_execution(job).exception_class == "builtins.TypeError"


def test_attempt_fails_after_cancel_request_is_cancelled():
    cancelled = []

    def request_cancel(**event):
        cancelled.append(Job.objects.get(pk=event["job_id"]).cancel())

    signals.job_started.connect(request_cancel)
    try:
        job = run(tasks.fail.enqueue())
    finally:
        signals.job_started.disconnect(request_cancel)
    assert list(map(bool, cancelled)) == [True]
    assert (job.state, job.attempt) == ("cancelled", 1)


def test_signals_with_raising_receivers_cover_every_ending():
    sent = []

    def receiver_of(name):
        def receive(**data):
            sent.append((name, data["sender"].rpartition(".")[2]))
            raise ValueError("receivers may be wrong")

        return receive

    names = ("job_enqueued", "job_started", "job_succeeded", "job_failed", "job_dead", "job_cancelled")
    receivers = {name: receiver_of(name) for name in names}
    for name, receiver in receivers.items():
        getattr(signals, name).connect(receiver)
    try:
        tasks.add.enqueue(1)
        tasks.fail.enqueue()
        tasks.raise_directive.enqueue("cancel")
        run_jobs()
    finally:
        for name, receiver in receivers.items():
            getattr(signals, name).disconnect(receiver)
    assert ("job_succeeded", "add") in sent
    assert [name for name, task in sent if task == "fail"] == [
        "job_enqueued",
        "job_started",
        "job_failed",
        "job_started",
        "job_dead",
    ]
    assert ("job_cancelled", "raise_directive") in sent
    assert set(Job.objects.values_list("state", flat=True)) == {"succeeded", "dead", "cancelled"}


def test_run_jobs_limit_and_queue_select_which_jobs_run():
    for _ in range(3):
        tasks.noop.enqueue()
    assert run_jobs(max_jobs=2) == 2
    assert run_jobs(["other"]) == 0
    assert run_jobs() == 1


def test_run_jobs_raising_reraises_task_exception():
    tasks.fail.enqueue("loudly")
    with pytest.raises(RuntimeError, match="loudly"):
        run_jobs(raising=True)


def test_enqueue_arguments_are_stored_as_plain_json():
    job = tasks.noop.enqueue((1, 2), when={"a": "é"})
    with connection.cursor() as cursor:
        cursor.execute("SELECT arguments::text FROM pgqueue_job WHERE id = %s", [job.pk])
        assert json.loads(cursor.fetchone()[0]) == {"args": [[1, 2]], "kwargs": {"when": {"a": "é"}}}


@pytest.mark.promise("defect-signal-sender-identity")
def test_signal_receiver_for_task_name_gets_only_that_task():
    received = []

    def receive(sender, **kwargs):
        received.append(sender)

    name = "".join(["tests.app.", "tasks.add"])
    for signal in (signals.job_enqueued, signals.job_started, signals.job_succeeded):
        signal.connect(receive, sender=name)
    tasks.noop.enqueue()
    tasks.add.enqueue(1)
    run_jobs()
    assert received == [tasks.add.name] * 3
    for signal in (signals.job_enqueued, signals.job_started, signals.job_succeeded):
        assert signal.disconnect(receive, sender="".join(["tests.app.", "tasks.add"]))


@pytest.mark.parametrize(("lost", "ending"), [(True, Ending.RELEASED), (False, Ending.CANCELLED)])
def test_cancelled_coroutine_ending_depends_on_lost_lease(lost, ending):
    attempt = Attempt(plan_of("unknown"), SimpleNamespace(), "default", SimpleNamespace())
    attempt.cancel()
    if lost:
        attempt.interrupt()
    assert attempt.ended_by(asyncio.CancelledError()).ending is ending
