"""Test what operators see of jobs that wait for their chunk."""

from __future__ import annotations

import pytest
from django.core.management import call_command
from django.db import connection as session

from django_pgqueue import stats
from django_pgqueue.models import Job
from django_pgqueue.stats import Reason
from django_pgqueue.tasks import registry
from tests import helpers
from tests.stats.conftest import add_worker, connection
from tests.stats.test_explanation import assert_why

from . import tasks
from .test_claims import add

__all__ = ["add_worker", "connection"]

PATIENT = "+tests.chunks.tasks.patient"


@pytest.mark.django_db
def test_why_tells_what_a_job_waits_for(add_worker):
    add_worker(concurrency=10)
    first, *_ = add(session, 3, key=PATIENT)
    found = assert_why(first, Reason.CHUNK, "3 of 100 are due. The chunk starts at")
    assert 50 < (found.admitted_at - Job.objects.get(pk=first).run_after).total_seconds() <= 60
    [last] = add(session, 1, key=PATIENT, delay=-61.0)
    assert_why(last, Reason.NEXT)
    [alone] = add(session, 1, key="+tests.chunks.tasks.double")
    assert_why(alone, Reason.NEXT)
    [removed] = add(session, 1, key="+tests.app.tasks.noop")
    assert_why(removed, Reason.LIMIT_UNDECLARED, "had the option chunk", "chunk=1")
    Job.objects.filter(pk=removed).update(task_name="tests.app.tasks.add")
    assert_why(removed, Reason.LIMIT_UNDECLARED, "The task tests.app.tasks.noop had the option chunk")


@pytest.mark.django_db
def test_chunk_keys_are_not_limits():
    add(session, 3, key=PATIENT)
    assert stats.limits() == ()
    assert list(Job.objects.filter(state="ready").values_list("limit_key", flat=True)) == [PATIENT] * 3


def test_command_runs_a_chunk_of_one_job(engine, capsys):
    first, second = add(engine, 2)
    call_command("pgqueue", "run", str(second))
    assert [helpers.state_of(engine, job) for job in (first, second)] == ["ready", "succeeded"]
    assert tasks.seen == [[2]]
    assert registry.chunk_keys()
