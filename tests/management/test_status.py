"""`pgqueue status`, `why` and `top`."""

from __future__ import annotations

import inspect
import os
import re
import signal
from dataclasses import fields
from types import SimpleNamespace

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection
from django.utils import timezone

from django_pgqueue import stats
from django_pgqueue.lifecycle import claims, workers
from django_pgqueue.management.subcommands import top_command
from django_pgqueue.management.subcommands.subcommand import ExitCode
from django_pgqueue.models import Job
from django_pgqueue.stats import depths
from tests import helpers
from tests.documents import names
from tests.management.conftest import Terminal, die
from tests.stats.limited_jobs import add


def described(of_class: type[object]) -> list[str]:
    """Return the fields that the docstrings of a class and of its bases describe, which the page on `stats` prints."""
    texts = [inspect.cleandoc(each.__dict__.get("__doc__") or "") for each in of_class.__mro__[::-1]]
    lines = re.findall(r"^    ((?:\w+, )*\w+): ", "\n".join(texts), re.MULTILINE)
    return [name for line in lines for name in line.split(", ")]


def test_why_prints_the_sentence_of_stats(pgqueue):
    job_id = helpers.make_job(connection)
    assert pgqueue("why", job_id).out == "No worker is running: start `manage.py runworker`.\n"
    document = pgqueue("why", job_id, "--json").document
    assert (document["job_id"], document["reason"], document["workers"]) == (job_id, "no worker", 0)
    assert list(document) == described(stats.Why) == [field.name for field in fields(stats.Why)]


def test_why_shows_control_characters_as_escapes(pgqueue):
    assert r"\x1b[2Jgone" in pgqueue("why", die(text="\x1b[2Jgone")).out


@pytest.mark.parametrize("job_id", [7, 2**70])
def test_why_missing_job_exits_with_3(pgqueue, job_id):
    with pytest.raises(CommandError, match=f"Job {job_id} does not exist") as caught:
        pgqueue("why", job_id, "--json")
    assert caught.value.returncode == 3


@pytest.fixture
def busy(db):
    """A worker for the queue pdf that runs one job, due jobs in the queue mail, and a dead job."""
    worker_id = workers.register_worker(
        connection, hostname="web1", pid=11, version="1.0", queue_names="pdf", concurrency=4
    )
    job_id = helpers.make_job(connection, queue_name="pdf")
    claims.claim_one(connection, job_id, worker_id=worker_id, lease_seconds=60.0)
    helpers.make_jobs(connection, 3, queue_name="mail")
    die()
    return job_id


def test_status_counts_jobs_that_wait_for_others(pgqueue, db):
    assert "waiting" not in pgqueue("status").out
    helpers.make_nodes(connection, needs=[helpers.make_job(connection, task_name="gone")])
    assert "waiting     1 for other jobs\n" in pgqueue("status").out


def test_status_counts_jobs_that_steps_suspend(pgqueue, db):
    assert "later       0 scheduled, 0 retrying\n" in pgqueue("status").out
    helpers.make_suspended_job(connection)
    assert "later       1 scheduled, 0 retrying; steps suspend 1 of them\n" in pgqueue("status").out


def test_status_and_lists_count_held_and_unknown_jobs_apart(pgqueue, db):
    assert not re.findall("^(held|unknown) ", pgqueue("status").out, re.MULTILINE)
    add("nobody")
    Job.objects.filter(pk=helpers.make_job(connection, delay_seconds=15.0)).update(unknown_since=timezone.now())
    lines = pgqueue("status").out.splitlines()
    assert [line[:20] for line in lines[:3]] == ["! 1 job waits: no wo", "! 1 job of tests.app", "! 1 job waits: no ta"]
    assert "due         0" in lines
    assert "held        1, their limit admits none of them now" in lines
    assert "unknown     1, workers release them" in lines
    assert "later       0 scheduled, 0 retrying" in lines
    document = pgqueue("status", "--json").document
    assert [document[state]["value"] for state in ("due", "held", "scheduled", "unknown")] == [0, 1, 0, 1]
    heading, row = (line for line in pgqueue("queues").out.splitlines() if line.startswith(("queue", "default")))
    cells = dict(zip(re.split(r"\s{2,}", heading), ["default", "0", "", *row.split()[2:]], strict=False))
    assert (cells["held"], cells["scheduled"], cells["unknown"]) == ("1", "0", "1")
    depths = {task["name"]: task["depth"] for task in pgqueue("tasks", "--json").document["tasks"]}
    assert (depths[helpers.NOOP]["held"]["value"], depths[helpers.NOOP]["unknown"]["value"]) == (1, 1)
    heading = pgqueue("tasks").out.splitlines()[0].split()
    assert heading[:6] == ["task", "queue", "due", "held", "unknown", "running"]


def test_figures_that_are_not_exact_say_so(pgqueue, db, monkeypatch):
    assert "dash" not in pgqueue("queues").err
    for name in ("COUNT_LIMIT", "ENQUEUED_LIMIT"):
        monkeypatch.setattr(depths, name, 2)
    die()
    die()
    helpers.make_jobs(connection, 3, queue_name="mail")
    found = pgqueue("status").out
    assert "due         2+, the oldest for " in found and "dead        2+, 2 of them in 24 h" in found
    assert "per minute  ≈5 in" in found
    document = pgqueue("status", "--json").document
    assert (document["enqueued_per_minute"], document["enqueued_is_estimate"]) == (5.0, True)
    for command in ("queues", "tasks"):
        listed = pgqueue(command)
        assert "–" in listed.out and "A dash: counting stopped before it found such a job" in listed.err


def test_status_counts_prefetched_jobs_apart_from_running_ones(pgqueue, db):
    helpers.make_jobs(connection, 3, queue_name="mail")
    worker_id = workers.register_worker(
        connection, hostname="web1", pid=11, version="1.0", queue_names="mail", concurrency=1
    )
    helpers.claim_all(connection, helpers.Lane("mail", 0), worker_id=worker_id, free_slots=1)
    assert "running     1, 2 claimed and waiting for a slot, and 0 lost\n" in pgqueue("status").out
    document = pgqueue("status", "--json").document
    assert (document["running"]["value"], document["prefetched"]["value"]) == (1, 2)
    heading, *rows = pgqueue("queues").out.splitlines()
    end = heading.index("prefetched") + len("prefetched")
    assert [row[:end].split()[-2:] for row in rows if row.startswith("mail")] == [["1", "2"]]


def test_status_shows_all_queues_and_who_is_unserved(pgqueue, busy):
    lines = pgqueue("status").out.splitlines()
    assert lines[:2] == ["! 3 jobs wait: 1 worker process runs, and none of them serves the queue mail.", ""]
    assert lines[2].startswith("due         3, the oldest for ")
    assert "running     1, and 0 lost" in lines
    assert "dead        1, 1 of them in 24 h" in lines
    assert "workers     1, 1 of 4 slots busy" in lines
    [mail] = [line.split() for line in lines if line.startswith("mail")]
    assert mail[1] == "3" and "1 of 4" in next(line for line in lines if line.startswith("pdf"))
    document = pgqueue("status", "--json").document
    assert sorted(described(stats.Overview)) == sorted(field.name for field in fields(stats.Overview))
    further = ["read_at", "causes"]
    assert list(document) == [*(field.name for field in fields(stats.Overview)), *further]
    assert names("docs/reference/cli.md", "key of `pgqueue status`") == ["queues", *further]
    assert [cause["kind"] for cause in document["causes"]] == ["queue not served"]
    assert (document["due"], document["unserved_queues"]) == ({"value": 3, "is_exact": True}, ["mail"])


def test_status_fits_a_terminal_and_colours_only_that(pgqueue, busy, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[31m! 3 jobs wait: " in pgqueue("status", stdout=Terminal()).out
    monkeypatch.setenv("NO_COLOR", "1")
    out = pgqueue("status", stdout=Terminal()).out
    assert "\x1b" not in out and max(map(len, out.splitlines())) <= 80


@pytest.fixture
def interrupt(monkeypatch):
    """Return a function that lets `top` wait so many times without a pause, and then press Ctrl-C."""

    def after(count):
        waits = []

        def sleep(seconds):
            waits.append(seconds)
            if len(waits) == count:
                signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(top_command, "time", SimpleNamespace(sleep=sleep))  # other threads sleep too
        return waits

    for name, value in {"TERM": "xterm", "COLUMNS": "100", "LINES": "30", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    return after


def test_top_draws_again_and_leaves_a_clean_terminal(busy, interrupt):
    waits = interrupt(2)
    reader, writer = os.openpty()
    before = signal.getsignal(signal.SIGTERM)
    with os.fdopen(writer, "w") as terminal:
        call_command("pgqueue", "top", "--interval", "0.5", stdout=terminal)
        written = b""
        while not written.endswith(top_command.LEAVE.encode()):  # one call may return a part of it
            written += os.read(reader, 100_000)
    os.close(reader)
    out = written.decode()
    assert waits == [0.5, 0.5] and signal.getsignal(signal.SIGTERM) is before
    assert out.startswith(top_command.ENTER) and out.endswith(top_command.LEAVE)
    frames = out.split(top_command.HOME)[1:]
    assert len(frames) == 2
    for frame in frames:
        assert f"{busy}  running  {helpers.NOOP}" in frame and "none of them serves the queue" in frame
        assert frame.index("mail  ") < frame.index("pdf  ")  # the longest queue comes first


def test_top_fits_the_height_of_the_terminal(pgqueue, busy, interrupt, monkeypatch):
    interrupt(1)
    monkeypatch.setenv("LINES", "16")
    lines = pgqueue("top", stdout=Terminal()).out.split(top_command.HOME)[1].split("\r\n")
    assert len(lines) <= 16 and str(busy) in lines[-1]


def test_top_survives_a_database_outage(pgqueue, busy, interrupt, monkeypatch):
    def current(alias, *, is_fresh):
        raise OperationalError("server closed the connection")

    closed = []
    monkeypatch.setattr(top_command, "current", current)
    monkeypatch.setattr(top_command, "connections", {"default": SimpleNamespace(close=lambda: closed.append(1))})
    interrupt(2)
    out = pgqueue("top", stdout=Terminal()).out
    assert out.count("server closed the connection") == 2 == len(closed)


@pytest.mark.parametrize(
    ("arguments", "message"), [([], "Use `pgqueue status`"), (["--interval", "0"], "--interval 0")]
)
def test_top_without_terminal_or_interval_exits_with_2(pgqueue, interrupt, arguments, message):
    interrupt(1)
    with pytest.raises(CommandError, match=message) as caught:
        pgqueue("top", *arguments)
    assert caught.value.returncode == 2


@pytest.mark.parametrize("arguments", [("status",), ("why", "7"), ("jobs", "list"), ("prune",)])
def test_command_without_database_fails_in_one_line(pgqueue, unreachable, arguments):
    with pytest.raises(CommandError, match=r"^The database failed: .*refused.*pgqueue doctor") as caught:
        pgqueue(*arguments, "--database", unreachable)
    assert caught.value.returncode == ExitCode.FAILED
    assert "\n" not in str(caught.value)
