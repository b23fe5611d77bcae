"""Django's error reports of errors in `enqueue()` and its relatives: no frame of this package shows an argument."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction
from django.db.backends.utils import CursorWrapper
from django.test import RequestFactory, override_settings
from django.views.debug import ExceptionReporter

from django_pgqueue import ResultNotStored, aenqueue_many, enqueue_many
from django_pgqueue.backend.task_class import PgQueueTask
from django_pgqueue.task import Task
from django_pgqueue.tasks import redaction
from django_pgqueue.testing import run_jobs
from django_pgqueue.worker.execution import report
from tests.app import tasks
from tests.framework import tasks as framework_tasks

SECRET = "-".join(("hunter2", "correct", "horse"))  # not as one text, because reports show lines of the source
STARS = "*" * 20

token, framework_token = tasks.use_token, framework_tasks.use_token
unique = token.using(unique_key=lambda order_id, token: token)

CALLS: dict[str, Callable[[], Any]] = {
    "enqueue": lambda: token.enqueue(1, SECRET),
    "unique": lambda: unique.enqueue(1, SECRET),
    "using": lambda: token.using(priority=3).enqueue(1, token=SECRET),
    "aenqueue": lambda: async_to_sync(token.aenqueue)(1, SECRET),
    "enqueue_on_commit": lambda: token.enqueue_on_commit(1, SECRET),
    "aenqueue_on_commit": lambda: async_to_sync(token.aenqueue_on_commit)(1, SECRET),
    "enqueue_many": lambda: token.enqueue_many([(1, SECRET)] * 3),
    "enqueue_many_unique": lambda: unique.enqueue_many([(1, SECRET)] * 3),
    "aenqueue_many": lambda: async_to_sync(token.aenqueue_many)([(1, SECRET)] * 3),
    "mixed": lambda: enqueue_many([tasks.noop.s(), token.s(1, SECRET), unique.s(1, SECRET)]),
    "amixed": lambda: async_to_sync(aenqueue_many)([tasks.noop.s(), token.s(1, SECRET)]),
    "framework": lambda: framework_token.enqueue(1, SECRET),
    "framework_aenqueue": lambda: async_to_sync(framework_token.aenqueue)(1, SECRET),
    "framework_on_commit": lambda: framework_token.enqueue_on_commit(1, SECRET),
}


def reported(call: Callable[[], Any]) -> tuple[str, list[dict[str, str]]]:
    """Return the report of the error that a call raises, and the variables of its frames."""
    with pytest.raises(BrokenPipeError) as raised:
        call()
    reporter = ExceptionReporter(RequestFactory().get("/"), raised.type, raised.value, raised.tb)
    text = reporter.get_traceback_html() + reporter.get_traceback_text()
    return text, [dict(frame["vars"]) for frame in reporter.get_traceback_frames()]


@pytest.fixture
def broken(monkeypatch):
    """Let each INSERT of a job fail, below all functions of this package that enqueue."""

    def fail(self, sql, params=None):
        if "INSERT INTO pgqueue_job" in sql:
            assert SECRET in str(params), "the frame must contain the argument"
            raise BrokenPipeError("the connection is lost")
        return execute(self, sql, params)

    execute = CursorWrapper.execute
    monkeypatch.setattr(CursorWrapper, "execute", fail)


@pytest.mark.django_db
@pytest.mark.parametrize("kind", CALLS)
@override_settings(DEBUG=False)
def test_error_report_of_enqueue_hides_sensitive_arguments(broken, kind):
    text, frames = reported(CALLS[kind])
    assert SECRET not in text
    assert any(STARS in "".join(map(str, variables.values())) for variables in frames)


@override_settings(DEBUG=False)
def test_error_report_of_insert_after_commit_hides_arguments(other, broken):
    def enqueue_elsewhere() -> None:
        with transaction.atomic(using="other"):
            assert token.enqueue_on_commit(1, SECRET) is None

    assert SECRET not in reported(enqueue_elsewhere)[0]


@pytest.mark.django_db
@override_settings(DEBUG=False)
def test_error_report_shows_arguments_of_task_without_sensitive(broken, monkeypatch):
    assert SECRET in reported(lambda: tasks.plus.enqueue(SECRET, "!"))[0]
    monkeypatch.setattr(redaction, "_hiding_classes", {})
    assert SECRET in reported(lambda: enqueue_many([tasks.plus.s(SECRET, "!"), tasks.noop.s()]))[0]


@pytest.mark.django_db
@override_settings(DEBUG=False)
def test_error_report_of_unstorable_result_hides_it(monkeypatch):
    def refuse(value):
        raise BrokenPipeError("no result can be stored")

    monkeypatch.setattr(report, "encode_result", refuse)
    tasks.issue_token.enqueue(SECRET)
    with pytest.raises(ResultNotStored) as raised:
        run_jobs(raising=True)
    reporter = ExceptionReporter(RequestFactory().get("/"), raised.type, raised.value, raised.tb)
    text = reporter.get_traceback_html() + reporter.get_traceback_text()
    assert f"token-of-{SECRET}" not in text


def test_class_of_task_changes_only_with_sensitive():
    assert type(tasks.add) is Task
    assert type(framework_tasks.add) is PgQueueTask
    assert repr(token) == f"<Task {token.name}>"
    for task, base in ((token, Task), (framework_token, PgQueueTask)):
        assert type(task) is not base
        assert isinstance(task, base)
        assert type(task.using(priority=3)) is type(task)
        assert repr(task).lstrip("<").startswith(base.__name__)
        assert task.using(priority=3).using(priority=task.priority) == task
        assert type(task).aenqueue.__doc__ == base.aenqueue.__doc__


@pytest.mark.parametrize(
    "enqueue", [lambda: token.enqueue(1), lambda: token.enqueue_many([(1,)]), lambda: enqueue_many([token.s(1)])]
)
def test_warning_of_sensitive_task_names_the_callers_line(other, enqueue):
    with transaction.atomic(using="other"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        enqueue()
    assert [each.filename for each in caught] == [__file__]
