"""`unique_key`: its valid options, and the results of `enqueue()` and `enqueue_many()`."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.db import transaction
from django.utils import timezone

from django_pgqueue import DuplicateJob, InvalidTask, JobGone, signals
from django_pgqueue.enqueue.copies import task_like
from django_pgqueue.lifecycle import unique as lifecycle_unique
from django_pgqueue.models import Job
from django_pgqueue.task import Task
from django_pgqueue.testing import run_jobs, time_travel
from tests.app import tasks

pytestmark = pytest.mark.django_db


def by_number(number: int, b: int = 0) -> str | None:
    return None if number < 0 else f"number:{number}"


def unique(**options):
    """Return a copy of a task with a unique key that depends on the argument."""
    kept = {"unique_key": by_number, **options}
    return Task(func=tasks.add.func, name=tasks.add.name, **kept)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"unique_key": ""}, "1 to 200 printable"),
        ({"unique_key": "x" * 201}, "1 to 200 printable"),
        ({"unique_key": "a\nb"}, "1 to 200 printable"),
        ({"unique_key": 7}, "a string or a function"),
        ({"unique_key": "add:{nubmer}"}, "unique_key 'nubmer' is not an argument .* did you mean 'a'|name arguments"),
        ({"unique_key": "add:{"}, "unique_key is not a template: .*Write {{ and }}"),
        ({"unique_key": "add:{a.real}"}, "not {a.real}: use a function for others, and write {{ and }}"),
        ({"unique_key": "add:{a!x}"}, "unique_key converts 'a' by !x"),
        ({"unique_while": "running"}, "or a period of more than 0 seconds"),
        ({"unique_while": 0}, "more than 0 seconds"),
        ({"unique_while": None}, "more than 0 seconds"),
        ({"unique_while": timedelta(days=40_000)}, "more than 0 seconds"),
        ({"unique_key": None, "unique_while": 60}, "need a unique_key"),
        ({"on_conflict": "ignore"}, "one of skip, replace, raise"),
        ({"unique_key": None, "on_conflict": "raise"}, "need a unique_key"),
    ],
)
def test_task_invalid_unique_options_are_refused(options, words):
    with pytest.raises(InvalidTask, match=words):
        unique(**options)


@pytest.mark.parametrize(("key", "error"), [(7, TypeError), ("", ValueError), ("x" * 201, ValueError)])
def test_enqueue_invalid_key_from_function_adds_no_job(key, error):
    with pytest.raises(error, match="unique_key"):
        unique(unique_key=lambda number, b=0: key).enqueue(1)
    with pytest.raises(error, match="unique_key"):
        unique(unique_key=lambda number, b=0: key).enqueue_many([((1,), {})])
    assert not Job.objects.exists()


def test_unique_key_is_a_template_of_the_arguments():
    """Taken literally, it would be one key, and all calls but the first would be lost."""
    task = unique(unique_key="add:{a}:{b:03}")
    jobs = [task.enqueue(1), task.enqueue(2), task.enqueue(a=2, b=0)]
    assert [job.is_duplicate for job in jobs] == [False, False, True]
    task.enqueue_many([((3,), {"b": 4})])
    keys = list(Job.objects.order_by("pk").values_list("unique_key", flat=True))
    assert keys == ["add:1:000", "add:2:000", "add:3:004"]


def test_braces_of_a_unique_key_are_doubled():
    assert unique(unique_key="{{a}}").enqueue(1).unique_key == "{a}"
    assert tasks.add.using(unique_key="{{a}}:{a}").enqueue(1, 2).unique_key == "{a}:1"
    with pytest.raises(InvalidTask, match="unique_key 'order' is not an argument"):
        tasks.add.using(unique_key="note: {order}")


@pytest.mark.parametrize(
    "key", ["add:number_of", "number_of", "add:%s", "add:%d", "add:$number_of", "add-<number_of>", "add/number_of"]
)
def test_unique_key_with_forgotten_braces_is_refused(key):
    """Otherwise all calls but the first would vanish as duplicates."""

    def send(number_of: int) -> None: ...

    send.__module__, send.__qualname__ = tasks.__name__, "send"
    with pytest.raises(InvalidTask, match=r"is the same text for all calls, .* write \{number_of\} for the value"):
        Task(func=send, unique_key=key)


@pytest.mark.parametrize("key", ["nightly", "a", "order:7", "add:{a}", "{{a}}", "add:b:7", "a%"])
def test_unique_key_that_is_one_text_on_purpose_is_accepted(key):
    assert tasks.add.using(unique_key=key).unique_key == key


@pytest.mark.parametrize(
    ("key", "call", "words"),
    [
        ("{a}", {}, "has no argument 'a' for the unique key: pass it"),
        ("{a:d}", {"a": "one"}, "the unique key does not fit"),
        ("{a}", {"a": "\n"}, "1 to 200 printable"),
    ],
)
def test_call_that_does_not_fit_the_unique_key_adds_no_job(key, call, words):
    task = Task(func=tasks.noop.func, name=tasks.noop.name, unique_key=key)
    with pytest.raises(ValueError, match=words):
        task.enqueue(**call)
    assert not Job.objects.exists()


def test_unique_key_names_no_sensitive_argument():
    with pytest.raises(InvalidTask, match="'a' is a sensitive argument, and unique keys are stored as plain text"):
        unique(unique_key="add:{a}", sensitive={"a"})


def test_copy_of_a_job_keeps_a_key_with_braces():
    job = tasks.add.using(unique_key="{{a}}").enqueue(1, 2)
    Job.objects.filter(pk=job.pk).update(state="dead", finished_at=timezone.now())
    dead = Job.objects.get(pk=job.pk)
    assert task_like(tasks.add, dead, {}, "default").unique_key == "{{a}}"


def test_enqueue_duplicate_key_returns_existing_job(django_assert_num_queries):
    signalled = []

    def receiver(job_id, **kwargs):
        signalled.append(job_id)

    signals.job_enqueued.connect(receiver)
    try:
        with django_assert_num_queries(1):
            first = unique().enqueue(1)
        second, other = unique().enqueue(1, b=5), unique().enqueue(2)
    finally:
        signals.job_enqueued.disconnect(receiver)
    assert (second.pk, second.is_duplicate, first.is_duplicate) == (first.pk, True, False)
    assert second.arguments == {"args": [1], "kwargs": {}}
    assert first.unique_key == Job.objects.get(pk=first.pk).unique_key == "number:1"
    assert signalled == [first.pk, other.pk]


def test_enqueue_without_key_always_adds_a_job():
    assert unique().enqueue(-1).pk != unique().enqueue(-1).pk


def test_enqueue_key_of_finished_job_adds_a_job():
    first = unique().enqueue(1)
    run_jobs()
    assert not unique().enqueue(1).is_duplicate
    assert Job.objects.get(pk=first.pk).state == "succeeded"


def test_enqueue_rollback_frees_the_key():
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        unique().enqueue(1)
        1 / 0  # noqa: B018 -- only the exception matters
    assert not unique().enqueue(1).is_duplicate


def test_using_unique_key_applies_to_that_copy():
    task = tasks.noop.using(unique_key="nightly")
    assert task.enqueue().pk == task.enqueue().pk
    assert not tasks.noop.enqueue().is_duplicate


def test_enqueue_duplicate_with_raise_names_the_job():
    first = unique().enqueue(1)
    with pytest.raises(DuplicateJob, match=f"job {first.pk} of") as raised:
        unique(on_conflict="raise").enqueue(1)
    assert raised.value.job_id == first.pk
    with pytest.raises(DuplicateJob):
        unique(on_conflict="raise").enqueue_many([((5,), {}), ((1,), {})])
    assert Job.objects.count() == 1


def test_replace_for_a_task_without_steps_takes_one_query(django_assert_num_queries):
    """Only tasks with a context can have steps, and run a second statement that removes them."""
    replacing = unique(on_conflict="replace")
    for _ in range(2):
        with django_assert_num_queries(1):
            replacing.enqueue(1, b=1)


def test_enqueue_replace_keeps_the_job_with_the_later_call():
    debounced = unique(on_conflict="replace", unique_while="ready")
    first = debounced.using(run_after=60).enqueue(1, b=1)
    second = debounced.using(run_after=60).enqueue(1, b=2)
    assert (second.pk, second.is_duplicate) == (first.pk, False)
    job = Job.objects.get()
    assert job.arguments == {"args": [1], "kwargs": {"b": 2}}
    assert job.run_after == second.run_after > first.run_after
    assert run_jobs(until=120) == 1
    assert Job.objects.get().result == 3


def test_enqueue_many_returns_an_id_for_each_call():
    existing = unique().enqueue(1)
    calls = [((number,), {}) for number in (1, 2, -1, 2, -1, 3)]
    ids = unique().enqueue_many(calls)
    assert len(ids) == 6
    assert ids[0] == existing.pk
    assert ids[1] == ids[3]
    assert len(set(ids)) == 5
    assert Job.objects.count() == 5
    assert unique().enqueue_many(calls, returning=False) == 6


def test_enqueue_conflicting_job_just_ended_adds_a_job(monkeypatch):
    """The insert meets another job, which ends before `enqueue()` reads it. So `enqueue()` inserts again."""
    insert, conflicts = lifecycle_unique.enqueue_unique, [None]
    monkeypatch.setattr(
        lifecycle_unique,
        "enqueue_unique",
        lambda *given, **options: conflicts.pop() if conflicts else insert(*given, **options),
    )
    assert not unique().enqueue(1).is_duplicate
    assert Job.objects.count() == 1


def test_enqueue_many_conflicting_job_just_ended_adds_jobs(monkeypatch):
    """The inserts meet other jobs, which end before `enqueue_many()` reads them. So it inserts again."""
    signalled = []
    insert, conflicts = lifecycle_unique.enqueue_many_unique, [[]]

    def receiver(job_id, **kwargs):
        signalled.append(job_id)

    monkeypatch.setattr(
        lifecycle_unique,
        "enqueue_many_unique",
        lambda *given, **options: conflicts.pop() if conflicts else insert(*given, **options),
    )
    signals.job_enqueued.connect(receiver)
    try:
        ids = unique().enqueue_many([((1,), {}), ((2,), {}), ((1,), {})])
    finally:
        signals.job_enqueued.disconnect(receiver)
    assert ids == [signalled[0], signalled[1], signalled[0]]
    assert set(Job.objects.values_list("pk", flat=True)) == set(signalled)


def test_enqueue_many_replace_keeps_the_later_call():
    ids = unique(on_conflict="replace").enqueue_many([((1,), {"b": 1}), ((2,), {"b": 1}), ((1,), {"b": 2})])
    assert ids[0] == ids[2] != ids[1]
    assert Job.objects.get(pk=ids[0]).arguments == {"args": [1], "kwargs": {"b": 2}}


def test_retry_with_used_key_reports_no_change():
    dead = tasks.fail.using(unique_key="once", max_attempts=1).enqueue()
    run_jobs()
    tasks.fail.using(unique_key="once").enqueue()
    dead.refresh_from_db()
    result = dead.retry()
    assert not result and re.fullmatch(r"job \d+ has its unique key", result.reason)
    assert Job.objects.filter(state="dead").retry() == 0
    dead.refresh_from_db()
    assert dead.state == "dead"


# ------------------------------------------------------------------ uniqueness windows

HOUR = timedelta(hours=1)


def hourly(**options):
    return unique(unique_while=HOUR, **options)


def test_enqueue_in_window_returns_finished_job(django_assert_num_queries):
    with django_assert_num_queries(1):
        first = hourly().enqueue(1)
    assert run_jobs() == 1
    second = hourly().enqueue(1)
    assert (second.pk, second.is_duplicate, second.state) == (first.pk, True, "succeeded")
    assert not hourly().enqueue(2).is_duplicate
    assert not hourly().enqueue(-1).is_duplicate, "a call without a key must always be new"
    with time_travel(hours=1):
        third = hourly().enqueue(1)
        assert (third.is_duplicate, third.pk > first.pk) == (False, True)
        assert hourly().enqueue(1).pk == third.pk


def test_enqueue_in_window_of_deleted_job_is_duplicate():
    first = hourly().enqueue(1)
    run_jobs()
    Job.objects.all().delete()
    again = hourly().enqueue(1)
    assert (again.pk, again.is_duplicate, again.state, again.task_name) == (first.pk, True, "", tasks.add.name)
    with pytest.raises(JobGone):
        again.wait(0)
    with pytest.raises(DuplicateJob, match=f"job {first.pk} of"):
        hourly(on_conflict="raise").enqueue(1)


def test_enqueue_in_window_replaces_only_a_waiting_job():
    throttled = hourly(on_conflict="replace")
    first = throttled.using(run_after=60).enqueue(1, b=1)
    second = throttled.using(run_after=90).enqueue(1, b=2)
    assert (second.pk, second.is_duplicate) == (first.pk, False)
    assert second.run_after == Job.objects.get().run_after > first.run_after
    assert run_jobs(until=120) == 1
    third = throttled.enqueue(1, b=3)
    assert (third.pk, third.is_duplicate, third.result) == (first.pk, True, 3)


def test_enqueue_many_in_window_returns_existing_jobs():
    existing = hourly().enqueue(1)
    calls = [((number,), {"b": place}) for place, number in enumerate((1, 2, -1, 2, -1, 3))]
    ids = hourly().enqueue_many(calls)
    assert (ids[0], ids[1]) == (existing.pk, ids[3])
    assert len(set(ids)) == 5
    assert sorted(ids[1:]) == [ids[1], *ids[1:3], *ids[4:]], "the ids must follow the order of the calls"
    assert Job.objects.get(pk=ids[1]).arguments["kwargs"] == {"b": 1}, "the first call of each key must be kept"
    assert hourly().enqueue_many(calls)[3] == ids[3]
    with pytest.raises(DuplicateJob):
        hourly(on_conflict="raise").enqueue_many([((7,), {}), ((7,), {})])
    assert Job.objects.count() == 7


def test_enqueue_many_in_window_replaces_waiting_jobs():
    replacing = hourly(on_conflict="replace")
    existing = replacing.enqueue(1, b=0)
    ids = replacing.enqueue_many([((1,), {"b": 1}), ((2,), {"b": 1}), ((1,), {"b": 2}), ((2,), {"b": 3})])
    assert ids == [existing.pk, ids[1], existing.pk, ids[1]]
    found = {job.pk: job.arguments["kwargs"]["b"] for job in Job.objects.all()}
    assert found == {existing.pk: 2, ids[1]: 3}


@pytest.mark.parametrize("on_conflict", ["skip", "replace"])
def test_enqueue_many_window_over_at_once_adds_all_jobs(on_conflict):
    """This happens if the batch waits longer than the period for the transaction of another session."""
    brief = unique(unique_while=1e-6, on_conflict=on_conflict)
    ids = brief.enqueue_many([((1,), {}), ((-1,), {}), ((2,), {})])
    found = {job.pk: job.arguments["args"] for job in Job.objects.all()}
    assert [found.pop(job_id) for job_id in ids] == [[1], [-1], [2]]
    assert found == {}


def test_enqueue_rollback_removes_the_window():
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        hourly().enqueue(1)
        1 / 0  # noqa: B018 -- only the exception matters
    assert not hourly().enqueue(1).is_duplicate


def test_using_unique_while_applies_to_that_copy():
    task = tasks.noop.using(unique_key="nightly", unique_while=60, on_conflict="raise")
    task.enqueue()
    run_jobs()
    with pytest.raises(DuplicateJob):
        task.enqueue()
