"""Every subcommand that changes many jobs shows them, asks, needs `--yes` without a terminal, and is in the audit."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError
from django.core.management.base import OutputWrapper
from django.db import connection

from django_pgqueue.management.subcommands import consent
from django_pgqueue.management.subcommands.consent import JobPreview, is_agreed, progress
from django_pgqueue.management.subcommands.output import Output
from django_pgqueue.models import AuditEntry, Job
from django_pgqueue.worker.maintenance.pruner import Pruner
from tests import helpers
from tests.management.conftest import Terminal, die, succeed
from tests.test_docs import own_options, subcommands

MANY = {
    ("clear",): ("mail", "--reason", "why"),
    ("archive",): ("--table", "--older-than", "0s", "--reason", "why"),
    ("erase",): ("--queue", "mail", "--reason", "why"),
    ("prune",): (),
    ("jobs", "retry"): ("--queue", "mail", "--reason", "why"),
    ("jobs", "acknowledge"): ("--queue", "mail", "--reason", "why"),
    ("jobs", "cancel"): ("--queue", "mail", "--reason", "why"),
    ("jobs", "set-max-attempts"): ("--queue", "mail", "--max-attempts", "50", "--reason", "why"),
    ("jobs", "move"): ("--queue", "mail", "--to-queue", "other", "--reason", "why"),
    ("jobs", "delete"): ("--queue", "mail", "--reason", "why"),
    ("dead", "retry"): ("--queue", "mail", "--reason", "why"),
    ("dead", "acknowledge"): ("--queue", "mail", "--reason", "why"),
}
"""The arguments of each subcommand that changes the two jobs of each state in the queue."""
ELSEWHERE = {("adopt",): "tests/test_adopt.py", ("schedules", "skip"): "tests/management/test_other_commands.py"}
"""Subcommands with `--yes` that other modules test, because they change more than jobs, or none."""
NO_JOBS = {
    ("pause",),
    ("resume",),
    ("drain",),
    ("jobs", "list"),
    ("dead", "list"),
    ("enqueue",),
    ("remote-token", "create"),
}
"""Subcommands that choose jobs, and change none of them, or add one."""
UNAUDITED = {("prune",)}
"""Workers do the same each minute, and their role may not write the audit."""


@pytest.fixture
def jobs(pgqueue, settings, monkeypatch):
    """Two jobs that are ready, dead and succeeded each. The retention of the succeeded ones has ended."""
    settings.PGQUEUE = {**getattr(settings, "PGQUEUE", {}), "RETENTION": {"succeeded": 0, "dead": "forever"}}
    monkeypatch.setattr("django_pgqueue.management.subcommands.history_commands.connect", lambda *_: Own())
    for _ in range(2):
        helpers.make_job(connection, queue_name="mail")
        die(queue_name="mail")
        succeed(helpers.make_job(connection, queue_name="mail"))


class Own:
    """The connection of the test in the place of the command's own, which does not see the jobs."""

    def __getattr__(self, name):
        return getattr(connection, name)

    def close(self):
        """Leave it open."""


def contents():
    columns = ("pk", "state", "queue_name", "acknowledged_at", "max_attempts", "arguments")
    return list(Job.objects.order_by("pk").values_list(*columns))


def test_every_subcommand_that_chooses_jobs_is_known():
    """A new one with `--task`, `--queue` or `--yes` must be added above."""
    found = {words for words in subcommands() if {"--task", "--queue", "--yes"} & own_options("pgqueue", *words)}
    workers = {("worker",), ("remote-worker",)}
    assert found - workers == MANY.keys() | ELSEWHERE.keys() | NO_JOBS
    for words in MANY:
        assert {"--yes", "--dry-run"} <= own_options("pgqueue", *words), words


@pytest.mark.parametrize("words", MANY, ids=" ".join)
def test_change_of_many_jobs_shows_them_asks_and_is_audited(pgqueue, jobs, monkeypatch, words):
    call, before = (*words, *MANY[words]), contents()
    out = StringIO()
    with pytest.raises(CommandError, match="Pass --yes, because there is no terminal") as refused:
        pgqueue(*call, stdout=out)
    assert refused.value.returncode == 2
    first, second, *_ = out.getvalue().splitlines()
    assert first.split()[0] in ("2", "4") and " jobs to " in first and first.endswith(":")
    assert second.split()[0] == "2" or second.split()[0] == "4"
    assert helpers.NOOP in out.getvalue() or words == ("prune",)
    assert pgqueue(*call, "--dry-run").out.startswith(first)
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    with pytest.raises(CommandError, match="Nothing was changed"):
        pgqueue(*call, stdout=StringIO())
    assert contents() == before and not AuditEntry.objects.exists()
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    pgqueue(*call)
    assert contents() != before
    if words not in UNAUDITED:
        entry = AuditEntry.objects.get()
        assert entry.job_count == int(first.split()[0]) and entry.done_by and entry.reason == "why"
        assert entry.outcome == "done"


def written(out: StringIO | None = None) -> tuple[StringIO, Output]:
    out = out or StringIO()
    return out, Output({}, OutputWrapper(out), OutputWrapper(out))


def test_preview_of_too_many_jobs_is_marked():
    out, output = written()
    preview = JobPreview.of_tasks(iter(["a", "b", "a", "a"]), most=3)
    assert not is_agreed(preview, "cancel", {"dry_run": True}, output)
    assert out.getvalue().startswith("More than 3 jobs to cancel:")
    assert "There are more." in out.getvalue()
    assert str(JobPreview.of_tasks(["a"] * 3, most=3)) == "3 jobs"


def test_preview_with_forged_name_has_one_line_for_it():
    out, output = written()
    is_agreed(JobPreview({"a\n9,999  b": 1}), "cancel", {"dry_run": True}, output)
    assert len(out.getvalue().splitlines()) == 2


def test_progress_is_shown_on_a_terminal_only(monkeypatch):
    monkeypatch.setattr(consent, "PROGRESS_SECONDS", 0.0)
    terminal, pipe = Terminal(), StringIO()
    for stream in (terminal, pipe):
        show = progress(written(stream)[1], 3_000)
        show(1_000)
        show(3_000)
    assert "1,000 of 3,000" in terminal.getvalue() and pipe.getvalue() == ""


def test_pruner_counts_what_it_shows(jobs):
    assert sum(each.removable for each in Pruner().count(connection).values()) == 2
