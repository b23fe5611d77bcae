"""Test that `run_jobs()` obeys limits."""

from __future__ import annotations

from types import MappingProxyType

import pytest

from django_pgqueue.declared.limits import Limit
from django_pgqueue.models import Job
from django_pgqueue.tasks import registry
from django_pgqueue.testing import run_jobs
from tests import helpers

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def known_limits(monkeypatch):
    limits = {"rate": Limit("rate", rate="2/m"), "one": Limit("one", ordered=True, key="{key}")}
    monkeypatch.setattr(registry, "_limits", MappingProxyType(limits))


def make_job(limit_key, **changes):
    values = {"task_name": helpers.NOOP, "arguments": {"args": [], "kwargs": {}}, "limit_key": limit_key}
    return Job.objects.create(**values | changes)


def test_run_jobs_leaves_jobs_for_which_the_rate_has_no_token():
    jobs = [make_job("rate") for _ in range(3)]
    assert run_jobs() == 1
    assert run_jobs(until=29) == 0
    assert run_jobs(until=62) == 2
    assert {Job.objects.get(pk=job.pk).state for job in jobs} == {"succeeded"}


def test_run_jobs_runs_ordered_keys_in_order():
    dead = make_job("one:a", limit_order=1, task_name="tests.app.tasks.fail", max_attempts=1)
    jobs = [dead, *(make_job(key, limit_order=1) for key in ("one:b", "one:a"))]
    assert run_jobs() == 3
    assert [Job.objects.get(pk=job.pk).state for job in jobs] == ["dead", "succeeded", "succeeded"]
