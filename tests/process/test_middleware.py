"""Middleware in real workers surrounds jobs in threads, coroutines, isolated processes and the foreground."""

from __future__ import annotations

import pytest
from django.test import override_settings

from tests.app import middleware as app
from tests.app import tasks
from tests.process.harness import django

pytestmark = pytest.mark.process

TENANCY = ["tests.app.middleware.Tenancy"]


@pytest.fixture
def acme():
    """Set the tenant of the caller to "acme"."""
    with override_settings(PGQUEUE={"MIDDLEWARE": TENANCY}):
        token = app.tenant.set("acme")
        yield
        app.tenant.reset(token)


@pytest.mark.promise("middleware-surrounds-every-job")
@pytest.mark.parametrize("options", [(), ("--isolation", "process")], ids=["", "isolated"])
def test_middleware_context_variable_reaches_every_task(committing, acme, start, options):
    jobs = [task.enqueue() for task in (tasks.current_tenant, tasks.acurrent_tenant, tasks.isolated_tenant)]
    app.tenant.set("another")
    jobs.append(tasks.current_tenant.using(headers={"x": 1}).enqueue())
    start(*options, MIDDLEWARE=TENANCY)
    assert [job.wait(20) for job in jobs] == ["acme", "acme", "acme", "another"]


def test_middleware_in_foreground_reaches_the_task(committing, acme):
    job = tasks.current_tenant.enqueue()
    django("pgqueue", "run", str(job.pk), MIDDLEWARE=TENANCY)
    assert job.wait(0) == "acme"


@pytest.mark.promise("swallowed-exception-counts")
def test_middleware_that_swallows_timeout_does_not_undo_it(start):
    timed_out = tasks.tell_and_stay.enqueue()
    stopped = tasks.await_for_ever.enqueue()
    start(MIDDLEWARE=["tests.app.middleware.SwallowsToo"])
    for job in (timed_out, stopped):
        with pytest.raises(Exception, match=r"TaskTimeout: ran for longer than its timeout of 0\.5 s"):
            job.wait(20)
