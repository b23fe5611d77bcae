"""Results by the return annotation: what is stored, and what `wait()` and `return_value` return."""

from datetime import UTC, datetime
from unittest import mock
from uuid import UUID

import pytest
from asgiref.sync import async_to_sync

from django_pgqueue import InvalidTask
from django_pgqueue.arguments.plan import CallPlan
from django_pgqueue.models import Execution, Job
from django_pgqueue.tasks import registry
from django_pgqueue.testing import run_jobs
from tests.app.codecs import Panic

from . import tasks
from .types import Receipt

pytestmark = pytest.mark.django_db

RECEIPT = Receipt(UUID(int=1), datetime(2026, 7, 1, tzinfo=UTC), [])
STORED = {"number": str(UUID(int=1)), "issued_at": "2026-07-01T00:00:00+00:00", "lines": []}


def finished(kind):
    job = tasks.result_of.enqueue(kind)
    run_jobs()
    return Job.objects.get(pk=job.pk)


def test_result_is_readable_json_and_comes_back():
    job = finished("fits")
    assert job.result == STORED
    assert job.return_value == job.wait(1) == async_to_sync(job.await_result)(1) == RECEIPT


@pytest.mark.parametrize(("kind", "value"), [("plain", {"not": "a receipt"}), ("none", None)])
def test_result_that_does_not_fit_is_stored_as_it_is(kind, value):
    """The work has succeeded, so a wrong annotation must not make the job dead."""
    job = finished(kind)
    assert (job.state, job.result, job.return_value) == ("succeeded", value, value)


def test_result_that_is_not_json_makes_the_job_dead():
    job = finished("neither")
    assert job.state == "dead"
    assert Execution.objects.get(job=job).exception_class == "django_pgqueue.exceptions.ResultNotStored"


def test_result_whose_encoder_panics_does_not_repeat_the_task(monkeypatch):
    def panic(self, value):
        raise Panic

    monkeypatch.setattr(CallPlan, "encode_result", panic)
    job = tasks.result_of.using(max_attempts=3).enqueue("fits")
    run_jobs()
    assert Job.objects.get(pk=job.pk).state == "dead"
    assert Execution.objects.get(job=job).exception_class == "django_pgqueue.exceptions.ResultNotStored"


def test_result_of_unknown_task_is_plain():
    job = finished("fits")
    with mock.patch.object(registry, "_tasks", {}):
        assert job.return_value == job.wait(1) == STORED


def test_result_of_task_with_invalid_annotation_is_plain(monkeypatch):
    job = finished("fits")

    def invalid(self):
        raise InvalidTask("the annotation of 'kind' cannot be used")

    monkeypatch.setattr(type(tasks.result_of), "plan", property(invalid))
    assert job.return_value == job.wait(1) == STORED


def test_result_of_earlier_code_is_plain():
    job = finished("plain")
    Job.objects.filter(pk=job.pk).update(result={"number": 7})
    job.refresh_from_db()
    assert job.return_value == {"number": 7}
