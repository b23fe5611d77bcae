"""Sensitive arguments: hidden in reprs, logs and Django's error reports, and refused if no argument has their name."""

from __future__ import annotations

import logging
from datetime import date
from typing import Any

import pytest
from django.db import connection
from django.test import RequestFactory, override_settings
from django.views.debug import ExceptionReporter

from django_pgqueue import InvalidTask, log, signals
from django_pgqueue.backend import task as backend_task
from django_pgqueue.backend.compat import InvalidTask as FrameworkInvalidTask
from django_pgqueue.exceptions import ResultNotStored
from django_pgqueue.lifecycle import claims
from django_pgqueue.lifecycle.types import Cursor, Lane, Succeeded
from django_pgqueue.models import Execution, Job
from django_pgqueue.task import Task
from django_pgqueue.tasks import registry
from django_pgqueue.tasks.redaction import HIDDEN, redacted_call
from django_pgqueue.testing import run_jobs
from django_pgqueue.worker.completion.progress_writer import Notes
from django_pgqueue.worker.foreground import attempt
from tests.app import tasks
from tests.framework import tasks as framework_tasks

SECRET = "hunter2-correct-horse"


def first(order_id, token, *, note="", **more): ...


def by_position(order_id, token, /, *rest): ...


def with_context(context, order_id, token=""): ...


def named(function: Any, *sensitive: str, **options: Any) -> Task[Any, Any]:
    return Task(func=function, sensitive=frozenset(sensitive), **options)


# ------------------------------------------------------------------ the option


@pytest.mark.parametrize(
    ("function", "sensitive", "message"),
    [
        (with_context, ["tokn"], "'tokn' is not an argument of the function: did you mean 'token'?"),
        (with_context, ["zzz"], "'zzz' is not an argument of the function: name arguments"),
        (by_position, ["more"], "'more' is not an argument"),
        (with_context, [7], "must be names of arguments, not 7"),
    ],
)
def test_task_sensitive_name_of_no_argument_is_refused(function, sensitive, message):
    with pytest.raises(InvalidTask, match=message.replace("?", r"\?")):
        Task(func=function, sensitive=sensitive)


def test_task_sensitive_string_or_context_is_refused():
    with pytest.raises(InvalidTask, match="sensitive must be a list of names, not the string 'token'"):
        Task(func=first, sensitive="token")
    with pytest.raises(InvalidTask, match="'context' is not an argument"):
        named(with_context, "context", takes_context=True)
    assert named(with_context, "context").sensitive == {"context"}


def test_task_sensitive_accepts_rest_of_arguments_and_return():
    assert named(by_position, "rest", "return").sensitive == {"rest", "return"}
    assert named(first, "more", "any_keyword").sensitive == {"more", "any_keyword"}


def test_backend_task_sensitive_typo_is_refused(monkeypatch):
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))
    with pytest.raises(FrameworkInvalidTask, match="did you mean 'token'"):
        backend_task(sensitive={"tokn"})(with_context)


@pytest.mark.parametrize(
    ("function", "sensitive", "call", "shown"),
    [
        (first, ["token"], ([1, 2], {"note": "n"}), ([1, HIDDEN], {"note": "n"})),
        (first, ["token"], ([1], {"token": 2, "x": 3}), ([1], {"token": HIDDEN, "x": 3})),
        (first, ["more"], ([1, 2], {"x": 3, "note": "n"}), ([1, 2], {"x": HIDDEN, "note": "n"})),
        (first, ["x"], ([1, 2], {"x": 3, "y": 4}), ([1, 2], {"x": HIDDEN, "y": 4})),
        (first, ["token"], ([1, 2, 3], {}), ([1, HIDDEN, HIDDEN], {})),
        (by_position, ["token"], ([1, 2, 3, 4], {}), ([1, HIDDEN, 3, 4], {})),
        (by_position, ["rest"], ([1, 2, 3, 4], {}), ([1, 2, HIDDEN, HIDDEN], {})),
        (by_position, ["token"], ([], {"token": 2, "order_id": 1}), ([], {"token": HIDDEN, "order_id": HIDDEN})),
        (with_context, ["token"], ([1, 2], {"former": 3}), ([1, HIDDEN], {"former": HIDDEN})),
        (with_context, ["return"], ([1, 2], {"former": 3}), ([1, 2], {"former": HIDDEN})),
        (with_context, [], ([1, 2, 3], {"former": 3}), ([1, 2, 3], {"former": 3})),
    ],
)
def test_redacted_call_shows_only_what_the_signature_names(function, sensitive, call, shown):
    task = named(function, *sensitive, takes_context=function is with_context)
    assert redacted_call(task, *call) == shown


# ------------------------------------------------------------------ where values could appear


@pytest.mark.django_db
@pytest.mark.parametrize("fail", [False, True])
def test_sensitive_value_is_in_no_log_signal_repr_or_error(caplog, fail):
    caplog.set_level(logging.DEBUG)
    log.enable()
    signalled: list[Any] = []
    senders = [value for value in vars(signals).values() if isinstance(value, signals.Signal)]
    for signal in senders:
        signal.connect(lambda **about: signalled.append(about), weak=False, dispatch_uid="sensitive")
    try:
        jobs = [each.enqueue(1, token=SECRET, fail=fail) for each in (tasks.use_token, tasks.use_token_async)]
        run_jobs()
    finally:
        log.disable()
        for signal in senders:
            signal.disconnect(dispatch_uid="sensitive")
    stored = Job.objects.filter(pk__in=[job.pk for job in jobs])
    assert {job.state for job in stored} == {"dead" if fail else "succeeded"}
    seen = [*jobs, *stored, stored, tasks.use_token, signalled, list(Execution.objects.values())]
    seen += [vars(record) for record in caplog.records]
    assert SECRET not in caplog.text + "".join(f"{each} {each!r}" for each in seen)


@pytest.mark.django_db
def test_repr_of_result_hides_sensitive_arguments_and_result():
    result = framework_tasks.use_token.enqueue(7, SECRET)
    run_jobs(raising=True)
    for each in (result, framework_tasks.use_token.get_result(result.id)):
        shown = repr(each)
        assert SECRET not in shown and f"args=[7, '{HIDDEN}']" in shown and f"_return_value='{HIDDEN}'" in shown
        assert "JobResult(" in shown and each.args == [7, SECRET]
    plain = framework_tasks.add.enqueue(7, 8)
    assert "args=[7, 8]" in repr(plain)


REPORTED = {"sync": tasks.use_token, "async": tasks.use_token_async}


@pytest.mark.django_db
@pytest.mark.parametrize("kind", REPORTED)
@override_settings(DEBUG=False)
def test_error_report_hides_sensitive_variables(kind):
    """Django's report shows the variables of each frame. Error mails have it as HTML with `include_html`."""
    REPORTED[kind].enqueue("order-17", token=SECRET, fail=True)
    with pytest.raises(tasks.KeptError) as raised:
        run_jobs(raising=True)
    exception = raised.value
    reporter = ExceptionReporter(RequestFactory().get("/"), type(exception), exception, exception.__traceback__)
    task_frame = [frame for frame in reporter.get_traceback_frames() if frame["function"].startswith("use_token")]
    [variables] = [dict(frame["vars"]) for frame in task_frame]
    assert "order-17" in variables["order_id"] and SECRET not in variables["token"]
    assert SECRET not in reporter.get_traceback_html() + reporter.get_traceback_text()


@pytest.mark.django_db
@override_settings(DEBUG=False)
def test_error_report_of_a_value_that_does_not_fit_hides_all():
    job = tasks.use_token_on.enqueue(date(2026, 1, 2), SECRET)
    Job.objects.filter(pk=job.pk).update(arguments={"args": ["no date", SECRET], "kwargs": {}})
    with pytest.raises(BaseException, match="do not fit") as raised:
        run_jobs(raising=True)
    reporter = ExceptionReporter(RequestFactory().get("/"), raised.type, raised.value, raised.tb)
    frames = [frame["function"] for frame in reporter.get_traceback_frames()]
    assert "decoded" in frames
    assert SECRET not in reporter.get_traceback_html() + reporter.get_traceback_text()


@pytest.mark.django_db
@override_settings(DEBUG=False, PGQUEUE={"MAX_RESULT_BYTES": 1})
def test_error_report_of_a_sensitive_result_hides_it():
    tasks.issue_token.enqueue(SECRET)
    with pytest.raises(ResultNotStored) as raised:
        run_jobs(raising=True)
    reporter = ExceptionReporter(RequestFactory().get("/"), raised.type, raised.value, raised.tb)
    assert "_succeeded" in {frame["function"] for frame in reporter.get_traceback_frames()}
    assert SECRET not in reporter.get_traceback_html() + reporter.get_traceback_text()


@pytest.mark.django_db
def test_repr_of_engine_values_omits_arguments_and_results():
    tasks.plus.enqueue(SECRET, "!")
    [claimed] = claims.claim(
        connection, {Lane("default", 0): Cursor()}, limit=1, free_slots=1, worker_id=1, lease_seconds=60.0
    )
    report = attempt("default", claimed, Notes())
    assert SECRET in claimed.arguments and SECRET in str(report.result)
    succeeded = Succeeded(claimed.key, report.result, 0.0, 0.0)
    assert SECRET not in repr((claimed, report, succeeded))


def test_task_without_sensitive_arguments_is_called_directly():
    assert tasks.add.entry is tasks.add.func
    assert tasks.issue_token.entry is tasks.issue_token.func
    assert tasks.use_token.entry is not tasks.use_token.func
    assert tasks.use_token("x", "ab") == "x of 2"
