"""Test how progress is written: at most once a second, before the completion, and without preventing it."""

from __future__ import annotations

import time

import psycopg
import pytest

from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.ground.endings import Ending
from django_pgqueue.ground.progress import Progress
from django_pgqueue.lifecycle import completions
from django_pgqueue.lifecycle.types import ExecutionKey, TransitionResult, TransitionStatus
from django_pgqueue.worker.completion import progress_writer as module
from django_pgqueue.worker.completion.completer import LOCKED_PAUSE_SECONDS, Completer
from django_pgqueue.worker.completion.progress_writer import Notes, ProgressSender
from django_pgqueue.worker.execution.report import Report
from django_pgqueue.worker.runtime.connection import Link
from django_pgqueue.worker.runtime.outages import OutageLog
from django_pgqueue.worker.runtime.shared_memory import HealthMemory
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
    """The progress that each statement has written, by execution."""
    calls = []
    original = completions.note_progress

    def note_progress(connection, noted):
        calls.append({row.key: row.progress.done for row in noted})
        return original(connection, noted)

    monkeypatch.setattr(completions, "note_progress", note_progress)
    return calls


def progress_of(engine, job_id):
    row = helpers.job_row(engine, job_id)
    return row["progress_done"], row["progress_total"], row["progress_message"]


def succeeded(claimed):
    now = time.monotonic()
    return Report(claimed, Ending.SUCCEEDED, now - 0.02, now - 0.01)


def test_completer_progress_of_many_jobs_is_one_write_a_second(engine, completer, written, monkeypatch):
    clock = helpers.Clock(monkeypatch, module)
    helpers.make_jobs(engine, 3)
    keys = [execution.key for execution in helpers.claim_all(engine)]
    for step in range(100):
        for key in keys:
            completer.notes.note(key, Progress(step, 99))
    assert 0.5 < completer.tick() <= 60
    assert written == [dict.fromkeys(keys, 99)]
    completer.notes.note(keys[0], Progress(1))
    assert 0.5 < completer.tick() <= 1
    assert len(written) == 1
    clock.pass_by(1.0)
    assert completer.tick() == module.NOTHING_SECONDS
    assert written[1:] == [{keys[0]: 1}]


def test_completer_without_progress_sends_no_statement(completer):
    """The completer connects before the first claim. After that it sends no statement while there is no progress."""
    assert completer.tick() == module.NOTHING_SECONDS
    completer.link.use = None  # any use of the connection would raise
    assert completer.tick() == module.NOTHING_SECONDS


def test_notes_only_first_pending_note_wakes_the_writer():
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


def test_notes_note_between_two_checks_is_due_at_once():
    """A note that is stored while the writer goes to sleep must not wait.

    Before it sleeps, the writer checks twice whether there are notes. A thread that stores a note between these checks
    sees that the writer was woken already, so it does not wake it. The note would wait until the next wake-up. The
    second check must find it.
    """

    class Unwritten(dict):
        checks = 0

        def __len__(self):
            self.checks += 1
            if self.checks == 1:
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
def test_completer_last_progress_is_written_with_completion(engine, completer, claimed, written):
    """The last progress is written with the completion, even if the last write was less than a second ago."""
    completer.notes.note(claimed.key, Progress(1, 2))
    completer.tick()
    completer.notes.note(claimed.key, Progress(2, 2, "all"))
    completer.hand_over(succeeded(claimed))
    completer.tick()
    assert helpers.state_of(engine, claimed.job_id) == "succeeded"
    assert progress_of(engine, claimed.job_id) == (2.0, 2.0, "all")
    assert len(written) == 2


@pytest.mark.promise("last-progress-is-written")
def test_completer_locked_row_delays_the_completion(engine, second, completer, claimed):
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


def test_notes_note_during_write_is_written_next(engine, claimed, monkeypatch):
    notes = Notes()
    original = completions.note_progress

    def note_during_write(connection, noted):
        notes.note(claimed.key, Progress(2))
        return original(connection, noted) | {claimed.execution_id: TransitionResult(TransitionStatus.LOCKED)}

    notes.note(claimed.key, Progress(1))
    with monkeypatch.context() as patched:
        patched.setattr(completions, "note_progress", note_during_write)
        assert notes.write(engine) == {claimed.key}
    assert notes.write(engine) == set()
    assert progress_of(engine, claimed.job_id)[0] == 2.0


@pytest.mark.promise("closed-execution-progress-dropped")
def test_notes_closed_execution_progress_is_dropped(engine, claimed):
    notes = Notes()
    completions.fail(engine, helpers.failed(claimed.key))
    helpers.claim_one(engine)
    notes.note(claimed.key, Progress(1))
    assert notes.write(engine) == set()
    assert len(notes) == 0
    assert progress_of(engine, claimed.job_id)[0] is None


@pytest.mark.promise("progress-never-prevents-completion")
def test_completer_progress_refused_writes_the_completion(engine, completer, claimed, caplog):
    """The grants of an earlier release, for example, do not include the progress columns."""

    def refuse(connection, noted):
        raise psycopg.errors.InsufficientPrivilege("permission denied for table pgqueue_job")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(completions, "note_progress", refuse)
        patched.setattr(module, "outage_log", OutageLog(HealthMemory()))
        completer.notes.note(claimed.key, Progress(1))
        completer.hand_over(succeeded(claimed))
        completer.tick()
    assert helpers.state_of(engine, claimed.job_id) == "succeeded"
    assert "the progress of 1 job cannot be written: permission denied" in caplog.text


def test_notes_lost_connection_keeps_the_progress(engine, claimed):
    notes = Notes()
    notes.note(claimed.key, Progress(1))
    lost = helpers.connect()
    engine.execute("SELECT pg_terminate_backend(%s)", [lost.info.backend_pid])
    with pytest.raises(psycopg.OperationalError):
        notes.write(lost)
    lost.close()
    assert notes.write(engine) == set()
    assert progress_of(engine, claimed.job_id)[0] == 1.0


def test_notes_locked_table_keeps_the_progress(engine, claimed, monkeypatch):
    notes = Notes()
    notes.note(claimed.key, Progress(1))

    def locked(connection, noted):
        raise psycopg.errors.LockNotAvailable

    with monkeypatch.context() as patched:
        patched.setattr(completions, "note_progress", locked)
        assert notes.write(engine) == {claimed.key}
    assert isinstance(engine, EngineConnection)
    assert notes.write(engine) == set()
    assert progress_of(engine, claimed.job_id)[0] == 1.0


def test_progress_sender_many_steps_sends_few_messages():
    sent = []
    sender = ProgressSender(sent.append)
    for step in range(1000):
        sender.note(KEY, Progress(step, 999))
    assert sent[0] == {"execution_id": 7, "progress": [0, 999, ""]}
    assert len(sent) < 10
    assert sender.message(7) == {"execution_id": 7, "progress": [999, 999, ""]}


def test_progress_sender_broken_pipe_raises_nothing():
    def send_to_closed_pipe(message):
        raise BrokenPipeError

    ProgressSender(send_to_closed_pipe).note(KEY, Progress(1))
