"""Tests of a completion in the caller's thread while another session has locked its rows.

A heartbeat, for example, locks an execution for a moment. The completion waits for the lock.
"""

from __future__ import annotations

import pytest
from django.db import connection

from django_pgqueue.exceptions import JobLocked
from django_pgqueue.lifecycle.claims import claim_one
from django_pgqueue.testing import run_jobs
from django_pgqueue.worker import foreground
from django_pgqueue.worker.completion.progress_writer import Notes
from tests import helpers
from tests.app import tasks

LOCK = "SELECT FROM pgqueue_execution WHERE id = %s FOR UPDATE"


@pytest.fixture
def attempted(committing):
    """Return the report of a job that has run and whose completion is not written."""
    job = tasks.noop.enqueue()
    claimed = claim_one(connection, job.pk, worker_id=0, lease_seconds=60.0)
    return foreground.attempt("default", claimed, Notes())


def test_write_locked_row_is_written_after_unlock(attempted, engine, second):
    second.execute("BEGIN")
    second.execute(LOCK, [attempted.claimed.execution_id])
    writing = helpers.Background(lambda: foreground.write(engine, attempted, Notes()))
    second.execute("ROLLBACK")
    writing.result()
    assert helpers.state_of(second, attempted.claimed.job_id) == "succeeded"


def test_write_row_stays_locked_raises_job_locked(attempted, engine, second, monkeypatch):
    monkeypatch.setattr(foreground, "LOCKED_SECONDS", 0.1)
    second.execute("BEGIN")
    second.execute(LOCK, [attempted.claimed.execution_id])
    with pytest.raises(JobLocked, match="stayed locked"):
        foreground.write(engine, attempted, Notes())


def test_run_jobs_locked_job_is_not_run(committing, second):
    job = tasks.noop.enqueue()
    second.execute("BEGIN")
    second.execute("SELECT FROM pgqueue_job WHERE id = %s FOR UPDATE", [job.pk])
    assert run_jobs() == 0
