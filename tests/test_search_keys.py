"""The task option `search`: which rows `enqueue()` and its other forms write, and when they go."""

from __future__ import annotations

import enum
from dataclasses import replace
from datetime import date
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import Group
from django.db import connection, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from django_pgqueue import InvalidTask, enqueue_many, every, history
from django_pgqueue.declared.limits import NO_LIMIT
from django_pgqueue.lifecycle import history as lifecycle_history
from django_pgqueue.lifecycle import operator, orphans, pruning, search_keys, ticks
from django_pgqueue.models import Job, SearchKey
from django_pgqueue.schedules import declarations
from django_pgqueue.states import State
from django_pgqueue.task import Task
from django_pgqueue.tasks import registry
from django_pgqueue.testing import run_jobs
from tests import helpers
from tests.app import tasks
from tests.framework import tasks as framework_tasks
from tests.test_sql import explain, nodes, rows_read

pytestmark = pytest.mark.django_db

ADD = tasks.plus.func


class Colour(enum.Enum):
    RED = "red"


def typed(day: date, key: UUID, colour: Colour, group: Group) -> None: ...
def untyped(first: Any, /, second: Any = None, *rest: Any, third: Any = None, **more: Any) -> None: ...


typed.__module__ = untyped.__module__ = tasks.__name__  # where workers find tasks


def bill(**options: Any) -> Task[..., Any]:
    """Return a task whose jobs have the search key `a`."""
    return Task(func=ADD, name=tasks.plus.name, **{"search": ["a"], **options})


def untyped_task(*search: str) -> Task[..., Any]:
    return Task(func=untyped, search=search)


def keys_of(job_id: int) -> dict[str, str]:
    return dict(SearchKey.objects.filter(job_id=job_id).values_list("name", "value"))


# ------------------------------------------------------------------ declaration


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"search": "a"}, "search must be a list of names, not the string 'a'"),
        ({"search": [7]}, "names of arguments .*, not 7"),
        ({"search": ["return"]}, "names of arguments .*, not 'return'"),
        ({"search": ["a" * 101]}, "with at most 100 characters"),
        ({"search": [f"a{number}" for number in range(11)]}, "search has 11 names: at most 10"),
        ({"search": ["aa"]}, "search 'aa' is not an argument of the function: did you mean 'a'"),
        ({"search": ["customer"]}, "search 'customer' is not an argument of the function: name arguments"),
        ({"search": ["a"], "sensitive": ["a"]}, "search 'a' is a sensitive argument"),
        ({"func": untyped, "search": ["rest"]}, "search 'rest' stands for several arguments"),
        ({"func": untyped, "search": ["more"]}, "search 'more' stands for several arguments"),
        ({"func": untyped, "search": ["other"], "sensitive": ["more"]}, "search 'other' is a sensitive argument"),
    ],
)
def test_task_invalid_search_is_refused(options, words):
    with pytest.raises(InvalidTask, match=words):
        Task(**{"func": ADD, "name": "shop.bill", **options})


def test_task_search_of_positional_argument_beside_sensitive_one_is_allowed():
    assert Task(func=untyped, search=["first", "first"], sensitive=["third"]).search == ("first",)


# ------------------------------------------------------------------ values


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (4711, "4711"),
        ("4711", "4711"),
        (1.5, "1.5"),
        (True, "true"),
        (" é:'\\\"", " é:'\\\""),
        ("", ""),
        ("x" * 300, "x" * 200),
        (10**300, "1" + "0" * 199),
    ],
)
def test_enqueue_stores_value_as_text(value, text):
    job = bill().enqueue(value)
    assert keys_of(job.pk) == {"a": text}
    assert Job.objects.with_search_key("a", value).get() == job


def test_enqueue_typed_argument_stores_text_of_its_json():
    group = Group.objects.create(name="staff")
    key = UUID(int=7)
    made = Task(func=typed, search=["day", "key", "colour", "group"])
    job = made.enqueue(date(2026, 3, 1), key, colour=Colour.RED, group=group)
    assert keys_of(job.pk) == {"day": "2026-03-01", "key": str(key), "colour": "red", "group": str(group.pk)}


def test_enqueue_finds_argument_by_position_and_by_name():
    made = untyped_task("first", "second", "third", "other")
    job = made.enqueue(1, "two", "rest", third=None, other=4)
    assert keys_of(job.pk) == {"first": "1", "second": "two", "other": "4"}
    assert keys_of(made.enqueue(1).pk) == {"first": "1"}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([1], "argument 'a' is a list in JSON, and cannot be a search key"),
        ({"id": 1}, "argument 'a' is an object in JSON, and cannot be a search key"),
    ],
)
def test_enqueue_list_or_object_writes_nothing(value, words):
    for made in (bill(), bill(unique_key="k")):
        with pytest.raises(TypeError, match=words) as raised:
            made.enqueue(value)
        with pytest.raises(TypeError, match=words):
            made.enqueue_many([(1,), (value,)])
    assert "1" not in str(raised.value), "the message has no value"
    assert not Job.objects.exists()
    assert not SearchKey.objects.exists()


@override_settings(PGQUEUE={"CODECS": ["tests.app.codecs.Hidden"]})
def test_enqueue_with_codec_stores_plain_text():
    assert keys_of(bill().enqueue("secret").pk) == {"a": "secret"}


# ------------------------------------------------------------------ every way to enqueue


def test_enqueue_without_search_sends_the_same_statements():
    for made in (tasks.add, tasks.add.using(unique_key="k")):
        with CaptureQueriesContext(
            connection,
        ) as queries:
            made.enqueue(1)
        assert [query["sql"].split("*/")[0] for query in queries] == [
            "/* pgqueue:enqueue_unique " if made.unique_key else "/* pgqueue:enqueue "
        ]
    with CaptureQueriesContext(connection) as queries:
        tasks.add.enqueue_many([(1,), (2,)])
    assert [query["sql"].split("*/")[0] for query in queries] == ["/* pgqueue:enqueue_many "]
    assert not SearchKey.objects.exists()


def test_enqueue_many_stores_the_keys_of_each_call():
    plain = tasks.add.s(0)
    calls = [plain, bill().s(1), bill().s(None), bill(unique_key="k").s(3), bill().using(priority=5).s(4), plain]
    ids = enqueue_many(calls)
    assert [keys_of(job_id) for job_id in ids] == [{}, {"a": "1"}, {}, {"a": "3"}, {"a": "4"}, {}]
    ids = bill().enqueue_many((number,) for number in range(2100))
    assert [SearchKey.objects.get(job_id=job_id).value for job_id in ids[1995:2005]] == [
        str(number) for number in range(1995, 2005)
    ]


@pytest.mark.parametrize("period", [None, 60])
@pytest.mark.parametrize("many", [False, True])
def test_enqueue_duplicate_keeps_keys_and_replacement_changes_them(many, period):
    options = {"unique_key": "k", **({"unique_while": period} if period else {})}
    made = untyped_task("first", "third")
    made = replace(made, **options)

    def enqueue(task: Task[..., Any], *calls: tuple[tuple[Any, ...], dict[str, Any]]) -> set[int]:
        return set(task.enqueue_many(calls)) if many else {task.enqueue(*args, **kw).pk for args, kw in calls}

    [job_id] = enqueue(made, ((1,), {"third": 3}), ((2,), {}))
    assert keys_of(job_id) == {"first": "1", "third": "3"}
    replacing = replace(made, on_conflict="replace")
    assert enqueue(replacing, ((4,), {"third": 3}), ((5,), {})) == {job_id}
    assert keys_of(job_id) == {"first": "5"}
    assert enqueue(replacing, ((None,), {})) == {job_id}
    assert keys_of(job_id) == {}


def test_enqueue_on_commit_and_backend_store_keys():
    with transaction.atomic():
        job = bill().enqueue_on_commit(5)
    assert job is not None
    assert keys_of(job.pk) == {"a": "5"}
    result = replace(framework_tasks.add, search=("a",)).enqueue(6)
    assert keys_of(int(result.id)) == {"a": "6"}


@pytest.mark.django_db(transaction=True)
def test_enqueue_failing_key_leaves_no_job(monkeypatch):
    def fail(*args: Any) -> None:
        raise RuntimeError("lost")

    monkeypatch.setattr(search_keys, "add_search_keys", fail)
    with pytest.raises(RuntimeError, match="lost"):
        bill().enqueue(1)
    assert not Job.objects.exists(), "the job and its keys are one transaction"


def test_define_schedule_with_list_is_refused():
    with pytest.raises(TypeError, match="cannot be a search key"):
        declarations.define("nightly", bill(), every(hours=1, args=([1],)))


def test_fire_stores_keys_unless_it_adds_no_job():
    job = helpers.new_job(search_keys={"a": "4711", "b": 'é"x'})
    schedule_id = helpers.make_schedule(connection)
    fired = helpers.fire(connection, helpers.schedule_of(connection, schedule_id), job=job)
    assert fired is not None
    assert keys_of(fired.job_id) == {"a": "4711", "b": 'é"x'}
    keyed = helpers.new_job("k", search_keys=job.search_keys)
    first = ticks.run_schedule(connection, helpers.schedule_of(connection, schedule_id), keyed)
    again = ticks.run_schedule(connection, helpers.schedule_of(connection, schedule_id), keyed)
    assert (first and first.what, again and again.what) == ("fired", "duplicate")
    assert SearchKey.objects.count() == 4


# ------------------------------------------------------------------ when the rows go


def finished(count: int = 1, **options: Any) -> list[Job]:
    jobs = [bill(**options).enqueue(number) for number in range(count)]
    run_jobs()
    return jobs


def test_delete_of_job_removes_its_keys():
    kept, deleted, by_statement = finished(3)
    deleted.delete()
    assert operator.delete(connection, [by_statement.pk]) == {by_statement.pk: "succeeded"}
    assert SearchKey.objects.values_list("job_id", flat=True).get() == kept.pk


def test_success_that_discards_job_removes_its_keys(monkeypatch):
    [kept] = finished()
    monkeypatch.setitem(registry._tasks, tasks.plus.name, bill(retention={"succeeded": 0}))
    [discarded] = finished()
    assert not Job.objects.filter(pk=discarded.pk).exists()
    assert SearchKey.objects.values_list("job_id", flat=True).get() == kept.pk


@pytest.mark.parametrize("task_name", [None, tasks.plus.name])
def test_prune_removes_keys(task_name):
    finished(2)
    waiting = bill().enqueue(7)
    pruning.prune(connection, State.SUCCEEDED, 0.0, task_name=task_name)
    assert list(Job.objects.all()) == [waiting]
    assert SearchKey.objects.values_list("job_id", flat=True).get() == waiting.pk


def test_archive_removes_keys(tmp_path):
    to_table, to_file = finished(2)
    assert lifecycle_history.archive(connection, {to_table.pk: Job.objects.get(pk=to_table.pk).finished_at}) == [
        to_table.pk
    ]
    assert SearchKey.objects.values_list("job_id", flat=True).get() == to_file.pk
    seen = {to_file.pk: Job.objects.get(pk=to_file.pk).finished_at}
    assert lifecycle_history.remove_archived(connection, seen) == [to_file.pk]
    assert not SearchKey.objects.exists()


def test_erase_of_arguments_removes_keys():
    kept, erased, other = finished(3)
    history.erase(jobs=[erased.pk])
    history.erase(jobs=[other.pk], arguments=False)
    assert set(SearchKey.objects.values_list("job_id", flat=True)) == {kept.pk, other.pk}


def test_prune_search_keys_removes_only_those_without_job():
    job_ids = helpers.make_jobs(connection, 3)
    search_keys.add_search_keys(connection, {job_id: {"a": "1", "b": "2"} for job_id in job_ids})
    Job.objects.filter(pk__in=job_ids[:2])._raw_delete(connection.alias)
    assert orphans.prune_orphans(connection, "search keys", 0, 1) == (2, job_ids[0])  # all keys of the last job
    assert orphans.prune_orphans(connection, "search keys", job_ids[0], 3) == (2, job_ids[2])
    assert orphans.prune_orphans(connection, "search keys", job_ids[2], 3) == (0, None)
    assert set(SearchKey.objects.values_list("job_id", flat=True)) == {job_ids[2]}


def test_enqueue_job_with_reused_id_overwrites_left_over_key():
    job = bill().enqueue(1)
    search_keys.add_search_keys(connection, {job.pk + 1: {"a": "old"}})
    assert keys_of(bill().enqueue(2).pk) == {"a": "2"}


# ------------------------------------------------------------------ plans


@pytest.mark.django_db(transaction=True, available_apps=[])
def test_search_reads_only_the_jobs_it_returns(engine):
    engine.execute(
        "INSERT INTO pgqueue_search_key (job_id, name, value) "
        "SELECT n, 'a', (n % 100)::text FROM generate_series(1, 20000) AS n"
    )
    engine.execute("ANALYZE pgqueue_search_key")
    found = SearchKey.objects.filter(name="a", value="7").order_by("-job_id").values("job_id")[:50]
    query, params = found.query.sql_with_params()
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {query}", params)
        plan = list(nodes(cursor.fetchone()[0][0]["Plan"]))
    assert {node["Index Name"] for node in plan if "Index Name" in node} == {"pgqueue_search_key_value"}
    assert all(rows_read(node) <= 50 for node in plan)
    assert not any(node["Node Type"] in ("Sort", "Seq Scan") for node in plan)


@pytest.mark.django_db(transaction=True, available_apps=[])
def test_enqueue_plan_does_not_name_search_keys(engine):
    params = {"task_name": "noop", "queue_name": "default", "priority": 0, "max_attempts": 1, "arguments": "{}"}
    params |= (
        dict.fromkeys(("run_after", "headers", "expires_at", "expires_seconds", "batch_id"))
        | {"delay_seconds": 0.0}
        | NO_LIMIT
    )
    found = list(nodes(explain(engine, "ENQUEUE", params, "generic")))
    assert {node.get("Relation Name") for node in found} == {"pgqueue_job", None}
