"""Test which log lines of a task its execution keeps, how many, and that they never disturb the job."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time

import psycopg
import pytest
from django.db import connection
from django.test import override_settings

from django_pgqueue import InvalidTask, task
from django_pgqueue.ground.job_log import HALF_CHARACTERS, HALF_LINES, LINE_BYTES, LogBuffer, RecordedLine, as_lines
from django_pgqueue.lifecycle import logs as lifecycle_logs
from django_pgqueue.lifecycle import orphans
from django_pgqueue.lifecycle.logs import KeptLog
from django_pgqueue.lifecycle.types import ExecutionKey
from django_pgqueue.models import Execution, ExecutionLog, Job
from django_pgqueue.testing import run_jobs
from django_pgqueue.worker.completion import progress_writer
from django_pgqueue.worker.completion.progress_writer import Notes, ProgressSender
from django_pgqueue.worker.execution import log_recorder
from tests import helpers
from tests.app import tasks

KEY = ExecutionKey(7, 0.0)
logger = logging.getLogger("tests.kept")


def kept(job: Job) -> list[str]:
    """Return the messages that the latest execution of a job has kept."""
    return [line.message for line in Execution.objects.filter(job=job).latest("id").log_lines]


def line(number: int, message: str = "line") -> RecordedLine:
    return RecordedLine(number, 1.0e9 + number, "INFO", "tests", message)


def log_of(buffer: LogBuffer) -> ExecutionLog:
    """Return a buffer's content as a row that the database has stored and returned."""
    content = buffer.content()
    return ExecutionLog(
        first_lines=json.loads(content.first_lines),
        last_lines=json.loads(content.last_lines),
        cut_lines=content.cut_lines,
    )


@pytest.fixture
def lines():
    """Record what this test logs; return the lines so far."""
    found: list[RecordedLine] = []
    before = log_recorder.recorder.get()
    logger.setLevel(logging.DEBUG)
    log_recorder.start(logging.INFO, found.append)
    yield found
    log_recorder.recorder.set(before)


# ------------------------------------------------------------------------------- what an execution keeps


@pytest.mark.django_db
@pytest.mark.promise("kept-log-lines-with-completion")
def test_execution_keeps_lines_from_the_level_on():
    job = tasks.log_lines.enqueue(2)
    run_jobs()
    [first, second] = job.executions.get().log_lines
    assert first[1:] == ("INFO", "tests.app.tasks.kept", "line 0")
    assert second.message == "line 1"
    assert abs(first.at.timestamp() - time.time()) < 60
    assert job.executions.get().log.text.splitlines()[0].endswith(" INFO tests.app.tasks.kept: line 0")


@pytest.mark.django_db
def test_execution_of_failed_attempt_keeps_its_lines():
    job = tasks.log_lines.enqueue(1, error="as asked")
    run_jobs()
    job.refresh_from_db()
    assert (job.state, kept(job)) == ("dead", ["line 0"])


@pytest.mark.django_db
def test_execution_of_other_task_keeps_nothing():
    jobs = [tasks.log_lines.enqueue(1), tasks.log_unkept.enqueue()]
    run_jobs()
    assert [kept(job) for job in jobs] == [["line 0"], []]
    assert ExecutionLog.objects.count() == 1


@pytest.mark.django_db
@override_settings(PGQUEUE={"KEEP_LOGS": "WARNING"})
def test_setting_keeps_lines_of_tasks_without_the_option():
    job, own = tasks.log_unkept.enqueue(), tasks.log_lines.enqueue(1)
    run_jobs()
    assert (kept(job), kept(own)) == (["unkept"], ["line 0"])


@pytest.mark.django_db
def test_execution_of_atomic_task_keeps_its_lines():
    job = tasks.log_atomically.enqueue()
    run_jobs()
    assert kept(job) == ["atomic"]


@pytest.mark.django_db
def test_job_that_its_success_deletes_leaves_no_lines():
    tasks.log_and_go.enqueue()
    run_jobs()
    assert not ExecutionLog.objects.exists()


@pytest.mark.django_db
@pytest.mark.promise("kept-log-lines-removed-with-job")
def test_job_delete_deletes_its_lines():
    job = tasks.log_lines.enqueue(1)
    run_jobs()
    job.refresh_from_db()
    job.delete()
    assert not ExecutionLog.objects.exists()


@pytest.mark.django_db
@pytest.mark.promise("kept-log-lines-removed-with-job")
def test_prune_logs_removes_lines_of_pruned_jobs_only():
    old, new = tasks.log_lines.enqueue(1), tasks.log_lines.enqueue(1)
    run_jobs()
    Execution.objects.filter(job=old)._raw_delete("default")
    assert orphans.prune_orphans(connection, "logs") == (1, None)
    assert list(ExecutionLog.objects.values_list("execution__job_id", flat=True)) == [new.pk]
    assert orphans.prune_orphans(connection, "logs", limit=1).last_id == ExecutionLog.objects.get().pk


@pytest.mark.parametrize("value", ["TRACE", "info", True, 20])
def test_task_invalid_level_raises_invalid_task(value):
    with pytest.raises(InvalidTask, match="keep_logs must be one of DEBUG, INFO"):
        task(keep_logs=value)(tasks.noop.func)


# ------------------------------------------------------------------------------- recording


def test_recorder_keeps_traceback_and_cuts_long_lines(lines):
    try:
        raise RuntimeError("x" * LINE_BYTES)
    except RuntimeError:
        logger.exception("it failed")
    [recorded] = lines
    assert recorded.message.startswith("it failed\nTraceback")
    assert "bytes cut" in recorded.message
    assert len(recorded.message.encode()) <= LINE_BYTES


def test_recorder_hostile_argument_drops_only_that_line(lines):
    quiet = logging.getLogger("tests.kept.quiet")
    quiet.propagate = False  # a handler would raise the error too

    class Hostile:
        def __str__(self):
            quiet.info("inside")
            raise ValueError("as asked")

    quiet.info("%s", Hostile())
    quiet.info("nul \x00 and \ud800")
    assert [each.message for each in lines] == ["nul \N{REPLACEMENT CHARACTER} and ?"]


def test_recorder_own_records_are_not_kept(lines):
    logging.getLogger("django_pgqueue.worker").error("of the worker")
    logging.getLogger("django_pgqueue_extras").error("of the project")
    assert [each.message for each in lines] == ["of the project"]


def test_recorder_logger_that_does_not_propagate_is_kept(lines):
    own = logging.getLogger("tests.kept.alone")
    own.propagate = False
    own.info("alone")
    assert [each.message for each in lines] == ["alone"]


def test_recorder_follows_context_into_threads_only_with_a_copy(lines):
    asyncio.run(asyncio.to_thread(logger.info, "copied"))
    thread = threading.Thread(target=logger.info, args=("not copied",))
    if hasattr(thread, "_context"):  # since Python 3.14 a free-threaded build copies it
        return
    thread.start()
    thread.join()
    assert [each.message for each in lines] == ["copied"]


# ------------------------------------------------------------------------------- limits


@pytest.mark.promise("kept-log-lines-bounded")
def test_buffer_keeps_first_and_last_lines_and_counts_the_rest():
    buffer = LogBuffer()
    for number in range(1, 5 * HALF_LINES + 1):
        buffer.add(line(number, f"line {number}"))
    log = log_of(buffer)
    messages = [each.message for each in log.lines]
    assert messages[:2] == ["line 1", "line 2"]
    assert messages[HALF_LINES - 1 : HALF_LINES + 1] == [f"line {HALF_LINES}", f"line {4 * HALF_LINES + 1}"]
    assert messages[-1] == f"line {5 * HALF_LINES}"
    assert (len(messages), log.cut_lines) == (2 * HALF_LINES, 3 * HALF_LINES)
    assert log.text.splitlines()[HALF_LINES] == f"[… {3 * HALF_LINES} lines were not kept …]"


@pytest.mark.promise("kept-log-lines-bounded")
def test_buffer_long_lines_are_bounded_by_characters():
    buffer = LogBuffer()
    for number in range(1, 101):
        buffer.add(line(number, "x" * LINE_BYTES))
    log = log_of(buffer)
    assert sum(len(each.message) for each in log.lines) == 2 * HALF_CHARACTERS
    assert len(log.lines) + log.cut_lines == 100


def test_buffer_all_lines_fit_none_is_cut():
    buffer = LogBuffer()
    for number in range(1, HALF_LINES + 11):
        buffer.add(line(number))
    log = log_of(buffer)
    assert (len(log.lines), log.cut_lines, "not kept" in log.text) == (HALF_LINES + 10, 0, False)


def test_stored_values_that_are_no_lines_are_omitted():
    good = [1.0, "INFO", "a", "b"]
    assert len(as_lines([good, None, [1], ["x", 1, 2, 3], [1e300, "a", "b", "c"]])) == 1
    assert as_lines("text") == as_lines(None) == []


# ------------------------------------------------------------------------------- writing


def test_notes_lines_are_written_and_later_replaced(engine):
    helpers.make_job(engine)
    claimed = helpers.claim_one(engine)
    notes = Notes()
    add = notes.open_log(claimed.key)
    add(line(1, "first"))
    assert (len(notes), notes.due_in_seconds) == (1, 0.0)
    assert notes.write(engine) == set()
    add(line(2, "second"))
    notes.write(engine, [claimed.key])
    notes.write(engine)
    [row] = engine.execute("SELECT first_lines::text, cut_lines FROM pgqueue_execution_log").fetchall()
    assert ('"first"' in row[0], '"second"' in row[0], row[1]) == (True, True, 0)
    assert len(notes) == 0


def test_notes_lines_of_another_claim_are_not_written(engine):
    helpers.make_job(engine)
    claimed = helpers.claim_one(engine)
    stale = ExecutionKey(claimed.execution_id, claimed.key.claimed_ms - 1)
    content = LogBuffer().content()
    assert lifecycle_logs.keep_logs(engine, [KeptLog(stale, content)]) == {}
    assert lifecycle_logs.keep_logs(engine, [KeptLog(claimed.key, content)]) == {claimed.execution_id: True}


@pytest.mark.promise("kept-log-lines-never-delay-completion")
def test_notes_refused_lines_are_dropped_and_progress_is_written(engine, monkeypatch, caplog):
    helpers.make_job(engine)
    claimed = helpers.claim_one(engine)

    def refuse(connection, logs):
        raise psycopg.errors.InsufficientPrivilege("permission denied for table pgqueue_execution_log")

    monkeypatch.setattr(lifecycle_logs, "keep_logs", refuse)
    monkeypatch.setattr(progress_writer.outage_log, "may_log", lambda: True)  # an earlier test may have logged just now
    notes = Notes()
    notes.open_log(claimed.key)(line(1))
    assert notes.write(engine, [claimed.key]) == set()
    assert len(notes) == 0
    assert "the log lines of 1 job cannot be written: permission denied" in caplog.text


@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "transient"])
def test_notes_failed_write_keeps_the_lines(engine, monkeypatch, is_lost):
    helpers.make_job(engine)
    claimed = helpers.claim_one(engine)

    def fail(connection, logs):
        if is_lost:
            connection.close()
            raise psycopg.OperationalError("the connection is lost")
        raise psycopg.errors.DeadlockDetected

    with monkeypatch.context() as patched:
        patched.setattr(lifecycle_logs, "keep_logs", fail)
        notes = Notes()
        notes.open_log(claimed.key)(line(1))
        if is_lost:
            with pytest.raises(psycopg.OperationalError):
                notes.write(engine)
        else:
            notes.write(engine)
    assert len(notes) == 1


def test_sender_first_lines_are_sent_at_once_and_later_ones_together():
    sent = []
    sender = ProgressSender(sent.append)
    add = sender.open_log(KEY)
    for number in range(1, HALF_LINES + 51):
        add(line(number))
    assert [len(message["lines"]) for message in sent] == [1] * HALF_LINES
    assert len(sender.last_message(7)["lines"]) == 50
    add(line(999))
    sender._sent_at = 0.0
    add(line(1000))
    assert len(sent) == HALF_LINES
