"""`delete()` of jobs: instances, querysets and managers obey the rules of the engine, and behave as Django's."""

from __future__ import annotations

import logging

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, models
from django.db.models.deletion import Collector
from django.db.models.signals import post_delete, pre_delete

from django_pgqueue import Batch, chain
from django_pgqueue.exceptions import CannotDelete, JobLocked, QueueError
from django_pgqueue.lifecycle import operator
from django_pgqueue.models import DeadJob, Execution, ExecutionLog, Job, JobDependency, JobStep, SearchKey
from django_pgqueue.states import State
from django_pgqueue.testing import run_jobs
from tests import helpers
from tests.app import tasks
from tests.graphs import tasks as graph_tasks
from tests.history.finished import make
from tests.steps import tasks as step_tasks

from .scenes import finished, pending_saga, waiting_chain

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("known_tasks")]
REASONS = "job(s) were not deleted"


def in_state(state: State) -> Job:
    job = tasks.noop.enqueue()
    ended = "2026-01-01T00:00Z" if state in ("succeeded", "dead", "cancelled") else None
    Job.objects.filter(pk=job.pk).update(state=state, finished_at=ended)
    job.refresh_from_db()
    return job


WAYS = {
    "instance": lambda job: job.delete(),
    "queryset": lambda job: Job.objects.filter(pk=job.pk).delete(),
    "all": lambda job: Job.objects.all().delete(),
    "default manager": lambda job: Job._default_manager.filter(pk=job.pk).delete(),
    "base manager": lambda job: Job._base_manager.filter(pk=job.pk).delete(),
    "proxy": lambda job: DeadJob.objects.filter(pk=job.pk).delete(),
    "proxy instance": lambda job: DeadJob.objects.get(pk=job.pk).delete(),
}
each_way = pytest.mark.parametrize("way", WAYS)

# ------------------------------------------------------------------ jobs that have not ended


@pytest.mark.promise("delete-only-ended-jobs")
@pytest.mark.parametrize("state", ["waiting", "ready", "running"])
@each_way
def test_delete_unfinished_job_raises_and_names_cancel(way, state):
    job = in_state(State(state))
    with pytest.raises(CannotDelete, match=rf"job {job.pk} is {state}, .* nothing was deleted: call cancel\(\) first"):
        WAYS[way](job)
    assert Job.objects.filter(pk=job.pk).exists()
    assert issubclass(CannotDelete, QueueError)


def test_delete_with_one_unfinished_job_deletes_nothing():
    ended = finished()
    in_state(State.READY)
    with pytest.raises(CannotDelete):
        Job.objects.all().delete()
    assert Job.objects.filter(pk=ended.pk).exists()


def test_delete_outdated_instance_decides_by_the_row():
    job = in_state(State.READY)
    Job.objects.filter(pk=job.pk).update(state="dead", finished_at="2026-01-01T00:00Z")
    assert job.delete() == (1, {"pgqueue.Job": 1})
    other = in_state(State.DEAD)
    assert Job.objects.get(pk=other.pk).retry()
    with pytest.raises(CannotDelete, match="is ready"):
        other.delete()


# ------------------------------------------------------------------ as Django


@each_way
def test_delete_finished_job_returns_the_counts_of_django(way):
    [job_id] = make(connection, logs=True)
    JobStep.objects.create(job_id=job_id, name="a", position=1, kind="step", attempt=1, started_at="2026-01-01T00:00Z")
    SearchKey.objects.create(job_id=job_id, name="customer", value="7")
    job = Job.objects.get(pk=job_id)
    expected = {"Job": 1, "Execution": 1, "ExecutionLog": 1, "JobStep": 1, "SearchKey": 1}
    assert WAYS[way](job) == (5, {f"pgqueue.{name}": count for name, count in expected.items()})
    assert not any(model.objects.exists() for model in (Job, Execution, ExecutionLog, JobStep, SearchKey))


def test_counts_are_those_of_the_collector():
    """Of Django's own, which `delete()` does not use for the tables of the queue."""
    make(connection, count=3, logs=True)
    collector = Collector(using="default")
    collector.collect(Job.objects.all())
    with connection.cursor() as cursor:
        cursor.execute("SAVEPOINT before")
        expected = collector.delete()
        cursor.execute("ROLLBACK TO before")
    assert Job.objects.all().delete() == expected


def test_delete_instance_forgets_its_key():
    job = finished()
    job_id = job.pk
    job.delete()
    assert job.pk is None
    again = Job(id=job_id)
    assert again.delete() == (0, {})
    with pytest.raises(ValueError, match="was never enqueued"):
        Job().delete()


def test_delete_refuses_what_django_refuses():
    finished()
    with pytest.raises(TypeError, match="limit"):
        Job.objects.all()[:1].delete()
    with pytest.raises(TypeError, match="values"):
        Job.objects.values("pk").delete()
    with pytest.raises(TypeError, match="distinct"):
        Job.objects.distinct("pk").delete()
    with pytest.raises(AttributeError):
        Job.objects.delete()
    assert Job.delete.alters_data
    assert Job.objects.all().delete.alters_data
    assert Job.objects.count() == 1


def test_delete_empty_queryset_returns_zero():
    assert Job.objects.all().delete() == (0, {})


@pytest.mark.django_db(transaction=True)
def test_adelete_deletes_instances_and_querysets():
    first, second = (finished(), finished())
    counts = (2, {"pgqueue.Execution": 1, "pgqueue.Job": 1})
    assert async_to_sync(first.adelete)() == counts
    assert async_to_sync(Job.objects.filter(pk=second.pk).adelete)() == counts


def test_delete_of_many_takes_pages_in_one_transaction(monkeypatch):
    monkeypatch.setattr("django_pgqueue.models.operations_link.BATCH_SIZE", 2)
    make(connection, count=5)
    assert Job.objects.all().delete()[1]["pgqueue.Job"] == 5
    make(connection, count=3)
    in_state(State.READY)
    with pytest.raises(CannotDelete):
        Job.objects.all().delete()
    assert Job.objects.count() == 4


@pytest.mark.django_db(transaction=True)
def test_delete_locked_job_raises_or_leaves_it(engine, second, monkeypatch):
    monkeypatch.setattr("django_pgqueue.lifecycle.operator.LOCK_WAIT_SECONDS", 0.05)
    job, other = finished(), finished()
    with helpers.transaction(second, f"SELECT FROM pgqueue_job WHERE id = {job.pk} FOR UPDATE"):
        with pytest.raises(JobLocked):
            job.delete()
        assert Job.objects.filter(pk__in=[job.pk, other.pk]).delete()[1]["pgqueue.Job"] == 1
    assert job.delete()[1]["pgqueue.Job"] == 1


# ------------------------------------------------------------------ foreign keys and signals of a project


@each_way
def test_delete_cascades_to_rows_of_the_project(refer, way):
    model = refer(on_delete=models.CASCADE)
    job, other = finished("dead"), finished("dead")
    rows = [model.objects.create(row=job) for _ in range(2)]
    if way != "all":
        model.objects.create(row=other)
    found = WAYS[way](job)
    assert found[1][model._meta.label] == 2
    assert not model.objects.filter(pk__in=[row.pk for row in rows]).exists()
    assert model.objects.count() == (0 if way == "all" else 1)


def test_delete_applies_every_kind_of_on_delete(refer):
    job = finished()
    nulled, kept = refer(on_delete=models.SET_NULL, null=True), refer(on_delete=models.DO_NOTHING, db_constraint=False)
    nulled.objects.create(row=job)
    kept.objects.create(row=job)
    assert "app" not in str(job.delete())
    assert list(nulled.objects.values_list("row_id", flat=True)) == [None]
    assert kept.objects.count() == 1


@pytest.mark.parametrize("on_delete", [models.PROTECT, models.RESTRICT])
@pytest.mark.parametrize("way", ["instance", "queryset", "all"])
def test_delete_protected_job_deletes_nothing(refer, way, on_delete):
    model = refer(on_delete=on_delete)
    job, free = finished(), finished()
    model.objects.create(row=job)
    with pytest.raises(models.ProtectedError if on_delete is models.PROTECT else models.RestrictedError):
        WAYS[way](job)
    assert Job.objects.filter(pk__in=[job.pk, free.pk]).count() == 2
    assert Execution.objects.count() == 2


def test_delete_cascades_from_executions_too(refer):
    model = refer(to=Execution)
    job = finished()
    model.objects.create(row=job.executions.get())
    assert Job.objects.all().delete()[1][model._meta.label] == 1


def test_related_manager_of_the_project_deletes_by_the_engine(refer):
    """A many-to-many field of the project reaches jobs by their default manager."""
    model = refer()
    row = model.objects.create(row=in_state(State.READY))
    with pytest.raises(CannotDelete):
        row.row.delete()


def test_kept_job_keeps_the_rows_of_the_project(refer):
    model = refer()
    job = waiting_chain()
    model.objects.create(row=job)
    assert Job.objects.filter(pk=job.pk).delete() == (0, {})
    assert model.objects.count() == 1


def test_delete_sends_the_signals_of_django(request):
    sent: list[tuple[str, int]] = []
    for name, signal in (("pre", pre_delete), ("post", post_delete)):
        receiver = lambda instance, name=name, **_: sent.append((name, instance.pk))  # noqa: E731
        signal.connect(receiver, sender=Job, weak=False, dispatch_uid=name)
        request.addfinalizer(lambda signal=signal, name=name: signal.disconnect(sender=Job, dispatch_uid=name))
    first, second = finished(), finished()
    ids = first.pk, second.pk
    first.delete()
    Job.objects.filter(pk=second.pk).delete()
    assert sent == [("pre", ids[0]), ("post", ids[0]), ("pre", ids[1]), ("post", ids[1])]


# ------------------------------------------------------------------ what unfinished work needs


@pytest.mark.promise("delete-keeps-what-is-needed")
@pytest.mark.parametrize("scene", [waiting_chain, pending_saga], ids=["workflow", "saga"])
@pytest.mark.parametrize("way", [way for way in WAYS if way != "all"])
def test_delete_leaves_a_needed_job_and_says_so(way, scene, caplog):
    job = scene()
    other = finished()
    assert WAYS[way](job) == (0, {})
    assert Job.objects.filter(pk=job.pk).exists()
    [record] = [each for each in caplog.records if REASONS in each.getMessage()]
    assert f"for example job {job.pk}: " in record.getMessage()
    assert (record.levelno, record.event) == (logging.WARNING, "jobs_kept")
    assert job.pk is not None
    assert Job.objects.filter(pk__in=[job.pk, other.pk]).delete()[1]["pgqueue.Job"] == 1


def test_delete_of_a_whole_workflow_that_has_ended_leaves_nothing():
    """The dead jobs have to go before those that a retry of them would need."""
    job = waiting_chain()
    graph_tasks.FIXED.clear()
    chain(graph_tasks.number.s(1)).then(graph_tasks.broken_until_fixed).then(graph_tasks.double).enqueue()
    run_jobs()
    assert sorted(Job.objects.values_list("state", flat=True)) == ["cancelled", "dead"] + ["succeeded"] * 3
    assert Job.objects.filter(state="succeeded").delete()[1]["pgqueue.Job"] == 2
    assert Job.objects.filter(batch_id=job.batch_id).count() == 0
    assert Job.objects.all().delete()[1]["pgqueue.Job"] == 3
    assert not Job.objects.exists()


@pytest.mark.promise("delete-keeps-what-is-needed")
def test_deleted_result_still_reaches_the_waiting_node():
    job = waiting_chain()
    Job.objects.filter(state="succeeded").delete()
    run_jobs()
    dependent = Job.objects.get(task_name=graph_tasks.double.name)
    assert (dependent.state, dependent.return_value) == ("succeeded", 6)
    assert Job.objects.filter(batch_id=job.batch_id).delete()[1]["pgqueue.Job"] == 2
    assert not JobDependency.objects.exists()


@pytest.mark.promise("delete-keeps-what-is-needed")
def test_cancelled_saga_that_is_deleted_is_undone():
    step_tasks.CODE["wait"] = True
    job = step_tasks.order.enqueue()
    run_jobs()
    Job.objects.filter(pk=job.pk).cancel()
    Job.objects.filter(pk=job.pk, finished_at__isnull=False).delete()
    run_jobs()
    assert step_tasks.LOG[-2:] == ["undo reserve", "undo charge"]
    assert Job.objects.all().delete()[1]["pgqueue.Job"] == 3


@pytest.mark.promise("delete-keeps-what-is-needed")
@each_way
def test_deleted_dead_job_still_prevents_the_success_of_its_batch(way):
    with Batch(on_success=tasks.noop.s("success"), on_failure=tasks.noop.s("failure")) as batch:
        tasks.fail.using(batch=batch, max_attempts=1).enqueue()
    job = Job.objects.get(batch_id=batch.id)
    Job.objects.filter(pk=job.pk).update(state="dead", finished_at="2026-01-01T00:00Z")
    assert WAYS[way](job)[1]["pgqueue.Job"] == 1
    run_jobs(until=7200)
    names = [each.args[0] for each in Job.objects.filter(task_name=tasks.noop.name)]
    assert names == ["failure"]
    assert batch.progress().dead == 1


@pytest.mark.promise("delete-keeps-what-is-needed")
def test_delete_of_a_pending_saga_does_not_wait_for_a_lock():
    """It was taken for a locked job: the caller waited for 5 s, and the error named another session."""
    job = pending_saga()
    assert operator.delete(connection, [job.pk], alone=True, lock_seconds=60.0) == {}


def test_delete_of_a_dead_job_lets_the_key_run_on():
    """That is the decision which `on_dead="block"` waits for."""
    job = finished("dead")
    Job.objects.filter(pk=job.pk).update(limit_key="import:7", limit_order=2)
    assert job.delete()[1]["pgqueue.Job"] == 1
