"""A finish in the caller's thread waits for whoever holds its rows, as a beat does for a moment."""

from __future__ import annotations

import pytest
from django.db import connection

from django_pgqueue.exceptions import JobLocked
from django_pgqueue.lifecycle import claim_one
from django_pgqueue.testing import run_jobs
from django_pgqueue.worker import foreground
from django_pgqueue.worker.completion.progress_writer import Notes
from tests import helpers
from tests.app import tasks

LOCK = "SELECT FROM pgqueue_execution WHERE id = %s FOR UPDATE"


@pytest.fixture
def attempted(committing):
    """The report of a job that has run, and whose end is not written."""
    job = tasks.noop.enqueue()
    claimed = claim_one(connection, job.pk, worker_id=0, lease_seconds=60.0)
    return foreground.attempt("default", claimed, Notes())


def test_it_is_written_when_they_let_go(attempted, engine, second):
    second.execute("BEGIN")
    second.execute(LOCK, [attempted.claimed.execution_id])
    writing = helpers.Background(lambda: foreground.write(engine, attempted, Notes()))
    second.execute("ROLLBACK")
    writing.result()
    assert helpers.state_of(second, attempted.claimed.job_id) == "succeeded"


def test_it_says_so_when_they_do_not(attempted, engine, second, monkeypatch):
    monkeypatch.setattr(foreground, "LOCKED_SECONDS", 0.1)
    second.execute("BEGIN")
    second.execute(LOCK, [attempted.claimed.execution_id])
    with pytest.raises(JobLocked, match="stayed locked"):
        foreground.write(engine, attempted, Notes())


def test_a_job_that_somebody_holds_is_not_run(committing, second):
    job = tasks.noop.enqueue()
    second.execute("BEGIN")
    second.execute("SELECT FROM pgqueue_job WHERE id = %s FOR UPDATE", [job.pk])
    assert run_jobs() == 0
