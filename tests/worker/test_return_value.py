"""Test what happens before the task's function begins and after it has returned.

An outage before it counts no attempt, and an error after it must not run the function again. A return value that has
not run, such as a coroutine, is a failure.
"""

from __future__ import annotations

from contextvars import copy_context

import psycopg
import pytest
from django.contrib.auth.models import Group
from django.db import OperationalError, connection, connections

from django_pgqueue import signals
from django_pgqueue.ground.endings import Ending
from django_pgqueue.lifecycle.types import EPOCH, Claimed
from django_pgqueue.models import Execution, Job
from django_pgqueue.testing import run_jobs
from django_pgqueue.worker.completion.progress_writer import Notes
from django_pgqueue.worker.completion.writer import finish
from django_pgqueue.worker.execution.atomic import transaction_of
from django_pgqueue.worker.execution.chunk_attempt import attempt_of
from django_pgqueue.worker.execution.report import Report
from tests import helpers
from tests.app import mistakes, tasks

JOB = Claimed(1, 1, "t", "default", 0, EPOCH, "{}", 1, 1, 0, False, None, 0.0)


def run(claimed: Claimed) -> Report:
    """Run an attempt as a slot does: in a context of its own, which keeps what the attempt sets."""
    return copy_context().run(attempt_of(claimed, "default", Notes()).run)


@pytest.mark.promise("unstorable-result", "defect-result-not-json")
@pytest.mark.django_db
@pytest.mark.parametrize("kind", ["set", "nan", "nul", "large"])
@pytest.mark.parametrize("task", [tasks.return_often, tasks.async_return_often, tasks.return_often_atomic])
def test_result_not_json_job_is_dead_after_one_run(kind, task):
    tasks.ran.clear()
    job = task.enqueue(kind)
    run_jobs()
    job.refresh_from_db()
    assert (job.state, job.attempt, len(tasks.ran)) == ("dead", 1, 1)
    execution = Execution.objects.get(job=job)
    assert execution.exception_class == "django_pgqueue.exceptions.ResultNotStored"
    assert execution.error.startswith("the task succeeded, but its result cannot be stored: the return value")
    assert not Group.objects.exists(), "the transaction of an atomic task must be rolled back"


@pytest.mark.django_db
@pytest.mark.parametrize("task", [mistakes.return_instead_of_raise, mistakes.areturn_instead_of_raise])
@pytest.mark.parametrize(("kind", "written"), [("retry", "Retry(5)"), ("class", "Retry()"), ("cancel", "Cancel()")])
def test_task_returns_a_directive_job_is_dead(task, kind, written, settings):
    settings.PGQUEUE = {"TASK_MODULES": ["tests.app.mistakes"]}
    job = task.enqueue(kind)
    run_jobs()
    job.refresh_from_db()
    assert (job.state, job.attempt) == ("dead", 1)
    error = f"the task returned {written}, which has no effect: write `raise {written}`"
    assert Execution.objects.get(job=job).error == error


@pytest.mark.django_db
def test_task_returns_a_model_instance_error_says_return_pk(settings):
    settings.PGQUEUE = {"TASK_MODULES": ["tests.app.mistakes"]}
    mistakes.return_group.enqueue()
    run_jobs()
    assert Execution.objects.get().error.endswith(
        "the return value is of type Group, which JSON cannot represent: return value.pk, and load the object later"
    )


@pytest.mark.django_db
def test_task_cancels_itself_error_says_so(settings):
    settings.PGQUEUE = {"TASK_MODULES": ["tests.app.mistakes"]}
    mistakes.cancel_itself.enqueue()
    run_jobs()
    assert Execution.objects.values_list("outcome", "error").get() == (
        "cancelled",
        "the task raised Cancel() without a reason",
    )


@pytest.mark.promise("defect-unrun-coroutine")
@pytest.mark.django_db
@pytest.mark.parametrize("kind", ["coroutine", "generator", "async generator", "future"])
def test_task_returns_unrun_work_job_is_dead(kind):
    job = tasks.return_unrun.enqueue(kind)
    run_jobs()
    job.refresh_from_db()
    assert (job.state, job.attempt) == ("dead", 1)
    error = Execution.objects.get(job=job).error
    assert "which is never run" in error
    assert ("async def" in error) is (kind in ("coroutine", "future"))


@pytest.mark.promise("on-commit-raises", "defect-on-commit-exception")
@pytest.mark.django_db(transaction=True)
def test_on_commit_raises_job_has_succeeded(caplog):
    signalled_ids = []
    signals.job_succeeded.connect(lambda **data: signalled_ids.append(data["job_id"]), weak=False, dispatch_uid="told")
    job = tasks.create_group_and_fail_on_commit.enqueue("committed")
    with helpers.closing(helpers.connect()) as engine:
        claimed = helpers.claim_one(engine)
    report = run(claimed)
    signals.job_succeeded.disconnect(dispatch_uid="told")
    assert report.ending is Ending.WRITTEN
    job.refresh_from_db()
    assert job.state == "succeeded"
    assert Group.objects.filter(name="committed").exists()
    [record] = [record for record in caplog.records if "on_commit" in record.message]
    assert record.exc_info and "after the commit" in str(record.exc_info[1])


@pytest.mark.django_db(transaction=True)
def test_commit_refused_job_has_failed():
    """An error of the COMMIT itself must not count as an error of an `on_commit` function."""
    tasks.create_group_and_fail_on_commit.enqueue("refused")
    with helpers.closing(helpers.connect()) as engine:
        engine.execute(
            "CREATE FUNCTION users_rule() RETURNS trigger LANGUAGE plpgsql AS "
            "$$BEGIN RAISE EXCEPTION 'not at the commit'; END$$"
        )
        engine.execute(
            "CREATE CONSTRAINT TRIGGER users_rule AFTER INSERT ON auth_group "
            "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION users_rule()"
        )
        claimed = helpers.claim_one(engine)
        try:
            report = run(claimed)
        finally:
            engine.execute("DROP FUNCTION users_rule CASCADE")
    assert report.ending is Ending.FAILED
    assert not Group.objects.exists()


@pytest.mark.promise("outage-before-atomic", "defect-outage-fails-atomic")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("outage", ["refused", "ended"])
def test_atomic_task_without_transaction_is_released_uncounted(outage, unused_port, monkeypatch):
    tasks.create_group_and_progress.enqueue("group")
    with helpers.closing(helpers.connect()) as engine:
        claimed = helpers.claim_one(engine)
        connection.ensure_connection()
        if outage == "ended":
            engine.execute(
                "SELECT pg_terminate_backend(%(pid)s, 10000)", {"pid": connection.connection.info.backend_pid}
            )
        else:
            connection.close()
            refused = {**connection.get_connection_params(), "host": "127.0.0.1", "port": unused_port}
            monkeypatch.setattr(connections["default"], "get_connection_params", lambda: refused)
        report = run(claimed)
        monkeypatch.undo()
        connection.close()
        assert report.ending is Ending.UNKNOWN and report.error.startswith("no transaction could be opened: ")
        finish(engine, [report])
        job = helpers.job_row(engine, claimed.job_id)
    assert (job["state"], job["attempt"]) == ("ready", 0)
    assert Execution.objects.get().outcome == "released"


@pytest.mark.django_db(transaction=True)
def test_outage_inside_an_atomic_transaction_is_raised():
    """The function has begun, so its attempt counts."""
    with pytest.raises(OperationalError, match="lost"), transaction_of(connection, JOB):
        raise OperationalError("lost") from psycopg.OperationalError("lost")


@pytest.mark.django_db(transaction=True)
def test_outage_before_an_atomic_step_is_raised(unused_port, monkeypatch):
    """The function of the task has begun, so its attempt counts."""
    connection.close()
    refused = {**connection.get_connection_params(), "host": "127.0.0.1", "port": unused_port}
    monkeypatch.setattr(connections["default"], "get_connection_params", lambda: refused)
    with pytest.raises(OperationalError), transaction_of(connection, JOB, is_of_step=True):
        pytest.fail("no transaction can be opened")


@pytest.mark.promise("defect-array-nulls-off")
@pytest.mark.django_db(transaction=True)
def test_atomic_finish_null_arrays_off_succeeds():
    """The completion of an atomic task runs with the settings of the application's role."""
    job = tasks.create_group_and_progress.enqueue("group")
    with helpers.closing(helpers.connect()) as engine:
        claimed = helpers.claim_one(engine)
    with connection.cursor() as cursor:
        cursor.execute("SET array_nulls = off")
    try:
        report = run(claimed)
    finally:
        connection.close()
    assert report.ending is Ending.WRITTEN, report.error
    assert Job.objects.get(pk=job.pk).state == "succeeded"
