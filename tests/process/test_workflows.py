"""Workflows with real workers: results that are passed on, and the sweep after a worker was killed."""

from __future__ import annotations

import signal

import pytest
from django.db import connection

from django_pgqueue import Workflow, chain, group
from tests import helpers
from tests.app import tasks
from tests.helpers import wait_until

pytestmark = [pytest.mark.process]


def states(workflow: Workflow) -> set[str]:
    return set(workflow.jobs.values_list("state", flat=True))


def test_workers_run_a_workflow_to_its_end(start):
    """Chains in a group, in isolated processes too, on two workers with two processes each."""
    chains = [chain(tasks.add.s(number)).then(tasks.async_add, 1).then(tasks.add, 1) for number in range(100)]
    workflow = group(*chains).then(tasks.noop).enqueue()
    workers = [start("--processes", "2") for _ in range(2)]
    workers[0].wait_until(lambda: workflow.batch.record.succeeded_at)
    results = [workflow.nodes[place].job.return_value for place in range(2, 300, 3)]
    assert results == [number + 2 for number in range(100)]
    assert states(workflow) == {"succeeded"}


def test_chain_passes_results_without_connections_of_its_own(start, engine):
    """The results come with the claims. The threads of the jobs keep a connection for 10 s, so it would be seen."""
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    others = f"{sessions} AND application_name NOT LIKE 'pgqueue:%'"
    connection.ensure_connection()
    before = helpers.scalar(engine, others)
    worker = start()
    jobs = chain(tasks.add.s(1))
    for _ in range(9):
        jobs = jobs.then(tasks.add, 1)
    workflow = jobs.enqueue()
    worker.wait_until(lambda: workflow.batch.record.succeeded_at)
    assert helpers.scalar(engine, others) == before
    assert workflow.nodes[-1].job.return_value == 10


@pytest.mark.promise("workflow-advance-found-by-sweep")
def test_worker_killed_before_it_advances_another_finds_the_job(start, engine):
    """Another session locks the dependent, so the worker cannot advance it before it is killed."""
    workflow = chain(tasks.add.s(1)).then(tasks.add, 1).enqueue()
    with helpers.transaction(engine, f"SELECT id FROM pgqueue_job WHERE id = {workflow.job_ids[1]} FOR UPDATE"):
        worker = start()
        worker.wait_until(lambda: workflow.nodes[0].job.state == "succeeded")
        worker.send_all(signal.SIGKILL)
        worker.exit_code()
        engine.execute("COMMIT")
    assert workflow.nodes[1].job.state == "waiting"
    worker = start()
    worker.wait_until_ready()
    wait_until(lambda: workflow.nodes[1].job.state == "succeeded", 20)


def test_dead_dependency_cancels_the_dependents_in_the_worker(start):
    workflow = chain(tasks.raise_exception.s("value")).then(tasks.noop).then(tasks.noop).enqueue()
    worker = start()
    worker.wait_until(lambda: workflow.batch.record.completed_at)
    assert list(workflow.jobs.order_by("pk").values_list("state", flat=True)) == ["dead", "cancelled", "cancelled"]


@pytest.mark.slow
@pytest.mark.promise("workflow-cascade-beside-completions")
def test_worker_until_empty_ends_a_large_cascade_first(start):
    """The first page cancels 1,000 of the 6,000 dependents, and the maintenance the others. No job is left to run."""
    workflow = Workflow()
    root = workflow.add(tasks.raise_exception.s("value"))
    for _ in range(6000):
        workflow.add(tasks.noop.s(), after=[root])
    workflow.enqueue()
    assert start("--until-empty").has_drained()
    assert states(workflow) == {"dead", "cancelled"}
