"""The option `limit`: which columns `enqueue()` and its other forms write, and which calls they refuse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_pgqueue import Limit, enqueue_many
from django_pgqueue.enqueue.copies import insert_copy, task_like
from django_pgqueue.models import Job
from django_pgqueue.task import Task
from django_pgqueue.tasks import registry
from tests.app import tasks
from tests.framework import tasks as framework_tasks

pytestmark = pytest.mark.django_db

ADD = tasks.plus.func
DAY = timedelta(days=1)


def typed(day: date, group: Group, prompt: str = "") -> None: ...
def open_ended(first: Any, /, **more: Any) -> None: ...


typed.__module__ = open_ended.__module__ = tasks.__name__  # where workers find tasks

PLAIN: Task[..., Any] = Task(func=ADD, name=tasks.plus.name)


def limited(key: Any = "{a}", *, func: Callable[..., Any] = ADD, **options: Any) -> Task[..., Any]:
    """Return a task with a limit, which other tests do not see."""
    of_limit = {name: options.pop(name) for name in Limit.__dataclass_fields__ if name in options}
    limit = Limit("customers", key=key, **{"concurrency": 4, **of_limit})
    return Task(func=func, name=tasks.plus.name, limit=limit, **options)


def columns(jobs: Any = None) -> list[tuple[Any, ...]]:
    rows = Job.objects.order_by("id") if jobs is None else jobs
    return list(rows.values_list("limit_key", "limit_weight", "limit_order"))


# ------------------------------------------------------------------ the key


@pytest.mark.parametrize(
    ("key", "limit_key"),
    [
        (None, "customers"),
        ("{a}", "customers:7"),
        ("{b}", "customers:0"),
        ("customer {a}:{b:03}", "customers:customer 7:000"),
        (lambda a, b=2: a + b, "customers:9"),
        (lambda a: f"{a}:é\n", "customers:7:é\n"),
    ],
)
def test_enqueue_stores_name_and_key(key, limit_key):
    job = limited(key).enqueue(7)
    assert job.limit_key == limit_key
    assert columns() == [(limit_key, None, None)]


def test_enqueue_finds_arguments_by_position_and_name():
    made = limited("{a}-{b}")
    made.enqueue(1, b=2)
    made.enqueue(a=1, b=3)
    assert [key for key, _, _ in columns()] == ["customers:1-2", "customers:1-3"]


def test_enqueue_key_gets_arguments_as_the_task_gets_them():
    group = Group.objects.create(name="staff")
    made = limited("{day:%Y-%m}/{group}", func=typed, weight=lambda day, group, prompt="": len(prompt))
    made.enqueue(date(2026, 3, 1), group, prompt="abc")
    assert columns() == [(f"customers:2026-03/{group.pk}", 3, None)]


def test_enqueue_function_returning_none_gives_no_limit():
    made = limited(lambda a: None if a == 1 else a)
    assert made.enqueue(1).limit_key is None
    made.enqueue_many([(1,), (2,)])
    assert columns() == [(None, None, None), (None, None, None), ("customers:2", None, None)]


@pytest.mark.parametrize(
    ("key", "error", "words"),
    [
        (lambda a, b: "", ValueError, "the key of limit 'customers' is empty: return None"),
        (lambda a, b: "x" * 191, ValueError, "has more than 190 characters: hash longer keys"),
        (lambda a, b: "a\x00b", ValueError, "has a character that PostgreSQL cannot store"),
        (lambda a, b: "\ud800", ValueError, "has a character that PostgreSQL cannot store"),
        (lambda a, b: 1.5, TypeError, "must be a string, a whole number or None, not float"),
        (lambda a, b: True, TypeError, "not bool"),
        (lambda b: b, TypeError, "multiple values|positional"),
        ("{a:d}", ValueError, "the key '{a:d}' of limit 'customers' does not fit: Unknown format code 'd'"),
    ],
)
@pytest.mark.parametrize("unique_key", [None, "k"])
def test_enqueue_invalid_key_writes_nothing(key, error, words, unique_key):
    made = limited(key, unique_key=unique_key)
    with CaptureQueriesContext(connection) as queries, pytest.raises(error, match=words):
        made.enqueue("text", b=1)
    assert not queries.captured_queries
    with pytest.raises(error, match=words):
        made.enqueue_many([("text", 1)])
    assert not Job.objects.exists()


def test_enqueue_longest_key_is_stored():
    key = "x" * 190
    assert limited(lambda a: key).enqueue(1).limit_key == f"customers:{key}"


def test_enqueue_call_without_argument_of_the_key_is_refused():
    made = limited("{customer}", func=open_ended)
    made.enqueue(1, customer=2)
    with pytest.raises(ValueError, match=r"no argument 'customer' for the key '{customer}' of limit 'customers'"):
        made.enqueue(1)


# ------------------------------------------------------------------ weight and order


def test_enqueue_stores_weight_and_order():
    limited(weight=3).enqueue(1)
    limited(weight=lambda a: a).enqueue(4)
    limited(weight=lambda a: a).enqueue(1)
    limited(concurrency=None, ordered=True).enqueue(1)
    limited(concurrency=None, ordered=True, on_dead="block").enqueue(1)
    assert [each[1:] for each in columns()] == [(3, None), (4, None), (None, None), (None, 1), (None, 2)]


@pytest.mark.parametrize("weight", [0, -1, 5, True, "2", 2.0, None])
def test_enqueue_weight_that_could_never_start_writes_nothing(weight):
    made = limited(weight=lambda a: weight)
    for enqueue in (lambda: made.enqueue(1), lambda: made.enqueue_many([(1,)])):
        with pytest.raises(ValueError, match=r"limit 'customers': weight .* (must be a whole|more than concurrency 4)"):
            enqueue()
    assert not Job.objects.exists()


def test_enqueue_weight_above_burst_is_refused():
    made = limited(concurrency=None, rate="100/m", burst=3, weight=lambda a: a)
    made.enqueue(3)
    with pytest.raises(ValueError, match="weight 4 is more than burst 3: raise burst"):
        made.enqueue(4)


# ------------------------------------------------------------------ every statement that adds jobs


ORDERED: dict[str, Any] = {"ordered": True, "on_dead": "block", "concurrency": None}
STATEMENTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "unique": {"unique_key": lambda a: str(a)},
    "raise": {"unique_key": lambda a: str(a), "on_conflict": "raise"},
    "replace": {"unique_key": lambda a: str(a), "on_conflict": "replace"},
    "period": {"unique_key": lambda a: str(a), "unique_while": DAY},
    "replace for period": {"unique_key": lambda a: str(a), "unique_while": DAY, "on_conflict": "replace"},
}


@pytest.mark.parametrize("options", STATEMENTS.values(), ids=STATEMENTS)
def test_every_enqueue_writes_the_limit(options):
    made = limited(**ORDERED, **options)
    job = made.enqueue(1)
    assert (job.limit_key, job.limit_weight, job.limit_order) == ("customers:1", None, 2)
    made.enqueue_many([(2,), (3,)])
    other = replace(made, priority=5)
    enqueue_many([made.s(4), other.s(5), PLAIN.s(6), made.using(limit=None).s(7)])
    stored = {each.arguments["args"][0]: (each.limit_key, each.limit_order) for each in Job.objects.all()}
    assert stored == {n: (f"customers:{n}", 2) if n < 6 else (None, None) for n in range(1, 8)}


@pytest.mark.parametrize("name", ["replace", "replace for period"])
def test_replacing_call_replaces_the_limit(name):
    made = limited(weight=lambda a, b=1: b, **{**STATEMENTS[name], "unique_key": "one"})
    job = made.enqueue(1)
    assert made.enqueue(2, 3).pk == job.pk
    assert columns() == [("customers:2", 3, None)]
    made.enqueue_many([(3,), (4, 2)])
    assert columns() == [("customers:4", 2, None)]
    made.using(limit=None).enqueue(5)
    assert columns() == [(None, None, None)]
    made.enqueue(6)
    assert columns() == [("customers:6", None, None)]


@pytest.mark.parametrize("name", ["unique", "period"])
def test_duplicate_keeps_the_limit_of_the_existing_job(name):
    made = limited(**{**STATEMENTS[name], "unique_key": "one"})
    made.enqueue(1)
    duplicate = made.enqueue(2)
    assert duplicate.is_duplicate
    assert duplicate.limit_key == "customers:1"


def test_running_job_keeps_its_limit_when_a_call_would_replace_it():
    made = limited(unique_key="one", on_conflict="replace")
    job = made.enqueue(1)
    Job.objects.filter(pk=job.pk).update(state="running")
    assert made.enqueue(2).is_duplicate
    assert columns() == [("customers:1", None, None)]


def test_enqueue_many_mixes_calls_with_and_without_limit():
    calls = [PLAIN.s(number) if number % 3 else limited().s(number) for number in range(10)]
    job_ids = enqueue_many(calls)
    keys = dict(Job.objects.values_list("pk", "limit_key"))
    assert [keys[job_id] for job_id in job_ids] == [None if n % 3 else f"customers:{n}" for n in range(10)]


def test_enqueue_many_first_calls_plain_keep_their_places():
    """The calls before the first one with other options are encoded together."""
    job_ids = PLAIN.enqueue_many([(1,), (2,), limited().s(3), (4,)])
    keys = dict(Job.objects.values_list("pk", "limit_key"))
    assert [keys[job_id] for job_id in job_ids] == [None, None, "customers:3", None]


def test_task_of_the_framework_stores_its_limit(monkeypatch):
    limit = Limit("mail", key="{a}", concurrency=3, weight=2)
    monkeypatch.setattr(registry, "_limits", {"mail": limit})
    framework_tasks.add.using(limit=limit).enqueue(4)
    assert columns() == [("mail:4", 2, None)]


# ------------------------------------------------------------------ copies


def dead(task: Task[..., Any], *args: Any) -> Job:
    job = task.enqueue(*args)
    Job.objects.filter(pk=job.pk).update(state="dead", finished_at=timezone.now())
    return Job.objects.get(pk=job.pk)


def copy_of(task: Task[..., Any], job: Job, *args: Any) -> tuple[Any, ...]:
    copied = insert_copy(task_like(task, job, None, "default"), job, args, {})
    assert copied.limit_key == Job.objects.get(pk=copied.pk).limit_key
    return columns(Job.objects.filter(pk=copied.pk))[0]


def test_copy_computes_the_limit_from_its_arguments():
    made = limited(weight=lambda a, b=1: b)
    job = dead(made, 1, 2)
    assert copy_of(made, job, 5, 3) == ("customers:5", 3, None)


def test_copy_of_job_with_other_limit_keeps_it():
    job = dead(limited(weight=2), 1)
    assert copy_of(PLAIN, job, 5) == ("customers:1", 2, None)
    other = Task(func=ADD, name=tasks.plus.name, limit=Limit("other", concurrency=1))
    assert copy_of(other, job, 5) == ("customers:1", 2, None)


def test_copy_of_job_with_a_chunk_key_has_none():
    job = dead(PLAIN, 1)
    Job.objects.filter(pk=job.pk).update(limit_key="+other.task")
    assert copy_of(PLAIN, Job.objects.get(pk=job.pk), 5) == (None, None, None)


def test_copy_of_job_without_limit_gets_the_limit_of_its_task():
    assert copy_of(limited(), dead(PLAIN, 1), 5) == ("customers:5", None, None)
