"""What carries the progress: at most one write a second, the last value before the end, in nobody's way."""

from __future__ import annotations

import time

import psycopg
import pytest

from django_pgqueue import lifecycle
from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.endings import Ending
from django_pgqueue.lifecycle import ExecutionKey, TransitionResult, TransitionStatus
from django_pgqueue.progress import Progress
from django_pgqueue.worker.completion import progress_writer as module
from django_pgqueue.worker.completion.completer import LOCKED_PAUSE_SECONDS, Completer
from django_pgqueue.worker.completion.progress_writer import Notes, ProgressSender
from django_pgqueue.worker.execution.report import Report
from django_pgqueue.worker.runtime.connection import Link
from django_pgqueue.worker.runtime.health_memory import HealthMemory
from django_pgqueue.worker.runtime.outages import OutageLog
from tests import helpers

KEY = ExecutionKey(7, 0.0)


@pytest.fixture
def completer(committing):
    link = Link("default", "completer")
    yield Completer(link)
    link.close()


@pytest.fixture
def claimed(engine):
    helpers.make_job(engine)
    return helpers.claim_one(engine)


@pytest.fixture
def written(monkeypatch):
    """What each statement has written."""
    calls = []
    original = lifecycle.note_progress

    def note_progress(connection, noted):
        calls.append({row.key: row.progress.done for row in noted})
        return original(connection, noted)

    monkeypatch.setattr(lifecycle, "note_progress", note_progress)
    return calls


def progress_of(engine, job_id):
    row = helpers.job_row(engine, job_id)
    return row["progress_done"], row["progress_total"], row["progress_message"]


def succeeded(claimed):
    now = time.monotonic()
    return Report(claimed, Ending.SUCCEEDED, now - 0.02, now - 0.01)


def test_the_latest_of_all_jobs_go_in_one_statement_and_then_none_for_a_second(engine, completer, written):
    helpers.make_jobs(engine, 3)
    keys = [one.key for one in helpers.claim_all(engine)]
    for step in range(100):
        for key in keys:
            completer.notes.note(key, Progress(step, 99))
    assert 0.5 < completer.tick() <= 60
    assert written == [dict.fromkeys(keys, 99)]
    completer.notes.note(keys[0], Progress(1))
    assert 0.5 < completer.tick() <= 1
    assert len(written) == 1
    completer.notes._written_at -= 1
    assert completer.tick() == module.NOTHING_SECONDS
    assert written[1:] == [{keys[0]: 1}]


def test_where_nobody_tells_nothing_is_asked(completer):
    """The completer connects before the first claim; after that it asks nothing."""
    assert completer.tick() == module.NOTHING_SECONDS
    completer.link.use = None  # to ask for the connection would raise
    assert completer.tick() == module.NOTHING_SECONDS


def test_only_the_first_news_wakes_and_again_after_there_was_nothing():
    woken = []
    notes = Notes(lambda: woken.append(1))
    for step in range(10):
        notes.note(ExecutionKey(step, 0.0), Progress(step))
        assert notes.due_in_seconds == 0
    assert len(woken) == 1
    notes._unwritten.clear()
    assert notes.due_in_seconds == module.NOTHING_SECONDS
    notes.note(KEY, Progress(1))
    assert len(woken) == 2


def test_what_is_told_between_the_two_looks_of_who_goes_to_sleep_is_seen():
    """Who tells has seen that somebody was woken, and wakes nobody."""

    class Unwritten(dict):
        looks = 0

        def __len__(self):
            self.looks += 1
            if self.looks == 1:
                return 0
            return super().__len__()

    woken = []
    notes = Notes(lambda: woken.append(1))
    notes._is_announced = True
    notes._unwritten = Unwritten()
    notes.note(KEY, Progress(1))
    assert notes.due_in_seconds == 0
    assert woken == []


@pytest.mark.promise("last-progress-is-written")
def test_the_last_is_written_before_the_end_whenever_the_last_write_was(engine, completer, claimed, written):
    completer.notes.note(claimed.key, Progress(1, 2))
    completer.tick()
    completer.notes.note(claimed.key, Progress(2, 2, "all"))
    completer.hand_over(succeeded(claimed))
    completer.tick()
    assert helpers.state_of(engine, claimed.job_id) == "succeeded"
    assert progress_of(engine, claimed.job_id) == (2.0, 2.0, "all")
    assert len(written) == 2


@pytest.mark.promise("last-progress-is-written")
def test_an_end_waits_for_its_progress_where_the_row_is_locked(engine, second, completer, claimed):
    completer.notes._written_at = time.monotonic()
    completer.notes.note(claimed.key, Progress(2, 2))
    completer.hand_over(succeeded(claimed))
    second.execute("BEGIN")
    second.execute("SELECT FROM pgqueue_job WHERE id = %s FOR UPDATE", [claimed.job_id])
    assert completer.tick() == LOCKED_PAUSE_SECONDS
    assert len(completer) == 1
    second.execute("ROLLBACK")
    completer.tick()
    assert helpers.state_of(engine, claimed.job_id) == "succeeded"
    assert progress_of(engine, claimed.job_id)[0] == 2.0


def test_what_is_told_while_it_is_written_is_not_lost(engine, claimed, monkeypatch):
    notes = Notes()
    original = lifecycle.note_progress

    def slow(connection, noted):
        notes.note(claimed.key, Progress(2))
        return original(connection, noted) | {claimed.execution_id: TransitionResult(TransitionStatus.LOCKED)}

    notes.note(claimed.key, Progress(1))
    with monkeypatch.context() as patched:
        patched.setattr(lifecycle, "note_progress", slow)
        assert notes.write(engine) == {claimed.key}
    assert notes.write(engine) == set()
    assert progress_of(engine, claimed.job_id)[0] == 2.0


@pytest.mark.promise("closed-execution-progress-dropped")
def test_what_a_closed_execution_tells_is_dropped(engine, claimed):
    notes = Notes()
    lifecycle.fail(engine, helpers.failed(claimed.key))
    helpers.claim_one(engine)
    notes.note(claimed.key, Progress(1))
    assert notes.write(engine) == set()
    assert len(notes) == 0
    assert progress_of(engine, claimed.job_id)[0] is None


@pytest.mark.promise("progress-never-prevents-completion")
def test_an_end_is_written_also_where_progress_may_not_be(engine, completer, claimed, caplog):
    """The grants of an earlier release, for one: no column of it."""

    def refuse(connection, noted):
        raise psycopg.errors.InsufficientPrivilege("permission denied for table pgqueue_job")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(lifecycle, "note_progress", refuse)
        patched.setattr(module, "outage_log", OutageLog(HealthMemory()))
        completer.notes.note(claimed.key, Progress(1))
        completer.hand_over(succeeded(claimed))
        completer.tick()
    assert helpers.state_of(engine, claimed.job_id) == "succeeded"
    assert "the progress of 1 jobs cannot be written: permission denied" in caplog.text


def test_it_waits_for_a_lost_connection(engine, claimed):
    notes = Notes()
    notes.note(claimed.key, Progress(1))
    lost = helpers.connect()
    engine.execute("SELECT pg_terminate_backend(%s)", [lost.info.backend_pid])
    with pytest.raises(psycopg.OperationalError):
        notes.write(lost)
    lost.close()
    assert notes.write(engine) == set()
    assert progress_of(engine, claimed.job_id)[0] == 1.0


def test_it_waits_for_a_table_that_is_locked(engine, claimed, monkeypatch):
    notes = Notes()
    notes.note(claimed.key, Progress(1))

    def locked(connection, noted):
        raise psycopg.errors.LockNotAvailable

    with monkeypatch.context() as patched:
        patched.setattr(lifecycle, "note_progress", locked)
        assert notes.write(engine) == {claimed.key}
    assert isinstance(engine, EngineConnection)
    assert notes.write(engine) == set()
    assert progress_of(engine, claimed.job_id)[0] == 1.0


def test_a_loop_that_tells_of_each_step_sends_few_messages_and_the_last_with_its_end():
    sent = []
    teller = ProgressSender(sent.append)
    for step in range(1000):
        teller.note(KEY, Progress(step, 999))
    assert sent[0] == {"execution_id": 7, "progress": [0, 999, ""]}
    assert len(sent) < 10
    assert teller.message(7) == {"execution_id": 7, "progress": [999, 999, ""]}


def test_nobody_to_tell_is_no_failure_of_the_task():
    def gone(message):
        raise BrokenPipeError

    ProgressSender(gone).note(KEY, Progress(1))
