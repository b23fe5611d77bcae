"""Arguments that are rows of models: what is stored, how it is loaded, and what happens if a row is gone."""

import uuid
from contextvars import copy_context
from dataclasses import replace
from datetime import date
from decimal import Decimal
from unittest import mock

import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import ObjectDoesNotExist
from django.db import OperationalError, connection, models
from django.db.models.query import QuerySet
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.utils.functional import SimpleLazyObject

from django_pgqueue import InvalidTask
from django_pgqueue.arguments import rows
from django_pgqueue.arguments.annotations import Annotations
from django_pgqueue.arguments.plan import new_plan
from django_pgqueue.lifecycle import claims
from django_pgqueue.models import Execution, Job
from django_pgqueue.testing import run_jobs
from django_pgqueue.worker.execution.chunk_attempt import attempt_of
from tests.app import tasks as app_tasks

from . import tasks
from .models import Courier, FirstCourier, FragileParcel, Parcel

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("tables")]


@pytest.fixture(autouse=True)
def received():
    tasks.received.clear()
    return tasks.received


@pytest.fixture
def parcel(tables):
    return Parcel.objects.create()


def queries_on(table, captured):
    return [each["sql"] for each in captured if f'FROM "{table}"' in each["sql"]]


# ------------------------------------------------------------------ what is stored


def test_enqueue_instance_or_key_stores_the_key(parcel, received):
    for argument in (parcel, parcel.pk, str(parcel.pk), SimpleLazyObject(lambda: parcel)):
        job = tasks.deliver.enqueue(argument)
        assert job.arguments == {"args": [str(parcel.pk)], "kwargs": {}}
    run_jobs(raising=True)
    assert received == [(parcel, None, None)] * 4
    assert received[0][0] is not parcel, "the job must get the row as it is when it runs"


def test_enqueue_text_key_and_proxy_store_the_key(parcel, received):
    Courier.objects.create(code="ann")
    tasks.deliver.enqueue(parcel, courier=FirstCourier.objects.get())
    tasks.deliver.enqueue(parcel, None, "ann")  # a key
    run_jobs(raising=True)
    assert received == [(parcel, None, Courier(code="ann"))] * 2


def test_enqueue_child_of_model_stores_the_key_of_the_parent(received):
    fragile = FragileParcel.objects.create()
    tasks.deliver.enqueue(fragile)
    run_jobs(raising=True)
    assert type(received[0][0]) is Parcel
    assert received[0][0].pk == fragile.pk


def test_key_of_child_model_has_the_type_of_the_parents_key():
    fragile = FragileParcel.objects.create()
    converter = Annotations().converter(FragileParcel)
    loaded = rows.LoadedRows("default", converter.references(converter.encode(fragile)))
    assert converter.decode(str(fragile.pk), loaded) == fragile


@pytest.mark.parametrize(
    ("argument", "error", "message"),
    [
        (lambda: Parcel(), ValueError, "argument 'parcel' is a Parcel that is not saved: save it first"),
        (lambda: Courier(code="ann"), TypeError, "argument 'parcel' must be Parcel or its primary key, not Courier"),
        (lambda: "secret", TypeError, "argument 'parcel' must be Parcel or its primary key, not str"),
        (lambda: None, TypeError, "argument 'parcel' must be Parcel or its primary key, not NoneType"),
        (lambda: 1.5, TypeError, "argument 'parcel' must be Parcel or its primary key, not float"),
        (lambda: True, TypeError, "argument 'parcel' must be Parcel or its primary key, not bool"),
        (lambda: [uuid.uuid4()], TypeError, "argument 'parcel' must be Parcel or its primary key, not list"),
    ],
)
def test_enqueue_wrong_row_is_refused(django_assert_num_queries, argument, error, message):
    with django_assert_num_queries(0), pytest.raises(error) as refused:
        tasks.deliver.enqueue(argument())
    assert str(refused.value) == message


@pytest.mark.parametrize("key", [Decimal("7.5"), "7.5", 7.0])
def test_enqueue_key_that_would_be_rounded_is_refused(key):
    with pytest.raises(TypeError, match="'group' must be Group or its primary key"):
        app_tasks.name_on.enqueue(key, date(2026, 7, 1))


def test_enqueue_text_of_a_numeric_key_is_accepted():
    """A view gets the key as a part of the URL."""
    assert app_tasks.name_on.enqueue("7", date(2026, 7, 1)).arguments["args"][0] == 7


def test_enqueue_deleted_row_is_refused(parcel):
    parcel.delete()
    with pytest.raises(ValueError, match="not saved"):
        tasks.deliver.enqueue(parcel)


def test_enqueue_wrong_item_of_list_is_named(parcel):
    with pytest.raises(TypeError, match=r"'others'\[1\] must be Parcel or its primary key, not Courier"):
        tasks.deliver.enqueue(parcel, [parcel, Courier(code="ann")])


# ------------------------------------------------------------------ how rows are loaded


def test_rows_of_one_model_are_loaded_by_one_query(parcel, received):
    others = [Parcel.objects.create() for _ in range(3)]
    tasks.deliver.enqueue(parcel, [*others, parcel, others[0]])
    with CaptureQueriesContext(
        connection,
    ) as captured:
        run_jobs(raising=True)
    assert received == [(parcel, [*others, parcel, others[0]], None)]
    assert len(queries_on("app_parcel", captured)) == 1


def test_rows_inside_a_dataclass_are_loaded(parcel, received):
    ann = Courier.objects.create(code="ann")
    delivery = tasks.Delivery(parcel, {"first": ann})
    job = tasks.deliver_all.enqueue(delivery)
    assert job.arguments["args"] == [{"parcel": str(parcel.pk), "couriers": {"first": "ann"}}]
    run_jobs(raising=True)
    assert received == [delivery]


def test_row_hidden_by_default_manager_is_loaded(received):
    hidden = Parcel.objects.create(is_hidden=True)
    assert not Parcel.objects.exists()
    tasks.deliver.enqueue(hidden)
    run_jobs(raising=True)
    assert received == [(hidden, None, None)]


def test_row_is_loaded_after_the_context(parcel, received):
    job = tasks.deliver_with_context.enqueue(parcel)
    run_jobs(raising=True)
    assert received == [(job.pk, parcel)]


def test_row_is_loaded_inside_the_middleware(received):
    tasks.deliver_by.enqueue("inside")
    middleware = {"TASK_MODULES": ["tests.arguments.tasks"], "MIDDLEWARE": ["tests.arguments.tasks.ShowHidden"]}
    with override_settings(PGQUEUE=middleware):
        run_jobs(raising=True)
    assert received == ["inside"]


def test_row_of_coroutine_task_is_loaded_off_the_event_loop(parcel, received):
    """Django raises SynchronousOnlyOperation for a query on the event loop."""
    job = tasks.deliver_async.enqueue(parcel)
    claimed = claims.claim_one(connection, job.pk, worker_id=0, lease_seconds=60)
    report = copy_context().run(async_to_sync(attempt_of(claimed, "default", mock.Mock()).run_async))
    assert report.result == f'"{parcel.pk}"', report.error
    tasks.deliver_async.enqueue(parcel)
    run_jobs(raising=True)
    assert received == [parcel, parcel]


def test_row_of_atomic_task_is_loaded_in_its_transaction(parcel, received):
    tasks.deliver_atomically.enqueue(parcel)
    seen = []
    load = rows._load

    def record(*arguments):
        seen.append(len(connection.savepoint_ids))
        return load(*arguments)

    outside = len(connection.savepoint_ids)
    with mock.patch.object(rows, "_load", record):
        run_jobs(raising=True)
    tasks.deliver.enqueue(parcel)
    with mock.patch.object(rows, "_load", record):
        run_jobs(raising=True)
    atomic, plain = seen
    assert atomic == plain + 1 > outside


def test_row_is_loaded_from_the_routers_choice_or_the_jobs_database():
    class Router:
        def db_for_write(self, model, **hints):
            return "routed" if model is Parcel else None

        def db_for_read(self, model, **hints):
            raise AssertionError("a replica can lag behind")

    assert rows.database_of(Parcel, "of_job") == "of_job"
    with override_settings(DATABASE_ROUTERS=[Router()]):
        assert rows.database_of(Parcel, "of_job") == "routed"
        assert rows.database_of(Courier, "of_job") == "of_job"


# ------------------------------------------------------------------ rows that are gone


def ended(job):
    run_jobs()
    job.refresh_from_db()
    return job.state, job.attempt, Execution.objects.filter(job=job).latest("id")


@pytest.mark.promise("typed-missing-row")
def test_missing_row_makes_the_job_dead(parcel, received):
    job = tasks.deliver.enqueue(parcel)
    Parcel.objects.all().delete()
    state, attempt, execution = ended(job)
    assert (state, attempt) == ("dead", 1)
    assert execution.error == "the row of app.Parcel that the job's arguments name no longer exists"
    assert received == []


def test_missing_row_of_list_or_optional_makes_the_job_dead(parcel, received):
    other = Parcel.objects.create()
    jobs = [tasks.deliver.enqueue(parcel, [parcel, other]), tasks.deliver.enqueue(parcel, None, "nobody")]
    other.delete()
    assert [ended(job)[0] for job in jobs] == ["dead", "dead"]
    assert received == []


@pytest.mark.promise("typed-missing-row")
def test_missing_row_cancels_the_job_if_asked(parcel):
    job = tasks.deliver_or_cancel.enqueue(parcel)
    Parcel.objects.all().delete()
    state, _, execution = ended(job)
    assert state == "cancelled"
    assert "no longer exists" in execution.error


@pytest.mark.promise("typed-missing-row")
def test_missing_row_is_retried_if_asked(parcel):
    job = tasks.deliver_or_retry.enqueue(parcel)
    Parcel.objects.all().delete()
    state, attempt, execution = ended(job)
    assert (state, attempt) == ("dead", 3)
    assert execution.exception_class == "tests.arguments.models.Parcel.DoesNotExist"
    assert issubclass(Parcel.DoesNotExist, ObjectDoesNotExist)


def test_unknown_effect_of_missing_row_is_refused():
    with pytest.raises(InvalidTask, match="on_missing must be one of dead, cancel, retry, not 'ignore'"):
        replace(tasks.deliver, on_missing="ignore")


def test_database_error_while_loading_is_retried(parcel, received):
    job = tasks.deliver.enqueue(parcel)
    with mock.patch.object(QuerySet, "__iter__", side_effect=OperationalError("lost")):
        run_jobs(max_jobs=1)
    job.refresh_from_db()
    assert (job.state, job.attempt) == ("ready", 1)
    assert Execution.objects.get(job=job).exception_class == "django.db.utils.OperationalError"
    assert received == []


def test_stored_key_of_wrong_type_does_not_fit():
    job = tasks.deliver.enqueue(uuid.uuid4())
    Job.objects.filter(pk=job.pk).update(arguments={"args": ["secret"], "kwargs": {}})
    state, attempt, execution = ended(job)
    assert (state, attempt, execution.outcome) == ("ready", 0, "released")
    assert "'parcel' is stored as a value that is not Parcel or its primary key" in execution.error


# ------------------------------------------------------------------ annotations


def test_model_without_rows_is_refused():
    class Base(models.Model):
        class Meta:
            app_label = "app"
            abstract = True

    with pytest.raises(InvalidTask, match="abstract"):
        Annotations().converter(Base)


def returns_row() -> list[Parcel]:
    return []


def test_result_annotated_with_a_model_is_not_converted():
    """Reading a result must not load rows."""
    assert new_plan(returns_row, 0).result is None


@pytest.mark.parametrize("annotation", [Parcel | int, Parcel | str, Parcel | Courier, dict[Parcel, int]], ids=str)
def test_model_in_ambiguous_annotation_is_refused(annotation):
    with pytest.raises(InvalidTask):
        Annotations().converter(annotation)
