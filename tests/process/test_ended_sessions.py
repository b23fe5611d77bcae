"""The server ends the idle sessions of a worker's jobs: the next job runs at its first attempt."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Group
from django.db import connection

from django_pgqueue.models import Execution, Job
from tests import helpers
from tests.app import hostile, tasks

pytestmark = pytest.mark.process

KINDS = {
    "plain": (tasks.backend, ()),
    "atomic": (tasks.create_group, ("written",)),
    "coroutine": (tasks.async_orm, ()),
    "chunk": (hostile.use_orm_in_chunk, (1,)),
}
ENDED = """
SELECT pid, pg_terminate_backend(pid)
FROM pg_stat_activity
WHERE application_name = '' AND datname = current_database() AND pid <> ALL (%s)
"""
"""Ends the sessions of Django, and not those of the engine, which have names."""


@pytest.mark.promise("ended-session-costs-no-attempt")
@pytest.mark.parametrize("kind", KINDS)
def test_job_after_its_idle_session_ended_succeeds(start, settings, kind):
    settings.PGQUEUE = {"TASK_MODULES": hostile.MODULES}
    task, arguments = KINDS[kind]
    first = task.using(max_attempts=1).enqueue(*arguments)
    worker = start("--concurrency", "1", TASK_MODULES=hostile.MODULES)
    worker.wait_until(lambda: Job.objects.get(pk=first.pk).finished_at is not None)
    Group.objects.all().delete()
    with helpers.connect() as session:
        pids = [row[0] for row in session.execute(ENDED, [[own_backend()]]).fetchall()]
        assert pids
        still = "SELECT FROM pg_stat_activity WHERE pid = ANY (%s)"
        helpers.wait_until(lambda: not session.execute(still, [pids]).rowcount)
    second = task.using(max_attempts=1).enqueue(*arguments)
    worker.wait_until(lambda: Job.objects.get(pk=second.pk).finished_at is not None)
    Group.objects.all().delete()
    errors = Execution.objects.exclude(outcome="succeeded").values_list("error", flat=True)
    assert list(errors) == []


def own_backend() -> int:
    return int(connection.connection.info.backend_pid)
