"""Workflows run to their end: the order of nodes, results that are passed on, and failure policies."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from django_pgqueue import Workflow, chain, chord, group
from django_pgqueue.models import Job, JobDependency, SearchKey
from django_pgqueue.states import State
from django_pgqueue.testing import run_jobs

from . import tasks

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def nothing_ran():
    tasks.RAN.clear()
    tasks.FIXED.clear()


def states(workflow: Workflow) -> list[str]:
    """Return the states of the nodes, in the order of the nodes."""
    return list(workflow.jobs.order_by("pk").values_list("state", flat=True))


def result(workflow: Workflow, place: int = -1) -> Any:
    return workflow.nodes[place].job.return_value


def test_chain_passes_each_result_to_the_next_call():
    workflow = chain(tasks.number.s(3)).then(tasks.double).then(tasks.async_double).enqueue()
    assert states(workflow) == ["ready", "waiting", "waiting"]
    assert (workflow.progress().ready, workflow.progress().waiting, workflow.progress().total) == (1, 2, 3)

    assert run_jobs() == 3

    assert states(workflow) == ["succeeded"] * 3
    assert result(workflow) == 12
    assert workflow.batch.record.succeeded_at is not None


def test_group_passes_the_list_of_results_in_order():
    workflow = group(*(tasks.number.s(each) for each in range(20))).then(tasks.total, 100).enqueue()

    assert run_jobs() == 21

    assert result(workflow) == sum(range(20)) + 100


def test_chord_is_a_group_with_a_last_call():
    workflow = chord([tasks.number.s(1), chain(tasks.number.s(2)).then(tasks.double)], tasks.total).enqueue()

    run_jobs()

    assert result(workflow) == 5


def test_call_after_an_empty_group_gets_an_empty_list():
    workflow = chord([], tasks.total, 100).enqueue()
    assert states(workflow) == ["ready"]

    run_jobs()

    assert result(workflow) == 100


def test_chain_fans_out_and_in_again():
    workflow = (
        chain(tasks.number.s(3)).fan_out([tasks.double, tasks.atomic_double]).then(tasks.total).then(tasks.double)
    ).enqueue()

    run_jobs()

    assert result(workflow) == 24


def test_annotations_convert_results_for_the_next_node():
    workflow = Workflow()
    found = workflow.add(tasks.rows.s(3))
    workflow.add(tasks.last_day.s(found.result, plus=1))
    workflow.enqueue()

    run_jobs()

    assert result(workflow) == date(2026, 1, 4)


def test_results_stand_in_lists_tuples_and_dicts():
    workflow = Workflow()
    one, two = workflow.add(tasks.number.s(1)), workflow.add(tasks.number.s(2))
    workflow.add(
        tasks.note.s("mixed", [one.result, 5], (two.result, one.result), {"two": two.result}, named=[two.result])
    )
    workflow.enqueue()

    run_jobs()

    assert result(workflow) == ["mixed", [1, 5], [2, 1], {"two": 2}, [2]]


@pytest.mark.parametrize("policy", ["cancel", "ignore", "block"])
def test_failed_dependency_does_what_the_policy_says(policy):
    workflow = Workflow(if_dependency_fails=policy)
    dead = workflow.add(tasks.broken.s())
    middle = workflow.add(tasks.note.s("middle"), after=[dead])
    workflow.add(tasks.note.s("last"), after=[middle])
    workflow.enqueue()

    run_jobs()

    after = {"cancel": "cancelled", "ignore": "succeeded", "block": "waiting"}[policy]
    assert states(workflow) == ["dead", after, after]
    assert (workflow.batch.record.completed_at is None) == (policy == "block")


def test_result_or_none_of_a_failed_dependency_is_none():
    workflow = Workflow()
    dead, fine = workflow.add(tasks.broken.s()), workflow.add(tasks.number.s(1))
    workflow.add(tasks.note.s("all", [dead.result_or_none, fine.result_or_none]), if_dependency_fails="ignore")
    workflow.enqueue()

    run_jobs()

    assert result(workflow) == ["all", [None, 1]]


def test_retry_of_the_dead_job_restores_what_it_had_cancelled():
    workflow = Workflow()
    dead = workflow.add(tasks.broken_until_fixed.s())
    doubled = workflow.add(tasks.double.s(dead.result))
    workflow.add(tasks.double.s(doubled.result))
    workflow.enqueue()
    run_jobs()
    assert states(workflow) == ["dead", "cancelled", "cancelled"]
    assert JobDependency.objects.filter(has_cancelled=True).count() == 2

    tasks.FIXED.append(True)
    assert dead.job.retry()

    assert states(workflow) == ["ready", "waiting", "waiting"]
    assert not JobDependency.objects.filter(has_cancelled=True).exists()
    run_jobs()
    assert states(workflow) == ["succeeded"] * 3
    assert result(workflow) == 28
    assert workflow.batch.record.succeeded_at is not None


def test_retry_of_a_job_with_another_dead_dependency_changes_nothing():
    """The job would have to wait for the unfinished dependency, and is cancelled because of the dead one."""
    workflow = Workflow()
    dead, unfinished = workflow.add(tasks.broken_until_fixed.s()), workflow.add(tasks.number.s(2))
    last = workflow.add(tasks.number.s(3), after=[dead, unfinished])
    workflow.enqueue()
    dead.job.cancel()
    assert states(workflow) == ["cancelled", "ready", "cancelled"]

    assert not last.job.retry()

    assert states(workflow) == ["cancelled", "ready", "cancelled"]
    assert dead.job.retry()
    assert states(workflow) == ["ready", "ready", "waiting"]


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        (tasks.kept_by_none, 4),
        (tasks.chunked, 30),
        (tasks.atomic_double, 6),
        (tasks.async_double, 6),
    ],
)
def test_tasks_of_all_kinds_get_and_pass_on_results(task, expected):
    workflow = Workflow()
    first = workflow.add(tasks.number.s(3))
    workflow.add(tasks.note.s("end", workflow.add(task.s(first.result)).result))
    workflow.enqueue()

    run_jobs()

    assert result(workflow) == ["end", expected]


def test_limit_key_is_made_of_arguments_beside_a_result():
    workflow = Workflow()
    found = workflow.add(tasks.rows.s(3))
    workflow.add(tasks.of_tenant.s(found.result, date(2026, 1, 2)))
    workflow.enqueue()
    assert workflow.nodes[1].job.limit_key == "tenants:2026-01-02"

    run_jobs()

    assert result(workflow) == 3


def test_limited_and_searched_tasks_are_nodes():
    workflow = Workflow()
    first = workflow.add(tasks.limited.s(3))
    workflow.add(tasks.searched.s(5, first.result))
    workflow.enqueue()

    run_jobs()

    assert result(workflow) == 108
    assert Job.objects.get(pk=workflow.job_ids[0]).limit_key == "graphs:3"
    assert SearchKey.objects.filter(job_id=workflow.job_ids[1], value="5").exists()


def test_context_comes_before_the_result():
    workflow = chain(tasks.number.s(3)).then(tasks.with_context).enqueue()

    run_jobs()

    assert result(workflow) == [workflow.job_ids[1], 3]


def test_cancel_of_a_dependency_cancels_its_dependents():
    workflow = chain(tasks.number.s(3)).then(tasks.double).then(tasks.double).enqueue()

    assert Job.objects.get(pk=workflow.job_ids[0]).cancel()

    assert states(workflow) == [State.CANCELLED] * 3


def test_cancel_of_the_workflow_cancels_all_jobs():
    workflow = group(*(tasks.number.s(each) for each in range(5))).then(tasks.total).enqueue()

    assert workflow.cancel() == 6

    assert states(workflow) == [State.CANCELLED] * 6
