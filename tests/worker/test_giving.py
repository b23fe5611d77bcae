"""What is given back is not counted; what was to be cancelled ends there, and is told of."""

from __future__ import annotations

import pytest

from django_pgqueue import signals
from django_pgqueue.models import Job
from django_pgqueue.worker.completion.release import release_executions
from tests import helpers
from tests.app import tasks


@pytest.fixture
def told():
    heard = []

    def hear(sender, **data):
        heard.append((sender, data["job_id"]))

    signals.job_cancelled.connect(hear)
    yield heard
    signals.job_cancelled.disconnect(hear)


def test_a_job_to_be_cancelled_ends_where_it_is_given_back(committing, engine, told):
    kept, unwanted = tasks.noop.enqueue(), tasks.noop.enqueue()
    claimed = helpers.claim_all(engine)
    assert unwanted.cancel()
    assert told == []
    release_executions(engine, claimed)
    assert helpers.state_of(engine, kept.pk) == "ready"
    assert helpers.state_of(engine, unwanted.pk) == "cancelled"
    assert told == [(tasks.noop.name, unwanted.pk)]


def test_to_give_back_nothing_asks_nothing(committing, engine):
    assert release_executions(engine, []) == {}


def test_cancelling_jobs_that_wait_is_told_of(committing, told):
    jobs = [tasks.noop.enqueue() for _ in range(3)]
    assert jobs[0].cancel()
    assert Job.objects.filter(state="ready").cancel() == 2
    assert sorted(told) == sorted((tasks.noop.name, job.pk) for job in jobs)
