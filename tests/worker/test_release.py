"""Test that a release requeues jobs, cancels the jobs whose cancellation was requested, and sends their signal."""

from __future__ import annotations

import pytest

from django_pgqueue import signals
from django_pgqueue.models import Job
from django_pgqueue.worker.completion.writer import release_executions
from tests import helpers
from tests.app import tasks


@pytest.fixture
def cancelled_signals():
    """The task name and job id of each `job_cancelled` signal."""
    received = []

    def receive(sender, **data):
        received.append((sender, data["job_id"]))

    signals.job_cancelled.connect(receive)
    yield received
    signals.job_cancelled.disconnect(receive)


def test_release_cancel_requested_job_ends_as_cancelled(committing, engine, cancelled_signals):
    kept, unwanted = tasks.noop.enqueue(), tasks.noop.enqueue()
    claimed = helpers.claim_all(engine)
    assert unwanted.cancel()
    assert cancelled_signals == []
    release_executions(engine, claimed)
    assert helpers.state_of(engine, kept.pk) == "ready"
    assert helpers.state_of(engine, unwanted.pk) == "cancelled"
    assert cancelled_signals == [(tasks.noop.name, unwanted.pk)]


def test_release_no_executions_returns_no_results(committing, engine):
    assert release_executions(engine, []) == {}


def test_cancel_ready_jobs_sends_cancelled_signals(committing, cancelled_signals):
    jobs = [tasks.noop.enqueue() for _ in range(3)]
    assert jobs[0].cancel()
    assert Job.objects.filter(state="ready").cancel() == 2
    assert sorted(cancelled_signals) == sorted((tasks.noop.name, job.pk) for job in jobs)
