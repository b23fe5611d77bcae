"""Django's task signals for jobs that our workers run.

A worker sends `task_finished` after the outcome is written, with the backend class as the sender. It sends the signal
of a failure while the exception is being handled.
"""

from __future__ import annotations

import logging
import sys

import pytest
from django.db import transaction

from django_pgqueue.backend import PgQueueBackend
from django_pgqueue.backend.compat import TaskResultStatus, task_enqueued, task_finished, task_started
from django_pgqueue.exceptions import QueueError
from django_pgqueue.models import Job
from django_pgqueue.testing import run_jobs
from tests.framework import tasks

pytestmark = pytest.mark.django_db
STATES = TaskResultStatus


@pytest.fixture
def seen():
    """Yield the list of what receivers of both signals got: (signal, sender, result, exception being handled)."""
    received = []

    def on_started(sender, task_result, **_):
        received.append(("started", sender, task_result, None))
        raise RuntimeError("a receiver that raises")

    def on_finished(sender, task_result, **_):
        received.append(("finished", sender, task_result, sys.exc_info()[1]))
        raise RuntimeError("a receiver that raises")

    task_started.connect(on_started, sender=PgQueueBackend)
    task_finished.connect(on_finished, sender=PgQueueBackend)
    yield received
    task_started.disconnect(on_started, sender=PgQueueBackend)
    task_finished.disconnect(on_finished, sender=PgQueueBackend)


def test_signals_of_success_are_sent_despite_failing_receivers(seen):
    result = tasks.add.enqueue(1, b=2)
    run_jobs()
    [(_, _, begun, _), (_, _, ended, exception)] = seen
    assert [entry[:2] for entry in seen] == [("started", PgQueueBackend), ("finished", PgQueueBackend)]
    assert (begun.id, begun.status, ended.id, ended.status) == (result.id, STATES.RUNNING, result.id, STATES.SUCCESSFUL)
    assert exception is None
    assert ended == tasks.add.get_result(result.id)
    assert Job.objects.get().state == "succeeded"


def test_signal_result_loads_missing_fields_with_one_query(seen, django_assert_num_queries):
    result = tasks.add.enqueue(1, b=2)
    run_jobs()
    ended = seen[-1][2]
    with django_assert_num_queries(0):
        assert (ended.id, ended.status, ended.task.module_path) == (result.id, STATES.SUCCESSFUL, tasks.add.module_path)
    with django_assert_num_queries(1):
        assert (ended.return_value, ended.args, ended.attempts, ended.enqueued_at is None) == (3, [1], 1, False)


def test_signal_of_failure_is_sent_during_its_exception(seen):
    tasks.boom.enqueue("live")
    run_jobs()
    assert str(seen[-1][3]) == "live"
    assert seen[-1][2].status == STATES.FAILED
    assert seen[-1][3].__traceback__.tb_next.tb_frame.f_code.co_name != "_failed"


def test_finished_signal_is_sent_only_after_the_last_attempt(seen):
    tasks.always.enqueue()
    run_jobs(max_jobs=1)
    assert [entry[0] for entry in seen] == ["started"]
    run_jobs()
    assert [entry[0] for entry in seen] == ["started", "started", "finished"]


def test_cancel_sends_the_finished_signal(seen):
    tasks.noop.enqueue()
    Job.objects.get().cancel()
    assert [(kind, result.status) for kind, _, result, _ in seen] == [("finished", STATES.FAILED)]


def test_django_receivers_log_enqueue_start_and_failure(caplog):
    with caplog.at_level(logging.DEBUG, "django.tasks"), caplog.at_level(logging.DEBUG, "django_tasks"):
        result = tasks.boom.enqueue("logged")
        run_jobs()
    lines = [record for record in caplog.records if record.name in ("django.tasks", "django_tasks")]
    assert [(record.levelname, result.id in record.getMessage()) for record in lines] == [
        ("DEBUG", True),
        ("INFO", True),
        ("ERROR", True),
    ]
    assert "ValueError: logged" in caplog.text


@pytest.mark.pgqueue(IMMEDIATE=True)
def test_immediate_enqueue_sends_enqueued_before_started(seen):
    def on_enqueued(sender, task_result, **_):
        seen.append(("enqueued", sender, task_result, None))

    task_enqueued.connect(on_enqueued)
    try:
        result = tasks.noop.enqueue()
    finally:
        task_enqueued.disconnect(on_enqueued)
    assert [(kind, received.id, received.status) for kind, _, received, _ in seen] == [
        ("enqueued", result.id, STATES.READY),
        ("started", result.id, STATES.RUNNING),
        ("finished", result.id, STATES.SUCCESSFUL),
    ]
    assert result.status == STATES.SUCCESSFUL


def test_native_task_sends_no_django_signals(seen):
    from tests.app.tasks import add

    add.enqueue(1, b=2)
    run_jobs()
    assert seen == []


def test_task_enqueued_receiver_with_failing_query_raises():
    def receive(**arguments):
        Job.objects.raw("SELECT 1 / 0 AS id")[0]

    task_enqueued.connect(receive)
    try:
        with pytest.raises(QueueError, match="receiver failed"), transaction.atomic():
            tasks.add.enqueue(1, b=2)
    finally:
        task_enqueued.disconnect(receive)
    assert not Job.objects.exists()
