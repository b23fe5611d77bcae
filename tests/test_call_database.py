"""`database=` as a function of the arguments: each call's job goes to the database that the function names."""

from __future__ import annotations

from datetime import date

import pytest
from django.db import transaction

from django_pgqueue import Batch, Task, cron, enqueue_many, task
from django_pgqueue.exceptions import InvalidTask
from django_pgqueue.models import Job
from django_pgqueue.schedules.declarations import check_schedule
from django_pgqueue.signals import job_enqueued
from django_pgqueue.tasks import registry
from django_pgqueue.testing import run_jobs
from tests.app import tasks

pytestmark = pytest.mark.usefixtures("other")


def shard_of(a, b=0):
    return "other" if a % 2 else None


SHARDED = tasks.add.using(database=shard_of)
KEYED = SHARDED.using(unique_key=str)


@pytest.fixture
def inserted(monkeypatch):
    """Return a list of the aliases on which jobs are inserted. Both aliases lead to one database."""
    from django_pgqueue.lifecycle import enqueueing

    aliases = []
    for name in ("enqueue", "enqueue_many"):
        real = getattr(enqueueing, name)

        def recording(connection, *job, real=real, **values):
            aliases.append(connection.alias)
            return real(connection, *job, **values)

        monkeypatch.setattr(enqueueing, name, recording)
    return aliases


def test_enqueue_function_of_arguments_chooses_database(inserted):
    first, second, third = SHARDED.enqueue(1), SHARDED.enqueue(2), SHARDED.enqueue(a=3)
    assert [first.enqueued_on, second.enqueued_on, third.enqueued_on] == ["other", "default", "other"]
    assert inserted == ["other", "default", "other"]
    assert SHARDED.using(database="default").enqueue(1).enqueued_on == "default"
    assert SHARDED.using(database=None).enqueue(1).enqueued_on == "default"
    with transaction.atomic("other"):
        assert SHARDED.enqueue_on_commit(1).enqueued_on == "other"


def by_day(day: date) -> None:
    """Do nothing."""


def test_enqueue_function_gets_converted_arguments(monkeypatch):
    given = []
    typed = Task(func=by_day, database=lambda day: given.append(day) or "other")
    monkeypatch.setattr(registry, "_tasks", {typed.name: typed})
    monkeypatch.setattr(registry, "is_found_by_workers", lambda module: True)
    assert typed.enqueue(date(2030, 1, 31)).enqueued_on == "other"
    assert given == [date(2030, 1, 31)]


@pytest.mark.parametrize(
    ("database", "error", "message"),
    [
        (lambda a: 7, TypeError, "database must return an alias in DATABASES or None, not 7"),
        (lambda a: "nowhere", InvalidTask, "DATABASES has no alias 'nowhere'"),
        (lambda a: {}[a], KeyError, "5"),
    ],
)
def test_enqueue_function_of_wrong_answer_adds_no_job(database, error, message):
    for call in (lambda task: task.enqueue(5), lambda task: task.enqueue_many([(5,)])):
        with pytest.raises(error, match=message):
            call(tasks.add.using(database=database))
    assert not Job.objects.exists()


@pytest.mark.promise("several-databases-enqueue-many")
@pytest.mark.parametrize(
    "add",
    [
        lambda numbers: SHARDED.enqueue_many([(number,) for number in numbers]),
        lambda numbers: SHARDED.enqueue_many({"a": number} for number in numbers),
        lambda numbers: SHARDED.enqueue_many([SHARDED.s(number) for number in numbers]),
        lambda numbers: enqueue_many(SHARDED.s(number) for number in numbers),
        lambda numbers: KEYED.enqueue_many([(number,) for number in numbers]),
        lambda numbers: enqueue_many(SHARDED.using(unique_key=str).s(number) for number in numbers),
        lambda numbers: enqueue_many(SHARDED.using(priority=number).s(number) for number in numbers),
    ],
    ids=["tuples", "generator", "calls", "mixed", "one key", "keys", "options"],
)
def test_enqueue_many_of_one_database_adds_all_of_two_none(add):
    with pytest.raises(InvalidTask, match="belongs to database 'default', and that of the first call to 'other'"):
        add([1, 3, 4])
    assert not Job.objects.exists()
    assert len(add([1, 3, 5])) == 3
    assert Job.objects.count() == 3


def test_enqueue_many_first_call_chooses_the_connection(inserted):
    assert SHARDED.enqueue_many([]) == []
    SHARDED.enqueue_many([(1,), (3,)])
    SHARDED.enqueue_many([(2,)])
    assert inserted == ["other", "default"]


def test_second_chunk_of_another_database_adds_nothing():
    with pytest.raises(InvalidTask, match="belongs to database 'default'"):
        SHARDED.enqueue_many((1 if place < 2500 else 2,) for place in range(2501))
    assert not Job.objects.exists()


def test_task_with_function_as_database_has_no_schedule():
    with pytest.raises(InvalidTask, match="a schedule is stored in one database, and database= is a function"):
        check_schedule(SHARDED, cron("0 5 * * *"))
    assert check_schedule(SHARDED, ()) == ()


def test_result_by_id_needs_the_database():
    job = SHARDED.enqueue(1)
    with pytest.raises(InvalidTask, match=r"has jobs in several databases: call using\(database=…\)"):
        SHARDED.get_result(job.pk)
    assert SHARDED.using(database="other").get_result(job.pk) == job


@pytest.mark.parametrize("value", [5, "", ("default",)])
def test_invalid_database_of_task_raises(value):
    with pytest.raises(InvalidTask, match="database must be an alias in DATABASES or a function of the arguments"):
        task(database=value)(by_day)


@pytest.mark.promise("defect-current-batch-of-another-database")
def test_current_batch_is_in_the_database_of_its_job(request):
    """A batch of another database with the same id would be a different one."""
    databases: list[str] = []
    receiver = lambda sender, database, **_: databases.append(database)  # noqa: E731
    job_enqueued.connect(receiver)
    request.addfinalizer(lambda: job_enqueued.disconnect(receiver))
    with Batch(database="other") as batch:
        tasks.grow_batch.using(batch=batch).enqueue(1)
    assert run_jobs(database="other") == 3
    assert databases == ["other"] * 3
    assert Batch.current() is None
