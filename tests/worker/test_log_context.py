"""Test the running job in the records of a task's own loggers, and the limits and colours of the worker's lines."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from types import SimpleNamespace

import pytest

from django_pgqueue import log
from django_pgqueue.tasks.context import running_job
from django_pgqueue.testing import run_jobs
from django_pgqueue.worker.runtime.background_log import (
    MESSAGE_CHARACTERS,
    TRACEBACK_CHARACTERS,
    BackgroundLog,
    shorten,
)
from tests.app import tasks
from tests.documents import blocks

JOB = SimpleNamespace(job_id=7, execution_id=70, task_name="shop.charge", queue_name="mail", attempt=2)
FORMAT = "%(job_id)s %(execution_id)s %(task)s %(queue)s %(attempt)s %(message)s"
logger = logging.getLogger("tests.log_context")


@pytest.fixture
def printed():
    """Print the lines of this test's logger with the fields of the job; return the stream."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter(FORMAT))
    handler.addFilter(log.JobContextFilter())
    handler.setLevel(logging.INFO)
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.INFO)
    yield stream
    logger.handlers = []


@pytest.fixture
def in_job():
    token = running_job.set(JOB)
    yield
    running_job.reset(token)


@pytest.fixture
def json_formatter():
    """Return the formatter of the recipe on the page."""
    [code] = [block for block in blocks("docs/production/logging.md") if "class JsonFormatter" in block]
    names: dict[str, type] = {}
    exec(code, names)  # noqa: S102 -- the code of the page
    return names["JsonFormatter"]()


def record_of(message: str, error: BaseException | None = None) -> logging.LogRecord:
    exc_info = None if error is None else (type(error), error, error.__traceback__)
    return logging.LogRecord("django_pgqueue.worker", logging.ERROR, __file__, 1, "%s", (message,), exc_info)


# ------------------------------------------------------------------------------- the running job


def test_filter_adds_the_running_job(printed, in_job):
    logger.info("here")
    asyncio.run(asyncio.to_thread(logger.info, "in a thread"))
    logger.info("own", extra={"task": "cooking"})
    assert printed.getvalue().splitlines() == [
        "7 70 shop.charge mail 2 here",
        "7 70 shop.charge mail 2 in a thread",
        "7 70 cooking mail 2 own",
    ]


def test_filter_outside_a_job_adds_none(printed):
    logger.info("here")
    assert printed.getvalue() == "None None None None None here\n"


@pytest.mark.django_db
@pytest.mark.parametrize("task", [tasks.log_unkept, tasks.log_atomically], ids=["plain", "atomic"])
def test_filter_in_a_task_names_its_job_and_afterwards_none(printed, task):
    tasks.log.addHandler(logger.handlers[0])
    job = task.enqueue()
    try:
        run_jobs()
        logger.info("after")
    finally:
        tasks.log.removeHandler(logger.handlers[0])
    execution = job.executions.get()
    first, last = printed.getvalue().splitlines()
    assert first.startswith(f"{job.pk} {execution.pk} {task.name} default 1 ")
    assert last == "None None None None None after"


def test_background_log_keeps_the_job_of_a_library_line(in_job):
    """The handlers run in another thread, which does not know the job."""
    background = BackgroundLog()
    record = record_of("a line of psycopg")
    assert background.filter(record) is False
    assert (record.job_id, record.task) == (7, "shop.charge")


# ------------------------------------------------------------------------------- the recipe


@pytest.mark.django_db
def test_json_recipe_writes_job_fields_as_json(printed, json_formatter):
    own = logging.getLogger("django_pgqueue.worker")
    handler = logger.handlers[0]
    handler.setFormatter(json_formatter)
    for each in (own, tasks.log):
        each.addHandler(handler)
    log.enable()
    try:
        job = tasks.log_lines.enqueue(1, error="as asked")
        run_jobs()
    finally:
        log.disable()
        for each in (own, tasks.log):
            each.removeHandler(handler)
    line, dead = [json.loads(text) for text in printed.getvalue().splitlines()]
    assert (line["message"], line["job_id"], line["task"]) == ("line 0", job.pk, tasks.log_lines.name)
    assert (dead["event"], dead["level"], dead["job_id"], dead["attempt"]) == ("job_dead", "ERROR", job.pk, 1)
    assert "RuntimeError: as asked" in dead["exception"]
    assert not {"args", "msg", "exc_info", "levelno"} & line.keys()


# ------------------------------------------------------------------------------- long messages


def test_shorten_long_message_keeps_both_ends():
    record = record_of("begin " + "x" * 10_000 + " end")
    shorten(record)
    text = record.getMessage()
    assert text.startswith("begin ") and text.endswith(" end")
    assert "characters cut" in text
    assert len(text) < MESSAGE_CHARACTERS + 50


def test_shorten_long_exception_cuts_the_printed_traceback_only():
    error = ValueError("x" * 100_000)
    record = record_of("failed", error)
    shorten(record)
    assert len(logging.Formatter().format(record)) < TRACEBACK_CHARACTERS + 100
    assert record.exc_info[1] is error


def test_shorten_long_cause_is_found():
    error = ValueError("short")
    error.__cause__ = ValueError("x" * 100_000)
    record = record_of("failed", error)
    shorten(record)
    assert "characters cut" in record.exc_text


def test_shorten_short_record_is_unchanged():
    record = record_of("failed", ValueError("short"))
    shorten(record)
    assert (record.getMessage(), record.exc_text, record.args) == ("failed", None, ("failed",))


# ------------------------------------------------------------------------------- colours


@pytest.mark.django_db
@pytest.mark.parametrize("coloured", [True, False])
def test_printed_lines_have_colours_only_if_asked(*, coloured):
    output = io.StringIO()
    log.enable(output, coloured=coloured)
    try:
        tasks.noop.enqueue()
        tasks.log_lines.enqueue(0, error="as asked")
        run_jobs()
    finally:
        log.disable()
    succeeded, dead = output.getvalue().splitlines()
    assert (succeeded.startswith("\x1b[32m"), dead.startswith("\x1b[31m")) == (coloured, coloured)
    assert ("\x1b" in output.getvalue()) is coloured
