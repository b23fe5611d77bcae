"""Test the log records of jobs: each contains ids and names, and none contains an argument or a result."""

from __future__ import annotations

import logging
import sys
from io import StringIO

import pytest

from django_pgqueue import log, signals
from django_pgqueue.ground.endings import Ending
from django_pgqueue.lifecycle.types import TransitionResult, TransitionStatus
from django_pgqueue.reactions import JobTransition
from django_pgqueue.states import State
from django_pgqueue.testing import run_jobs
from django_pgqueue.worker.execution.error_text import traceback_text
from django_pgqueue.worker.execution.job_events import Events
from tests.app import tasks

pytestmark = pytest.mark.django_db

SECRET = "hunter2"
FIELDS = ("event", "job_id", "execution_id", "task", "queue", "attempt", "exception_class")


@pytest.fixture
def records(caplog):
    caplog.set_level(logging.DEBUG, logger="django_pgqueue.worker")
    log.enable()
    yield caplog
    log.disable()


def test_log_job_ends_writes_record_with_job_fields(records):
    jobs = [tasks.noop.enqueue(SECRET), tasks.fail.enqueue(), tasks.raise_directive.enqueue("cancel")]
    run_jobs()
    by_job = {job.pk: [record for record in records.records if record.job_id == job.pk] for job in jobs}
    assert [record.levelname for record in by_job[jobs[0].pk]] == ["DEBUG", "INFO"]
    assert [record.levelname for record in by_job[jobs[1].pk]] == ["DEBUG", "WARNING", "DEBUG", "ERROR"]
    assert [record.levelname for record in by_job[jobs[2].pk]] == ["DEBUG", "INFO"]
    last_record = by_job[jobs[0].pk][-1]
    assert (last_record.task, last_record.queue, last_record.attempt) == ("tests.app.tasks.noop", "default", 1)
    assert last_record.duration_seconds >= 0
    assert (last_record.event, last_record.execution_id) == ("job_succeeded", jobs[0].executions.get().pk)
    assert [record.event for record in by_job[jobs[1].pk]] == ["job_started", "job_failed", "job_started", "job_dead"]
    assert by_job[jobs[1].pk][1].retry_seconds == 0
    assert by_job[jobs[1].pk][-1].exception_class == "RuntimeError"
    assert by_job[jobs[1].pk][-1].exc_info[0] is RuntimeError


def test_log_failure_message_names_the_exception(records):
    job = tasks.fail.enqueue()
    run_jobs()
    messages = [record.getMessage() for record in records.records if record.job_id == job.pk and record.levelno > 20]
    assert messages[0].startswith(
        f"job {job.pk} (tests.app.tasks.fail) failed at attempt 1 with RuntimeError; retrying in "
    )
    assert messages[1] == f"job {job.pk} (tests.app.tasks.fail) is dead after attempt 2: RuntimeError: as asked"


def test_log_job_with_arguments_omits_the_arguments(records):
    tasks.noop.enqueue(SECRET, password=SECRET)
    run_jobs()
    assert records.records
    assert not [record for record in records.records if SECRET in record.getMessage() or SECRET in str(vars(record))]


def test_log_without_signal_receivers_writes_records(records):
    """The log must not depend on signal receivers.

    An application's receiver can disconnect other receivers, or block. No log record must get lost because of that.
    """
    assert not [receiver for receiver in signals.job_succeeded.receivers if "log" in str(receiver)]
    job = tasks.noop.enqueue()
    run_jobs()
    assert f"job {job.pk} (tests.app.tasks.noop) succeeded" in records.text


def test_log_disabled_level_is_not_enabled_for_signal():
    logger = logging.getLogger("django_pgqueue.worker")
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        log.enable()
        assert signals.job_succeeded not in log.enabled
        assert signals.job_failed in log.enabled
    finally:
        logger.setLevel(before)
        log.disable()


def test_log_handler_raises_job_still_succeeds(records):
    class Refusing(logging.Handler):
        def emit(self, record):
            raise SystemExit("the log is full")

    logger, handler = logging.getLogger("django_pgqueue.worker"), Refusing()
    logger.addHandler(handler)
    try:
        job = tasks.noop.enqueue()
        run_jobs()
    finally:
        logger.removeHandler(handler)
    job.refresh_from_db()
    assert job.state == "succeeded"


@pytest.mark.parametrize(
    ("ending", "expected"), [(Ending.FAILED, ["job_failed"]), (Ending.CRASHED, ["job_crashed"])], ids=str
)
def test_log_failure_without_exception_writes_one_record(records, ending, expected):
    """An isolated job has only the text of its exception. A crash has a record of its own."""
    result = TransitionResult(TransitionStatus.DONE, State.READY)
    details = {"execution_id": 2, "queue_name": "default", "attempt": 1}
    transition = JobTransition(1, "a.task", result, ending, "no such\norder", None, 30.0, details=details)
    Events().observe(transition, "default")
    [record] = records.records
    assert [record.event] == expected
    assert (record.job_id, record.execution_id, record.task, record.queue, record.attempt) == (
        *(1, 2, "a.task"),
        *("default", 1),
    )
    assert "no such" in record.getMessage()


@pytest.mark.parametrize("state", [State.READY, State.DEAD])
def test_log_failure_of_isolated_job_equals_that_of_a_thread(records, state):
    """The exception of an isolated job stays in its process. Its class and its traceback come as text."""
    try:
        raise LookupError("no such order")
    except LookupError as error:
        exception = error
    result, details = TransitionResult(TransitionStatus.DONE, state), {"execution_id": 2, "attempt": 1}
    told = {"exception_class": "builtins.LookupError", "traceback": traceback_text(exception), "delay_seconds": 30.0}
    for own in (exception, None):
        transition = JobTransition(1, "a.task", result, Ending.FAILED, "no such order", own, details=details, **told)
        Events().observe(transition, "default")
    of_thread, of_isolated = records.records
    texts = [logging.Formatter("%(levelname)s %(message)s").format(each) for each in records.records]
    assert texts[0] == texts[1] and "Traceback" in texts[1] and "LookupError: no such order" in texts[1]
    assert {name: vars(of_thread)[name] for name in FIELDS} == {name: vars(of_isolated)[name] for name in FIELDS}
    assert of_isolated.exception_class == "LookupError"


@pytest.fixture
def handlers(monkeypatch):
    """Return the handlers of a project. Those of pytest are taken away from the loggers."""
    found: list[logging.Handler] = []
    monkeypatch.setattr(log.logger, "handlers", found)
    monkeypatch.setattr(log.logger, "propagate", False)
    # pytest adds a handler of its own to a logger that does not propagate.
    monkeypatch.setattr(log.logger, "hasHandlers", lambda: any(type(each) is logging.StreamHandler for each in found))
    yield found
    log.disable()


def printed_failures(stream: StringIO) -> str:
    """Return what is printed of a job that fails for good, with the lines of `-v 2`."""
    log.enable(stream)
    tasks.fail.using(max_attempts=1).enqueue("no such order")
    run_jobs()
    return stream.getvalue()


def test_failure_without_handlers_is_printed_once_without_frames_of_the_worker(db, handlers, capsys):
    text = printed_failures(StringIO())
    assert text.count("no such order") == 2, "in the line, and at the end of its traceback"
    assert "Traceback" in text and 'app/tasks.py", line' in text
    assert log.PACKAGE not in text
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("stream_name", ["stdout", "stderr"])
def test_failure_that_a_handler_prints_is_left_to_it(db, handlers, capsys, stream_name):
    handlers.append(logging.StreamHandler(getattr(sys, stream_name)))
    assert "no such order" not in printed_failures(StringIO())
    assert "is dead after attempt 1: RuntimeError: no such order" in getattr(capsys.readouterr(), stream_name[3:])


def test_failure_that_goes_to_a_file_is_printed_too(db, handlers):
    handlers.append(logging.StreamHandler(file := StringIO()))
    text = printed_failures(StringIO())
    assert text.count("no such order") == 1 and "Traceback" not in text
    assert "no such order" in file.getvalue()


def test_own_frames_keeps_the_frames_of_the_task():
    text = (
        "Traceback (most recent call last):\n"
        f'  File "{log.PACKAGE}worker/execution/attempt.py", line 1, in run\n    call()\n    ^^^^^^\n'
        '  File "/srv/shop/tasks.py", line 2, in charge\n    raise ValueError("\x1b[31m")\n'
        "ValueError: \x1b[31m\n"
    )
    assert log.own_frames(text).splitlines() == [
        "Traceback (most recent call last):",
        '  File "/srv/shop/tasks.py", line 2, in charge',
        '    raise ValueError("\\x1b[31m")',
        "ValueError: \\x1b[31m",
    ]
