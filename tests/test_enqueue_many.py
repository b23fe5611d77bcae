"""`enqueue_many()`: the forms of a call, options for single calls, several tasks, its result, and what it costs.

`test_enqueue` has the tests of chunks and transactions, and `test_unique` and `concurrency/test_many_unique` those of
unique keys.
"""

from __future__ import annotations

import asyncio
import sys
import tracemalloc
import warnings
from collections import namedtuple
from datetime import UTC, datetime, timedelta

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_pgqueue import (
    DuplicateJob,
    InvalidTask,
    JobIds,
    QueueError,
    aenqueue_many,
    enqueue_many,
    middleware,
    signals,
)
from django_pgqueue.encoding.serialization import CHUNK
from django_pgqueue.enqueue.inserting import TRIES
from django_pgqueue.lifecycle import unique
from django_pgqueue.models import Job
from tests import helpers
from tests.app import tasks

OTHER_QUEUE = tasks.noop.using(queue_name="mail", priority=5)
AT = datetime(2031, 5, 5, 5, 5, 5, 555, tzinfo=UTC)
Point = namedtuple("Point", ["x", "y"])


def stored(job_ids):
    """Return the arguments of the jobs, in the order of the ids."""
    arguments = dict(Job.objects.values_list("pk", "arguments"))
    return [(arguments[job_id]["args"], arguments[job_id]["kwargs"]) for job_id in job_ids]


def key_of(number, *args, **kwargs):
    return f"key{number:06}"


KEYED = tasks.noop.using(unique_key=key_of)


# ------------------------------------------------------------------ the forms of a call


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("call", "args", "kwargs"),
    [
        ((), [], {}),
        ([], [], {}),
        ({}, [], {}),
        ((1, 2), [1, 2], {}),
        ([1, 2], [1, 2], {}),
        (Point(1, 2), [1, 2], {}),
        ({"b": 1}, [], {"b": 1}),
        (((1,), {}), [1], {}),
        (((1, 2), {"b": 3}), [1, 2], {"b": 3}),
        ([(1,), {"b": 3}], [1], {"b": 3}),
        (([1, 2],), [[1, 2]], {}),
        (([1], [2]), [[1], [2]], {}),
        ((1, {"a": 2}), [1, {"a": 2}], {}),
        (({"a": 1}, {"a": 2}), [{"a": 1}, {"a": 2}], {}),
        (("text", {"a": 2}), ["text", {"a": 2}], {}),
        (([1], {"a": 2}, 3), [[1], {"a": 2}, 3], {}),
        (tasks.noop.s(), [], {}),
        (tasks.noop.s([1, 2], {}), [[1, 2], {}], {}),
        (tasks.noop.s((1,), {"a": 2}, b=3), [[1], {"a": 2}], {"b": 3}),
    ],
)
def test_enqueue_many_form_of_a_call_has_one_meaning(call, args, kwargs):
    assert stored(tasks.noop.enqueue_many([call])) == [(args, kwargs)]
    assert stored(KEYED.using(unique_key=lambda *args, **kwargs: "key").enqueue_many([call])) == [(args, kwargs)]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("call", "words"),
    [
        (1, "call 1 must be a tuple or list of positional arguments, a dict of keyword arguments, or task.s.*not int"),
        ("ab", "call 1 must be .*, not str"),
        (None, "call 1 must be .*, not NoneType"),
        ({1, 2}, "call 1 must be .*, not set"),
        (([1], {}), "call 1 is ambiguous, because it is a list and a dict"),
        ([[1], {"a": 2}], "call 1 is ambiguous"),
        (tasks.add.s(1), r"call 1 is a call of tests.app.tasks.add.*django_pgqueue.enqueue_many\(\)"),
        ({1: 2}, r"tests.app.tasks.noop\(\) cannot be called with these arguments"),
    ],
)
@pytest.mark.parametrize("task", [tasks.noop, tasks.noop.using(unique_key="key")], ids=["plain", "unique"])
def test_enqueue_many_call_without_one_meaning_is_named(task, call, words):
    with pytest.raises(TypeError, match=words):
        task.enqueue_many([(), call])
    assert not Job.objects.exists()


@pytest.mark.django_db
def test_enqueue_many_call_that_does_not_fit_adds_no_job():
    for calls in ([(1,), (1, 2, 3)], [(1,), {"a": 1, "c": 2}], [tasks.add.s(1), tasks.add.using(priority=1).s()]):
        with pytest.raises(TypeError, match=r"tests\.app\.tasks\.add\(\) cannot be called"):
            tasks.add.enqueue_many(calls)
    assert not Job.objects.exists()


@pytest.mark.django_db
def test_enqueue_many_reads_a_queryset():
    """It is an asynchronous iterable too."""
    groups = [Group.objects.create(name=name) for name in "ab"]
    tasks.add.enqueue_many(Group.objects.order_by("pk").values_list("pk"))
    assert [job.arguments["args"] for job in Job.objects.order_by("pk")] == [[group.pk] for group in groups]


def test_enqueue_many_asynchronous_iterator_is_refused():
    async def calls():
        yield (1,)

    with pytest.raises(TypeError, match="cannot read an asynchronous iterator"):
        tasks.noop.enqueue_many(calls())


# ------------------------------------------------------------------ options for single calls, several tasks


def each_job():
    names = ("task_name", "queue_name", "priority", "max_attempts", "arguments", "headers")
    return [tuple(row) for row in Job.objects.order_by("pk").values_list(*names)]


@pytest.mark.django_db
@pytest.mark.parametrize("kind", [list, iter])
def test_enqueue_many_several_tasks_each_keeps_its_options(kind):
    calls = [
        tasks.add.s(1, b=2),
        OTHER_QUEUE.s("é'\\\"{"),
        tasks.add.using(max_attempts=3, headers={"tenant": 'a"b', "n": 1.5}).s(3),
        tasks.add.s(4),
    ]
    ids = enqueue_many(kind(calls))
    assert ids == sorted(ids)
    assert each_job() == [
        (tasks.add.name, "default", 0, 10, {"args": [1], "kwargs": {"b": 2}}, None),
        (tasks.noop.name, "mail", 5, 10, {"args": ["é'\\\"{"], "kwargs": {}}, None),
        (tasks.add.name, "default", 0, 3, {"args": [3], "kwargs": {}}, {"tenant": 'a"b', "n": 1.5}),
        (tasks.add.name, "default", 0, 10, {"args": [4], "kwargs": {}}, None),
    ]


@pytest.mark.django_db
def test_enqueue_many_due_time_and_expiry_of_single_calls():
    later = AT + timedelta(seconds=1)
    delayed, dated = tasks.noop.using(run_after=90, expires=100), tasks.noop.using(run_after=AT, expires=later)
    ids = tasks.noop.enqueue_many([(), delayed.s(), dated.s()])
    plain, after, exact = (Job.objects.get(pk=job_id) for job_id in ids)
    assert (plain.run_after, plain.expires_at) == (plain.enqueued_at, None)
    assert after.run_after - after.enqueued_at == timedelta(seconds=90)
    assert after.expires_at - after.enqueued_at == timedelta(seconds=100)
    assert (exact.run_after, exact.expires_at) == (AT, later)


@pytest.mark.django_db
def test_enqueue_many_call_of_a_task_has_the_options_of_that_task():
    OTHER_QUEUE.enqueue_many([tasks.noop.s(1), (2,)])
    assert [row[1:3] for row in each_job()] == [("default", 0), ("mail", 5)]


@pytest.mark.django_db
def test_enqueue_many_function_needs_calls_that_name_their_task():
    for calls in ([(1,)], [tasks.noop.s(), {"a": 1}]):
        with pytest.raises(TypeError, match=r"call \d must be made by task\.s\(…\), not (tuple|dict)"):
            enqueue_many(calls)
    assert enqueue_many([]) == []
    assert enqueue_many(iter(()), returning=False) == 0
    assert not Job.objects.exists()


@pytest.mark.django_db
def test_enqueue_many_tasks_with_and_without_keys():
    existing = KEYED.enqueue(1)
    ids = enqueue_many([tasks.add.s(1), KEYED.s(1), KEYED.s(2), tasks.add.s(2), KEYED.using(priority=3).s(2)])
    assert ids.duplicates == [1, 4]
    assert (ids[1], ids[4]) == (existing.pk, ids[2])
    assert stored(ids) == [([1], {}), ([1], {}), ([2], {}), ([2], {}), ([2], {})]
    assert Job.objects.count() == 4


@pytest.mark.django_db
def test_enqueue_many_unique_calls_keep_their_options():
    adding = tasks.add.using(unique_key=lambda a, b=0: None if a < 0 else f"{a}", expires=60, headers={"n": 1})
    existing = adding.enqueue(2)
    ids = enqueue_many(
        [
            KEYED.using(priority=3, run_after=AT).s(2),
            adding.s(1),
            adding.using(queue_name="mail").s(-1),
            KEYED.using(unique_while="ready", max_attempts=2).s(3),
            adding.s(2),
            adding.using(priority=9).s(1),
            adding.using(queue_name="mail").s(-1),
        ]
    )
    assert ids.duplicates == [4, 5]
    assert (ids[4], ids[5]) == (existing.pk, ids[1])
    jobs = [Job.objects.get(pk=job_id) for job_id in ids]
    assert [(job.task_name, job.arguments["args"]) for job in jobs] == [
        (tasks.noop.name, [2]),
        *[(tasks.add.name, [1]), (tasks.add.name, [-1]), (tasks.noop.name, [3])],
        *[(tasks.add.name, [2]), (tasks.add.name, [1]), (tasks.add.name, [-1])],
    ]
    assert [(job.unique_key, job.unique_ready_only) for job in jobs[:4]] == [
        *[("key000002", None), ("1", None), (None, None), ("key000003", True)]
    ]
    assert [(job.queue_name, job.priority, job.max_attempts) for job in jobs[:4]] == [
        *[("default", 3, 10), ("default", 0, 10), ("mail", 0, 10), ("default", 0, 2)]
    ]
    assert jobs[0].run_after == AT
    assert jobs[1].expires_at - jobs[1].enqueued_at == timedelta(seconds=60)
    assert (jobs[1].headers, jobs[0].headers) == ({"n": 1}, None)
    assert ids[:4] == sorted(ids[:4]), "the ids must follow the order of the calls"


@pytest.mark.django_db
def test_enqueue_many_conflicting_jobs_of_several_tasks_just_ended(monkeypatch):
    """The insert meets other jobs, which end before `enqueue_many()` reads them. So it inserts again."""
    insert, conflicts = unique.enqueue_each_unique, [[]]
    monkeypatch.setattr(
        unique,
        "enqueue_each_unique",
        lambda *given, **options: conflicts.pop() if conflicts else insert(*given, **options),
    )
    ids = enqueue_many([KEYED.s(1), KEYED.using(priority=3).s(2), KEYED.s(1)])
    assert ids.duplicates == [2]
    assert stored(ids) == [([1], {}), ([2], {}), ([1], {})]
    assert Job.objects.get(pk=ids[1]).priority == 3


@pytest.mark.django_db
def test_enqueue_many_mixed_kinds_of_keys_follow_their_options():
    window = KEYED.using(unique_while=3600)
    replacing = tasks.add.using(unique_key=lambda a, b=0: f"{a}", on_conflict="replace")
    for _ in range(2):
        ids = enqueue_many([window.s(1), replacing.s(1, b=1), KEYED.s(1), replacing.s(1, b=2)])
    assert ids.duplicates == [0, 2]
    assert stored(ids) == [([1], {}), ([1], {"b": 2}), ([1], {}), ([1], {"b": 2})]
    assert Job.objects.count() == 3


@pytest.mark.django_db
def test_enqueue_many_sends_signals_for_all_tasks():
    sent = []

    def receiver(sender, job_id, queue_name, **kwargs):
        sent.append((sender, job_id, queue_name))

    signals.job_enqueued.connect(receiver)
    try:
        ids = enqueue_many([tasks.add.s(1), OTHER_QUEUE.s(), tasks.add.s(2), KEYED.s(1), KEYED.s(1)])
    finally:
        signals.job_enqueued.disconnect(receiver)
    add, noop = tasks.add.name, tasks.noop.name
    assert sorted(sent) == sorted(
        [(add, ids[0], "default"), (noop, ids[1], "mail"), (add, ids[2], "default"), (noop, ids[3], "default")]
    )


def test_enqueue_many_tasks_of_two_databases_are_refused(other):
    with pytest.raises(
        InvalidTask,
        match=r"a job of tests\.app\.tasks\.noop belongs to database 'other', and that of the first call to 'default'",
    ):
        enqueue_many([tasks.add.s(1), tasks.noop.using(database="other").s()])
    with transaction.atomic(using="other"):
        ids = enqueue_many([tasks.add.using(database="other").s(1), tasks.noop.using(database="other").s()])
        assert not Job.objects.using("default").exists()
        assert Job.objects.using("other").count() == len(ids) == 2


def test_enqueue_many_function_warns_at_caller_of_other_transaction(other):
    with transaction.atomic(using="other"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        line = sys._getframe().f_lineno + 1
        enqueue_many([tasks.noop.s(), tasks.add.s(1)])
    [warning] = caught
    assert (warning.filename, warning.lineno) == (__file__, line)


@pytest.mark.django_db
def test_enqueue_many_calls_middleware_once_for_each_set_of_options(monkeypatch):
    seen = []

    def note(call):
        seen.append(call.task.priority)
        call.headers["priority"] = call.task.priority

    monkeypatch.setattr(middleware, "chain", lambda: middleware.MiddlewareChain(enqueue=(note,)))
    first, second = tasks.noop.using(priority=1), tasks.noop.using(priority=2)
    ids = enqueue_many([first.s(), second.s()] * 100)
    assert seen == [1, 2]
    headers = dict(Job.objects.values_list("pk", "headers"))
    assert [headers[job_id]["priority"] for job_id in ids] == [1, 2] * 100


@pytest.mark.promise("batch-all-or-nothing")
def test_enqueue_many_several_tasks_invalid_call_adds_no_job(committing, engine):
    def calls():
        for n in range(CHUNK + 10):
            yield (OTHER_QUEUE if n % 2 else tasks.noop).s(n)
        yield tasks.noop.s(object())

    for in_transaction in (False, True):
        with pytest.raises(TypeError, match="argument 1"):
            enqueue_many(calls())
        if in_transaction:
            with transaction.atomic(), pytest.raises(TypeError, match="argument 1"):
                enqueue_many(calls())
    assert helpers.rows_of(engine, "pgqueue_job") == {}


# ------------------------------------------------------------------ the result


@pytest.mark.django_db
@pytest.mark.parametrize("options", [{}, {"unique_while": 3600}], ids=["state", "period"])
def test_enqueue_many_duplicates_are_the_calls_that_added_no_job(options):
    task = KEYED.using(**options)
    existing = task.enqueue(2)
    ids = task.enqueue_many([(1,), (2,), (3,), (1,), (2,)])
    assert isinstance(ids, JobIds)
    assert ids.duplicates == [1, 3, 4]
    assert (ids[1], ids[4]) == (existing.pk, existing.pk)
    assert ids[3] == ids[0]
    assert task.enqueue_many([(1,), (4,)], returning=False) == 2
    assert tasks.noop.enqueue_many([(1,)]).duplicates == []


@pytest.mark.django_db
@pytest.mark.parametrize("options", [{}, {"unique_while": 3600}], ids=["state", "period"])
def test_enqueue_many_replaced_job_is_no_duplicate_but_a_running_one_is(options, engine):
    task = KEYED.using(on_conflict="replace", **options)
    waiting, running = task.enqueue(1), task.enqueue(2)
    Job.objects.filter(pk=running.pk).update(state="running")
    ids = task.enqueue_many([(1,), (2,), (1,)])
    assert ids == [waiting.pk, running.pk, waiting.pk]
    assert ids.duplicates == [1]


@pytest.mark.django_db
def test_enqueue_many_duplicates_of_a_sorted_list_have_their_positions():
    count = CHUNK + 500
    numbers = [3, 7, *reversed(range(count))]
    ids = KEYED.enqueue_many([(number,) for number in numbers])
    assert ids.duplicates == [count - 6, count - 2]
    assert [args for args, _ in stored(ids)] == [[number] for number in numbers]


@pytest.mark.django_db
def test_enqueue_many_keys_behind_plain_calls_are_sorted():
    """Two callers that take the same keys in different orders could deadlock."""
    plain = [tasks.noop.s(0)] * CHUNK
    ids = enqueue_many([*plain, *(KEYED.s(number) for number in range(CHUNK + 10, 0, -1))])[CHUNK:]
    assert ids == sorted(ids, reverse=True)


# ------------------------------------------------------------------ statements


def statements_of(enqueue):
    """Return the statements of a call: the names of ours, and the first word of others."""
    with CaptureQueriesContext(connection) as captured:
        enqueue()
    words = [query["sql"].split() for query in captured]
    return [each[1].partition(":")[2] if each[0] == "/*" else each[0] for each in words]


MIXED = [tasks.noop.s(1), OTHER_QUEUE.s(2), tasks.add.s(3)]
RAISING = KEYED.using(on_conflict="raise")
PERIOD = KEYED.using(unique_while=3600)
REPLACING = KEYED.using(on_conflict="replace")


def keyed(*statements):
    """Return the statements of a chunk with unique keys."""
    return ["SAVEPOINT", *statements, "RELEASE"]


STATEMENTS = {
    "one job": (lambda: tasks.noop.enqueue(), ["enqueue"]),
    "unique": (lambda: KEYED.enqueue(2), ["enqueue_unique"]),
    "unique, for a period": (lambda: PERIOD.enqueue(2), ["enqueue_for_period"]),
    "unique, replaced": (lambda: REPLACING.enqueue(1), ["enqueue_or_replace"]),
    "duplicate": (lambda: KEYED.enqueue(1), ["enqueue_unique", "holders", "SELECT"]),
    "duplicate, for a period": (lambda: PERIOD.enqueue(1), ["enqueue_for_period", "open_windows", "SELECT"]),
    "many": (lambda: tasks.noop.enqueue_many((n,) for n in range(CHUNK)), ["enqueue_many"]),
    "many calls made by s()": (lambda: enqueue_many(tasks.noop.s(n) for n in range(9)), ["enqueue_many"]),
    "many, with several tasks": (lambda: enqueue_many(MIXED), ["enqueue_each"]),
    "many, with several tasks from an iterator": (lambda: enqueue_many(iter(MIXED)), ["enqueue_each"]),
    "many unique": (lambda: KEYED.enqueue_many([(2,), (3,), (2,)]), keyed("enqueue_many_unique")),
    "many unique, with several options": (
        lambda: enqueue_many([KEYED.s(2), KEYED.using(priority=3).s(3), KEYED.using(unique_while="ready").s(4)]),
        keyed("enqueue_each_unique"),
    ),
    "many unique, with a duplicate": (
        lambda: KEYED.enqueue_many([(1,), (2,)]),
        keyed("enqueue_many_unique", "holders"),
    ),
    "many unique, for a period": (
        lambda: PERIOD.enqueue_many([(2,), (3,)]),
        keyed("enqueue_for_period", "open_windows"),
    ),
    "many unique, for a period, with a duplicate": (
        lambda: PERIOD.enqueue_many([(1,), (2,)]),
        keyed("enqueue_for_period", "open_windows", "open_windows"),
    ),
    "many unique, for a period, replaced": (
        lambda: PERIOD.using(on_conflict="replace").enqueue_many([(1,), (2,)]),
        keyed("enqueue_for_period", "open_windows", "replace_for_period"),
    ),
    "many unique, replaced": (lambda: REPLACING.enqueue_many([(1,), (2,)]), keyed("enqueue_many_or_replace")),
    "many, none": (lambda: tasks.noop.enqueue_many([]), []),
}


@pytest.mark.django_db
@pytest.mark.parametrize("kind", STATEMENTS)
def test_enqueue_in_transaction_takes_these_statements(kind):
    enqueue, expected = STATEMENTS[kind]
    for task in (KEYED, PERIOD):
        task.enqueue(1)
    assert statements_of(enqueue) == expected


@pytest.mark.django_db
def test_enqueue_duplicate_with_raise_takes_two_statements():
    KEYED.enqueue(1)

    def enqueue():
        with pytest.raises(DuplicateJob):
            RAISING.enqueue(1)

    assert statements_of(enqueue) == ["enqueue_unique", "holders"]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("enqueue", "inserts"),
    [
        (lambda: tasks.noop.enqueue_many((n,) for n in range(CHUNK + 1)), ["enqueue_many"] * 2),
        (
            lambda: KEYED.enqueue_many((n,) for n in range(CHUNK + 1)),
            ["SAVEPOINT", "enqueue_many_unique", "RELEASE"] * 2,
        ),
        (lambda: enqueue_many(MIXED * CHUNK), ["enqueue_each"] * 3),
        (lambda: RAISING.enqueue_many([(1,), (2,)]), ["enqueue_many_unique"]),
    ],
)
def test_enqueue_many_several_chunks_take_a_savepoint(enqueue, inserts):
    assert statements_of(enqueue) == ["SAVEPOINT", *inserts, "RELEASE"]


@pytest.mark.usefixtures("committing")
def test_enqueue_without_transaction_takes_these_statements():
    assert statements_of(lambda: tasks.noop.enqueue()) == ["enqueue"]
    assert statements_of(lambda: KEYED.enqueue(1)) == ["enqueue_unique"]
    assert statements_of(lambda: KEYED.enqueue(1)) == ["enqueue_unique", "holders", "SELECT"]
    assert statements_of(lambda: tasks.noop.enqueue_many([(1,)])) == ["BEGIN", "enqueue_many", "COMMIT"]
    chunks = ["BEGIN", "enqueue_many", "enqueue_many", "COMMIT"]
    assert statements_of(lambda: tasks.noop.enqueue_many([(1,)] * (CHUNK + 1))) == chunks
    chunk = ["SAVEPOINT", "enqueue_many_unique", "holders", "RELEASE"]
    assert statements_of(lambda: KEYED.enqueue_many([(1,)])) == ["BEGIN", *chunk, "COMMIT"]


@pytest.mark.django_db
def test_enqueue_many_refused_batch_leaves_the_transaction_usable():
    KEYED.enqueue(2)
    with transaction.atomic():
        with pytest.raises(DuplicateJob):
            enqueue_many([tasks.add.s(1), RAISING.s(1), RAISING.s(2)])
        assert Job.objects.count() == 1


# ------------------------------------------------------------------ an existing job that cannot be read


@pytest.mark.django_db
@pytest.mark.parametrize("on_conflict", ["skip", "replace"])
def test_enqueue_existing_job_never_found_raises_queue_error(on_conflict, monkeypatch):
    """Each insert meets another job, which has ended before it can be read."""
    tries = []
    for name in ("enqueue_unique", "replace"):
        monkeypatch.setattr(unique, name, lambda *args, **kwargs: tries.append(1))
    task = KEYED.using(on_conflict=on_conflict)
    with pytest.raises(QueueError, match=r"no job of tests\.app\.tasks\.noop was enqueued: 20 times") as raised:
        task.enqueue(1)
    assert not isinstance(raised.value, DuplicateJob)
    assert len(tries) == TRIES == 20
    with pytest.raises(DuplicateJob):
        RAISING.enqueue(1)


@pytest.mark.django_db(transaction=True)
def test_enqueue_many_existing_job_never_found_adds_no_job(monkeypatch):
    monkeypatch.setattr(unique, "enqueue_unique", lambda *args, **kwargs: None)
    monkeypatch.setattr(unique, "enqueue_many_unique", lambda *args, **kwargs: [])
    with transaction.atomic():
        with pytest.raises(QueueError):
            enqueue_many([tasks.add.s(1), KEYED.s(1)])
        assert transaction.get_rollback()
        transaction.set_rollback(True)
    assert not Job.objects.exists()


# ------------------------------------------------------------------ memory


@pytest.mark.django_db
@pytest.mark.parametrize(
    "enqueue",
    [
        lambda calls: tasks.noop.enqueue_many(calls, returning=False),
        lambda calls: KEYED.enqueue_many(calls, returning=False),
        lambda calls: enqueue_many((OTHER_QUEUE.s(*call) for call in calls), returning=False),
        lambda calls: enqueue_many(((KEYED, tasks.noop)[call[0] % 2].s(*call) for call in calls), returning=False),
        lambda calls: enqueue_many((tasks.noop.using(priority=3).s(*call) for call in calls), returning=False),
    ],
    ids=["plain", "unique", "function", "unique and plain", "using for each call"],
)
def test_enqueue_many_memory_does_not_grow_with_calls(enqueue):
    """The arguments of all calls are 20 MB. A chunk has 1 MiB of them, and takes 5 MB while it is inserted."""
    calls = ((number, f"{number:05}" * 800) for number in range(5000))
    tracemalloc.start()
    try:
        assert enqueue(calls) == 5000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8_000_000


# ------------------------------------------------------------------ asynchronous code


def test_aenqueue_many_jobs_are_committed(committing, engine):
    async def enqueue():
        try:
            ids = await tasks.async_add.aenqueue_many((n,) for n in range(3))
            more = await aenqueue_many([tasks.async_add.s(3), OTHER_QUEUE.s()])
            count = await aenqueue_many([tasks.noop.s()], returning=False)
            return ids, more, count, await tasks.noop.aenqueue_many([()], returning=False)
        finally:
            await sync_to_async(lambda: connection.close())()  # the connection of that thread

    ids, more, count, other_count = asyncio.run(enqueue())
    assert (len(ids), len(more), count, other_count) == (3, 2, 1, 1)
    assert len(helpers.rows_of(engine, "pgqueue_job")) == 7
