"""Django's signals for what our workers do: sent once it is true, by the class, with the exception live."""

from __future__ import annotations

import logging
import sys

import pytest

from django_pgqueue.backend import PgQueueBackend
from django_pgqueue.backend.compat import TaskResultStatus, task_enqueued, task_finished, task_started
from django_pgqueue.models import Job
from django_pgqueue.testing import run_jobs
from tests.framework import tasks

pytestmark = pytest.mark.django_db
STATES = TaskResultStatus


@pytest.fixture
def seen():
    """What receivers of both signals were told, as (signal, sender, result, the exception handled then)."""
    told = []

    def on_started(sender, task_result, **_):
        told.append(("started", sender, task_result, None))
        raise RuntimeError("a receiver that raises")

    def on_finished(sender, task_result, **_):
        told.append(("finished", sender, task_result, sys.exc_info()[1]))
        raise RuntimeError("a receiver that raises")

    task_started.connect(on_started, sender=PgQueueBackend)
    task_finished.connect(on_finished, sender=PgQueueBackend)
    yield told
    task_started.disconnect(on_started, sender=PgQueueBackend)
    task_finished.disconnect(on_finished, sender=PgQueueBackend)


def test_a_success_is_told_of_when_it_is_written_and_receivers_change_nothing(seen):
    result = tasks.add.enqueue(1, b=2)
    run_jobs()
    [(_, _, begun, _), (_, _, ended, exception)] = seen
    assert [entry[:2] for entry in seen] == [("started", PgQueueBackend), ("finished", PgQueueBackend)]
    assert (begun.id, begun.status, ended.id, ended.status) == (result.id, STATES.RUNNING, result.id, STATES.SUCCESSFUL)
    assert exception is None
    assert ended == tasks.add.get_result(result.id)
    assert Job.objects.get().state == "succeeded"


def test_what_a_signal_does_not_know_is_loaded_once(seen, django_assert_num_queries):
    tasks.add.enqueue(1, b=2)
    run_jobs()
    ended = seen[-1][2]
    with django_assert_num_queries(0):
        assert (ended.id, ended.status, ended.task.module_path) == (ended.id, STATES.SUCCESSFUL, tasks.add.module_path)
    with django_assert_num_queries(1):
        assert (ended.return_value, ended.args, ended.attempts, ended.enqueued_at is None) == (3, [1], 1, False)


def test_a_failure_is_told_of_while_its_exception_is_live(seen):
    tasks.boom.enqueue("live")
    run_jobs()
    assert str(seen[-1][3]) == "live"
    assert seen[-1][2].status == STATES.FAILED
    assert seen[-1][3].__traceback__.tb_next.tb_frame.f_code.co_name != "_failed"


def test_an_attempt_that_another_follows_has_not_finished(seen):
    tasks.always.enqueue()
    run_jobs(max_jobs=1)
    assert [entry[0] for entry in seen] == ["started"]
    run_jobs()
    assert [entry[0] for entry in seen] == ["started", "started", "finished"]


def test_a_cancelled_job_has_finished(seen):
    tasks.noop.enqueue()
    Job.objects.get().cancel()
    assert [(kind, result.status) for kind, _, result, _ in seen] == [("finished", STATES.FAILED)]


def test_djangos_own_receivers_log_it(caplog):
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
def test_at_once_too_a_task_is_enqueued_before_it_runs(seen):
    def on_enqueued(sender, task_result, **_):
        seen.append(("enqueued", sender, task_result, None))

    task_enqueued.connect(on_enqueued)
    try:
        result = tasks.noop.enqueue()
    finally:
        task_enqueued.disconnect(on_enqueued)
    assert [(kind, told.id, told.status) for kind, _, told, _ in seen] == [
        ("enqueued", result.id, STATES.READY),
        ("started", result.id, STATES.RUNNING),
        ("finished", result.id, STATES.SUCCESSFUL),
    ]
    assert result.status == STATES.SUCCESSFUL


def test_jobs_of_other_tasks_send_none(seen):
    from tests.app.tasks import add

    add.enqueue(1, b=2)
    run_jobs()
    assert seen == []
