"""Mistakes on the command line of `pgqueue`: what is wrong, the typed value, and what to do. Nothing is changed."""

from __future__ import annotations

from contextlib import redirect_stderr
from io import StringIO

import pytest
from django.core.management import CommandError, call_command, load_command_class
from django.core.management.base import OutputWrapper
from django.db import connection, connections
from django.db.backends.sqlite3.base import DatabaseWrapper

from django_pgqueue.management.subcommands.subcommand import ExitCode
from django_pgqueue.models import AuditEntry, Job, Pause
from tests import helpers
from tests.management.conftest import die

MISTAKES = [
    # words
    ("paus mail", "invalid choice: 'paus' (choose from", "Did you mean pause?"),
    ("jobs lst", "Did you mean list?"),
    ("jobs list --state ded", "Did you mean dead?"),
    ("status --jsn", "unrecognized arguments: --jsn. Did you mean --json?"),
    ("permissions --create-group", "Did you mean --create-groups?"),
    ("dead list --state dead", "unrecognized arguments: --state dead\n"),
    ("status --settings=shop", "Pass --settings before the subcommand."),
    ("enqueue tests.app.tasks.add 1", "arguments: 1. Pass the arguments of the task as JSON: --args '[7]'."),
    # values
    ("why abc", "argument ID: invalid id 'abc': pass a whole number above 0, such as 4711"),
    ("jobs retry -5", "argument ID: invalid id '-5'"),
    ("workers stop web1", "invalid id 'web1'"),
    ("jobs list --limit x", "argument --limit: invalid value 'x': pass a whole number"),
    ("jobs retry --rate x --queue default", "argument --rate: invalid value 'x': pass a number"),
    ("worker --concurrency x", "argument --concurrency: invalid value 'x': pass a whole number"),
    ("worker --processes 0", "argument --processes: 0 must be at least 1"),
    ("remote-worker http://localhost --wait 99", "argument --wait: 99 must be at most 25"),
    ("health /nowhere --max-age -1", "argument --max-age: -1 must be above 0"),
    ("worker --metrics-address x", "invalid value 'x': pass an IP address, such as 127.0.0.1"),
    ("pause mail --until -1h", "Write a value that begins with - as --option=VALUE."),
    ("pause mail --until 0s", "Invalid --until '0s': the end would be now"),
    ("pause mail --until 99999999d", "Invalid --until '99999999d': use at most 36500d"),
    ("jobs retry --limit 0 --queue default", "Invalid --limit 0: use a number above 0."),
    ("jobs retry --rate nan --queue default", "Invalid --rate nan: use a number above 0."),
    ("archive --older-than 0s --table --rate 0", "Invalid --rate 0: use a number above 0."),
    ("archive --older-than 0s --table --state ready", "(choose from 'cancelled', 'dead', 'succeeded')"),
    ("archive --older-than 0s --file /tmp", "--file /tmp is a directory"),
    ("archive --older-than 0s --file /nowhere/x.gz", "there is no directory /nowhere."),
    ("jobs set-max-attempts 1 --max-attempts 0", "CommandError: --max-attempts 0 must be a whole number from 1 to"),
    ("enqueue tests.app.tasks.add --args [1] --queue 'a,b'", "--queue \"'a,b'\" must be 1 to 100 of the characters"),
    ("import-celery-beat --map x", "Invalid --map 'x': use OLD=NEW"),
    ("worker --queues a,,b", "Invalid queue name '' in --queues."),
    ("clear default --database= --yes", "DATABASES has no alias ''"),
    # contradictions
    ("jobs list --since 1h --until 2h", "--since 1h is not before --until 2h: no job can fit."),
    ("workers stop 999 --json", "Pass --all and --json without 'stop'"),
    ("worker --database a --all-databases", "Pass --database or --all-databases, not both."),
    ("import-celery-beat --paused", "Pass --paused with --apply"),
    ("erase --yes", "Pass --job, --search, --task, --queue or --before"),
    ("erase --job 1 --task tests.app.tasks.noop --yes", "Pass either --job, or --search, or --task, --queue and"),
    ("schedules pause nightly --until yesterday", "CommandError: Invalid --until 'yesterday'"),
]


def typed(words: list[str]) -> tuple[int, str, str]:
    """Run a command as a shell does. Return the exit code, and what it prints."""
    out, err = StringIO(), StringIO()
    command = load_command_class("django_pgqueue", "pgqueue")
    vars(command)["_called_from_command_line"] = True
    command.stdout, command.stderr = OutputWrapper(out), OutputWrapper(err)
    with redirect_stderr(err):
        try:
            options = vars(command.create_parser("manage.py", "pgqueue").parse_args(words))
            command.handle(**options)
        except CommandError as error:
            return error.returncode, out.getvalue(), f"CommandError: {error}\n"
        except SystemExit as end:
            return int(str(end.code)), out.getvalue(), err.getvalue()
    return 0, out.getvalue(), err.getvalue()


@pytest.mark.django_db
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda each: each[0])
def test_mistake_is_refused_with_what_to_do(mistake, monkeypatch):
    line, *texts = mistake
    monkeypatch.setattr("sys.stdin", StringIO())
    helpers.make_schedule(connection)
    job_id = die()
    code, out, err = typed(line.split())
    assert code == ExitCode.USAGE and not out, (code, out, err)
    assert [text for text in texts if text not in err] == [], err
    assert not (AuditEntry.objects.exists() or Pause.objects.exists())
    assert list(Job.objects.values_list("pk", "state")) == [(job_id, "dead")]


@pytest.mark.promise("defect-empty-filter")
@pytest.mark.django_db
@pytest.mark.parametrize("option", ["queue", "task", "limit-key", "search", "since", "until", "error", "message"])
def test_empty_filter_is_refused_and_chooses_no_job(option):
    """It can be a variable of a script that is not set. The other filters alone would choose more jobs."""
    job_id = die()
    code, _, err = typed(["jobs", "delete", "--state", "dead", f"--{option}", "", "--yes"])
    assert code == ExitCode.USAGE and f"The value of --{option} is empty: pass one, or omit the option." in err
    assert Job.objects.get().pk == job_id


@pytest.mark.promise("defect-abbreviated-option")
@pytest.mark.django_db
def test_option_is_not_short_for_a_longer_one():
    die()
    code, _, err = typed(["dead", "list", "--limit", "5"])
    assert code == ExitCode.USAGE and err.endswith("unrecognized arguments: --limit 5\n")


@pytest.mark.django_db
def test_mistake_shows_the_usage_of_the_subcommand():
    _, _, err = typed(["jobs", "list", "--jsn"])
    assert err.startswith("usage: manage.py pgqueue jobs list ")


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("jobs list --id {dead} --id 999999", "Job 999999 does not exist in the database 'default'."),
        ("schedules run nightly --origin code", "is not defined in code: pass --origin admin."),
        ("remote-token create a --queues defualt", "did you mean 'default'?"),
        ("jobs cancel {huge}", "does not exist"),
        ("jobs show {huge}", "does not exist"),
        ("run {huge}", "does not exist"),
        ("batch show {huge}", "does not exist"),
        ("workflow show {huge}", "does not exist"),
        ("workers stop {huge}", "runs under the id"),
        ("erase --job {huge} --yes", "do not exist"),
    ],
)
def test_argument_that_does_not_exist_exits_with_3(line, text):
    helpers.make_schedule(connection)
    code, _, err = typed(line.format(dead=die(), huge=2**70).split())
    assert code == ExitCode.NOT_FOUND and text in err, (code, err)


@pytest.mark.django_db
def test_job_left_out_by_retry_says_that_dead_ones_are_retried():
    code, out, _ = typed(["jobs", "retry", str(helpers.make_job(connection))])
    assert code == ExitCode.FAILED and "1 job left out: ready, and only dead jobs are retried." in out


@pytest.fixture
def sqlite(db, tmp_path):
    """Return an alias of a database that is not PostgreSQL."""
    settings = {**connection.settings_dict, "ENGINE": "django.db.backends.sqlite3", "NAME": tmp_path / "db"}
    connections.settings["sqlite"], connections["sqlite"] = settings, DatabaseWrapper(settings, "sqlite")
    yield "sqlite"
    del connections["sqlite"], connections.settings["sqlite"]


@pytest.mark.parametrize("line", ["status", "jobs list", "pause mail", "prune --yes", "doctor", "worker", "adopt"])
def test_database_that_is_not_postgresql_is_refused(sqlite, line):
    code, _, err = typed([*line.split(), "--database", sqlite])
    assert code == ExitCode.FAILED and "The database 'sqlite' is not PostgreSQL" in err


def test_runworker_says_what_to_pass_instead():
    with pytest.raises(CommandError, match="--concurrency: invalid value 'x': pass a whole number"):
        call_command("runworker", "--concurrency", "x")
