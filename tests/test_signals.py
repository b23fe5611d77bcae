"""Each signal is sent with the arguments that its description names."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from django.db import DataError, transaction

from django_pgqueue import signals
from django_pgqueue.exceptions import QueueError
from django_pgqueue.ground.endings import ENDINGS, Ending
from django_pgqueue.lifecycle.types import OpenExecution, TransitionResult, TransitionStatus
from django_pgqueue.models import Job
from django_pgqueue.reactions import ARGUMENTS, AnyWaiters, Reactions, SendSignals, ended
from django_pgqueue.signals import TaskSignal
from django_pgqueue.testing import run_jobs
from django_pgqueue.worker.completion.writer import release_executions
from tests import helpers
from tests.app import tasks
from tests.worker.test_attempt import raw_job

OF_JOBS = {name: value for name, value in vars(signals).items() if isinstance(value, TaskSignal)}


@pytest.fixture
def received():
    """Return the calls of all signals about jobs: the name of the signal and its arguments."""
    calls = []
    receivers = {}
    for name, signal in OF_JOBS.items():

        def receive(sender, name=name, **arguments):
            calls.append((name, {key: value for key, value in arguments.items() if key != "signal"}))

        receivers[name] = receive
        signal.connect(receive)
    yield calls
    for name, receive in receivers.items():
        OF_JOBS[name].disconnect(receive)


def assert_as_described(calls):
    for name, arguments in calls:
        signal = OF_JOBS[name]
        assert set(signal.arguments) <= set(arguments) <= {*signal.arguments, *signal.sometimes}, name


@pytest.mark.django_db
def test_signals_of_ended_attempts_have_their_arguments(received):
    tasks.noop.enqueue()
    tasks.fail.enqueue()
    tasks.raise_directive.enqueue("snooze", 60)
    tasks.raise_directive.enqueue("cancel")
    raw_job("shop.tasks.brand_new")
    run_jobs()
    tasks.noop.enqueue().cancel()
    assert {name for name, _ in received} == set(OF_JOBS) - {
        "job_rescued",
        "job_suspended",
    }  # tests/steps has the last one
    assert_as_described(received)
    snoozed = dict(received)["job_snoozed"]
    assert (snoozed["delay_seconds"], snoozed["error"]) == (60.0, "")
    released = dict(received)["job_released"]
    assert released["delay_seconds"] > 0
    assert "has no task named" in released["error"]
    assert all(arguments["duration_seconds"] >= 0 for arguments in (snoozed, released))


def test_release_of_prefetched_job_sends_job_released(engine, received):
    helpers.make_jobs(engine, 1)
    claimed = helpers.claim_one(engine)
    release_executions(engine, [claimed], Reactions([SendSignals()], AnyWaiters()))
    [(name, arguments)] = received
    assert name == "job_released"
    assert_as_described(received)
    assert (arguments["execution_id"], arguments["delay_seconds"]) == (claimed.execution_id, None)
    assert "duration_seconds" not in arguments


@pytest.mark.parametrize("ending", Ending)
@pytest.mark.parametrize("is_rescued", [False, True])
def test_signals_of_lost_workers_have_their_arguments(received, ending, is_rescued):
    """A worker that was lost leaves no duration. The process that closes its executions sends the signals."""
    execution = OpenExecution(7, 3, "a.task", "default", 1, 5, 0, True, 0.0)
    for state in ENDINGS[ending].signals:
        result = TransitionResult(TransitionStatus.DONE, state)
        SendSignals().observe(ended(execution, result, ending, is_due=True, is_rescued=is_rescued), "default")
    assert_as_described(call for call in received if call[0] not in ("job_succeeded", "job_snoozed", "job_suspended"))
    assert is_rescued == any(name == "job_rescued" for name, _ in received)


def test_every_signal_of_a_transition_lists_its_fields():
    assert {name for name, signal in OF_JOBS.items() if signal in ARGUMENTS} == set(OF_JOBS) - {
        "job_enqueued",
        "job_started",
    }


@pytest.mark.django_db
def test_release_signal_is_sent_to_receivers_of_its_task_only(received):
    seen = []
    signals.job_snoozed.connect(lambda job_id, **_: seen.append(job_id), sender=tasks.noop.name, weak=False)
    tasks.raise_directive.enqueue("snooze", 60)
    run_jobs()
    assert [name for name, _ in received].count("job_snoozed") == 1
    assert seen == []
    assert Job.objects.get().state == "ready"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("catches", [True, False], ids=["in a savepoint", "bare"])
def test_enqueue_receiver_with_failing_query_raises(catches):
    """Otherwise the caller's COMMIT would become a ROLLBACK, and nobody would know that the job is lost."""

    def receive(**arguments):
        with transaction.atomic() if catches else nullcontext():
            Job.objects.raw("SELECT 1 / 0 AS id")[0]

    signals.job_enqueued.connect(receive)
    try:
        expected = nullcontext() if catches else pytest.raises(QueueError, match="receiver failed")
        with expected as caught, transaction.atomic():
            tasks.noop.enqueue()
    finally:
        signals.job_enqueued.disconnect(receive)
    assert Job.objects.count() == catches
    if caught is not None:
        assert isinstance(caught.value.__cause__, DataError)


@pytest.mark.django_db(transaction=True)
def test_cancel_receiver_with_failing_query_raises():
    job = tasks.noop.enqueue()

    def receive(**arguments):
        Job.objects.raw("SELECT 1 / 0 AS id")[0]

    signals.job_cancelled.connect(receive)
    try:
        with pytest.raises(QueueError, match="receiver failed"), transaction.atomic():
            job.cancel()
    finally:
        signals.job_cancelled.disconnect(receive)
    job.refresh_from_db()
    assert job.state == "ready"
