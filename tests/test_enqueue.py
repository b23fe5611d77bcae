"""Enqueue: a job is a row of the caller's transaction, one INSERT, all or none; the wake-up is only a hint.

Holds that a rollback leaves nothing, that times count from the statement, that routers and `database` decide where, and
that a notification comes after the commit, never after a rollback, and never makes `enqueue` fail.
"""

import asyncio
import sys
import threading
import types
import warnings
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from asgiref.sync import sync_to_async
from django.db import DatabaseError, connection, transaction
from django.test import override_settings

from django_pgqueue import InvalidTask, registry, signals
from django_pgqueue.db import notifications
from django_pgqueue.models import Job
from django_pgqueue.serialization import CHUNK, CHUNK_SIZE
from django_pgqueue.task import Task
from tests import helpers
from tests.app import tasks


class Stop(Exception):
    """Rolls a block back."""


# ------------------------------------------------------------------ the row


@pytest.mark.django_db
def test_a_job_is_one_query(django_assert_num_queries):
    with django_assert_num_queries(1):
        job = tasks.add.using(priority=5, queue_name="mail", max_attempts=3).enqueue(2, b=3)
    row = Job.objects.get(pk=job.pk)
    assert row.arguments == {"args": [2], "kwargs": {"b": 3}} == job.arguments
    for name in ("task_name", "queue_name", "priority", "max_attempts", "state", "attempt", "run_after", "enqueued_at"):
        assert getattr(row, name) == getattr(job, name)
    assert (row.task_name, row.queue_name, row.priority, row.state) == ("tests.app.tasks.add", "mail", 5, "ready")


@pytest.mark.django_db
def test_without_a_number_of_its_own_a_task_has_the_settings_attempts():
    assert tasks.noop.enqueue().max_attempts == 10
    with override_settings(PGQUEUE={"MAX_ATTEMPTS": 4}):
        assert tasks.noop.enqueue().max_attempts == 4


@pytest.mark.django_db
@pytest.mark.parametrize("delay", [90, 90.0, timedelta(seconds=90)])
def test_a_delay_counts_from_the_enqueue(delay):
    job = tasks.noop.using(run_after=delay).enqueue()
    assert job.run_after - job.enqueued_at == timedelta(seconds=90)


@pytest.mark.django_db
def test_an_instant_is_kept():
    at = datetime(2031, 5, 5, 5, 5, 5, 555, tzinfo=UTC)
    assert Job.objects.get(pk=tasks.noop.using(run_after=at).enqueue().pk).run_after == at


def test_a_delay_counts_from_the_statement_not_from_the_start_of_the_transaction(committing, engine):
    with transaction.atomic():
        with connection.cursor() as cursor:
            began = cursor.execute("SELECT now()").fetchone()[0]
        pause = began + timedelta(milliseconds=50)
        helpers.wait_until(lambda: helpers.scalar(engine, "SELECT clock_timestamp()") > pause)
        job = tasks.noop.using(run_after=1).enqueue()
        [many] = tasks.noop.using(run_after=1).enqueue_many([((), {})])
    assert job.enqueued_at > pause
    assert job.run_after > pause + timedelta(seconds=1)
    assert Job.objects.get(pk=many).run_after > pause + timedelta(seconds=1)


@pytest.mark.django_db
@pytest.mark.parametrize(("args", "kwargs"), [((), {}), ((1, 2, 3), {}), ((1,), {"c": 1}), ((1,), {"a": 1})])
def test_a_call_that_does_not_fit_the_function_is_refused_before_any_query(django_assert_num_queries, args, kwargs):
    with django_assert_num_queries(0), pytest.raises(TypeError, match=r"tests\.app\.tasks\.add\(\) cannot be called"):
        tasks.add.enqueue(*args, **kwargs)


@pytest.mark.django_db
def test_the_context_is_no_argument_of_the_call():
    assert tasks.attempt_number.enqueue().arguments == {"args": [], "kwargs": {}}
    with pytest.raises(TypeError, match="cannot be called"):
        tasks.attempt_number.enqueue("context")


@pytest.mark.django_db
def test_a_task_that_no_worker_would_find_is_refused(django_assert_num_queries):
    function = types.FunctionType(tasks.add.func.__code__, {"__name__": "tests.views"}, "lost")
    function.__qualname__ = "lost"
    lost: Task[..., int] = Task(func=function)
    with django_assert_num_queries(0), pytest.raises(InvalidTask, match=r"tests\.views\.lost.*TASK_MODULES"):
        lost.enqueue(1, 2)
    with pytest.raises(InvalidTask):
        lost.enqueue_many([((1, 2), {})])
    with override_settings(PGQUEUE={"TASK_MODULES": ["tests.views"]}):
        assert registry.is_found_by_workers("tests.views")
        assert lost.enqueue(1, 2).pk


# ------------------------------------------------------------------ the caller's transaction


@pytest.mark.promise("rollback-leaves-no-job")
def test_a_rollback_leaves_nothing(committing, engine):
    with pytest.raises(Stop), transaction.atomic():
        tasks.noop.enqueue()
        tasks.noop.enqueue_many([((), {})] * 3)
        raise Stop
    assert helpers.rows_of(engine, "pgqueue_job") == {}


@pytest.mark.promise("job-visible-at-commit")
def test_a_commit_shows_the_job_and_not_before(committing, engine):
    with transaction.atomic():
        job = tasks.noop.enqueue()
        assert helpers.claim_all(engine) == []
    assert [one.job_id for one in helpers.claim_all(engine)] == [job.pk]


def test_without_a_transaction_it_is_there_at_once(committing, engine):
    job = tasks.noop.enqueue()
    assert [one.job_id for one in helpers.claim_all(engine)] == [job.pk]


@pytest.mark.promise("rollback-leaves-no-job")
def test_a_savepoint_takes_only_its_own_jobs_back(committing, engine):
    with transaction.atomic():
        kept = tasks.noop.enqueue()
        with pytest.raises(Stop), transaction.atomic():
            tasks.noop.enqueue()
            raise Stop
    assert list(helpers.rows_of(engine, "pgqueue_job")) == [kept.pk]


def test_a_failing_enqueue_inside_a_savepoint_leaves_the_rest(committing, engine):
    with transaction.atomic():
        kept = tasks.noop.enqueue()
        with pytest.raises(TypeError):
            tasks.noop.enqueue(object())
        with pytest.raises(DatabaseError), transaction.atomic():
            tasks.noop.using(run_after=100 * 365 * 86400).enqueue_many([((), {})] * 2)
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1 / 0")
    assert list(helpers.rows_of(engine, "pgqueue_job")) == [kept.pk]


# ------------------------------------------------------------------ many


@pytest.mark.django_db
def test_many_jobs_are_one_insert_a_chunk_in_one_transaction(django_assert_num_queries):
    with django_assert_num_queries(2 + 2):  # a savepoint and its release
        ids = tasks.add.enqueue_many(((n,), {"b": n}) for n in range(CHUNK + 1))
    assert len(ids) == CHUNK + 1
    assert ids == sorted(ids)
    rows = Job.objects.in_bulk(ids)
    assert [rows[job_id].arguments["args"][0] for job_id in ids] == list(range(CHUNK + 1))


@pytest.mark.django_db
def test_many_jobs_without_their_ids_are_a_number():
    assert tasks.add.enqueue_many([((n,), {}) for n in range(5)], returning=False) == 5
    assert Job.objects.count() == 5


@pytest.mark.django_db
def test_no_calls_are_no_jobs(django_assert_num_queries):
    assert tasks.noop.enqueue_many([]) == []
    assert tasks.noop.enqueue_many(iter(()), returning=False) == 0


@pytest.mark.promise("batch-all-or-nothing")
def test_many_jobs_are_all_or_none(committing, engine):
    def calls():
        for n in range(CHUNK + 10):
            yield (n,), {}
        yield (object(),), {}

    with pytest.raises(TypeError, match="argument 1"):
        tasks.add.enqueue_many(calls())
    with pytest.raises(TypeError, match="cannot be called"):
        tasks.add.enqueue_many([((1,), {}), ((), {})])
    assert helpers.rows_of(engine, "pgqueue_job") == {}


@pytest.mark.django_db
def test_calls_are_read_as_they_are_inserted():
    ahead = []

    def calls():
        for n in range(3 * CHUNK):
            if n % 500 == 499:
                ahead.append(n - Job.objects.count())
            yield (n,), {}

    assert tasks.add.enqueue_many(calls(), returning=False) == 3 * CHUNK
    assert max(ahead) < CHUNK


@pytest.mark.django_db
def test_a_chunk_is_bounded_in_size_too():
    """Before each call no more is read and not inserted than a chunk may hold."""
    text = "x" * 100_000
    ahead = []

    def calls():
        for n in range(30):
            ahead.append(n - Job.objects.count())
            yield (text,), {"b": n}

    ids = tasks.add.enqueue_many(calls())
    assert len(ids) == 30
    assert 5 < max(ahead) < CHUNK_SIZE / len(text) + 1


# ------------------------------------------------------------------ asynchronous code


def test_aenqueue_commits_on_its_own(committing, engine):
    async def enqueue():
        try:
            return await tasks.async_add.aenqueue(1, b=2)
        finally:
            await sync_to_async(lambda: connection.close())()  # that thread's own

    job = asyncio.run(enqueue())
    [one] = helpers.claim_all(engine)
    assert (one.job_id, one.arguments) == (job.pk, '{"args":[1],"kwargs":{"b":2}}')


# ------------------------------------------------------------------ several databases


class ToOther:
    """A router that sends the queue's models to `other`."""

    def db_for_write(self, model, **hints):
        return "other" if model._meta.app_label == "pgqueue" else None


def test_the_router_decides_where_jobs_go(other):
    with override_settings(DATABASE_ROUTERS=[ToOther()]):
        with transaction.atomic(using="other"):
            job = tasks.noop.enqueue()
            assert not Job.objects.using("default").filter(pk=job.pk).exists()
        assert job._state.db == "other"


def test_a_database_of_the_task_overrules_the_router(other):
    with transaction.atomic(using="other"):
        job = tasks.noop.using(database="other").enqueue()
        assert not Job.objects.using("default").exists()
        transaction.set_rollback(True, using="other")
    assert job._state.db == "other"
    assert not Job.objects.exists()


@pytest.mark.parametrize("many", [False, True])
def test_a_transaction_open_on_another_alias_is_a_warning_at_the_callers_line(other, many):
    with transaction.atomic(using="other"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        line = sys._getframe().f_lineno + 1
        tasks.noop.enqueue_many([((), {})]) if many else tasks.noop.enqueue()
    [warning] = caught
    assert issubclass(warning.category, RuntimeWarning)
    assert "'default' while a transaction is open on 'other'" in str(warning.message)
    assert (warning.filename, warning.lineno) == (__file__, line)


def test_transactions_open_on_both_are_no_warning(other):
    with transaction.atomic(using="other"), transaction.atomic():
        tasks.noop.enqueue()


# ------------------------------------------------------------------ the hint


@pytest.fixture
def heard(engine, second):
    """Waits for the next notification and says whether it came."""
    second.execute("LISTEN pgqueue")

    def heard(seconds=5.0):
        notifications._last_wake_at.clear()
        return [(note.channel, note.payload) for note in second.notifies(timeout=seconds, stop_after=1)]

    return heard


NOTE = [("pgqueue", "")]


def test_a_notification_comes_with_a_job(heard):
    tasks.noop.enqueue()
    assert heard() == NOTE


@pytest.mark.parametrize("many", [False, True])
def test_it_comes_after_the_commit_and_not_before(heard, many):
    with transaction.atomic():
        tasks.noop.enqueue_many([((), {})]) if many else tasks.noop.enqueue()
        assert heard(0.05) == []
    assert heard() == NOTE


def test_it_never_comes_after_a_rollback(heard):
    with pytest.raises(Stop), transaction.atomic():
        tasks.noop.enqueue()
        raise Stop
    with pytest.raises(TypeError):
        tasks.noop.enqueue_many([((), {}), ((object(),), {})])
    assert heard(0.1) == []
    tasks.noop.enqueue()
    assert heard() == NOTE


def test_it_can_be_turned_off(heard):
    with override_settings(PGQUEUE={"NOTIFY": False}):
        tasks.noop.enqueue()
    assert heard(0.1) == []


def test_a_burst_is_one_notification(engine, second, monkeypatch):
    second.execute("LISTEN pgqueue")
    with monkeypatch.context() as patch:
        stopped = types.SimpleNamespace(monotonic=lambda: 1000.0)  # however slow the machine is
        patch.setattr(notifications, "time", stopped)
        for _ in range(20):
            tasks.noop.enqueue()
    assert len(list(second.notifies(timeout=0.1))) == 1


def test_a_notification_that_fails_is_no_failure_of_enqueue(committing, engine, monkeypatch):
    monkeypatch.setattr(notifications, "CHANNEL", "no channel; at all")
    tasks.noop.enqueue()
    notifications._last_wake_at.clear()
    with transaction.atomic():
        tasks.noop.enqueue()
    assert len(helpers.rows_of(engine, "pgqueue_job")) == 2
    assert Job.objects.count() == 2


def test_a_connection_that_breaks_at_the_commit_is_no_failure_of_enqueue(committing, engine, monkeypatch):
    def broken(*args):
        raise psycopg.OperationalError

    monkeypatch.setattr(notifications, "_wake_workers", broken)
    with transaction.atomic():
        job = tasks.noop.enqueue()
    assert helpers.state_of(engine, job.pk) == "ready"


def test_receivers_hear_of_each_job_and_cannot_spoil_it(committing):
    seen = []

    def receiver(sender, job_id, queue_name, **kwargs):
        seen.append((sender, job_id, queue_name, threading.current_thread().name))
        raise RuntimeError("a receiver of no manners")

    signals.job_enqueued.connect(receiver)
    try:
        one = tasks.noop.enqueue()
        many = tasks.noop.using(queue_name="mail").enqueue_many([((), {})] * 2)
    finally:
        signals.job_enqueued.disconnect(receiver)
    assert [job_id for _, job_id, *_ in seen] == [one.pk, *many]
    assert seen[-1][:3] == ("tests.app.tasks.noop", many[-1], "mail")


def test_the_job_that_enqueue_returns_holds_what_was_stored(db):
    items = [1]
    job = tasks.noop.enqueue(items, (2, 3), mapping={4: 5})
    items.append(6)
    assert job.arguments == {"args": [[1], [2, 3]], "kwargs": {"mapping": {"4": 5}}}


@pytest.mark.parametrize("call", [1, (1, 2), ((1,),), ("1", {})])
def test_a_call_of_many_that_is_no_pair_is_named(db, call):
    with pytest.raises(TypeError, match=r"call 1 must be a pair \(args, kwargs\)"):
        tasks.noop.enqueue_many([((), {}), call])


def test_a_database_that_is_not_there_is_named(db):
    with pytest.raises(InvalidTask, match="nowhere"):
        tasks.noop.using(database="nowhere").enqueue()
