"""Every way an attempt can end, through the real claim, executor and finish, in the test's own transaction."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from types import SimpleNamespace

import pytest
from django.contrib.auth.models import Group
from django.db import connection
from django.test import override_settings

from django_pgqueue import lifecycle, signals
from django_pgqueue.db.statements import clock
from django_pgqueue.endings import Ending
from django_pgqueue.models import Execution, Job
from django_pgqueue.testing import run_jobs
from django_pgqueue.worker.execution.attempt import Attempt
from tests.app import tasks

pytestmark = pytest.mark.django_db


def run(job: Job) -> Job:
    """Run what is due and return the job as it is then."""
    run_jobs()
    return Job.objects.get(pk=job.pk)


def last(job: Job) -> Execution:
    return Execution.objects.filter(job=job).latest("id")


def test_a_result_is_kept():
    job = run(tasks.add.enqueue(2, b=3))
    assert (job.state, job.result, job.attempt) == ("succeeded", 5, 1)
    execution = last(job)
    assert execution.outcome == "succeeded"
    assert execution.claimed_at <= execution.started_at <= execution.finished_at == job.finished_at


def test_a_coroutine_is_run():
    assert run(tasks.async_add.enqueue(2, 3)).result == 5


def test_a_context_tells_which_attempt_it_is():
    job = run(tasks.fail_until.enqueue(3))
    assert (job.state, job.result, job.attempt) == ("succeeded", 3, 3)


def test_failures_are_recorded_and_the_last_attempt_is_dead():
    job = run(tasks.fail.enqueue("on purpose"))
    assert (job.state, job.attempt) == ("dead", 2)
    executions = Execution.objects.filter(job=job).order_by("id")
    assert [execution.outcome for execution in executions] == ["failed", "failed"]
    assert executions[0].exception_class == "builtins.RuntimeError"
    assert executions[0].error == "on purpose"
    assert "in fail" in executions[0].traceback


@override_settings(PGQUEUE={})
def test_a_retry_waits_for_its_backoff():
    job = tasks.raise_directive.enqueue("retry", after=100)
    assert run_jobs() == 1
    job.refresh_from_db()
    assert (job.state, job.attempt) == ("ready", 1)
    assert last(job).outcome == "failed"
    assert run_jobs() == 0
    clock.shift_seconds = 101
    try:
        assert run_jobs() == 1
    finally:
        clock.shift_seconds = 0


def test_a_snooze_is_not_counted():
    job = tasks.raise_directive.enqueue("snooze", after=100)
    run_jobs()
    job.refresh_from_db()
    assert (job.state, job.attempt) == ("ready", 0)
    assert (job.run_after - last(job).finished_at).total_seconds() == pytest.approx(100, abs=1)
    assert last(job).outcome == "snoozed"


def test_cancel_and_dead_end_a_job_with_their_reasons():
    cancelled, dead = tasks.raise_directive.enqueue("cancel"), tasks.raise_directive.enqueue("dead")
    run_jobs()
    assert Job.objects.get(pk=cancelled.pk).state == "cancelled"
    assert last(cancelled).error == "not wanted"
    assert Job.objects.get(pk=dead.pk).state == "dead"
    assert last(dead).error == "hopeless"


@pytest.mark.parametrize(("kind", "state", "attempts"), [("value", "dead", 1), ("os", "dead", 10), ("exit", "dead", 1)])
def test_what_is_not_to_be_retried_is_dead_at_once(kind, state, attempts):
    job = run(tasks.picky.enqueue(kind))
    assert (job.state, job.attempt) == (state, attempts)


def test_who_asks_for_a_retry_gets_it_whatever_errors_are_retried():
    job = run(tasks.asks_for_more.enqueue())
    assert (job.state, job.attempt) == ("dead", 3)


@pytest.mark.parametrize(
    "kind", ["system_exit", "keyboard_interrupt", "generator_exit", "base", "recursion", "hostile", "unstorable"]
)
def test_whatever_a_task_raises_is_its_failure_and_can_be_stored(kind):
    job = tasks.raise_exception.enqueue(kind)
    with suppress(KeyboardInterrupt):  # which goes on to whoever runs jobs in their own thread
        run(job)
    job.refresh_from_db()
    assert (job.state, job.attempt) == ("dead", 1)
    assert last(job).exception_class
    assert len(last(job).traceback.encode()) <= 16 * 1024


@pytest.mark.parametrize("kind", ["set", "nan", "nul", "large"])
def test_a_result_that_cannot_be_stored_is_a_failure_that_says_so(kind):
    job = run(tasks.return_value.enqueue(kind))
    assert job.state == "dead"
    assert "return value" in last(job).error


def test_a_result_comes_back_as_it_was():
    assert run(tasks.return_value.enqueue("ok")).result == {"a": [1, 2.5, None]}


def test_a_result_that_is_not_wanted_is_not_looked_at():
    job = run(tasks.return_unkept.enqueue())
    assert (job.state, job.result) == ("succeeded", None)


def test_a_task_that_keeps_nothing_is_gone_with_its_finish():
    job = tasks.keeps_nothing.enqueue()
    assert run_jobs() == 1
    assert not Job.objects.filter(pk=job.pk).exists()
    assert not Execution.objects.filter(job_id=job.pk).exists()


def test_an_atomic_task_and_its_finish_are_one():
    job = run(tasks.create_group.enqueue("made"))
    assert job.state == "succeeded"
    assert Group.objects.get(name="made").pk == job.result


def test_a_failing_atomic_task_leaves_nothing():
    job = run(tasks.create_group_and_fail.enqueue("made"))
    assert job.state == "dead"
    assert last(job).error == "after the write"
    assert not Group.objects.exists()


def raw_job(task_name: str, arguments: str = '{"args":[],"kwargs":{}}') -> Job:
    enqueued = lifecycle.enqueue(
        connection,
        task_name=task_name,
        queue_name="default",
        priority=0,
        arguments=arguments,
        max_attempts=3,
        run_after=None,
        delay_seconds=0,
    )
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
def test_what_cannot_be_run_here_waits_uncounted_and_is_dead_in_the_end(task_name, arguments, says):
    job = raw_job(task_name, arguments)
    assert run_jobs() == 1
    job.refresh_from_db()
    assert (job.state, job.attempt) == ("ready", 0)
    assert job.unknown_since is not None
    assert says in last(job).error
    delays = []
    try:
        for _ in range(20):
            job.refresh_from_db()
            if job.state != "ready":
                break
            delays.append((job.run_after - last(job).finished_at).total_seconds())
            clock.shift_seconds += delays[-1] + 0.5
            assert run_jobs() == 1
    finally:
        clock.shift_seconds = 0
    assert job.state == "dead"
    assert delays[0] == pytest.approx(15, abs=1)
    assert max(delays) == pytest.approx(600, abs=1)
    assert 3600 <= sum(delays) < 3600 + 700
    assert says in last(job).error


def test_a_type_error_inside_a_task_is_an_ordinary_failure():
    job = run(tasks.wait_for_file.using(max_attempts=1).enqueue(None))
    assert (job.state, job.attempt) == ("dead", 1)
    assert last(job).exception_class == "builtins.TypeError"


def test_a_job_cancelled_while_it_runs_is_not_tried_again():
    claimed = []

    def cancel_it(**told):
        claimed.append(Job.objects.get(pk=told["job_id"]).cancel())

    signals.job_started.connect(cancel_it)
    try:
        job = run(tasks.fail.enqueue())
    finally:
        signals.job_started.disconnect(cancel_it)
    assert claimed == [True]
    assert (job.state, job.attempt) == ("cancelled", 1)


def test_signals_tell_each_end_and_a_raising_receiver_changes_nothing():
    told = []

    def receiver_of(name):
        def receive(**data):
            told.append((name, data["sender"].rpartition(".")[2]))
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
    assert ("job_succeeded", "add") in told
    assert [name for name, task in told if task == "fail"] == [
        "job_enqueued",
        "job_started",
        "job_failed",
        "job_started",
        "job_dead",
    ]
    assert ("job_cancelled", "raise_directive") in told
    assert set(Job.objects.values_list("state", flat=True)) == {"succeeded", "dead", "cancelled"}


def test_run_jobs_runs_what_jobs_enqueue_and_stops_where_asked():
    for _ in range(3):
        tasks.noop.enqueue()
    assert run_jobs(max_jobs=2) == 2
    assert run_jobs(["other"]) == 0
    assert run_jobs() == 1


def test_run_jobs_can_raise_what_a_job_raised():
    tasks.fail.enqueue("loudly")
    with pytest.raises(RuntimeError, match="loudly"):
        run_jobs(raising=True)


def test_what_is_stored_of_arguments_is_plain_json():
    job = tasks.noop.enqueue((1, 2), when={"a": "é"})
    with connection.cursor() as cursor:
        cursor.execute("SELECT arguments::text FROM pgqueue_job WHERE id = %s", [job.pk])
        assert json.loads(cursor.fetchone()[0]) == {"args": [[1, 2]], "kwargs": {"when": {"a": "é"}}}


def test_a_receiver_may_be_connected_for_one_task_by_a_name_that_is_equal():
    heard = []

    def hear(sender, **kwargs):
        heard.append(sender)

    name = "".join(["tests.app.", "tasks.add"])
    for signal in (signals.job_enqueued, signals.job_started, signals.job_succeeded):
        signal.connect(hear, sender=name)
    tasks.noop.enqueue()
    tasks.add.enqueue(1)
    run_jobs()
    assert heard == [tasks.add.name] * 3
    for signal in (signals.job_enqueued, signals.job_started, signals.job_succeeded):
        assert signal.disconnect(hear, sender="".join(["tests.app.", "tasks.add"]))


@pytest.mark.parametrize(("lost", "ending"), [(True, Ending.RELEASED), (False, Ending.CANCELLED)])
def test_a_coroutine_that_is_cancelled_with_its_lease_lost_is_given_back(lost, ending):
    attempt = Attempt(SimpleNamespace(), "default", SimpleNamespace())
    attempt.cancel()
    if lost:
        attempt.interrupt()
    assert attempt.ended_by(asyncio.CancelledError()).ending is ending
