"""Middleware around enqueue and run: its order, what it can do, and that only an exception changes an outcome."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import Group
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import transaction
from django.test import override_settings

from django_pgqueue import checks, middleware
from django_pgqueue.models import Execution, Job
from django_pgqueue.tasks import registry
from django_pgqueue.testing import run_jobs
from tests.app import middleware as app
from tests.app import tasks
from tests.framework import tasks as framework
from tests.worker.test_attempt import raw_job

pytestmark = pytest.mark.django_db


def using(*names: str, **options: Any) -> Any:
    """Return an override of the settings with these middleware of the test app."""
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


# ------------------------------------------------------------------ order and arguments


@using("Outer", "Inner")
def test_middleware_first_entry_is_outermost():
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
def test_middleware_enqueue_many_is_one_call():
    tasks.add.enqueue_many(((n,), {}) for n in range(3000))
    assert len(app.seen) == 1


@using("Outer")
def test_middleware_wraps_every_attempt():
    ran(tasks.fail_until.enqueue(3))
    assert [entry[1] for entry in app.seen] == ["enqueue", "in", "raised", "in", "raised", "in", "out"]


@using("Awaiting")
@pytest.mark.parametrize(
    ("task", "seen"), [(tasks.add, ["run"]), (tasks.async_add, ["arun", "arun out"])], ids=["sync", "async"]
)
def test_middleware_coroutine_uses_arun_if_defined(task, seen):
    assert ran(task.enqueue(1, 2)).result == 3
    assert app.seen == seen


@using()
def test_middleware_empty_list_has_no_overhead(monkeypatch):
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
def test_middleware_header_carries_context_variable(task):
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
def test_middleware_added_header_is_for_one_call():
    task = tasks.noop.using(headers={"a": 1})
    token = app.tenant.set("acme")
    assert task.enqueue().headers == {"a": 1, "tenant": "acme"}
    app.tenant.reset(token)
    assert task.enqueue().headers == {"a": 1}


@using("Tenancy", IMMEDIATE=True)
def test_middleware_immediate_job_gets_context_variable():
    app.tenant.set("acme")
    assert tasks.current_tenant.enqueue().result == "acme"
    app.tenant.set(None)


@using("Tenancy")
def test_middleware_framework_task_gets_header():
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
def test_middleware_overrides_headers_of_using(monkeypatch):
    monkeypatch.setattr(app.SetsHeaders, "headers", {"b": 2})
    assert tasks.noop.using(headers={"a": 1}).enqueue().headers == {"b": 2}
    monkeypatch.setattr(app.SetsHeaders, "headers", {})
    job = tasks.noop.using(headers={"a": 1}).enqueue()
    job.refresh_from_db()
    assert job.headers is None, "empty headers are stored as NULL, which takes no space"


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
def test_headers_invalid_are_refused_and_add_no_job(headers, error, words):
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
def test_headers_malformed_in_row_release_only_that_job(text):
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


# ------------------------------------------------------------------ what middleware can change


@pytest.mark.promise("middleware-raises-at-enqueue")
@using("Refuses")
@pytest.mark.parametrize("enqueue", [lambda: tasks.noop.enqueue(), lambda: tasks.noop.enqueue_many([((), {})])])
def test_middleware_error_at_enqueue_keeps_the_transaction(enqueue):
    with transaction.atomic():
        Group.objects.create(name="before")
        with pytest.raises(PermissionError, match=r"not tests.app.tasks.noop"):
            enqueue()
        Group.objects.create(name="after")
    assert not Job.objects.exists()
    assert Group.objects.count() == 2


@pytest.mark.promise("middleware-raises-before-function")
@using("Outer", "FailsAtEntry")
@pytest.mark.parametrize("task", [tasks.create_group, tasks.async_plus], ids=["atomic", "async"])
def test_middleware_error_at_entry_fails_before_the_function(task):
    job = ran(task.using(max_attempts=1).enqueue("never"))
    assert (job.state, last(job).exception_class, last(job).error) == ("dead", "builtins.LookupError", "at entry")
    assert app.seen[-1] == ("outer", "raised", "LookupError")
    assert not Group.objects.exists()


@using("FailsAtEntry")
def test_middleware_error_at_entry_follows_the_retry_policy():
    job = ran(tasks.fail.enqueue())
    assert (job.state, job.attempt) == ("dead", 2)


@using("Snoozes")
def test_middleware_raised_snooze_snoozes_the_job():
    job = ran(tasks.noop.enqueue())
    assert (job.state, job.attempt, last(job).outcome) == ("ready", 0, "snoozed")


@pytest.mark.promise("middleware-raises-after-function")
@using("FailsAtExit")
def test_middleware_error_at_exit_fails_and_rolls_back():
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
def test_middleware_swallowed_exception_still_counts(job, state, error):
    done = ran(job())
    assert done.state == state
    assert error is None or last(done).error == error


@using("Swallows", "FailsAtEntry")
def test_middleware_cannot_swallow_entry_error_of_another():
    job = ran(tasks.noop.using(max_attempts=1).enqueue())
    assert (job.state, last(job).error) == ("dead", "at entry")


@using("Translates")
def test_middleware_can_replace_an_error_of_the_task():
    job = ran(tasks.fail.using(max_attempts=1).enqueue("mine"))
    assert (last(job).exception_class, last(job).error) == ("builtins.LookupError", "translated")
    assert "RuntimeError: mine" in last(job).traceback


@pytest.mark.promise("middleware-cannot-replace-outcome")
@using("Translates")
@pytest.mark.parametrize("task", [tasks.raise_timeout, tasks.raise_lease_lost])
def test_middleware_cannot_replace_errors_of_the_worker(task):
    assert last(ran(task.enqueue())).error == "as if"


@using("Translates")
@pytest.mark.parametrize("task", [tasks.add, tasks.async_add], ids=["sync", "async"])
def test_middleware_wrong_arguments_release_the_job(task):
    job = raw_job(task.name, '{"args":[1,2,3,4],"kwargs":{}}')
    run_jobs()
    assert last(job).outcome == "released"


@using("ReturnsNothing")
def test_middleware_run_without_context_manager_fails_attempt():
    job = ran(tasks.noop.using(max_attempts=1).enqueue())
    assert last(job).exception_class == "builtins.TypeError"


# ------------------------------------------------------------------ checks of the list


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
def test_middleware_invalid_class_fails_check_and_commands(path, words):
    with override_settings(PGQUEUE={"MIDDLEWARE": [path]}):
        [error] = checks.check_classes(None)
        assert error.id == "pgqueue.E005"
        with pytest.raises(ImproperlyConfigured, match=words):
            tasks.noop.enqueue()
        with pytest.raises(CommandError, match=words):
            call_command("runworker", "--until-empty")
    assert not Job.objects.exists()


@pytest.mark.parametrize("given", ["tests.app.middleware.Outer", [7], None])
def test_middleware_setting_that_is_not_a_list_fails_check(given):
    with override_settings(PGQUEUE={"MIDDLEWARE": given}):
        assert checks.check_classes(None) == []
        [error] = checks.check_settings(None)
        assert "must be a list of dotted paths to classes" in error.msg


@using("Outer", "Awaiting")
def test_middleware_is_instantiated_once(monkeypatch):
    made = []
    original = registry.imported
    monkeypatch.setattr(registry, "imported", lambda path: made.append(path) or original(path))
    for _ in range(3):
        ran(tasks.noop.enqueue())
    assert len(made) == 2
    assert checks.check_classes(None) == []
