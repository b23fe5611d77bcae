"""What a schedule's job is enqueued with: expiry, unique key and headers, as any other call of its task."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connections
from django.test import override_settings
from psycopg import errors

from django_pgqueue import InvalidTask, every, lifecycle, registry, task
from django_pgqueue.backend.compat import task_enqueued
from django_pgqueue.db import statements
from django_pgqueue.models import Hold, Job, Schedule, ScheduleRun
from django_pgqueue.schedules import declarations
from django_pgqueue.task import Task
from django_pgqueue.worker.maintenance.schedule_service import Schedules
from django_pgqueue.worker.maintenance.scheduler import Scheduler
from django_pgqueue.worker.runtime.connection import Link
from tests import helpers
from tests.app import middleware as app
from tests.app import tasks
from tests.framework import tasks as framework

KEY = "the key"


class Worker:
    """One worker, and the code that it has."""

    def __init__(self, engine, monkeypatch) -> None:
        self.engine, self.monkeypatch = engine, monkeypatch
        self.scheduler = Scheduler()
        monkeypatch.setattr(declarations, "definitions", lambda alias: {})

    def has(self, **options: Any) -> Task[Any, Any]:
        """Give it a task of the name that `helpers` schedules, with these options."""
        given: dict[str, Any] = {"name": helpers.NOOP, **options}
        made: Task[Any, Any] = Task(func=tasks.noop.func, **given)
        for name in (made.name, *made.aliases):
            self.monkeypatch.setitem(registry._tasks, name, made)
        return made

    def turn(self) -> float | None:
        return self.scheduler.turn(self.engine)

    def next_tick(self, schedule_id: int) -> lifecycle.Scheduled:
        """Have the next tick of a schedule come."""
        self.engine.execute("UPDATE pgqueue_schedule SET next_run_at = now() WHERE id = %s", [schedule_id])
        return helpers.schedule_of(self.engine, schedule_id)


@pytest.fixture
def worker(engine, monkeypatch):
    return Worker(engine, monkeypatch)


def jobs_made() -> list[int | None]:
    """For each tick that was dealt with its job."""
    return list(ScheduleRun.objects.order_by("tick_at").values_list("job_id", flat=True))


# ------------------------------------------------------------------ expiry


@pytest.mark.promise("schedule-job-options")
def test_its_jobs_expire_as_those_of_an_enqueue_do(engine, worker):
    worker.has(expires=timedelta(minutes=10))
    helpers.make_schedule(engine, jitter_seconds=300.0)
    worker.turn()
    job = Job.objects.get()
    assert job.expires_at - job.enqueued_at == timedelta(minutes=10)
    assert job.enqueued_at < job.run_after < job.expires_at


def test_one_of_the_code_says_it_itself_also_to_a_worker_without_the_task(engine, worker):
    seen_at, _ = lifecycle.read_schedules(engine)
    definition = helpers.definition(task_name="shop.tasks.brand_new", expires_seconds=60.0)
    lifecycle.add_schedule(engine, definition, origin="code", next_run_at=seen_at)
    worker.turn()
    job = Job.objects.get()
    assert job.expires_at - job.enqueued_at == timedelta(minutes=1)


def test_what_jitter_could_put_off_until_it_has_expired_is_refused(monkeypatch):
    monkeypatch.setattr(registry, "_tasks", {})
    with pytest.raises(InvalidTask, match=r"expire 60 s after .* by 60 s: make jitter shorter"):
        task(expires=60, schedule=every(hours=1, jitter=60))(tasks.noop.func)
    assert registry.get(helpers.NOOP) is None


def test_a_definition_says_what_its_jobs_have_and_is_another_one_then():
    made = Task(func=tasks.noop.func, expires=60, unique_key=KEY)
    plain, full = (declarations.define("a", one, every(hours=1)) for one in (tasks.noop, made))
    assert (full.expires_seconds, full.is_unique) == (60.0, True)
    digests = {one.digest for one in (plain, full, full._replace(is_unique=False), full._replace(expires_seconds=None))}
    assert len(digests) == 4
    assert helpers.definition().digest == "26650b64761aa8e0e4fc69ef7af42e13", "as of the releases before"


# ------------------------------------------------------------------ the unique key


@pytest.mark.promise("tick-unique-key-taken")
@pytest.mark.parametrize("on_conflict", ["skip", "replace", "raise"])
def test_a_tick_that_meets_a_job_with_the_key_is_skipped_and_the_next_one_fires(engine, worker, on_conflict, caplog):
    made = worker.has(unique_key=KEY, on_conflict=on_conflict)
    there = made.enqueue("earlier")
    schedule_id = helpers.make_schedule(engine, arguments='{"args":["later"],"kwargs":{}}')
    with caplog.at_level("INFO", "django_pgqueue.worker"):
        worker.turn()
    assert f"skipped: job {there.pk} has its unique key" in caplog.text
    assert jobs_made() == [None]
    assert Job.objects.get().arguments["args"] == ["earlier"]
    row = Schedule.objects.get()
    assert (row.last_run_at, row.last_job_id) == (None, None)
    assert row.next_run_at > row.runs.get().tick_at
    there.cancel()
    worker.next_tick(schedule_id)
    worker.turn()
    assert jobs_made() == [None, Job.objects.get(state="ready").pk]
    assert Job.objects.get(state="ready").unique_key == KEY


def test_an_enqueue_meets_the_job_of_a_tick(engine, worker):
    made = worker.has(unique_key=lambda *args, **kwargs: f"{args}{kwargs}", unique_while="ready")
    helpers.make_schedule(engine, arguments='{"args":[1],"kwargs":{"b":2}}')
    worker.turn()
    job = Job.objects.get()
    assert (job.unique_key, job.unique_ready_only) == ("(1,){'b': 2}", True)
    assert made.enqueue(1, b=2).pk == job.pk
    assert made.enqueue(1, b=3).pk != job.pk


def test_a_call_without_a_key_is_always_new(engine, worker):
    worker.has(unique_key=lambda: None)
    schedule_id = helpers.make_schedule(engine)
    for _ in range(2):
        worker.turn()
        worker.next_tick(schedule_id)
    assert None not in jobs_made()
    assert set(Job.objects.values_list("unique_key", flat=True)) == {None}


def test_under_an_earlier_name_it_has_the_key_of_the_present_one(engine, worker):
    """A schedule of the admin that was made before its task was renamed."""
    made = worker.has(name="shop.renamed", aliases=[helpers.NOOP], unique_key=KEY)
    there = made.enqueue()
    schedule_id = helpers.make_schedule(engine)
    worker.turn()
    assert jobs_made() == [None]
    there.cancel()
    worker.next_tick(schedule_id)
    worker.turn()
    assert Job.objects.get(state="ready").task_name == "shop.renamed"


def test_a_key_for_a_period_keeps_ticks_away_until_that_is_over_whatever_becomes_of_the_job(
    engine, worker, monkeypatch
):
    made = worker.has(unique_key=KEY, unique_while=timedelta(hours=1))
    there = made.enqueue()
    there.cancel()
    helpers.make_schedule(engine)
    worker.turn()
    assert jobs_made() == [None]
    for shift_seconds in (3601.0, 3701.0):
        monkeypatch.setattr(statements.clock, "shift_seconds", shift_seconds)
        worker.turn()
    assert jobs_made() == [None, Job.objects.latest("pk").pk, None]
    assert Job.objects.latest("pk").unique_key is None, "the hold has it"
    assert made.enqueue().pk == Job.objects.latest("pk").pk
    assert Hold.objects.get().held_until - Job.objects.latest("pk").enqueued_at == timedelta(hours=1)


@pytest.mark.promise("tick-unique-key-unknown")
@pytest.mark.parametrize("knows", [False, True], ids=["unknown", "without a key"])
def test_a_unique_one_is_left_to_workers_whose_code_has_its_key(engine, worker, knows, monkeypatch, caplog):
    monkeypatch.delitem(registry._tasks, helpers.NOOP)
    if knows:
        worker.has()
    seen_at, _ = lifecycle.read_schedules(engine)
    definition = helpers.definition(is_unique=True)
    schedule_id = lifecycle.add_schedule(engine, definition, origin="code", next_run_at=seen_at)
    assert schedule_id is not None
    for _ in range(3):
        worker.turn()
    assert jobs_made() == []
    assert "this process's code has no unique key" in Schedule.objects.get().problem
    worker.has(unique_key=KEY)
    Scheduler().turn(engine)
    assert len(jobs_made()) == 1
    assert Schedule.objects.get().problem == ""
    worker.has()
    worker.turn()
    worker.next_tick(schedule_id)
    worker.turn()
    assert [record.levelname for record in caplog.records] == ["WARNING"], "said once, whatever others do in between"


def test_one_of_the_admin_goes_without_a_key_when_its_task_has_none_any_more(engine, worker):
    worker.has()
    helpers.make_schedule(engine, is_unique=True)
    worker.turn()
    assert Job.objects.get().unique_key is None


def test_one_of_the_admin_whose_task_is_gone_and_had_a_key_is_shown(engine, worker):
    helpers.make_schedule(engine, task_name="shop.tasks.gone", is_unique=True)
    worker.turn()
    assert Schedule.objects.get().problem.endswith("this process's code has no unique key for shop.tasks.gone")


# ------------------------------------------------------------------ what the project's own code does


class Silent(Exception):
    """Cannot even be printed."""

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
def test_a_key_that_raises_stops_no_other_and_is_shown_until_it_is_over(engine, worker, error, words, caplog):
    def key(*args: object) -> str:
        raise error

    worker.has(unique_key=key)
    yearly = "0 0 1 1 *"  # whose next tick does not come within the pause that is measured here
    arguments = '{"args":[1],"kwargs":{}}'
    helpers.make_schedule(engine, "bad", expression=yearly)
    helpers.make_schedule(engine, "good", expression=yearly, task_name="tests.app.tasks.add", arguments=arguments)
    for _ in range(3):
        assert worker.turn() > 1, "and it is not tried again without a pause"
    assert Job.objects.get().task_name == "tests.app.tasks.add"
    [record] = caplog.records
    assert record.levelname == "ERROR"
    assert "\n" not in record.getMessage()
    assert record.exc_info[1] is error
    assert Schedule.objects.get(name="bad").problem == words
    assert Schedule.objects.get(name="good").problem == ""
    worker.has(unique_key=KEY)
    worker.turn()
    assert Job.objects.count() == 2, "it was owed still"
    assert Schedule.objects.get(name="bad").problem == ""


def test_what_the_database_does_not_answer_is_no_fault_of_the_key(engine, worker, monkeypatch):
    def refused(*args: object) -> str:
        raise errors.QueryCanceled("the server is slow")

    worker.has(unique_key=lambda: KEY)
    helpers.make_schedule(engine)
    monkeypatch.setattr(lifecycle, "arguments_of", refused)
    with pytest.raises(errors.QueryCanceled):
        worker.turn()
    assert Schedule.objects.get().problem == ""


def test_what_fails_again_after_it_was_over_is_said_again(engine, worker, caplog):
    schedule_id = helpers.make_schedule(engine)
    for key in (7, "a", 7):
        worker.has(unique_key=lambda key=key: key)
        worker.turn()
        if key == "a":
            worker.next_tick(schedule_id)
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]


def test_a_problem_that_another_worker_has_overcome_is_not_noted(engine, worker):
    one = helpers.schedule_of(engine, helpers.make_schedule(engine))
    assert helpers.fire(engine, one).what == "fired"
    lifecycle.note_problem(engine, one, "too late")
    assert Schedule.objects.get().problem == ""


@pytest.mark.parametrize("change", ["a pause", "another definition"])
def test_a_problem_is_over_with(engine, worker, change):
    one = helpers.schedule_of(engine, helpers.make_schedule(engine))
    lifecycle.note_problem(engine, one, "why")
    assert Schedule.objects.get().problem == "why"
    if change == "a pause":
        lifecycle.pause_schedule(engine, one.schedule_id)
    else:
        definition = helpers.definition(expression="@daily")
        lifecycle.change_schedule(engine, one.schedule_id, definition, revision=0, next_run_at=one.next_run_at)
    assert Schedule.objects.get().problem == ""


def using(name: str) -> override_settings:
    return override_settings(PGQUEUE={"MIDDLEWARE": [f"tests.app.middleware.{name}"]})


@pytest.mark.promise("schedule-job-options")
def test_its_jobs_have_the_headers_that_middleware_gives_an_enqueue(engine, worker):
    helpers.make_schedule(engine)
    token = app.tenant.set("acme")
    with using("Tenancy"):
        worker.turn()
    app.tenant.reset(token)
    assert Job.objects.get().headers == {"tenant": "acme"}


@pytest.mark.promise("schedule-raising-key")
def test_middleware_that_refuses_it_keeps_the_tick_owed_and_is_shown(engine, worker):
    helpers.make_schedule(engine)
    with using("Refuses"):
        worker.turn()
    assert Schedule.objects.get().problem == f"the middleware raised PermissionError: not {helpers.NOOP}"
    worker.turn()
    assert len(jobs_made()) == 1


def test_a_worker_without_the_task_asks_no_middleware(engine, worker):
    """There is no task to tell it of."""
    helpers.make_schedule(engine, task_name="shop.tasks.brand_new")
    with using("Refuses"):
        worker.turn()
    assert Job.objects.get().headers is None


@pytest.mark.django_db(transaction=True)
def test_what_it_asks_of_the_database_leaves_no_connection_open(engine, worker):
    seen = []

    def key() -> str:
        Group.objects.count()
        seen.append(connections["default"].connection)
        return KEY

    worker.has(unique_key=key)
    helpers.make_schedule(engine)
    service = Schedules(Link("default", "schedules"))
    working = helpers.Background(lambda: (service.tick(), connections["default"].connection))
    assert working.result()[1] is None
    assert seen[0] is not None
    assert seen[0].closed
    service.link.close()


# ------------------------------------------------------------------ who is told


def test_django_s_framework_is_told_of_a_job_of_its_own(engine, worker):
    told = []

    def receiver(sender, task_result, **kwargs):
        told.append((sender.__name__, task_result.task.name, int(task_result.id), str(task_result.status)))

    task_enqueued.connect(receiver)
    try:
        helpers.make_schedule(engine, task_name=framework.noop.module_path)
        worker.turn()
    finally:
        task_enqueued.disconnect(receiver)
    assert told == [("PgQueueBackend", "noop", Job.objects.get().pk, "READY")]
