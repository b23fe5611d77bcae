"""Retries of nodes in any order: no node runs before the jobs that it depends on have ended again."""

from __future__ import annotations

import itertools
from contextvars import copy_context

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.utils import timezone

from django_pgqueue import Workflow, chain, control
from django_pgqueue.contrib.remote import transitions as remote
from django_pgqueue.ground.endings import Ending
from django_pgqueue.lifecycle import claims, pauses
from django_pgqueue.lifecycle.graphs import find_missed
from django_pgqueue.models import Execution, Job
from django_pgqueue.states import Pausable
from django_pgqueue.testing import run_jobs, time_travel
from django_pgqueue.worker.completion.progress_writer import Notes
from django_pgqueue.worker.execution.chunk_attempt import attempt_of
from django_pgqueue.worker.execution.job_events import FOREGROUND
from django_pgqueue.worker.foreground import write
from tests.process.conftest import start

from . import tasks
from .test_run import result, states

__all__ = ["start"]

SUCCEEDED = ["succeeded"] * 3


@pytest.fixture(autouse=True)
def nothing_ran():
    tasks.RAN.clear()
    tasks.FIXED.clear()


def outcomes(workflow: Workflow) -> list[list[str | None]]:
    return [[each.outcome for each in job.executions.order_by("id")] for job in workflow.jobs.order_by("pk")]


def retry(node):
    return Job.objects.get(pk=node.job_id).retry()


def noted() -> Workflow:
    """Return a chain of three nodes that have run."""
    workflow = chain(tasks.note.s("a")).then(tasks.note, "b").then(tasks.note, "c").enqueue()
    run_jobs()
    tasks.RAN.clear()
    return workflow


@pytest.mark.django_db
class TestOrder:
    @pytest.mark.promise("workflow-retry-order")
    @pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
    def test_nodes_retried_one_by_one_in_any_order_succeed(self, order):
        workflow = noted()
        for place in order:
            assert retry(workflow.nodes[place])
        assert states(workflow) == ["ready", "waiting", "waiting"]
        assert run_jobs() == 3
        assert states(workflow) == SUCCEEDED
        assert outcomes(workflow) == [["succeeded"] * 2] * 3

    def test_dependent_without_a_result_waits_too(self):
        workflow = Workflow()
        first = workflow.add(tasks.note.using(priority=-5).s("first"))
        last = workflow.add(tasks.note.s("last"), after=[first])
        workflow.enqueue()
        run_jobs()
        assert retry(last)
        assert retry(first)
        run_jobs()
        assert tasks.RAN == ["first", "last"] * 2

    def test_dependency_retried_while_dependent_is_due_later_succeeds(self):
        workflow = Workflow()
        first = workflow.add(tasks.number.using(priority=-5).s(1))
        last = workflow.add(tasks.double.using(run_after=600, expires=900).s(first.result))
        workflow.enqueue()
        run_jobs()
        due, expires = last.job.run_after, last.job.expires_at
        assert retry(first)
        assert states(workflow) == ["ready", "waiting"]
        run_jobs()
        job = Job.objects.get(pk=last.job_id)
        assert (job.state, job.run_after, job.expires_at) == ("ready", due, expires)
        with time_travel(seconds=601):
            run_jobs()
        assert states(workflow) == ["succeeded"] * 2

    def test_run_now_of_waiting_node_makes_it_due_when_it_is_ready(self):
        workflow = Workflow()
        first = workflow.add(tasks.number.s(1))
        last = workflow.add(tasks.double.using(run_after=600).s(first.result))
        workflow.enqueue()
        run_jobs()
        assert retry(first)
        assert Job.objects.get(pk=last.job_id).run_now()
        assert not Job.objects.get(pk=last.job_id).run_now()
        run_jobs()
        assert states(workflow) == ["succeeded"] * 2

    def test_dependency_retried_while_dependent_is_paused_succeeds(self):
        workflow = chain(tasks.number.s(1)).then(tasks.double).enqueue()
        control.pause(task=tasks.double)
        run_jobs()
        assert states(workflow) == ["succeeded", "ready"]
        assert retry(workflow.nodes[0])
        assert states(workflow) == ["ready", "waiting"]
        control.resume(task=tasks.double)
        run_jobs()
        assert states(workflow) == ["succeeded"] * 2

    def test_dependent_with_result_or_none_gets_the_new_result(self):
        workflow = Workflow(if_dependency_fails="ignore")
        first = workflow.add(tasks.broken_until_fixed.using(priority=-5).s())
        last = workflow.add(tasks.note.using(run_after=600).s("last", first.result_or_none))
        workflow.enqueue()
        run_jobs()
        assert states(workflow) == ["dead", "ready"]
        tasks.FIXED.append(True)
        assert retry(first)
        with time_travel(seconds=601):
            run_jobs()
        assert (states(workflow), result(workflow)) == (["succeeded"] * 2, ["last", 7])
        assert last.job_id

    def test_dependent_of_a_restored_node_waits_too(self):
        """`middle` was cancelled because of `first`. `last` ignores that and is ready, and must wait for it again."""
        workflow = Workflow()
        first = workflow.add(tasks.broken_until_fixed.s())
        middle = workflow.add(tasks.double.s(first.result))
        workflow.add(tasks.note.using(run_after=600).s("last", middle.result_or_none), if_dependency_fails="ignore")
        workflow.enqueue()
        run_jobs()
        assert states(workflow) == ["dead", "cancelled", "ready"]
        tasks.FIXED.append(True)
        assert retry(first)
        assert states(workflow) == ["ready", "waiting", "waiting"]
        with time_travel(seconds=601):
            run_jobs()
        assert result(workflow) == ["last", 14]

    def test_ready_dependent_of_a_node_cancelled_again_stays_ready(self):
        """The retried node is cancelled again in the same call, so what ignores that need not wait for a sweep."""
        workflow = Workflow()
        dead, unfinished = workflow.add(tasks.broken.s()), workflow.add(tasks.number.using(run_after=600).s(2))
        middle = workflow.add(tasks.note.s("middle"), after=[dead, unfinished])
        workflow.add(tasks.note.using(run_after=600).s("last"), after=[middle], if_dependency_fails="ignore")
        workflow.enqueue()
        run_jobs()
        assert states(workflow) == ["dead", "ready", "cancelled", "ready"]
        assert not retry(middle)
        assert states(workflow) == ["dead", "ready", "cancelled", "ready"]
        assert find_missed(connection).job_ids == []


# ------------------------------------------------------------------ an attempt finds an unfinished dependency


def begin_again(node) -> None:
    """Let a dependency run again behind the back of its dependents, as in a race with their claim."""
    Job.objects.filter(pk=node.job_id).update(state="ready", finished_at=None, result=None)


@pytest.mark.promise("workflow-retry-order")
@pytest.mark.django_db
@pytest.mark.parametrize("task", [tasks.double, tasks.async_double, tasks.atomic_double, tasks.chunked])
class TestUnfinished:
    def test_attempt_with_unfinished_dependency_is_released(self, task):
        workflow = Workflow()
        first = workflow.add(tasks.number.s(3))
        last = workflow.add(task.using(max_attempts=1, priority=5).s(first.result))
        workflow.enqueue()
        run_jobs(max_jobs=1)
        begin_again(first)
        assert run_jobs(max_jobs=1) == 1
        job = Job.objects.get(pk=last.job_id)
        execution = job.executions.get()
        assert (job.state, job.attempt, execution.outcome) == ("waiting", 0, "released")
        assert execution.error == f"job {first.job_id} has not ended: it is ready, so this job waits for it again"
        with time_travel(seconds=2):
            run_jobs()
        assert states(workflow) == ["succeeded"] * 2


def ready_too_early(task=tasks.double):
    """Return a workflow whose second node is ready although the first one has to run again."""
    workflow = Workflow()
    first = workflow.add(tasks.number.s(3))
    workflow.add(task.using(max_attempts=1).s(first.result))
    workflow.enqueue()
    run_jobs(max_jobs=1)
    begin_again(first)
    assert states(workflow) == ["ready", "ready"]
    return workflow


@pytest.mark.django_db
def test_dependency_that_ends_meanwhile_makes_the_node_ready_again():
    """The attempt has read an unfinished dependency, which has ended before the release is written."""
    workflow = ready_too_early()
    first, last = [node.job_id for node in workflow.nodes]
    claimed = claims.claim_one(connection, last, worker_id=1, lease_seconds=60.0)
    report = copy_context().run(attempt_of(claimed, "default", Notes()).run)  # as in a worker: it sets the running job
    assert report.ending is Ending.POSTPONED
    Job.objects.filter(pk=first).update(state="succeeded", finished_at=timezone.now(), result=3)
    write(connection, report, Notes())
    assert states(workflow) == ["succeeded", "ready"]


@pytest.mark.django_db
def test_remote_worker_gets_no_node_with_unfinished_dependency():
    workflow = ready_too_early()
    last = workflow.nodes[1].job_id
    claimed = claims.claim_one(connection, last, worker_id=1, lease_seconds=60.0)
    assert remote.prepare(connection, [claimed], FOREGROUND) == []
    assert states(workflow) == ["ready", "waiting"]
    assert Job.objects.get(pk=last).attempt == 0


@pytest.mark.parametrize("task", [tasks.double, tasks.chunked])
def test_command_run_of_node_with_unfinished_dependency_says_so(committing, engine, task):
    workflow = ready_too_early(task)
    first, last = [node.job_id for node in workflow.nodes]
    with pytest.raises(CommandError, match=f"Job {last} was not run: job {first} has not ended: it is ready"):
        call_command("pgqueue", "run", str(last))
    assert states(workflow) == ["ready", "waiting"]
    with pytest.raises(CommandError, match=f"Job {last} is waiting, .* it waits for other jobs of its workflow"):
        call_command("pgqueue", "run", str(last))
    call_command("pgqueue", "run", str(first))
    assert states(workflow) == ["succeeded", "ready"]


def test_command_run_of_node_makes_its_due_dependent_ready(committing, engine):
    workflow = chain(tasks.number.s(3)).then(tasks.double).enqueue()
    for node in workflow.nodes:
        call_command("pgqueue", "run", str(node.job_id))
    assert states(workflow) == ["succeeded", "succeeded"]


@pytest.mark.promise("workflow-retry-order")
@pytest.mark.process
def test_worker_lets_node_with_unfinished_dependency_wait(committing, engine, start):
    workflow = ready_too_early(tasks.double.using(priority=5))
    last = workflow.nodes[1].job_id
    pauses.pause(engine, Pausable.TASK, tasks.number.name)
    worker = start(TASK_MODULES=[tasks.__name__])
    worker.wait_until(lambda: states(workflow) == ["ready", "waiting"])
    pauses.resume(engine, Pausable.TASK, tasks.number.name)
    worker.wait_until(lambda: states(workflow) == ["succeeded", "succeeded"])
    assert [each.outcome for each in Execution.objects.filter(job_id=last).order_by("id")] == ["released", "succeeded"]
