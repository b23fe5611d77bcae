"""Tests of the assertions: they find enqueued jobs by the given values, and a failure shows the closest job."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import DatabaseError, connection, transaction

from django_pgqueue.testing import assert_enqueued, assert_not_enqueued, capture_jobs, enqueued, run_jobs
from tests.app import tasks
from tests.framework import tasks as framework

pytestmark = pytest.mark.django_db
NOON = datetime(2040, 1, 1, 12, tzinfo=UTC)


def test_assert_enqueued_each_filter_finds_job():
    job = tasks.plus.using(queue_name="mail", priority=3, run_after=NOON).enqueue(7, b={"x": (1,)})
    tasks.noop.enqueue()
    for wanted in (
        {},
        {"args": [7]},
        {"args": (7,)},
        {"kwargs": {"b": {"x": [1]}}},
        {"queue_name": "mail"},
        {"priority__gt": 2, "priority__lt": 4},
        {"run_after": NOON},
        {"args": [7], "kwargs": {"b": {"x": [1]}}, "queue_name": "mail", "run_after": NOON},
    ):
        assert assert_enqueued(tasks.plus, **wanted) == job
        assert enqueued(tasks.plus, **wanted) == [job]
    assert len(enqueued()) == 2
    assert enqueued("tests.app.tasks.plus") == [job]


def test_assert_enqueued_run_after_compares_delay():
    job = tasks.noop.using(run_after=timedelta(minutes=5)).enqueue()
    assert (
        assert_enqueued(tasks.noop, run_after=300) == assert_enqueued(tasks.noop, run_after=timedelta(minutes=5)) == job
    )
    with pytest.raises(AssertionError, match="run_after is 300 s after the enqueue, not 301 s"):
        assert_enqueued(tasks.noop, run_after=301)


def test_assert_enqueued_django_task_is_found():
    result = framework.add.enqueue(1)
    assert str(assert_enqueued(framework.add, args=[1], kwargs={}).pk) == result.id


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"args": [8]}, r"args is \[7\], not \[8\]"),
        ({"kwargs": {}}, r"kwargs is \{'b': 1\}, not \{\}"),
        ({"queue_name": "other"}, "queue_name is 'mail', not 'other'"),
        ({"priority__gt": 5}, "not priority__gt=5"),
        ({"run_after": NOON}, "run_after is .*, not 2040-01-01 12:00:00"),
        ({"args": [8], "queue_name": "other"}, r"args is \[7\], not \[8\]; queue_name is 'mail', not 'other'"),
    ],
)
def test_assert_enqueued_failure_shows_closest_job(wanted, words):
    tasks.add.using(queue_name="mail").enqueue(7, b=1)
    tasks.add.enqueue(99, b=99)
    assert_not_enqueued(tasks.add, **wanted)
    with pytest.raises(
        AssertionError, match=rf"closest of 2 jobs:\n  #\d+ tests.app.tasks.add\(7, b=1\) on 'mail'.*{words}"
    ):
        assert_enqueued(tasks.add, **wanted)


def test_assert_enqueued_job_already_run_shows_state():
    tasks.noop.enqueue()
    run_jobs()
    with pytest.raises(AssertionError, match="state is 'succeeded', not 'ready'"):
        assert_enqueued(tasks.noop)
    assert_enqueued(tasks.noop, state="succeeded")


def test_assert_enqueued_no_such_job_lists_waiting_jobs():
    with pytest.raises(AssertionError, match=r"no job of tests\.app\.tasks\.add is enqueued; no other job is waiting"):
        assert_enqueued(tasks.add)
    tasks.noop.enqueue()
    with pytest.raises(AssertionError, match=r"waiting jobs: 1 × tests\.app\.tasks\.noop"):
        assert_enqueued(tasks.add)


def test_assert_not_enqueued_matching_job_is_shown():
    assert_not_enqueued()
    tasks.add.enqueue(1, b=2)
    with pytest.raises(AssertionError, match=r"tests.app.tasks.add\(1, b=2\)"):
        assert_not_enqueued(tasks.add, args=[1])


def test_capture_jobs_single_and_bulk_are_in_order():
    tasks.noop.enqueue()
    with capture_jobs() as jobs, capture_jobs(tasks.add) as added:
        tasks.noop.enqueue()
        tasks.add.enqueue_many([((n,), {"b": n}) for n in (1, 2)])
        framework.add.enqueue(3)
        with pytest.raises(LookupError), transaction.atomic():
            tasks.noop.enqueue()
            raise LookupError
    tasks.noop.enqueue()
    names = [job.task_name.rpartition(".")[2] for job in jobs]
    assert names == ["noop", "add", "add", "add"]
    assert [job.arguments["args"] for job in added] == [[1], [2]]


def test_capture_jobs_run_in_block_shows_new_state():
    with capture_jobs() as jobs:
        tasks.noop.enqueue()
        run_jobs()
    assert [job.state for job in jobs] == ["succeeded"]


def test_capture_jobs_error_in_block_is_raised():
    with pytest.raises(DatabaseError, match="division by zero"), transaction.atomic(), capture_jobs():
        tasks.noop.enqueue()
        connection.cursor().execute("SELECT 1 / 0")


def captured(name: str) -> None:
    with capture_jobs(name):
        pass


@pytest.mark.parametrize("call", [assert_not_enqueued, assert_enqueued, enqueued, captured])
def test_assertion_misspelled_name_is_refused(call):
    with pytest.raises(ValueError, match=r"'tests.app.tasks.nop': did you mean 'tests.app.tasks.noop'"):
        call("tests.app.tasks.nop")


def test_assertion_name_of_stored_jobs_is_accepted():
    job = tasks.noop.enqueue()
    assert_not_enqueued("tests.app.tasks.plus")
    type(job).objects.update(task_name="of.an.earlier.release")
    assert enqueued("of.an.earlier.release") == [job]
