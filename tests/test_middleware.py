"""Middleware around enqueue and run: its order, what it may do, and that it can change no outcome but by raising."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import Group
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import transaction
from django.test import override_settings

from django_pgqueue import checks, middleware, registry
from django_pgqueue.models import Execution, Job
from django_pgqueue.testing import run_jobs
from tests.app import middleware as app
from tests.app import tasks
from tests.framework import tasks as framework
from tests.worker.test_executor import raw_job

pytestmark = pytest.mark.django_db


def using(*names: str, **options: Any) -> Any:
    """Have these middleware of the tests' own."""
    return override_settings(PGQUEUE={"MIDDLEWARE": [f"tests.app.middleware.{name}" for name in names], **options})


@pytest.fixture(autouse=True)
def forget():
    app.seen.clear()
    yield
    middleware.chain.cache_clear()


def ran(job: Job) -> Job:
    run_jobs()
    return Job.objects.get(pk=job.pk)


def last(job: Job) -> Execution:
    return Execution.objects.filter(job=job).latest("id")


# ------------------------------------------------------------------ order, and what it is told


@using("Outer", "Inner")
def test_the_first_is_outermost():
    job = ran(tasks.noop.enqueue())
    assert app.seen == [
        ("outer", "enqueue", "tests.app.tasks.noop", "default"),
        ("inner", "enqueue", "tests.app.tasks.noop", "default"),
        ("outer", "in", job.pk, 1, "tests.app.tasks.noop"),
        ("inner", "in", job.pk, 1, "tests.app.tasks.noop"),
        ("inner", "out"),
        ("outer", "out"),
    ]
    assert (job.state, job.headers) == ("succeeded", None)


@using("Outer")
def test_a_batch_is_one_call():
    tasks.add.enqueue_many(((n,), {}) for n in range(3000))
    assert len(app.seen) == 1


@using("Outer")
def test_every_attempt_is_run_inside():
    ran(tasks.fail_until.enqueue(3))
    assert [one[1] for one in app.seen] == ["enqueue", "in", "raised", "in", "raised", "in", "out"]


@using("Awaiting")
@pytest.mark.parametrize(
    ("task", "seen"), [(tasks.add, ["run"]), (tasks.async_add, ["arun", "arun out"])], ids=["sync", "async"]
)
def test_a_coroutine_has_a_way_of_its_own_where_there_is_one(task, seen):
    assert ran(task.enqueue(1, 2)).result == 3
    assert app.seen == seen


@using()
def test_without_middleware_nothing_is_made_for_it(monkeypatch):
    def refuse(*args: Any) -> None:
        raise AssertionError("called")

    monkeypatch.setattr(middleware, "run_inside", refuse)
    monkeypatch.setattr(middleware, "arun_inside", refuse)
    monkeypatch.setattr(middleware, "Call", refuse)
    assert ran(tasks.add.enqueue(1, 2)).result == 3
    assert ran(tasks.async_add.enqueue(1, 2)).result == 3


# ------------------------------------------------------------------ headers


@using("Tenancy")
@pytest.mark.parametrize("task", [tasks.current_tenant, tasks.acurrent_tenant], ids=["sync", "async"])
def test_a_context_variable_goes_with_the_job(task):
    token = app.tenant.set("acme")
    job = task.enqueue()
    [many] = task.enqueue_many([((), {})])
    ajob = async_to_sync(task.aenqueue)()
    app.tenant.reset(token)
    none = task.enqueue()
    assert job.headers == {"tenant": "acme"}
    run_jobs(raising=True)
    results = [Job.objects.get(pk=pk).result for pk in (job.pk, many, ajob.pk, none.pk)]
    assert results == ["acme", "acme", "acme", None]
    assert app.tenant.get() is None


@using("Tenancy")
def test_what_it_adds_is_of_one_call():
    task = tasks.noop.using(headers={"a": 1})
    token = app.tenant.set("acme")
    assert task.enqueue().headers == {"a": 1, "tenant": "acme"}
    app.tenant.reset(token)
    assert task.enqueue().headers == {"a": 1}


@using("Tenancy", IMMEDIATE=True)
def test_also_where_a_job_runs_at_its_enqueue():
    app.tenant.set("acme")
    assert tasks.current_tenant.enqueue().result == "acme"
    app.tenant.set(None)


@using("Tenancy")
def test_also_for_tasks_of_django_s_framework():
    app.tenant.set("acme")
    framework.noop.enqueue()
    app.tenant.set(None)
    assert Job.objects.get().headers == {"tenant": "acme"}
    run_jobs(raising=True)


def test_headers_of_using_are_in_the_context():
    given = {"trace": "00-ab", "n": 1, "f": 0.5, "b": True, "none": None}
    job = tasks.headers.using(headers=given).enqueue()
    assert job.headers == given
    assert ran(job).result == given
    assert ran(tasks.headers.enqueue()).result == {}


@using("SetsHeaders")
def test_middleware_has_the_last_word_on_headers(monkeypatch):
    monkeypatch.setattr(app.SetsHeaders, "headers", {"b": 2})
    assert tasks.noop.using(headers={"a": 1}).enqueue().headers == {"b": 2}
    monkeypatch.setattr(app.SetsHeaders, "headers", {})
    job = tasks.noop.using(headers={"a": 1}).enqueue()
    job.refresh_from_db()
    assert job.headers is None, "NULL, which costs nothing"


@pytest.mark.parametrize(
    ("headers", "error", "words"),
    [
        ({"a": [1]}, TypeError, "header 'a' is of type list"),
        ({"a": {}}, TypeError, "header 'a' is of type dict"),
        ({1: "a"}, TypeError, "a header's name is of type int"),
        ([("a", 1)], TypeError, "headers must be a mapping"),
        ({"a": "x\x00"}, ValueError, "NUL"),
        ({"a": float("nan")}, ValueError, "header 'a' is nan"),
        ({"a": "x" * 4100}, ValueError, "4,108 bytes of JSON, more than 4,096"),
        ({"a": "ä" * 2050}, ValueError, "bytes of JSON, more than 4,096"),
    ],
)
def test_headers_that_are_none_are_refused_before_anything_is_written(headers, error, words):
    with using("SetsHeaders"), pytest.MonkeyPatch.context() as patched:
        patched.setattr(app.SetsHeaders, "headers", headers)
        with pytest.raises(error, match=words):
            tasks.noop.enqueue()
        with pytest.raises(error, match=words):
            tasks.noop.enqueue_many([((), {})])
    if isinstance(headers, dict):
        with pytest.raises(error, match=words):
            tasks.noop.using(headers=headers).enqueue()
    assert not Job.objects.exists()


@pytest.mark.parametrize("text", ["[]", "7", '"x"', "null", "[" * 5000 + "]" * 5000])
def test_headers_that_a_stranger_wrote_stop_nothing(text):
    from django.db import connection

    job = tasks.noop.enqueue()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_job SET headers = %s::json", [text])
    good = tasks.add.enqueue(1, 2)
    assert run_jobs() == 2
    good.refresh_from_db()
    assert good.state == "succeeded"
    assert last(job).outcome == "released"
    assert "headers cannot be read" in last(job).error


# ------------------------------------------------------------------ what it can change, and what not


@pytest.mark.promise("middleware-raises-at-enqueue")
@using("Refuses")
@pytest.mark.parametrize("enqueue", [lambda: tasks.noop.enqueue(), lambda: tasks.noop.enqueue_many([((), {})])])
def test_what_it_raises_at_an_enqueue_leaves_nothing_and_the_transaction_alone(enqueue):
    with transaction.atomic():
        Group.objects.create(name="before")
        with pytest.raises(PermissionError, match=r"not tests.app.tasks.noop"):
            enqueue()
        Group.objects.create(name="after")
    assert not Job.objects.exists()
    assert Group.objects.count() == 2


@pytest.mark.promise("middleware-raises-before-function")
@using("Outer", "FailsAtEntry")
@pytest.mark.parametrize("task", [tasks.create_group, tasks.async_add], ids=["atomic", "async"])
def test_what_it_raises_before_the_function_fails_the_attempt_and_the_function_is_not_entered(task):
    job = ran(task.using(max_attempts=1).enqueue("never"))
    assert (job.state, last(job).exception_class, last(job).error) == ("dead", "builtins.LookupError", "at entry")
    assert app.seen[-1] == ("outer", "raised", "LookupError")
    assert not Group.objects.exists()


@using("FailsAtEntry")
def test_that_failure_is_tried_again_by_the_task_s_policy():
    job = ran(tasks.fail.enqueue())
    assert (job.state, job.attempt) == ("dead", 2)


@using("Snoozes")
def test_it_may_raise_what_a_task_may():
    job = ran(tasks.noop.enqueue())
    assert (job.state, job.attempt, last(job).outcome) == ("ready", 0, "snoozed")


@pytest.mark.promise("middleware-raises-after-function")
@using("FailsAtExit")
def test_what_it_raises_afterwards_fails_the_attempt_and_rolls_an_atomic_one_back():
    job = ran(tasks.create_group.using(max_attempts=1).enqueue("never"))
    assert (job.state, last(job).error) == ("dead", "at exit")
    assert not Group.objects.exists()


@pytest.mark.promise("swallowed-exception-counts")
@using("SwallowsToo", "Swallows")
@pytest.mark.parametrize(
    ("job", "state", "error"),
    [
        (lambda: tasks.fail.using(max_attempts=1).enqueue("mine"), "dead", "mine"),
        (lambda: tasks.async_fail.enqueue("mine"), "dead", "mine"),
        (lambda: tasks.raise_timeout.enqueue(), "dead", "as if"),
        (lambda: tasks.raise_lease_lost.enqueue(), "dead", "as if"),
        (lambda: tasks.raise_directive.enqueue("snooze", after=60), "ready", None),
        (lambda: tasks.raise_directive.enqueue("cancel"), "cancelled", None),
    ],
)
def test_what_it_swallows_counts_all_the_same(job, state, error):
    done = ran(job())
    assert done.state == state
    assert error is None or last(done).error == error


@using("Swallows", "FailsAtEntry")
def test_one_cannot_swallow_what_another_raised_at_its_entry():
    job = ran(tasks.noop.using(max_attempts=1).enqueue())
    assert (job.state, last(job).error) == ("dead", "at entry")


@using("Translates")
def test_it_may_raise_something_else_in_place_of_an_error():
    job = ran(tasks.fail.using(max_attempts=1).enqueue("mine"))
    assert (last(job).exception_class, last(job).error) == ("builtins.LookupError", "translated")
    assert "RuntimeError: mine" in last(job).traceback


@pytest.mark.promise("middleware-cannot-replace-outcome")
@using("Translates")
@pytest.mark.parametrize("task", [tasks.raise_timeout, tasks.raise_lease_lost])
def test_nothing_takes_the_place_of_the_worker_s_own_word(task):
    assert last(ran(task.enqueue())).error == "as if"


@using("Translates")
@pytest.mark.parametrize("task", [tasks.add, tasks.async_add], ids=["sync", "async"])
def test_arguments_that_do_not_fit_are_no_error_of_the_task(task):
    job = raw_job(task.name, '{"args":[1,2,3,4],"kwargs":{}}')
    run_jobs()
    assert last(job).outcome == "released"


@using("ReturnsNothing")
def test_a_run_that_returns_no_context_manager_fails_the_attempt():
    job = ran(tasks.noop.using(max_attempts=1).enqueue())
    assert last(job).exception_class == "builtins.TypeError"


# ------------------------------------------------------------------ the list is checked before


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (
            "tests.app.middleware.Missing",
            "cannot be imported: .* has no attribute 'Missing'",
        ),
        ("tests.nowhere.Missing", "cannot be imported: No module named 'tests.nowhere'"),
        ("Missing", "cannot be imported: "),
        ("tests.app.middleware.number", "must be a class"),
        ("tests.app.middleware.Nothing", "at least one of the methods enqueue, run, arun"),
        ("tests.app.middleware.NoManager", "decorate a generator function with contextlib.contextmanager"),
        ("tests.app.middleware.NoAsyncManager", "contextlib.asynccontextmanager"),
        ("tests.app.middleware.OnlyAsync", r"has arun\(\) for coroutine tasks but no run\(\)"),
        ("tests.app.middleware.AsyncEnqueue", r"its enqueue\(\) must be a plain method"),
        ("tests.app.middleware.NoMethod", "its run must be a method"),
        ("tests.app.middleware.NeedsArguments", "cannot be instantiated: TypeError"),
    ],
)
def test_what_is_no_middleware_is_an_error_of_the_check_of_the_worker_and_of_an_enqueue(path, words):
    with override_settings(PGQUEUE={"MIDDLEWARE": [path]}):
        [error] = checks.check_middleware(None)
        assert error.id == "pgqueue.E005"
        with pytest.raises(ImproperlyConfigured, match=words):
            tasks.noop.enqueue()
        with pytest.raises(CommandError, match=words):
            call_command("runworker", "--until-empty")
    assert not Job.objects.exists()


@pytest.mark.parametrize("given", ["tests.app.middleware.Outer", [7], None])
def test_what_is_no_list_of_paths_is_an_error_of_the_settings(given):
    with override_settings(PGQUEUE={"MIDDLEWARE": given}):
        assert checks.check_middleware(None) == []
        [error] = checks.check_settings(None)
        assert "must be a list of dotted paths to classes" in error.msg


@using("Outer", "Awaiting")
def test_middleware_is_made_once(monkeypatch):
    made = []
    original = registry.imported
    monkeypatch.setattr(registry, "imported", lambda path: made.append(path) or original(path))
    for _ in range(3):
        ran(tasks.noop.enqueue())
    assert len(made) == 2
    assert checks.check_middleware(None) == []
