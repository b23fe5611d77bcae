"""Jobs that have ended, and that unfinished work needs."""

from __future__ import annotations

from typing import Any

from django.db import connection

from django_pgqueue import chain
from django_pgqueue.models import Job
from django_pgqueue.testing import run_jobs
from tests.graphs import tasks as graph_tasks
from tests.history.finished import make
from tests.steps import tasks as step_tasks


def finished(state: str = "succeeded", **changes: Any) -> Job:
    [job_id] = make(connection, state=state, **changes)
    return Job.objects.get(pk=job_id)


def waiting_chain() -> Job:
    """Return a succeeded job whose result a waiting one needs."""
    workflow = chain(graph_tasks.number.s(3)).then(graph_tasks.double).enqueue()
    run_jobs(max_jobs=1)
    return workflow.nodes[0].job


def pending_saga() -> Job:
    """Return a dead job whose compensations are not enqueued yet."""
    step_tasks.CODE["wait"] = True
    job = step_tasks.order.enqueue()
    run_jobs()
    Job.objects.filter(pk=job.pk).update(state="dead", finished_at="2026-01-01T00:00Z")
    job.refresh_from_db()
    return job
