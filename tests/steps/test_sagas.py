"""Compensation: the finished steps of a dead or cancelled job are undone once, in reverse order."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import override_settings

from django_pgqueue import Cancel, CompensationUnfinished, InvalidTask, Step, TaskContext, history, send_event, task
from django_pgqueue.ends.compensations import HEADER
from django_pgqueue.lifecycle import history as lifecycle_history
from django_pgqueue.lifecycle import operator, pruning, sagas, steps
from django_pgqueue.models import Job, JobStep
from django_pgqueue.states import State
from django_pgqueue.tasks import registry
from django_pgqueue.testing import run_jobs, time_travel

from . import tasks
from .tasks import CODE, LOG

pytestmark = pytest.mark.django_db
DONE = ["charge", "look", "reserve"]
UNDONE = [*DONE, "undo reserve", "undo charge"]


def states(task_name: str) -> list[str]:
    return list(Job.objects.filter(task_name=task_name).order_by("pk").values_list("state", flat=True))


def pending(job_id: int) -> set[str]:
    """Return the steps whose compensation is neither added nor forgotten."""
    return set(JobStep.objects.filter(job=job_id, compensation__isnull=False).values_list("name", flat=True))


def dies(job: Job) -> Job:
    run_jobs()
    job.refresh_from_db()
    return job


def kill(job: Job, state: str = "dead") -> None:
    """End a job as another path does that writes no report."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE pgqueue_job SET state = %s, finished_at = statement_timestamp() WHERE id = %s", [state, job.pk]
        )


def waits(**options: Any) -> Job:
    """Return a job that has charged and reserved, and that waits for an event."""
    CODE["wait"] = True
    job = tasks.order.using(**options).enqueue()
    run_jobs()
    assert pending(job.pk) == {"charge", "reserve"}
    return job


# ------------------------------------------------------------------ order, once


@pytest.mark.promise("compensation-in-reverse-order")
def test_dead_job_undoes_its_finished_steps_in_reverse_order():
    job = dies(tasks.order.enqueue())
    assert job.state == "dead"
    assert LOG == UNDONE
    first, second = Job.objects.filter(task_name__in=[tasks.undo.name, tasks.undo_once.name]).order_by("pk")
    assert (first.arguments["args"], second.arguments["args"]) == (["reserve"], ["charge"])
    assert first.headers == second.headers == {HEADER: job.pk}
    assert pending(job.pk) == set()
    assert dict(job.steps.values_list("name", "compensation_id")) == {
        "charge": second.pk,
        "look": None,
        "reserve": first.pk,
    }


def test_succeeded_job_forgets_its_compensations():
    job = dies(tasks.order.enqueue(fails=False))
    assert job.state == "succeeded"
    assert [*DONE, "ship"] == LOG
    assert pending(job.pk) == set()
    kill(job)
    run_jobs()
    assert [*DONE, "ship"] == LOG


def test_retried_attempt_compensates_only_after_the_last():
    job = tasks.order.enqueue()
    run_jobs(max_jobs=1)
    assert LOG == DONE
    assert dies(job).attempt == 2
    assert LOG == UNDONE


def test_coroutine_steps_are_undone():
    dies(tasks.order_async.enqueue())
    assert LOG == ["charge", "reserve", "undo reserve", "undo charge"]


def test_step_that_failed_part_way_is_not_undone():
    dies(tasks.order.enqueue())
    assert "undo ship" not in LOG


@pytest.mark.promise("compensation-after-every-end")
@pytest.mark.parametrize("end", ["cancel", "dead by SQL", "cancelled by SQL"])
def test_sweep_finds_every_other_end(end):
    job = waits()
    if end == "cancel":
        assert job.cancel()
    else:
        kill(job, end.split()[0])
    run_jobs()
    assert LOG == UNDONE


def test_task_that_cancels_itself_is_undone():
    def code(context):
        context.step(Step("charge", compensate=tasks.undo), tasks.do, "charge")
        raise Cancel("no longer wanted")

    CODE["code"] = code
    assert dies(tasks.scripted.enqueue()).state == "cancelled"
    assert LOG == ["charge", "undo charge"]


def test_immediate_job_is_undone_in_the_same_call():
    with override_settings(PGQUEUE={"TASK_MODULES": [tasks.__name__], "IMMEDIATE": True}):
        tasks.order.using(max_attempts=1).enqueue()
    assert LOG == UNDONE


# ------------------------------------------------------------------ a compensation that fails


@pytest.mark.promise("compensation-in-reverse-order")
def test_dead_compensation_keeps_the_following_ones_waiting():
    def fails(result):
        raise ValueError("no refund today")

    CODE["undo"] = fails
    job = dies(tasks.order.enqueue())
    run_jobs()
    assert states(tasks.undo_once.name) == ["dead"]
    assert states(tasks.undo.name) == []
    assert pending(job.pk) == {"charge"}
    del CODE["undo"]
    assert Job.objects.filter(task_name=tasks.undo_once.name).retry() == 1
    run_jobs()
    assert states(tasks.undo_once.name) == states(tasks.undo.name) == ["succeeded"]
    assert [*DONE, "undo reserve", "undo reserve", "undo charge"] == LOG


def test_compensation_is_retried_as_its_task_says():
    def fails_once(result):
        if LOG.count("undo charge") == 1:
            raise ValueError("later")

    CODE["undo"] = fails_once
    dies(tasks.order.enqueue())
    run_jobs(until=timedelta(hours=1))
    assert [*UNDONE, "undo charge"] == LOG
    assert states(tasks.undo.name) == ["succeeded"]


def test_dead_compensation_that_is_deleted_is_skipped():
    def fails(result):
        if result == "reserve":
            raise ValueError("gone")

    CODE["undo"] = fails
    dies(tasks.order.enqueue())
    dead = Job.objects.get(task_name=tasks.undo_once.name)
    assert operator.delete(connection, [dead.pk])
    run_jobs()
    assert LOG == UNDONE


def test_compensation_unknown_to_the_worker_waits_for_one_that_knows_it(monkeypatch):
    job = waits()
    JobStep.objects.filter(name="reserve").update(
        compensation={**JobStep.objects.get(name="reserve").compensation, "task_name": "shop.gone"}
    )
    job.cancel()
    run_jobs()
    assert states("shop.gone") == ["ready"]
    assert Job.objects.get(task_name="shop.gone").unknown_since is not None
    assert pending(job.pk) == {"charge"}


# ------------------------------------------------------------------ retry by an operator


def test_retry_before_the_compensation_undoes_nothing():
    job = waits()
    kill(job)
    job.refresh_from_db()
    assert job.retry()
    CODE["fails"] = False
    send_event("go", job.pk)
    run_jobs()
    job.refresh_from_db()
    assert (job.state, LOG) == ("succeeded", [*DONE, "ship"])


@pytest.mark.promise("no-retry-during-compensation")
@pytest.mark.parametrize("is_dead", [True, False])
def test_retry_during_the_compensation_is_refused(is_dead):
    if is_dead:
        CODE["undo"] = tasks.fail_to
        job = dies(tasks.order.enqueue())
    else:
        job = waits()
        job.cancel()
        sagas.compensate(connection, [job.pk])
        job.refresh_from_db()
    with pytest.raises(CompensationUnfinished, match="cannot be retried while its steps are compensated"):
        job.retry()
    assert Job.objects.filter(pk=job.pk).retry() == 0
    job.refresh_from_db()
    assert job.state == ("dead" if is_dead else "cancelled")


@pytest.mark.promise("no-retry-during-compensation")
def test_retry_after_the_compensation_runs_the_undone_steps_again():
    job = dies(tasks.order.enqueue())
    assert LOG == UNDONE
    CODE["fails"] = False
    assert job.retry()
    job = dies(job)
    assert job.state == "succeeded"
    assert [*UNDONE, "charge", "reserve", "ship"] == LOG  # the step without compensation kept its value


def test_second_death_is_compensated_again():
    job = dies(tasks.order.enqueue())
    assert job.retry()
    dies(job)
    assert [*UNDONE, "charge", "reserve", "undo reserve", "undo charge"] == LOG


def test_attempt_never_uses_a_compensated_step():
    """A retry that has met the beginning of the compensation: both were under way at the same moment."""
    job = waits()
    job.cancel()
    sagas.compensate(connection, [job.pk])
    assert [step.name for step in steps.load_steps(connection, job.pk)] == ["charge", "look", "go"]


# ------------------------------------------------------------------ removal


@pytest.mark.promise("compensation-before-removal")
@pytest.mark.parametrize("how", ["delete", "prune", "archive", "erase"])
def test_job_is_kept_until_its_compensations_are_enqueued(how):
    job, other = waits(), waits()
    kill(job)
    other.cancel()
    for each in (job, other):
        each.refresh_from_db()

    def remove() -> bool:
        seen = {job.pk: job.finished_at}
        if how == "delete":
            return bool(operator.delete(connection, [job.pk]))
        if how == "prune":
            pruning.prune(connection, State.CANCELLED if job.state == "cancelled" else State.DEAD, 0.0)
            return not Job.objects.filter(pk=job.pk).exists()
        if how == "archive":
            return bool(lifecycle_history.archive(connection, seen))
        return history.erase(jobs=[job.pk]).erased == 1

    assert not remove()
    run_jobs()
    assert sorted(LOG) == sorted([*UNDONE, *UNDONE])
    assert remove()


def test_job_with_pending_compensation_is_left_by_an_erasure_and_counted():
    job = waits()
    kill(job)
    erased = history.erase(jobs=[job.pk])
    assert (erased.erased, erased.left) == (0, 1)


# ------------------------------------------------------------------ errors before the function runs


def no_argument() -> None: ...
def two_arguments(result: Any, other: Any) -> None: ...


@pytest.mark.parametrize(
    ("compensate", "error", "says"),
    [
        (lambda: task(no_argument), TypeError, "step 'charge': .* cannot be called with these arguments"),
        (lambda: task(two_arguments), TypeError, "step 'charge': .* cannot be called with these arguments"),
        (lambda: tasks.undo.using(unique_key="one"), InvalidTask, r"unique key.* write undo.using\(unique_key=None\)$"),
        (lambda: tasks.undo.using(database="lite"), InvalidTask, "lite"),
    ],
    ids=["no argument", "two arguments", "unique key", "another database"],
)
def test_compensation_that_cannot_be_enqueued_is_refused_first(monkeypatch, compensate, error, says):
    monkeypatch.setattr(registry, "is_found_by_workers", lambda module: True)
    CODE["code"] = lambda context: context.step(Step("charge", compensate=compensate()), tasks.do, "charge")
    tasks.scripted.using(max_attempts=1).enqueue()
    with pytest.raises(error, match=says):
        run_jobs(raising=True)
    assert LOG == []


@pytest.mark.promise("defect-compensation-refuses-result")
@pytest.mark.parametrize("is_atomic", [False, True])
def test_result_that_the_compensation_does_not_take_ends_the_job(is_atomic):
    """Another attempt would charge again, and that charge could not be undone either."""

    def code(context):
        context.step(Step("open", compensate=tasks.undo), tasks.do, "open")
        context.step(Step("charge", atomic=is_atomic, retries=3, compensate=tasks.undo_on_day), tasks.do, "charge")

    CODE["code"] = code
    job = dies(tasks.scripted.enqueue())
    assert (job.state, LOG) == ("dead", ["open", "charge", "undo open"])
    [error] = job.executions.values_list("error", flat=True)
    assert "'charge' succeeded, but its result cannot be the argument of its compensation" in error
    assert "must be date, not str" in error


def test_function_as_compensation_is_refused():
    with pytest.raises(TypeError, match="compensate must be a task, not function: decorate it with @task"):
        Step("charge", compensate=no_argument)
    with pytest.raises(TypeError, match="compensate must be a task, not TaskCall: pass the task itself"):
        Step("charge", compensate=tasks.undo.s("x"))


def test_step_without_a_job_ignores_its_compensation():
    assert TaskContext().step(Step("charge", compensate=tasks.undo), tasks.do, "charge") == "charge"


def test_result_reaches_the_compensation_as_json():
    def code(context):
        context.step(Step("charge", compensate=tasks.undo), lambda: ("a", 1))
        raise ValueError

    CODE["code"] = code
    tasks.scripted.using(max_attempts=1).enqueue()
    run_jobs()
    assert LOG == ["undo ['a', 1]"]


def test_job_added_by_a_compensation_has_the_options_of_its_task():
    special = tasks.undo.using(queue_name="default", priority=7, run_after=60, headers={"trace": "abc"})
    CODE["code"] = lambda context: context.step(Step("charge", compensate=special), tasks.do, "charge") and 1 / 0
    job = tasks.scripted.using(max_attempts=1).enqueue()
    run_jobs()
    undo = Job.objects.get(task_name=tasks.undo.name)
    assert (undo.priority, undo.headers, undo.state) == (7, {"trace": "abc", HEADER: job.pk}, "ready")
    with time_travel(seconds=61):
        run_jobs()
    assert LOG == ["charge", "undo charge"]
