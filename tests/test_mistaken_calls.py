"""Errors that say what to do instead: methods of other queues, coroutines, missing tables, a missing app."""

from __future__ import annotations

import asyncio
import copy
import importlib
import os
import subprocess
import sys
from dataclasses import FrozenInstanceError
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from django.db import IntegrityError, ProgrammingError, connection, transaction
from psycopg import errors

import django_pgqueue
from django_pgqueue import (
    Batch,
    Cancel,
    Dead,
    InvalidTask,
    Retry,
    Snooze,
    Throttled,
    chain,
    control,
    cron,
    enqueue_many,
    every,
    task,
)
from django_pgqueue.enqueue.mistaken_calls import INSTEAD
from django_pgqueue.models import Job
from django_pgqueue.tasks import registry
from tests.app import tasks
from tests.framework import tasks as framework_tasks

both = pytest.mark.parametrize("task", [tasks.add, framework_tasks.add], ids=["own", "framework"])

# ------------------------------------------------------------------ methods of other queues


@both
@pytest.mark.parametrize(("name", "says"), [("delay", "call enqueue"), ("apply_async", "call using")])
def test_method_of_another_queue_says_what_to_call(task, name, says):
    with pytest.raises(AttributeError, match=says):
        getattr(task, name)
    assert not hasattr(task, name)


@both
def test_advised_methods_exist(task):
    for advice in INSTEAD.values():
        method = advice.removeprefix("await ").partition("(")[0]
        assert callable(getattr(task, method))


@both
def test_unknown_attribute_is_a_plain_attribute_error(task):
    with pytest.raises(AttributeError, match=r"object has no attribute 'nonsense'$"):
        _ = task.nonsense
    assert copy.copy(task) == task


@both
def test_error_inside_a_property_is_not_hidden(task, monkeypatch):
    def broken(self):
        return object().missing

    monkeypatch.setattr(type(task), "module_path", property(broken))
    with pytest.raises(AttributeError, match="'object' object has no attribute 'missing'"):
        _ = task.module_path


# ------------------------------------------------------------------ first guesses


def untyped(value: object) -> Any:
    """Return a value of which type checkers know nothing. They would find each of these guesses."""
    return value


@pytest.mark.parametrize(
    ("guess", "advice"),
    [
        (lambda: untyped(chain)(tasks.add.s(1), tasks.add.s(2)), "write chain(a.s()).then(b.s())"),
        (lambda: untyped(every)(300), "write every(seconds=300)"),
        (lambda: untyped(every)("5m"), "write every(minutes=5)"),
        (lambda: untyped(every)(timedelta(hours=2)), "write every(seconds=7200)"),
        (lambda: untyped(every)("soon"), "such as every(minutes=5)"),
        (lambda: untyped(cron)(minute=0), 'cron("0 * * * *")'),
        (lambda: untyped(cron)(hour=3, minute="*/5"), 'cron("*/5 3 * * *")'),
        (lambda: untyped(tasks).add.using(queue="mail"), "did you mean 'queue_name'?"),
        (lambda: untyped(tasks).add.using(countdown=3), "did you mean 'run_after'?"),
        (lambda: untyped(tasks).add.using(prioritiy=3), "did you mean 'priority'?"),
        (lambda: untyped(tasks).add.using(nonsense=3), "the options are batch, database"),
        (lambda: untyped(tasks).add.enqueue(1, run_after=60), "as in add.using(run_after=…).enqueue(…)"),
        (lambda: untyped(tasks).add.enqueue(1, eta=60), "as in add.using(run_after=…).enqueue(…)"),
        (lambda: untyped(tasks).add.enqueue(1, queue_name="mail"), "as in add.using(queue_name=…).enqueue(…)"),
        (
            lambda: untyped(tasks).use_token.enqueue(tokn="x"),
            "unexpected keyword argument 'tokn': did you mean 'token'?",
        ),
        (lambda: untyped(task)(retries=3)(tasks.add.func), "pass max_attempts=4 for three retries"),
        (lambda: untyped(tasks).add.retry(), "raise Retry(…) in the function"),
        (lambda: untyped(tasks).add.signature((1,)), "call s(…)"),
        (lambda: untyped(cron)("@daily", args="five"), "args must be a list of positional arguments, not 'five'"),
        (lambda: untyped(every)(hours=1, kwargs=[5]), "kwargs must be a dict of named arguments, not [5]"),
        (lambda: task(timeout=-1)(tasks.add.func), "timeout must be longer than 0 seconds, not -1: pass None"),
        (lambda: Retry("60"), "Retry('60') has a reason and no delay: write Retry(60), or Retry(reason=…)"),
        (lambda: untyped(Retry)(countdown=60), "Retry() got an unexpected keyword argument 'countdown': did you"),
        (lambda: untyped(Snooze)(), "Snooze() missing a required argument: 'after': write Snooze(60)"),
        (
            lambda: untyped(Throttled)(delay=5),
            "missing a required argument: 'after': did you mean 'after'?",
        ),
        (lambda: untyped(Cancel)(resaon="x"), "'resaon': did you mean 'reason'?"),
        (lambda: untyped(Dead)(1, 2), "Dead() too many positional arguments: write Dead("),
        (lambda: untyped(Batch)(on_succes=tasks.add.s(1)), "keyword argument 'on_succes': did you mean 'on_success'?"),
        (lambda: untyped(Job)(pk=1).get(), "call wait(timeout)"),
        (lambda: untyped(Job)(pk=1).ready(), "read is_finished"),
        (lambda: Job.from_db("default", ["id"], [1]).save(), "job 1 cannot be saved"),
    ],
)
def test_first_guess_gets_the_right_spelling(guess, advice):
    with pytest.raises((TypeError, InvalidTask, AttributeError)) as raised:
        guess()
    assert advice in str(raised.value)


@pytest.mark.parametrize(
    ("name", "advice"),
    [("shared_task", "import task"), ("Celery", "decorate functions"), ("Job", ".models import Job")],
)
def test_import_of_another_queues_name_says_what_to_import(name, advice):
    with pytest.raises(ImportError, match=advice):
        exec(f"from django_pgqueue import {name}")  # noqa: S102 -- the statement is the test
    assert not hasattr(django_pgqueue, name)
    with pytest.raises(ImportError, match="cannot import name 'nonsense'"):
        exec("from django_pgqueue import nonsense")  # noqa: S102


def test_job_unknown_attribute_is_a_plain_error():
    with pytest.raises(AttributeError, match=r"object has no attribute 'nonsense'$"):
        _ = untyped(Job)(pk=1).nonsense


@pytest.mark.django_db
@pytest.mark.parametrize(
    "write",
    [
        lambda: Job.objects.update(state="dead"),
        lambda: Job.objects.create(task_name="x", arguments={}, state="dead"),
    ],
)
def test_job_written_with_a_wrong_state_names_the_acts(write):
    job = tasks.add.enqueue(1)
    with pytest.raises(IntegrityError, match=r"job_state.*cancel\(\).* call task\.enqueue"), transaction.atomic():
        write()
    job.refresh_from_db()
    assert job.state == "ready"


@pytest.mark.django_db
@pytest.mark.parametrize(
    "calls",
    [
        lambda: [(1,), ("x",)],
        lambda: [(1,), (1, 2, 3)],
        lambda: [(1,), (object(),)],
        lambda: iter([tasks.add.s(1), untyped(tasks).add.using(priority=3).s("x")]),
    ],
)
def test_enqueue_many_error_names_the_position(calls):
    with pytest.raises(TypeError, match=r"^enqueue_many\(\): call 1: "):
        tasks.add.enqueue_many(calls())
    assert not Job.objects.exists()


@pytest.mark.django_db
def test_enqueue_many_error_of_a_project_gets_a_note():
    def keyed(a: int, b: int = 0) -> str:
        raise UnicodeDecodeError("ascii", b"x", 0, 1, str(a))

    with pytest.raises(UnicodeDecodeError) as raised:
        tasks.add.using(unique_key=keyed).enqueue_many([(7,)])
    assert raised.value.__notes__ == ["This is the error of call 0 of enqueue_many()."]


# ------------------------------------------------------------------ one name, two functions

TWICE = """
from django_pgqueue import task

@task
def send() -> None: ...

@task
def send() -> None: ...
"""


def test_task_defined_twice_in_a_module_is_refused(tmp_path, monkeypatch):
    (tmp_path / "defined_twice.py").write_text(TWICE)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InvalidTask, match=r"defined_twice defines the task defined_twice\.send twice"):
        importlib.import_module("defined_twice")
    (tmp_path / "defined_once.py").write_text(TWICE.rpartition("@task")[0])
    module = importlib.import_module("defined_once")
    first = module.send
    assert importlib.reload(module).send is not first
    monkeypatch.delitem(registry._tasks, "defined_twice.send")
    monkeypatch.delitem(registry._tasks, "defined_once.send")


def test_enqueue_of_a_task_of_the_program_says_where_to_move_it(monkeypatch):
    monkeypatch.setattr(tasks.add.func, "__module__", "__main__")
    with pytest.raises(InvalidTask, match=r"add: it is defined in the program itself.* Move the task to <app>\.tasks"):
        tasks.add.enqueue(1)


# ------------------------------------------------------------------ patched methods


@both
def test_method_of_a_task_can_be_patched(task):
    original = task.enqueue
    with mock.patch.object(task, "enqueue") as patched:
        task.enqueue(5)
    patched.assert_called_once_with(5)
    assert task.enqueue == original
    path = f"{task.func.__module__}.add.enqueue"
    with mock.patch(path, autospec=True) as patched:
        task.enqueue(6)
    patched.assert_called_once_with(6)


@both
def test_option_of_a_task_cannot_be_set(task):
    with pytest.raises(FrozenInstanceError, match=r"^priority of <?.* cannot be set: .* Make a copy by using\(\)"):
        task.priority = 5
    with pytest.raises(AttributeError, match="has no method 'nonsense'"):
        task.nonsense = 5
    with pytest.raises(FrozenInstanceError, match="cannot be deleted"):
        del task.enqueue


def test_error_inside_of_an_advised_function_is_not_changed():
    with pytest.raises(TypeError) as raised:
        untyped(every)(minutes="five")
    assert "write every" not in str(raised.value)


# ------------------------------------------------------------------ coroutines


@pytest.mark.django_db
@both
def test_enqueue_in_coroutine_names_aenqueue(task):
    async def call():
        task.enqueue(1)

    with pytest.raises(SynchronousOnlyOperation, match=r"await task\.aenqueue") as raised:
        asyncio.run(call())
    assert isinstance(raised.value.__cause__, SynchronousOnlyOperation)
    assert not Job.objects.exists()


@pytest.mark.django_db
def test_enqueue_of_unique_job_in_coroutine_names_aenqueue():
    async def call():
        tasks.noop.using(unique_key="k").enqueue()

    with pytest.raises(SynchronousOnlyOperation, match=r"await task\.aenqueue"):
        asyncio.run(call())


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("call", "form"),
    [
        (lambda: tasks.add.enqueue_many([(1,)]), r"await task\.aenqueue_many"),
        (lambda: tasks.add.using(unique_key="k").enqueue_many([(1,)]), r"await task\.aenqueue_many"),
        (lambda: enqueue_many([tasks.add.s(1)]), r"await aenqueue_many"),
    ],
    ids=["plain", "unique", "of tasks"],
)
def test_enqueue_many_in_coroutine_names_aenqueue_many(call, form):
    async def run():
        call()

    with pytest.raises(SynchronousOnlyOperation, match=form):
        asyncio.run(run())


# ------------------------------------------------------------------ missing tables


@pytest.fixture
def without_tables(db):
    """Hide the tables from the statements of this test, as in a database without migrations."""
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL search_path TO pg_temp")
        yield
        transaction.set_rollback(True)


@pytest.mark.parametrize(
    "call",
    [
        lambda: tasks.add.enqueue(1),
        lambda: tasks.add.using(unique_key="k").enqueue(1),
        lambda: tasks.add.enqueue_many([((1,), {})]),
        lambda: framework_tasks.add.enqueue(1),
        lambda: control.pause("mail"),
        lambda: Job(pk=1, state="dead").retry(),
    ],
    ids=["enqueue", "unique", "many", "framework", "pause", "retry"],
)
def test_missing_table_names_migrate(without_tables, call):
    with pytest.raises(ProgrammingError, match=r"Run `manage.py migrate`\.$") as raised:
        call()
    assert 'relation "pgqueue_' in str(raised.value)
    assert isinstance(raised.value.__cause__, ProgrammingError)
    assert isinstance(raised.value.__cause__.__cause__, errors.UndefinedTable)


def test_missing_table_leaves_the_transaction_failed(without_tables):
    with pytest.raises(ProgrammingError):
        tasks.add.enqueue(1)
    with pytest.raises(Exception, match="current transaction is aborted"), connection.cursor() as cursor:
        cursor.execute("SELECT 1")


@pytest.mark.django_db
def test_missing_table_of_the_application_is_not_explained():
    """A trigger of the application on our table can fail because of a table of its own."""
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(
                "CREATE FUNCTION pg_temp.fail() RETURNS trigger LANGUAGE plpgsql AS "
                "$$ BEGIN PERFORM 1 FROM shop_audit; RETURN NEW; END $$"
            )
            cursor.execute(
                "CREATE TRIGGER audit BEFORE INSERT ON pgqueue_job FOR EACH ROW EXECUTE FUNCTION pg_temp.fail()"
            )
        with pytest.raises(ProgrammingError, match='"shop_audit" does not exist') as raised:
            tasks.add.enqueue(1)
        assert "migrate" not in str(raised.value)
        transaction.set_rollback(True)


# ------------------------------------------------------------------ a missing app

WITHOUT_APP = """
import django, sys
from django.conf import settings
apps = [] if django.VERSION >= (6, 0) else ["django_tasks"]
settings.configure(
    SECRET_KEY="x", INSTALLED_APPS=apps, USE_TZ=True,
    DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "nothing"}},
    TASKS={"default": {"BACKEND": "django_pgqueue.backend.PgQueueBackend", "QUEUES": []}},
)
django.setup()
from tests.without_app import own, framework
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
print(*[message.id for message in run_checks()])
for task in (own, framework):
    try:
        task.enqueue()
    except ImproperlyConfigured as error:
        print(error)
"""


def test_tasks_setting_without_the_app_fails_a_check_and_enqueue():
    environment = {key: value for key, value in os.environ.items() if key != "DJANGO_SETTINGS_MODULE"}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_APP], capture_output=True, text=True, check=True, timeout=60, env=environment
    )
    check, own, framework = done.stdout.splitlines()
    assert check == "pgqueue.E004"
    assert own == framework
    assert "add 'django_pgqueue' to INSTALLED_APPS" in own
