"""A library's mutable scope in a context variable belongs to one job: the next job does not see its contents."""

from __future__ import annotations

import pytest

from django_pgqueue.models import Job
from tests.app import scopes

pytestmark = pytest.mark.process
MODULES = ["tests.app.scopes"]


@pytest.fixture(autouse=True)
def _found_by_workers(settings):
    settings.PGQUEUE = {"TASK_MODULES": MODULES}


@pytest.mark.promise("context-variables-not-shared", "defect-sentry-user-leaks")
def test_jobs_share_no_scope_of_a_library(start, monkeypatch):
    monkeypatch.setenv("PGQUEUE_TEST_SCOPES", "1")
    kinds = {scopes.set_user: None, scopes.set_user_from_coroutine: [None, None], scopes.set_user_apart: None}
    jobs = {job.pk: clean for job, clean in ((t.enqueue(f"u{n}"), c) for n in range(4) for t, c in kinds.items())}
    assert start("--concurrency", "1", "--until-empty", TASK_MODULES=MODULES).has_drained()
    assert dict(Job.objects.values_list("pk", "result")) == jobs
