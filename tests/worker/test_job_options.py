"""Test that a schedule's job gets expiry, unique key and headers like any other call of its task."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection, connections
from django.test import override_settings
from psycopg import errors

from django_pgqueue import InvalidTask, Limit, every, middleware, task
from django_pgqueue.backend.compat import task_enqueued
from django_pgqueue.db import statements
from django_pgqueue.exceptions import LeaseLost
from django_pgqueue.lifecycle import schedules
from django_pgqueue.lifecycle.schedules import Scheduled
from django_pgqueue.models import Job, Schedule, ScheduleRun, SearchKey, UniquenessWindow
from django_pgqueue.schedules import declarations
from django_pgqueue.schedules.run_and_resume import run_now
from django_pgqueue.task import Task
from django_pgqueue.tasks import registry
from django_pgqueue.worker.completion import receiver_thread, receivers
from django_pgqueue.worker.completion.receiver_thread import CallbackRunner
from django_pgqueue.worker.maintenance.scheduler import Scheduler, Schedules
from django_pgqueue.worker.runtime.connection import Link
from django_pgqueue.worker.runtime.time_limit import HANGING_LIMIT
from tests import helpers
from tests.app import middleware as app
from tests.app import tasks
from tests.framework import tasks as framework

KEY = "the key"


class Worker:
    """The scheduler of one worker, and the tasks in its code."""

    def __init__(self, engine, monkeypatch) -> None:
        self.engine, self.monkeypatch = engine, monkeypatch
        self.scheduler = Scheduler()
        monkeypatch.setattr(declarations, "definitions", lambda alias: {})

    def define_task(self, **options: Any) -> Task[Any, Any]:
        """Add a task with these options, under the name that `helpers` schedules, to the code. Return the task."""
        given: dict[str, Any] = {"name": helpers.NOOP, **options}
        made: Task[Any, Any] = Task(func=tasks.noop.func, **given)
        for name in (made.name, *made.aliases):
            self.monkeypatch.setitem(registry._tasks, name, made)
        return made

    def turn(self) -> float | None:
        return self.scheduler.turn(self.engine)

    def make_next_tick_due(self, schedule_id: int) -> Scheduled:
        """Make the next tick of a schedule due."""
        self.engine.execute("UPDATE pgqueue_schedule SET next_run_at = now() WHERE id = %s", [schedule_id])
        return helpers.schedule_of(self.engine, schedule_id)


@pytest.fixture
def worker(engine, monkeypatch):
    return Worker(engine, monkeypatch)


def jobs_made() -> list[int | None]:
    """Return the job id of each processed tick, in order; None for a tick without a job."""
    return list(ScheduleRun.objects.order_by("tick_at").values_list("job_id", flat=True))


# ------------------------------------------------------------------ search keys


def test_tick_of_searchable_task_stores_search_keys(engine, worker, monkeypatch):
    made = Task(func=tasks.add.func, name=helpers.NOOP, search=["a", "b"])
    monkeypatch.setitem(registry._tasks, helpers.NOOP, made)
    helpers.make_schedule(engine, arguments='{"args":[4711],"kwargs":{"b":null}}')
    worker.turn()
    assert [(key.job_id, key.name, key.value) for key in SearchKey.objects.all()] == [(jobs_made()[0], "a", "4711")]
    helpers.make_schedule(engine, "odd", arguments='{"args":[[4711]],"kwargs":{}}')
    worker.turn()
    assert "argument 'a' is a list in JSON" in Schedule.objects.get(name="odd").problem


# ------------------------------------------------------------------ limits

LIMIT = Limit("customers", key="{a}", concurrency=3, weight=lambda a, b=1: b)


def test_tick_of_limited_task_stores_the_limit_of_its_job(engine, worker, monkeypatch):
    made = Task(func=tasks.add.func, name=helpers.NOOP, limit=LIMIT)
    monkeypatch.setitem(registry._tasks, helpers.NOOP, made)
    helpers.make_schedule(engine, arguments='{"args":[4711],"kwargs":{"b":2}}')
    worker.turn()
    job = Job.objects.get()
    assert (job.limit_key, job.limit_weight, job.limit_order) == ("customers:4711", 2, None)
    helpers.make_schedule(engine, "odd", arguments='{"args":[1],"kwargs":{"b":4}}')
    worker.turn()
    assert "weight 4 is more than concurrency 3" in Schedule.objects.get(name="odd").problem


@pytest.mark.parametrize("knows", [False, True], ids=["unknown", "without a limit"])
def test_tick_limit_unknown_is_left_to_other_workers(engine, worker, knows, monkeypatch):
    monkeypatch.delitem(registry._tasks, helpers.NOOP)
    if knows:
        worker.define_task()
    seen_at, _ = schedules.read_schedules(engine)
    schedules.add_schedule(engine, helpers.definition(is_limited=True), origin="code", next_run_at=seen_at)
    worker.turn()
    assert jobs_made() == []
    assert "code of the worker that tried to fire it has no limit for" in Schedule.objects.get().problem
    worker.define_task(limit=Limit("one", ordered=True))
    Scheduler().turn(engine)
    assert list(Job.objects.values_list("limit_key", "limit_order")) == [("one", 1)]


def test_definition_of_limited_task_has_another_digest():
    made = Task(func=tasks.noop.func, limit=Limit("one", concurrency=1))
    plain, limited = (declarations.define("a", defined, every(hours=1)) for defined in (tasks.noop, made))
    assert limited.is_limited
    assert plain.digest == limited._replace(is_limited=False).digest != limited.digest


def test_schedule_run_now_of_limited_task_stores_the_limit(engine, worker):
    worker.define_task(limit=Limit("one", concurrency=3, weight=2))
    schedule_id = helpers.make_schedule(engine, due_in=3600.0)
    run_now(connection, helpers.schedule_of(engine, schedule_id))
    assert list(Job.objects.values_list("limit_key", "limit_weight")) == [("one", 2)]


# ------------------------------------------------------------------ expiry


@pytest.mark.promise("schedule-job-options")
def test_tick_of_task_with_expires_sets_expiry_of_its_job(engine, worker):
    worker.define_task(expires=timedelta(minutes=10))
    helpers.make_schedule(engine, jitter_seconds=300.0)
    worker.turn()
    job = Job.objects.get()
    assert job.expires_at - job.enqueued_at == timedelta(minutes=10)
    assert job.enqueued_at < job.run_after < job.expires_at


def test_tick_on_worker_without_task_sets_expiry_from_row(engine, worker):
    seen_at, _ = schedules.read_schedules(engine)
    definition = helpers.definition(task_name="shop.tasks.brand_new", expires_seconds=60.0)
    schedules.add_schedule(engine, definition, origin="code", next_run_at=seen_at)
    worker.turn()
    job = Job.objects.get()
    assert job.expires_at - job.enqueued_at == timedelta(minutes=1)


def test_task_jitter_as_long_as_expiry_raises_invalid_task(monkeypatch):
    monkeypatch.setattr(registry, "_tasks", {})
    with pytest.raises(InvalidTask, match=r"expire 60 s after .* by 60 s: make jitter shorter"):
        task(expires=60, schedule=every(hours=1, jitter=60))(tasks.noop.func)
    assert registry.get(helpers.NOOP) is None


def test_definition_with_job_options_has_another_digest():
    made = Task(func=tasks.noop.func, expires=60, unique_key=KEY)
    plain, full = (declarations.define("a", defined, every(hours=1)) for defined in (tasks.noop, made))
    assert (full.options.expires_seconds, full.is_unique) == (60.0, True)
    unlimited = full._replace(options=full.options._replace(expires_seconds=None))
    digests = {definition.digest for definition in (plain, full, full._replace(is_unique=False), unlimited)}
    assert len(digests) == 4
    assert helpers.definition().digest == "26650b64761aa8e0e4fc69ef7af42e13", "earlier releases have this digest"


def test_tick_of_schedule_with_own_queue_and_priority_adds_its_job_there(engine, worker, monkeypatch):
    made = worker.define_task(queue_name="mail", priority=3)
    own = declarations.define("own", made, every(seconds=1, queue_name="reports", priority=-10))
    default = declarations.define("default", made, every(seconds=1))
    monkeypatch.setattr(declarations, "definitions", lambda alias: {"own": own, "default": default})
    seen = []
    note = middleware.MiddlewareChain(enqueue=(lambda call: seen.append((call.task.queue_name, call.task.priority)),))
    monkeypatch.setattr(middleware, "chain", lambda: note)
    worker.turn()
    for schedule in Schedule.objects.all():
        worker.make_next_tick_due(schedule.pk)
    worker.turn()
    expected = {("reports", -10), ("mail", 3)}
    assert set(Schedule.objects.values_list("queue_name", "priority")) == expected
    assert set(Job.objects.values_list("queue_name", "priority")) == expected
    assert set(seen) == expected


def test_tick_of_other_code_keeps_the_queue_of_the_row(engine, worker):
    """The worker knows the task with another queue, or does not know it."""
    for known in (False, True):
        if known:
            worker.define_task(queue_name="mail", priority=3)
        definition = helpers.definition(f"known {known}", queue_name="reports", priority=-10)
        [seen_at, _] = schedules.read_schedules(engine)
        schedules.add_schedule(engine, definition, origin="code", next_run_at=seen_at)
        worker.turn()
    assert list(Job.objects.values_list("queue_name", "priority")) == [("reports", -10)] * 2


# ------------------------------------------------------------------ unique key


@pytest.mark.promise("tick-unique-key-taken")
@pytest.mark.parametrize("on_conflict", ["skip", "replace", "raise"])
def test_tick_unique_key_taken_is_skipped_and_next_one_fires(engine, worker, on_conflict, caplog):
    made = worker.define_task(unique_key=KEY, on_conflict=on_conflict)
    existing = made.enqueue("earlier")
    schedule_id = helpers.make_schedule(engine, arguments='{"args":["later"],"kwargs":{}}')
    with caplog.at_level("INFO", "django_pgqueue.worker"):
        worker.turn()
    assert f"skipped: job {existing.pk} has its unique key" in caplog.text
    assert jobs_made() == [None]
    assert Job.objects.get().arguments["args"] == ["earlier"]
    row = Schedule.objects.get()
    assert (row.last_run_at, row.last_job_id) == (None, None)
    assert row.next_run_at > row.runs.get().tick_at
    existing.cancel()
    worker.make_next_tick_due(schedule_id)
    worker.turn()
    assert jobs_made() == [None, Job.objects.get(state="ready").pk]
    assert Job.objects.get(state="ready").unique_key == KEY


def test_enqueue_unique_key_of_tick_returns_job_of_tick(engine, worker):
    made = worker.define_task(unique_key=lambda *args, **kwargs: f"{args}{kwargs}", unique_while="ready")
    helpers.make_schedule(engine, arguments='{"args":[1],"kwargs":{"b":2}}')
    worker.turn()
    job = Job.objects.get()
    assert (job.unique_key, job.unique_ready_only) == ("(1,){'b': 2}", True)
    assert made.enqueue(1, b=2).pk == job.pk
    assert made.enqueue(1, b=3).pk != job.pk


def test_tick_unique_key_none_always_adds_a_job(engine, worker):
    worker.define_task(unique_key=lambda: None)
    schedule_id = helpers.make_schedule(engine)
    for _ in range(2):
        worker.turn()
        worker.make_next_tick_due(schedule_id)
    assert None not in jobs_made()
    assert set(Job.objects.values_list("unique_key", flat=True)) == {None}


def test_tick_former_task_name_uses_key_of_renamed_task(engine, worker):
    """The schedule was made in the admin before its task was renamed."""
    made = worker.define_task(name="shop.renamed", aliases=[helpers.NOOP], unique_key=KEY)
    existing = made.enqueue()
    schedule_id = helpers.make_schedule(engine)
    worker.turn()
    assert jobs_made() == [None]
    existing.cancel()
    worker.make_next_tick_due(schedule_id)
    worker.turn()
    assert Job.objects.get(state="ready").task_name == "shop.renamed"


def test_tick_in_uniqueness_window_is_skipped_until_it_ends(engine, worker, monkeypatch):
    made = worker.define_task(unique_key=KEY, unique_while=timedelta(hours=1))
    existing = made.enqueue()
    existing.cancel()
    helpers.make_schedule(engine)
    worker.turn()
    assert jobs_made() == [None]
    for shift_seconds in (3601.0, 3701.0):
        monkeypatch.setattr(statements.clock, "shift_seconds", shift_seconds)
        worker.turn()
    assert jobs_made() == [None, Job.objects.latest("pk").pk, None]
    assert Job.objects.latest("pk").unique_key is None, "the uniqueness window has the key instead"
    assert made.enqueue().pk == Job.objects.latest("pk").pk
    assert UniquenessWindow.objects.get().ends_at - Job.objects.latest("pk").enqueued_at == timedelta(hours=1)


@pytest.mark.promise("tick-unique-key-unknown")
@pytest.mark.parametrize("knows", [False, True], ids=["unknown", "without a key"])
def test_tick_unique_key_unknown_is_left_to_other_workers(engine, worker, knows, monkeypatch, caplog):
    monkeypatch.delitem(registry._tasks, helpers.NOOP)
    if knows:
        worker.define_task()
    seen_at, _ = schedules.read_schedules(engine)
    definition = helpers.definition(is_unique=True)
    schedule_id = schedules.add_schedule(engine, definition, origin="code", next_run_at=seen_at)
    assert schedule_id is not None
    for _ in range(3):
        worker.turn()
    assert jobs_made() == []
    assert "code of the worker that tried to fire it has no unique key" in Schedule.objects.get().problem
    worker.define_task(unique_key=KEY)
    Scheduler().turn(engine)
    assert len(jobs_made()) == 1
    assert Schedule.objects.get().problem == ""
    worker.define_task()
    worker.turn()
    worker.make_next_tick_due(schedule_id)
    worker.turn()
    assert [record.levelname for record in caplog.records] == ["WARNING"], "logged once, whatever others do in between"


def test_admin_schedule_task_lost_its_key_adds_job_without_key(engine, worker):
    worker.define_task()
    helpers.make_schedule(engine, is_unique=True)
    worker.turn()
    assert Job.objects.get().unique_key is None


def test_admin_schedule_unique_task_removed_shows_problem(engine, worker):
    helpers.make_schedule(engine, task_name="shop.tasks.gone", is_unique=True)
    worker.turn()
    assert Schedule.objects.get().problem.endswith("has no unique key for shop.tasks.gone")


# ------------------------------------------------------------------ errors in the project's code, and middleware


class Silent(Exception):
    """An exception that cannot be converted to a string."""

    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.promise("schedule-raising-key")
@pytest.mark.parametrize(
    ("error", "words"),
    [
        (LookupError("no\n\x00"), "the unique key raised LookupError: no \N{REPLACEMENT CHARACTER}"),
        (SystemExit(), "the unique key raised SystemExit"),
        (Silent(), "the unique key raised Silent"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_tick_unique_key_raises_shows_problem_and_others_fire(engine, worker, error, words, caplog):
    def key(*args: object) -> str:
        raise error

    worker.define_task(unique_key=key)
    yearly = "0 0 1 1 *"  # the next tick does not come within the interval that is measured here
    arguments = '{"args":[1],"kwargs":{}}'
    helpers.make_schedule(engine, "bad", expression=yearly)
    helpers.make_schedule(engine, "good", expression=yearly, task_name="tests.app.tasks.add", arguments=arguments)
    for _ in range(3):
        assert worker.turn() > 1, "the failed tick is not retried without an interval"
    assert Job.objects.get().task_name == "tests.app.tasks.add"
    [record] = caplog.records
    assert record.levelname == "ERROR"
    assert "\n" not in record.getMessage()
    assert record.exc_info[1] is error
    assert Schedule.objects.get(name="bad").problem == words
    assert Schedule.objects.get(name="good").problem == ""
    worker.define_task(unique_key=KEY)
    worker.turn()
    assert Job.objects.count() == 2, "the tick was still due"
    assert Schedule.objects.get(name="bad").problem == ""


@pytest.mark.parametrize("error", [LeaseLost(), KeyboardInterrupt()], ids=repr)
def test_tick_unique_key_raises_no_exception_and_others_fire(engine, worker, error):
    def key(*args: object) -> str:
        raise error

    worker.define_task(unique_key=key)
    worker.scheduler = Scheduler(CallbackRunner())  # it calls the key as a worker does
    arguments = '{"args":[1],"kwargs":{}}'
    helpers.make_schedule(engine, "bad")
    helpers.make_schedule(engine, "good", task_name="tests.app.tasks.add", arguments=arguments)
    worker.turn()
    assert Job.objects.get().task_name == "tests.app.tasks.add"
    words = f"the unique key raised {type(error).__name__}"
    assert Schedule.objects.get(name="bad").problem.startswith(words)


class HangingKey:
    """Schedules of two tasks: the unique key of the first waits for the test. A worker calls both as in production."""

    def __init__(self, engine, worker, monkeypatch) -> None:
        self.worker, self.gate = worker, threading.Event()
        monkeypatch.setattr(receiver_thread, "ANSWER_SECONDS", 1000.0)
        self.runner = CallbackRunner()
        worker.scheduler = Scheduler(self.runner)
        worker.define_task(unique_key=lambda: str(self.gate.wait(60)))
        helpers.make_schedule(engine, "hanging")
        arguments = '{"args":[1],"kwargs":{}}'
        self.sound = helpers.make_schedule(engine, "sound", task_name="tests.app.tasks.add", arguments=arguments)

    def turn(self) -> bool:
        """Do a turn with a due tick of the sound schedule. Return whether the worker has fired it."""
        before = self.sound_jobs()
        self.worker.make_next_tick_due(self.sound)
        self.worker.turn()
        return self.sound_jobs() == before + 1

    def sound_jobs(self) -> int:
        """Return the number of jobs of the sound schedule."""
        return Job.objects.filter(task_name="tests.app.tasks.add").count()

    def expire(self) -> None:
        """Let the time of the hanging call be over."""
        for _, call in self.runner._asked._calls.values():
            call.began_at -= 1000.0

    def hanging_job_exists(self) -> bool:
        """Do a turn. Return whether the first schedule has made a job."""
        self.worker.turn()
        return Job.objects.filter(task_name=helpers.NOOP).exists()


@pytest.fixture
def hanging_key(engine, worker, monkeypatch):
    case = HangingKey(engine, worker, monkeypatch)
    yield case
    case.gate.set()


@pytest.mark.promise("hanging-code-blocks-only-its-owner")
def test_hanging_key_does_not_delay_other_schedules(hanging_key):
    """The turn would end after 1,000 s if it waited for the key."""
    assert hanging_key.turn()
    assert hanging_key.turn(), "the key still hangs"
    assert Schedule.objects.get(name="hanging").problem == ""
    hanging_key.gate.set()
    helpers.wait_until(hanging_key.hanging_job_exists)


@pytest.mark.promise("hanging-code-blocks-only-its-owner")
def test_key_that_hangs_repeatedly_stops_only_its_schedule(hanging_key):
    problem = "the unique key did not return within 1000 s"
    for _ in range(HANGING_LIMIT):
        assert hanging_key.turn()
        hanging_key.expire()
        assert hanging_key.turn()
        assert Schedule.objects.get(name="hanging").problem == problem
    assert hanging_key.turn()
    problem = "the unique key was not called, because 3 earlier calls have not returned"
    assert Schedule.objects.get(name="hanging").problem == problem
    assert Schedule.objects.get(name="sound").problem == ""
    hanging_key.gate.set()
    helpers.wait_until(hanging_key.hanging_job_exists)


def test_deleted_schedule_of_hanging_key_leaves_others_alone(hanging_key):
    hanging_key.turn()
    Schedule.objects.get(name="hanging").delete()
    for _ in range(HANGING_LIMIT + 1):
        assert hanging_key.turn()


def test_slow_key_with_missed_ticks_is_called_once_each(engine, worker, monkeypatch):
    """A tick that is asked for again, in a later turn, uses the call that an earlier turn has started."""
    calls = []
    monkeypatch.setattr(receivers, "PATIENCE_SECONDS", 0.0)
    worker.define_task(unique_key=lambda: calls.append(1) or str(len(calls)))
    worker.scheduler = Scheduler(CallbackRunner())
    schedule_id = helpers.make_schedule(engine, expression="every 1 minute", missed="all")
    engine.execute(
        "UPDATE pgqueue_schedule SET next_run_at = date_trunc('minute', now()) - interval '4 min' WHERE id = %s",
        [schedule_id],
    )
    helpers.wait_until(lambda: worker.turn() is None or ScheduleRun.objects.count() >= 5)
    assert len(calls) == ScheduleRun.objects.count()


def test_tick_query_is_cancelled_shows_no_problem(engine, worker, monkeypatch):
    def refused(*args: object) -> str:
        raise errors.QueryCanceled("the server is slow")

    worker.define_task(unique_key=lambda: KEY)
    helpers.make_schedule(engine)
    monkeypatch.setattr(schedules, "arguments_of", refused)
    worker.turn()
    assert (Schedule.objects.get().problem, Job.objects.count()) == ("", 0)
    monkeypatch.undo()
    worker.turn()
    assert Job.objects.exists()


def test_tick_unique_key_fails_after_success_logs_again(engine, worker, caplog):
    schedule_id = helpers.make_schedule(engine)
    for key in (7, "a", 7):
        worker.define_task(unique_key=lambda key=key: key)
        worker.turn()
        if key == "a":
            worker.make_next_tick_due(schedule_id)
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]


def test_note_problem_after_another_worker_fired_has_no_effect(engine, worker):
    row = helpers.schedule_of(engine, helpers.make_schedule(engine))
    assert helpers.fire(engine, row).what == "fired"
    schedules.note_problem(engine, row, "too late")
    assert Schedule.objects.get().problem == ""


@pytest.mark.parametrize("change", ["a pause", "another definition"])
def test_problem_after_pause_or_new_definition_is_cleared(engine, worker, change):
    row = helpers.schedule_of(engine, helpers.make_schedule(engine))
    schedules.note_problem(engine, row, "why")
    assert Schedule.objects.get().problem == "why"
    if change == "a pause":
        schedules.pause_schedule(engine, row.schedule_id)
    else:
        definition = helpers.definition(expression="@daily")
        schedules.change_schedule(engine, row.schedule_id, definition, revision=0, next_run_at=row.next_run_at)
    assert Schedule.objects.get().problem == ""


def using(name: str) -> override_settings:
    return override_settings(PGQUEUE={"MIDDLEWARE": [f"tests.app.middleware.{name}"]})


@pytest.mark.promise("schedule-job-options")
def test_tick_with_middleware_sets_headers_of_its_job(engine, worker):
    helpers.make_schedule(engine)
    token = app.tenant.set("acme")
    with using("Tenancy"):
        worker.turn()
    app.tenant.reset(token)
    assert Job.objects.get().headers == {"tenant": "acme"}


@pytest.mark.promise("schedule-raising-key")
def test_tick_middleware_raises_stays_due_and_shows_problem(engine, worker):
    helpers.make_schedule(engine)
    with using("Refuses"):
        worker.turn()
    assert Schedule.objects.get().problem == f"the middleware raised PermissionError: not {helpers.NOOP}"
    worker.turn()
    assert len(jobs_made()) == 1


def test_tick_on_worker_without_task_calls_no_middleware(engine, worker):
    """Middleware gets the task as an argument, and this worker has no such task."""
    helpers.make_schedule(engine, task_name="shop.tasks.brand_new")
    with using("Refuses"):
        worker.turn()
    assert Job.objects.get().headers is None


@pytest.mark.django_db(transaction=True)
def test_tick_unique_key_uses_database_closes_connection(engine, worker):
    seen = []

    def key() -> str:
        Group.objects.count()
        seen.append(connections["default"].connection)
        return KEY

    worker.define_task(unique_key=key)
    helpers.make_schedule(engine)
    service = Schedules(Link("default", "schedules"))
    working = helpers.Background(lambda: (service.tick(), connections["default"].connection))
    assert working.result()[1] is None
    assert seen[0] is not None
    assert seen[0].closed
    service.link.close()


# ------------------------------------------------------------------ signals


def test_tick_of_framework_task_sends_task_enqueued(engine, worker):
    sent = []

    def receiver(sender, task_result, **kwargs):
        sent.append((sender.__name__, task_result.task.name, int(task_result.id), str(task_result.status)))

    task_enqueued.connect(receiver)
    try:
        helpers.make_schedule(engine, task_name=framework.noop.module_path)
        worker.turn()
    finally:
        task_enqueued.disconnect(receiver)
    assert sent == [("PgQueueBackend", "noop", Job.objects.get().pk, "READY")]
