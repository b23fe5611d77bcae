"""Enqueue: a job is a row of the caller's transaction, written by one INSERT, and a batch is written as a whole.

The tests check that a rollback leaves no job, that delays count from the statement, that routers and `database` choose
the database, and that the notification is optional: it arrives after the commit and never after a rollback, and it
never makes `enqueue()` fail.
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

from django_pgqueue import InvalidTask, signals
from django_pgqueue.db import notifications
from django_pgqueue.encoding.serialization import CHUNK, CHUNK_SIZE
from django_pgqueue.enqueue.new_job import row_of
from django_pgqueue.models import Job
from django_pgqueue.task import Task
from django_pgqueue.tasks import registry
from tests import helpers
from tests.app import tasks


class Stop(Exception):
    """Raised to roll back a block."""


# ------------------------------------------------------------------ the row


@pytest.mark.django_db
def test_enqueue_job_takes_one_query(django_assert_num_queries):
    with django_assert_num_queries(1):
        job = tasks.add.using(priority=5, queue_name="mail", max_attempts=3).enqueue(2, b=3)
    row = Job.objects.get(pk=job.pk)
    assert row.arguments == {"args": [2], "kwargs": {"b": 3}} == job.arguments
    for name in ("task_name", "queue_name", "priority", "max_attempts", "state", "attempt", "run_after", "enqueued_at"):
        assert getattr(row, name) == getattr(job, name)
    assert (row.task_name, row.queue_name, row.priority, row.state) == ("tests.app.tasks.add", "mail", 5, "ready")


@pytest.mark.django_db
def test_enqueue_default_max_attempts_comes_from_settings():
    assert tasks.noop.enqueue().max_attempts == 10
    with override_settings(PGQUEUE={"MAX_ATTEMPTS": 4}):
        assert tasks.noop.enqueue().max_attempts == 4


@pytest.mark.django_db
@pytest.mark.parametrize("delay", [90, 90.0, timedelta(seconds=90)])
def test_enqueue_delay_counts_from_enqueued_at(delay):
    job = tasks.noop.using(run_after=delay).enqueue()
    assert job.run_after - job.enqueued_at == timedelta(seconds=90)


@pytest.mark.django_db
def test_enqueue_run_after_datetime_is_stored_exactly():
    at = datetime(2031, 5, 5, 5, 5, 5, 555, tzinfo=UTC)
    assert Job.objects.get(pk=tasks.noop.using(run_after=at).enqueue().pk).run_after == at


def test_enqueue_delay_in_transaction_counts_from_statement(committing, engine):
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
def test_enqueue_wrong_arguments_fail_before_any_query(django_assert_num_queries, args, kwargs):
    with django_assert_num_queries(0), pytest.raises(TypeError, match=r"tests\.app\.tasks\.add\(\) cannot be called"):
        tasks.add.enqueue(*args, **kwargs)


@pytest.mark.django_db
def test_enqueue_context_is_not_an_argument_of_the_call():
    assert tasks.attempt_number.enqueue().arguments == {"args": [], "kwargs": {}}
    with pytest.raises(TypeError, match="cannot be called"):
        tasks.attempt_number.enqueue("context")


@pytest.mark.django_db
def test_enqueue_task_outside_task_modules_is_refused(django_assert_num_queries):
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
def test_enqueue_rollback_leaves_no_job(committing, engine):
    with pytest.raises(Stop), transaction.atomic():
        tasks.noop.enqueue()
        tasks.noop.enqueue_many([((), {})] * 3)
        raise Stop
    assert helpers.rows_of(engine, "pgqueue_job") == {}


@pytest.mark.promise("job-visible-at-commit")
def test_enqueue_job_is_visible_only_after_commit(committing, engine):
    with transaction.atomic():
        job = tasks.noop.enqueue()
        assert helpers.claim_all(engine) == []
    assert [claimed.job_id for claimed in helpers.claim_all(engine)] == [job.pk]


def test_enqueue_without_transaction_is_visible_at_once(committing, engine):
    job = tasks.noop.enqueue()
    assert [claimed.job_id for claimed in helpers.claim_all(engine)] == [job.pk]


@pytest.mark.promise("rollback-leaves-no-job")
def test_enqueue_savepoint_rollback_removes_only_its_jobs(committing, engine):
    with transaction.atomic():
        kept = tasks.noop.enqueue()
        with pytest.raises(Stop), transaction.atomic():
            tasks.noop.enqueue()
            raise Stop
    assert list(helpers.rows_of(engine, "pgqueue_job")) == [kept.pk]


def test_enqueue_failure_in_savepoint_keeps_earlier_job(committing, engine):
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
def test_enqueue_many_uses_one_insert_for_each_chunk(django_assert_num_queries):
    with django_assert_num_queries(2 + 2):  # two inserts, a savepoint and its release
        ids = tasks.add.enqueue_many(((n,), {"b": n}) for n in range(CHUNK + 1))
    assert len(ids) == CHUNK + 1
    assert ids == sorted(ids)
    rows = Job.objects.in_bulk(ids)
    assert [rows[job_id].arguments["args"][0] for job_id in ids] == list(range(CHUNK + 1))


@pytest.mark.django_db
def test_enqueue_many_without_returning_returns_count():
    assert tasks.add.enqueue_many([((n,), {}) for n in range(5)], returning=False) == 5
    assert Job.objects.count() == 5


@pytest.mark.django_db
def test_enqueue_many_without_calls_adds_no_job(django_assert_num_queries):
    assert tasks.noop.enqueue_many([]) == []
    assert tasks.noop.enqueue_many(iter(()), returning=False) == 0


@pytest.mark.promise("batch-all-or-nothing")
def test_enqueue_many_invalid_call_adds_no_job(committing, engine):
    def calls():
        for n in range(CHUNK + 10):
            yield (n,), {}
        yield (object(),), {}

    with pytest.raises(TypeError, match="argument 1"):
        tasks.plus.enqueue_many(calls())
    with pytest.raises(TypeError, match="cannot be called"):
        tasks.add.enqueue_many([((1,), {}), ((), {})])
    assert helpers.rows_of(engine, "pgqueue_job") == {}


@pytest.mark.django_db
def test_enqueue_many_reads_calls_chunk_by_chunk():
    pending = []

    def calls():
        for n in range(3 * CHUNK):
            if n % 500 == 499:
                pending.append(n - Job.objects.count())
            yield (n,), {}

    assert tasks.add.enqueue_many(calls(), returning=False) == 3 * CHUNK
    assert max(pending) < CHUNK


@pytest.mark.django_db
def test_enqueue_many_chunk_is_limited_in_bytes():
    """At each call, the calls that were read but not yet inserted fit into one chunk."""
    text = "x" * 100_000
    pending = []

    def calls():
        for n in range(30):
            pending.append(n - Job.objects.count())
            yield (text,), {"b": n}

    ids = tasks.plus.enqueue_many(calls())
    assert len(ids) == 30
    assert 5 < max(pending) < CHUNK_SIZE / len(text) + 1


# ------------------------------------------------------------------ asynchronous code


def test_aenqueue_job_is_committed(committing, engine):
    async def enqueue():
        try:
            return await tasks.async_add.aenqueue(1, b=2)
        finally:
            await sync_to_async(lambda: connection.close())()  # the connection of that thread

    job = asyncio.run(enqueue())
    [claimed] = helpers.claim_all(engine)
    assert (claimed.job_id, claimed.arguments) == (job.pk, '{"args":[1],"kwargs":{"b":2}}')


# ------------------------------------------------------------------ several databases


class ToOther:
    """A router that sends the queue's models to `other`."""

    def db_for_write(self, model, **hints):
        return "other" if model._meta.app_label == "pgqueue" else None


def test_enqueue_router_chooses_the_database(other):
    with override_settings(DATABASE_ROUTERS=[ToOther()]):
        with transaction.atomic(using="other"):
            job = tasks.noop.enqueue()
            assert not Job.objects.using("default").filter(pk=job.pk).exists()
        assert job._state.db == "other"


def test_enqueue_database_of_task_is_used(other):
    with transaction.atomic(using="other"):
        job = tasks.noop.using(database="other").enqueue()
        assert not Job.objects.using("default").exists()
        transaction.set_rollback(True, using="other")
    assert job._state.db == "other"
    assert not Job.objects.exists()


@pytest.mark.parametrize("many", [False, True])
def test_enqueue_transaction_on_other_alias_warns_at_caller(other, many):
    with transaction.atomic(using="other"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        line = sys._getframe().f_lineno + 1
        tasks.noop.enqueue_many([((), {})]) if many else tasks.noop.enqueue()
    [warning] = caught
    assert issubclass(warning.category, RuntimeWarning)
    assert "'default' while a transaction is open on 'other'" in str(warning.message)
    assert (warning.filename, warning.lineno) == (__file__, line)


def test_enqueue_transactions_on_both_aliases_do_not_warn(other):
    with transaction.atomic(using="other"), transaction.atomic():
        tasks.noop.enqueue()


# ------------------------------------------------------------------ the notification


def test_row_of_a_task_changed_by_a_caller_changes_no_other_job(db):
    """A workflow sets the batch of its jobs, and a schedule their delay."""
    row_of(tasks.noop, "default").update(priority=7, batch_id=7)
    job = tasks.noop.enqueue()
    assert (job.priority, job.batch_id) == (0, None)


@pytest.fixture
def next_notification(engine, second):
    """Return a function that waits for the next notification and returns it, if it arrives."""
    second.execute("LISTEN pgqueue")

    def next_notification(seconds=20.0):
        notifications._last_wake_at.clear()
        return [(note.channel, note.payload) for note in second.notifies(timeout=seconds, stop_after=1)]

    return next_notification


NOTE = [("pgqueue", "")]


def test_enqueue_sends_a_notification(next_notification):
    tasks.noop.enqueue()
    assert next_notification() == NOTE


def test_enqueue_notification_has_no_parameters(committing, engine):
    """The server plans no query for it. A plan would cost 0.13 ms between the commit and the start of the job."""
    with transaction.atomic():
        tasks.noop.enqueue()
    pid = connection.connection.info.backend_pid
    [[statement]] = engine.execute("SELECT query FROM pg_stat_activity WHERE pid = %s", (pid,)).fetchall()
    assert statement == "NOTIFY pgqueue"


@pytest.mark.parametrize("many", [False, True])
def test_enqueue_notification_arrives_only_after_commit(next_notification, many):
    with transaction.atomic():
        tasks.noop.enqueue_many([((), {})]) if many else tasks.noop.enqueue()
        assert next_notification(0.05) == []
    assert next_notification() == NOTE


def test_enqueue_rollback_sends_no_notification(next_notification):
    with pytest.raises(Stop), transaction.atomic():
        tasks.noop.enqueue()
        raise Stop
    with pytest.raises(TypeError):
        tasks.noop.enqueue_many([((), {}), ((object(),), {})])
    assert next_notification(0.1) == []
    tasks.noop.enqueue()
    assert next_notification() == NOTE


def test_enqueue_notify_off_sends_no_notification(next_notification):
    with override_settings(PGQUEUE={"NOTIFY": False}):
        tasks.noop.enqueue()
    assert next_notification(0.1) == []


def test_enqueue_burst_sends_one_notification(engine, second, monkeypatch):
    second.execute("LISTEN pgqueue")
    with monkeypatch.context() as patch:
        stopped = types.SimpleNamespace(monotonic=lambda: 1000.0)  # stopped: the speed of the machine does not matter
        patch.setattr(notifications, "time", stopped)
        for _ in range(20):
            tasks.noop.enqueue()
    engine.execute("NOTIFY pgqueue, 'end'")
    assert [note.payload for note in second.notifies(timeout=20.0, stop_after=2)] == ["", "end"]


def test_enqueue_failed_notification_keeps_the_job(committing, engine, monkeypatch):
    monkeypatch.setattr(notifications, "ANNOUNCEMENT", "NOTIFY no channel at all")
    tasks.noop.enqueue()
    notifications._last_wake_at.clear()
    with transaction.atomic():
        tasks.noop.enqueue()
    assert len(helpers.rows_of(engine, "pgqueue_job")) == 2
    assert Job.objects.count() == 2


def test_enqueue_connection_error_after_commit_is_ignored(committing, engine, monkeypatch):
    def broken(*args):
        raise psycopg.OperationalError

    monkeypatch.setattr(notifications, "_wake_workers", broken)
    with transaction.atomic():
        job = tasks.noop.enqueue()
    assert helpers.state_of(engine, job.pk) == "ready"


def test_job_enqueued_signal_receiver_errors_are_ignored(committing):
    seen = []

    def receiver(sender, job_id, queue_name, **kwargs):
        seen.append((sender, job_id, queue_name, threading.current_thread().name))
        raise RuntimeError("a receiver of no manners")

    signals.job_enqueued.connect(receiver)
    try:
        job = tasks.noop.enqueue()
        many = tasks.noop.using(queue_name="mail").enqueue_many([((), {})] * 2)
    finally:
        signals.job_enqueued.disconnect(receiver)
    assert [job_id for _, job_id, *_ in seen] == [job.pk, *many]
    assert seen[-1][:3] == ("tests.app.tasks.noop", many[-1], "mail")


def test_enqueue_returned_job_has_the_stored_arguments(db):
    items = [1]
    job = tasks.noop.enqueue(items, (2, 3), mapping={4: 5})
    items.append(6)
    assert job.arguments == {"args": [[1], [2, 3]], "kwargs": {"mapping": {"4": 5}}}


def test_enqueue_unknown_database_is_named(db):
    with pytest.raises(InvalidTask, match="nowhere"):
        tasks.noop.using(database="nowhere").enqueue()
