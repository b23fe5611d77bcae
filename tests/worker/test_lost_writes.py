"""A task that returns before it commits loses its writes: its job must not succeed."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Group
from django.db import connection, transaction

from django_pgqueue.exceptions import Dead
from django_pgqueue.ground.endings import Ending
from django_pgqueue.lifecycle.types import EPOCH, Claimed
from django_pgqueue.models import Execution, Job
from django_pgqueue.testing import run_jobs
from django_pgqueue.worker.completion.progress_writer import Notes
from django_pgqueue.worker.execution.chunk_attempt import attempt_of
from django_pgqueue.worker.execution.lost_writes import report_of_lost_writes
from django_pgqueue.worker.execution.report import Report
from django_pgqueue.worker.runtime import django_connections
from tests.app import mistakes

MODULES = ["tests.app.mistakes"]
LOST = "left a transaction open on database 'default', so its writes were rolled back: write inside `with transaction."


@pytest.fixture(autouse=True)
def _found_by_workers(settings):
    settings.PGQUEUE = {"TASK_MODULES": MODULES}


@pytest.mark.process
def test_job_returning_before_its_commit_is_dead(start):
    lost = [
        mistakes.write_without_commit.enqueue("thread"),
        mistakes.write_without_commit.enqueue("statement", "BEGIN"),
        mistakes.write_isolated.enqueue("isolated"),
        mistakes.write_async.enqueue("async"),
        *(mistakes.write_chunk.enqueue(f"chunk {number}") for number in range(2)),
    ]
    kept = mistakes.write_and_commit.enqueue("kept")
    failed = mistakes.write_and_fail.enqueue("failed")
    assert start("--concurrency", "1", "--until-empty", TASK_MODULES=MODULES).has_drained()
    for job in lost:
        job.refresh_from_db()
        assert (job.task_name, job.state, job.attempt) == (job.task_name, "dead", 1)
        assert LOST in Execution.objects.get(job=job).error
    failed.refresh_from_db()
    assert (failed.state, failed.attempt) == ("dead", 2)
    assert {each.error for each in failed.executions.all()} == {"no"}
    assert Job.objects.get(pk=kept.pk).state == "succeeded"
    assert list(Group.objects.values_list("name", flat=True)) == ["kept"]


@pytest.mark.django_db(transaction=True)
def test_run_jobs_before_its_commit_job_is_dead():
    job = mistakes.write_without_commit.enqueue("foreground")
    assert "1 failed" in repr(run_jobs())
    job.refresh_from_db()
    assert job.state == "dead"
    assert LOST in job.executions.get().error
    assert connection.get_autocommit()
    assert not Group.objects.exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("statement", "has_written"),
    [
        ("SELECT 1", False),
        ("INSERT INTO auth_group (name) VALUES ('x')", True),
        ("INSERT INTO auth_group (name) VALUES ('x'); SAVEPOINT a", True),
    ],
)
def test_uncommitted_writes_count_only_writes(statement, has_written):
    transaction.set_autocommit(False)
    try:
        with connection.cursor() as cursor:
            cursor.execute(statement)
        assert django_connections.has_uncommitted_writes(connection) is has_written
    finally:
        connection.close()


def attempt(task_name: str, job_id: int):
    claimed = Claimed(job_id, job_id, task_name, "default", 0, EPOCH, "{}", 1, 1, 0, False, None, 0.0)
    return attempt_of(claimed, "default", Notes())


@pytest.mark.parametrize(
    ("ending", "others", "says"),
    [
        (Ending.SUCCEEDED, ("b",), "job 1 or another job of a, b: lost"),
        (Ending.FAILED, ("b",), "job 1 or another job of a, b: lost"),
        (Ending.WRITTEN, (), "job 1 of a: lost"),
        (Ending.FAILED, (), ""),
    ],
)
def test_lost_writes_that_cannot_fail_a_job_are_logged(ending, others, says, caplog):
    """Coroutines share a connection, and an atomic task has completed its job already."""
    this = attempt("a", 1)
    report = Report(this.claimed, ending, 0.0, 1.0)
    assert report_of_lost_writes(this, report, Dead("lost"), [attempt(name, 2) for name in others]) is report
    assert [(each.levelname, each.message) for each in caplog.records] == ([("ERROR", says)] if says else [])
