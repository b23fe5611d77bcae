"""Commands on a terminal whose encoding lacks most characters, such as in a container without a locale."""

from __future__ import annotations

import os
import sys
from io import BytesIO, TextIOWrapper

import pytest
from django.core.management import CommandError, call_command

from django_pgqueue.management.standard_streams import open_missing_streams
from django_pgqueue.models import Execution, Job, Pause, Schedule, Worker
from django_pgqueue.testing import run_jobs
from tests.app import tasks

TEXT = "für Zoë – 漢字 ✓"
COMMANDS = [
    *(["jobs", "list"], ["jobs", "show", "{job}"], ["jobs", "show", "{job}", "--json"], ["why", "{job}"], ["status"]),
    *(["doctor"], ["doctor", "--json"], ["dead", "list"], ["queues"], ["workers"], ["tasks"], ["schedules", "list"]),
    *(["limits"], ["batch", "list"], ["adopt", "--dry-run"], ["run", "{job}", "--retry"]),
]


@pytest.fixture
def job(committing) -> Job:
    """Return a dead job that has the text in each column that a command prints."""
    worker = Worker.objects.create(hostname="zoë", pid=1, version="1", concurrency=1, queue_names="mail")
    made = tasks.fail.using(max_attempts=1, queue_name="mail").enqueue(TEXT)
    run_jobs()
    Job.objects.filter(pk=made.pk).update(progress_message=TEXT, unique_key=TEXT, headers={"a": TEXT})
    Execution.objects.filter(job=made).update(error=TEXT, traceback=f"Traceback\n{TEXT}", worker=worker)
    Pause.objects.create(kind="queue", name="mail", reason=TEXT, paused_by="zoë")
    Schedule.objects.create(
        name=TEXT, task_name="ü.ü", arguments={"args": [], "kwargs": {}}, expression="@daily",
        next_run_at="2126-01-01T00:00Z", problem=TEXT,
    )  # fmt: skip
    return made


def printed_by(monkeypatch, *arguments: str) -> bytes:
    """Run a command on a terminal that knows ASCII only. Return what it prints, or why it refuses."""
    terminal = TextIOWrapper(BytesIO(), encoding="ascii", errors="strict", write_through=True)
    with monkeypatch.context() as patch:  # pytest itself replaces the streams after the fixtures
        patch.setattr(sys, "stdout", terminal)
        patch.setattr(sys, "stderr", terminal)
        try:
            call_command("pgqueue", *arguments)
        except SystemExit:
            pass
        except CommandError as error:
            assert not isinstance(error.__cause__, UnicodeError)
            terminal.write(str(error))
    return terminal.detach().getvalue()


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_command_on_ascii_terminal_escapes_characters(arguments, monkeypatch, job) -> None:
    assert printed_by(monkeypatch, *(word.format(job=job.pk) for word in arguments))


def test_job_shown_on_ascii_terminal_has_escapes(monkeypatch, job) -> None:
    assert b"f\\xfcr Zo\\xeb" in printed_by(monkeypatch, "jobs", "show", str(job.pk))


def test_stream_that_became_a_pipe_has_escapes(monkeypatch, tmp_path) -> None:
    """A program that makes itself a daemon replaces the descriptor. Python then still believes that it can seek."""
    reader, writer = os.pipe()
    with (tmp_path / "log").open("w", encoding="ascii") as stream, monkeypatch.context() as patch:
        os.dup2(writer, stream.fileno())
        os.close(writer)
        patch.setattr(sys, "stdout", stream)
        open_missing_streams()
        stream.write("Zoë")
    assert os.read(reader, 100) == b"Zo\\xeb"
    os.close(reader)


@pytest.mark.parametrize("is_closed", [False, True], ids=["full", "closed"])
def test_stream_that_cannot_be_flushed_is_kept(monkeypatch, is_closed) -> None:
    stream = open("/dev/full", "w", encoding="ascii")  # noqa: SIM115 -- closing it fails
    stream.write("a line that waits in the buffer")
    if is_closed:
        with pytest.raises(OSError, match="space"):
            stream.close()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        open_missing_streams()
        assert sys.stdout is stream
    if not is_closed:
        with pytest.raises(OSError, match="space"):
            stream.close()
