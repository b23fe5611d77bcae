"""Workflows before they are enqueued: errors, statements, markers, and what is stored."""

from __future__ import annotations

import json
from collections import UserDict, UserList, deque
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from django_pgqueue import Batch, InvalidTask, TaskCall, Workflow, chain, chord, group, history
from django_pgqueue.deploys import stored
from django_pgqueue.deploys.call_shapes import value_problem
from django_pgqueue.enqueue import nodes as enqueued_nodes
from django_pgqueue.ground.placeholders import MARK
from django_pgqueue.lifecycle import enqueueing, graphs, operator, orphans, pruning
from django_pgqueue.models import Job, JobBatch, JobDependency
from django_pgqueue.signals import job_cancelled, job_enqueued
from django_pgqueue.states import FINISHED, State
from django_pgqueue.stats import why
from django_pgqueue.tasks import registry
from django_pgqueue.testing import run_jobs
from django_pgqueue.worker.execution import stored_values
from tests.app import tasks as app_tasks

from . import tasks

pytestmark = pytest.mark.django_db

NOT_A_CALL: Any = tasks.number


def states(workflow: Workflow) -> list[str]:
    return list(workflow.jobs.order_by("pk").values_list("state", flat=True))


# ------------------------------------------------------------------ what is stored


@pytest.mark.promise("workflow-statements")
@pytest.mark.parametrize(("count", "statements"), [(10, 6), (1000, 7), (10_000, 16)])
def test_enqueue_takes_one_statement_for_1000_jobs(count, statements):
    """The ids, the batch, its end, the edges, and one statement for each 1,000 jobs: the last job is one more."""
    workflow = Workflow()
    results = [workflow.add(tasks.number.s(each)).result for each in range(count)]
    workflow.add(tasks.total.s(results))
    with CaptureQueriesContext(connection) as queries:
        workflow.enqueue()
    sent = [query["sql"] for query in queries if "pgqueue:" in query["sql"] or "SAVEPOINT" in query["sql"]]
    assert len(sent) == statements - 1, [text[:40] for text in sent]
    assert workflow.jobs.count() == count + 1
    assert JobDependency.objects.count() == count


@pytest.mark.promise("defect-quadratic-workflow")
def test_each_page_has_the_options_of_its_own_jobs(monkeypatch):
    """With options for each call, all options in each page took 15 s for 20,000 jobs."""
    pages: list[int] = []
    add_nodes = graphs.add_nodes

    def spy(connection: Any, job_ids: Any, waits: Any, jobs: Any) -> None:
        pages.append(len(json.loads(enqueueing.params_of(jobs)["options"])))
        add_nodes(connection, job_ids, waits, jobs)

    monkeypatch.setattr(graphs, "add_nodes", spy)
    monkeypatch.setattr(enqueued_nodes, "PAGE", 2)
    first, second = tasks.number.using(priority=1), tasks.number.using(priority=2)
    calls = [first.s(0), first.s(1), second.s(2), first.s(3), tasks.number.s(4)]
    workflow = group(*calls).enqueue()
    assert pages == [1, 2, 1]
    assert list(workflow.jobs.order_by("pk").values_list("priority", flat=True)) == [1, 1, 2, 1, 0]


def test_list_of_many_results_is_stored_as_ranges():
    workflow = group(*(tasks.number.s(each) for each in range(1000))).then(tasks.total).enqueue()
    [stored] = Job.objects.get(pk=workflow.job_ids[-1]).arguments["args"]
    assert stored == {MARK: [[workflow.job_ids[0], workflow.job_ids[-2]]]}


def test_ids_are_in_the_order_of_the_nodes():
    workflow = chain(tasks.number.s(1)).then(tasks.double).then(tasks.double).enqueue()
    assert workflow.job_ids == sorted(workflow.job_ids)
    edges = JobDependency.objects.values_list("job_id", "needs_id", "policy").order_by("job_id")
    one, two, three = workflow.job_ids
    assert list(edges) == [(two, one, "cancel"), (three, two, "cancel")]
    assert Job.objects.filter(in_graph=True, batch_id=workflow.id).count() == 3


def test_rollback_of_the_callers_transaction_leaves_nothing():
    with transaction.atomic():
        chain(tasks.number.s(1)).then(tasks.double).enqueue()
        transaction.set_rollback(True)
    assert not Job.objects.exists() and not JobBatch.objects.exists() and not JobDependency.objects.exists()


def test_signals_of_all_jobs_are_sent(request):
    enqueued: list[int] = []
    receiver = lambda sender, job_id, **_: enqueued.append(job_id)  # noqa: E731
    job_enqueued.connect(receiver)
    request.addfinalizer(lambda: job_enqueued.disconnect(receiver))
    assert chain(tasks.number.s(1)).then(tasks.double).enqueue().job_ids == enqueued


def test_delay_of_a_node_counts_from_enqueue():
    """A job that becomes ready later is due at the later of both times."""
    workflow = chain(tasks.number.s(1)).then(tasks.double.using(run_after=3600)).enqueue()
    run_jobs()
    later = workflow.nodes[1].job
    assert later.state == State.READY
    assert later.run_after == later.enqueued_at + timedelta(hours=1)
    assert run_jobs(until=timedelta(hours=2)) == 1


@override_settings(PGQUEUE={"IMMEDIATE": True, "TASK_MODULES": [tasks.__name__]})
def test_immediate_runs_the_workflow_at_once():
    workflow = chain(tasks.number.s(1)).then(tasks.double).then(tasks.double).enqueue()
    assert states(workflow) == ["succeeded"] * 3


def test_callbacks_of_the_workflow_are_enqueued_once():
    ended = app_tasks.noop.s("success"), app_tasks.noop.s("complete"), app_tasks.noop.s("failure")
    chain(tasks.number.s(1)).then(tasks.double).enqueue(
        on_success=ended[0], on_complete=ended[1], on_failure=ended[2], description="Import"
    )
    run_jobs()
    callbacks = Job.objects.filter(task_name=app_tasks.noop.name).order_by("pk")
    assert [job.arguments["args"] for job in callbacks] == [["complete"], ["success"]]
    assert JobBatch.objects.get().description == "Import"


def test_workflow_is_nested_in_a_batch():
    with Batch() as outer:
        workflow = chain(tasks.number.s(1)).then(tasks.double).enqueue(parent=outer)
    assert outer.record.completed_at is None
    run_jobs()
    assert workflow.batch.record.parent_id == outer.id
    assert outer.record.succeeded_at is not None


def test_asynchronous_forms_do_the_same():
    one = async_to_sync(chain(tasks.number.s(1)).then(tasks.double).aenqueue)()
    two = async_to_sync(group(tasks.number.s(1)).aenqueue)()
    assert (len(one.job_ids), len(two.job_ids)) == (2, 1)
    assert async_to_sync(one.acancel)() == 2
    assert two.progress().ready == 1
    assert one.nodes[0].job_id == one.job_ids[0]


# ------------------------------------------------------------------ errors before anything is written


def other_workflow(_: Workflow) -> Any:
    return Workflow().add(tasks.number.s(1))


ADDED: list[tuple[Any, type[Exception], str]] = [
    (lambda w: w.add(tasks.number), TypeError, "takes a call made by task.s"),
    (lambda w: w.add(tasks.double.s(other_workflow(w).result)), InvalidTask, "belongs to another workflow"),
    (lambda w: w.add(tasks.number.s(1), after=[other_workflow(w)]), InvalidTask, "belongs to another workflow"),
    (lambda w: w.add(tasks.number.s(1), after=[7]), TypeError, "after takes nodes"),
    (lambda w: w.add(tasks.number.s(1), after=w.add(tasks.number.s(1))), TypeError, r"takes a list of nodes, not Node"),
    (lambda w: w.add(tasks.unique.s(1)), InvalidTask, "has a unique key"),
    (lambda w: w.add(tasks.number.using(batch=Batch().open()).s(1)), InvalidTask, "has a batch"),
    (lambda w: w.add(tasks.number.using(database="other").s(1)), InvalidTask, "DATABASES has no alias 'other'"),
    (lambda w: w.add(tasks.number.using(database=lambda value: None).s(w.add(tasks.number.s(1)).result)),
     InvalidTask, "the database of .* depends on its arguments"),
    (lambda w: w.add(tasks.double.s(w.add(tasks.unstored.s(1)).result)), InvalidTask, "store_result=False"),
    (lambda w: w.add(tasks.double.s(w.add(tasks.number.s(1)).result), if_dependency_fails="ignore"),
     InvalidTask, "pass node.result_or_none"),
    (lambda w: w.add(tasks.number.s(1), if_dependency_fails="retry"), ValueError, "must be one of 'cancel'"),
    (lambda w: w.add(tasks.double.s(w.add(tasks.number.s(1)))), TypeError, "pass node.result"),
    (lambda w: w.add(tasks.double.s(value=w.add(tasks.number.s(1)))), TypeError, "pass node.result"),
    (lambda w: w.add(TaskCall(tasks.number, (1, 2), {})), TypeError, "cannot be called with these arguments"),
]  # fmt: skip


@pytest.mark.parametrize(("add", "error", "message"), ADDED)
def test_add_refuses_what_cannot_run(add, error, message):
    with pytest.raises(error, match=message):
        add(Workflow())
    assert not Job.objects.exists()


def enqueued(*calls: Any) -> Any:
    def enqueue() -> None:
        workflow = Workflow()
        for call in calls:
            workflow.add(call(workflow) if callable(call) else call)
        workflow.enqueue()

    return enqueue


ENQUEUED: list[tuple[Any, type[Exception], str]] = [
    (lambda: Workflow().enqueue(), InvalidTask, "has no jobs"),
    (lambda: chain(tasks.number.s(1)).enqueue().enqueue(), InvalidTask, "enqueued already"),
    (lambda: chain(tasks.number.s(1)).enqueue().add(tasks.number.s(1)), InvalidTask, "enqueued already"),
    (enqueued(tasks.note.s("x", {MARK: 7})), ValueError, "is reserved"),
    (enqueued(lambda w: tasks.note.s("x", [w.add(tasks.number.s(1)).result, {MARK: 7}])), ValueError, "is reserved"),
    (enqueued(tasks.note.s("x", deque([{MARK: 7}]))), ValueError, "is reserved"),
    (enqueued(tasks.note.s("x", UserList([UserDict({MARK: 7})]))), ValueError, "is reserved"),
    (
        enqueued(lambda w: tasks.note.s("x", [w.add(tasks.number.s(1)).result, deque([{MARK: 7}])])),
        ValueError,
        "is reserved",
    ),
    (enqueued(lambda w: tasks.limited.s(w.add(tasks.number.s(1)).result)), ValueError, "is not known before"),
    (enqueued(tasks.note.s("x", object())), TypeError, "JSON cannot represent"),
    (lambda: group().enqueue(), InvalidTask, "has no jobs"),
    (lambda: chain(tasks.number.s(1)).fan_out([]), InvalidTask, "got no task"),
    (lambda: group(NOT_A_CALL), TypeError, "a group takes calls"),
    (lambda: chain(NOT_A_CALL), TypeError, "a chain begins with a call"),
    (lambda: Workflow().id, InvalidTask, "is not enqueued yet"),
]


@pytest.mark.parametrize(("enqueue", "error", "message"), ENQUEUED)
def test_enqueue_refuses_what_cannot_be_stored(enqueue, error, message):
    before = Job.objects.count()
    with pytest.raises(error, match=message):
        enqueue()
    assert Job.objects.count() - before in (0, 1) and not JobDependency.objects.exists()


def test_placeholder_says_that_its_value_is_not_known():
    result: Any = Workflow().add(tasks.number.s(1)).result
    with_values = (
        lambda value: value["id"],
        lambda value: value[0],
        lambda value: value == 7,
        lambda value: value != 7,
    )
    for use in (str, bool, list, len, "{}".format, *with_values):
        with pytest.raises(TypeError, match="is not known before"):
            use(result)
    assert "the result of" in repr(result)
    with pytest.raises(AttributeError, match=r"no attribute 'pk': .* is not known before"):
        result.pk  # noqa: B018 -- raises
    with pytest.raises(TypeError, match="JSON cannot represent: only a node of the same workflow gets it"):
        tasks.note.enqueue("x", result)
    with pytest.raises(TypeError, match="is of type Node, which JSON cannot represent: pass the node's result"):
        tasks.note.enqueue("x", result.node)


# ------------------------------------------------------------------ results that are gone


def test_result_of_a_removed_job_ends_the_dependent_for_good():
    workflow = chain(tasks.number.s(1)).then(tasks.double).enqueue()
    run_jobs(max_jobs=1)
    Job.objects.filter(pk=workflow.job_ids[0])._raw_delete("default")
    run_jobs()
    assert states(workflow) == ["dead"]
    assert "is gone, because the job was removed" in workflow.nodes[1].job.executions.get().error


@pytest.mark.promise("results-of-dependencies-only")
@pytest.mark.parametrize(
    "marker", ["{other}", "[[{other}, {other}]]", "[[{own}, {own}], [{other}, {other}]]", "[[1, 2000000]]"]
)
def test_node_gets_no_result_of_a_job_that_it_does_not_need(marker):
    """A program that may add jobs by SQL names another job's result, or so many that they would fill the memory."""
    other = tasks.note.enqueue("secret")
    workflow = chain(tasks.number.s(1)).then(tasks.double).enqueue()
    arguments = {"args": [{MARK: json.loads(marker.format(other=other.pk, own=workflow.job_ids[0]))}], "kwargs": {}}
    Job.objects.filter(pk=workflow.job_ids[1]).update(arguments=arguments)
    run_jobs()
    assert states(workflow) == ["succeeded", "dead"]
    assert "which this job does not need" in workflow.nodes[1].job.executions.get().error


def test_node_with_too_many_results_is_dead(monkeypatch):
    monkeypatch.setattr(stored_values, "MOST_RESULTS", 2)
    workflow = Workflow()
    first = workflow.add(tasks.number.s(1))
    last = workflow.add(tasks.note.s("x", [[first.result, first.result], [first.result]]))
    enqueued_workflow = workflow.enqueue()
    run_jobs()
    assert states(enqueued_workflow) == ["succeeded", "dead"]
    assert "name more than 2 results" in last.job.executions.get().error


def test_result_of_a_dead_job_ends_the_dependent_for_good():
    workflow = chain(tasks.number.s(1)).then(tasks.double).enqueue()
    run_jobs(max_jobs=1)
    Job.objects.filter(pk=workflow.job_ids[0]).update(state="dead", result=None)
    run_jobs()
    assert "has no result, because it is dead" in workflow.nodes[1].job.executions.get().error


def test_dependent_of_a_job_that_runs_again_waits_for_it():
    """Somebody has retried the first job by SQL: the worker does not run the second one without its result."""
    workflow = chain(tasks.number.s(1)).then(tasks.double).enqueue()
    run_jobs(max_jobs=1)
    Job.objects.filter(pk=workflow.job_ids[0]).update(state="ready", finished_at=None, queue_name="other")
    run_jobs("default")
    assert states(workflow) == ["ready", "waiting"]
    assert "has not ended: it is ready" in workflow.nodes[1].job.executions.get().error


@pytest.mark.parametrize("policy", ["cancel", "ignore", "block"])
def test_dependency_without_a_row_counts_as_failed(policy):
    workflow = Workflow(if_dependency_fails=policy)
    workflow.add(tasks.number.s(1), after=[workflow.add(tasks.number.s(1))])
    workflow.enqueue()
    Job.objects.filter(pk=workflow.job_ids[0])._raw_delete("default")
    run_jobs()
    assert states(workflow) == ["succeeded" if policy == "ignore" else "cancelled"]


# ------------------------------------------------------------------ removal


def finished(workflow: Workflow) -> None:
    workflow.jobs.filter(finished_at__isnull=False).update(finished_at="2020-01-01T00:00Z")


def remove(how: str, *job_ids: int) -> int:
    """Remove finished jobs, and return their number. Only `delete` takes ids; without any, it deletes all."""
    if how == "prune":
        return sum(pruning.prune(connection, state, 60.0).removed for state in FINISHED)
    if how == "prune task":
        names = set(Job.objects.values_list("task_name", flat=True))
        return sum(
            pruning.prune(connection, state, 60.0, task_name=name).removed for state in FINISHED for name in names
        )
    if how == "archive":
        return history.archive(older_than=timedelta(days=1)).archived
    return len(operator.delete(connection, job_ids or list(Job.objects.values_list("pk", flat=True))))


@pytest.mark.promise("defect-cancelled-nodes-pruned")
@pytest.mark.promise("workflow-keeps-nodes")
@pytest.mark.parametrize("how", ["prune", "prune task", "archive", "delete"])
def test_nodes_are_kept_until_no_job_can_need_them(how):
    workflow = Workflow()
    first = workflow.add(tasks.kept_by_none.s(1))
    second = workflow.add(tasks.broken_until_fixed.s(), after=[first])
    workflow.add(tasks.double.s(first.result), after=[second])
    workflow.enqueue()
    tasks.FIXED.clear()
    run_jobs(max_jobs=1)
    finished(workflow)
    assert remove(how) == 0, "the others have not ended"
    run_jobs()
    assert states(workflow) == ["succeeded", "dead", "cancelled"]
    workflow.jobs.exclude(state="dead").update(finished_at="2020-01-01T00:00Z")
    assert remove(how, workflow.job_ids[0], workflow.job_ids[2]) == 0, "a retry of the dead job would need both"
    tasks.FIXED.append(True)
    assert second.job.retry()
    finished(workflow)
    assert remove(how) == 0
    run_jobs()
    assert states(workflow) == ["succeeded"] * 3
    finished(workflow)
    assert remove(how) == 3
    assert not JobDependency.objects.exists()


def test_edges_of_jobs_deleted_by_sql_are_pruned():
    chain(tasks.number.s(1)).then(tasks.double).enqueue()
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM pgqueue_job")
    assert orphans.prune_orphans(connection, "dependencies", 0, 10) == (1, None)


# ------------------------------------------------------------------ operators


def test_retry_of_finished_jobs_waits_for_their_dependencies():
    """An operator retries the whole chain: its jobs run in order again."""
    workflow = chain(tasks.number.s(3)).then(tasks.double).enqueue()
    run_jobs()
    assert workflow.jobs.retry() == 2
    assert states(workflow) == ["ready", "waiting"]
    assert run_jobs() == 2
    assert workflow.nodes[1].job.return_value == 6


def test_retry_with_another_dead_dependency_cancels_again():
    tasks.FIXED.clear()
    workflow = Workflow()
    one, two = workflow.add(tasks.broken_until_fixed.s()), workflow.add(tasks.broken_until_fixed.s())
    workflow.add(tasks.total.s([one.result, two.result]))
    workflow.enqueue()
    run_jobs()
    tasks.FIXED.append(True)
    assert one.job.retry()
    assert states(workflow) == ["ready", "dead", "cancelled"]
    assert two.job.retry()
    assert states(workflow) == ["ready", "ready", "waiting"]
    run_jobs()
    assert states(workflow) == ["succeeded"] * 3


def test_retry_leaves_a_job_alone_that_an_operator_has_cancelled():
    tasks.FIXED.clear()
    workflow = chain(tasks.broken_until_fixed.s()).then(tasks.double).enqueue()
    workflow.nodes[1].job.cancel()
    run_jobs()
    tasks.FIXED.append(True)
    assert workflow.nodes[0].job.retry()
    assert states(workflow) == ["ready", "cancelled"]


def test_cancel_sends_a_signal_for_each_dependent(request):
    cancelled: list[int] = []
    receiver = lambda sender, job_id, **_: cancelled.append(job_id)  # noqa: E731
    job_cancelled.connect(receiver)
    request.addfinalizer(lambda: job_cancelled.disconnect(receiver))
    workflow = chain(tasks.number.s(1)).then(tasks.double).then(tasks.double).enqueue()
    workflow.nodes[0].job.cancel()
    assert sorted(cancelled) == workflow.job_ids


def test_waiting_job_can_be_moved_but_not_run_now():
    workflow = chain(tasks.number.s(1)).then(tasks.double).enqueue()
    waiting = workflow.nodes[1].job
    assert not waiting.run_now()
    assert operator.move(connection, [waiting.pk], queue_name="other") == {waiting.pk: State.WAITING}
    assert Job.objects.waiting().get().queue_name == "other"


def test_why_names_the_jobs_that_a_job_waits_for():
    workflow = chord([tasks.number.s(each) for each in range(5)], tasks.total).enqueue()
    found = why(workflow.nodes[-1].job)
    first = workflow.job_ids[0]
    assert found.reason == "waiting"
    assert found.sentence.startswith(f"It waits for 5 of its 5 dependencies: #{first} ({tasks.number.name}), ")
    assert found.sentence.endswith("; and 2 more.")
    Job.objects.filter(pk__in=workflow.job_ids[:-1]).update(state="succeeded", finished_at="2020-01-01T00:00Z")
    assert why(workflow.nodes[-1].job).sentence.startswith("Its dependencies have ended.")


def test_stored_call_with_results_fits_its_task():
    """`check_deploy` cannot compare a value with an annotation that is not known yet."""
    workflow = chain(tasks.rows.s(2)).then(tasks.last_day).enqueue()
    arguments = workflow.nodes[1].job.arguments
    assert value_problem(tasks.last_day, arguments["args"], arguments["kwargs"]) is None
    assert value_problem(tasks.last_day, [7], {}) is not None


def test_check_deploy_reads_waiting_jobs(monkeypatch):
    """A task that is gone would end the workflow days later."""
    chain(tasks.number.s(1)).then(tasks.double).enqueue()
    monkeypatch.delitem(registry._tasks, tasks.double.name)
    [finding] = stored.check(connection, 100).findings.sorted()
    assert (finding.task_name, dict(finding.kinds)) == (tasks.double.name, {"waiting": 1})
