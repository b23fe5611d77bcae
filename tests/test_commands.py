"""The management commands: their errors for invalid arguments and settings, and the banner of a worker."""

from __future__ import annotations

import io
import logging
import os
import socket
import sys
from io import StringIO

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command, load_command_class
from django.test import override_settings

from django_pgqueue import __version__, checks, log, signals
from django_pgqueue.ground.served_queues import ServedQueues
from django_pgqueue.management import queue_arguments
from django_pgqueue.management.commands import runworker
from django_pgqueue.management.subcommands import status_command
from django_pgqueue.management.subcommands.subcommand import ExitCode
from django_pgqueue.models import Worker
from django_pgqueue.tasks import registry
from django_pgqueue.testing import run_jobs
from django_pgqueue.worker import Options
from django_pgqueue.worker.completion import writer
from tests.app import tasks
from tests.documents import table
from tests.worker.test_attempt import raw_job


@pytest.mark.parametrize("text", ["", " ", "a,,b", "a b", "a,é"])
def test_queue_names_invalid_name_raises_command_error(text):
    with pytest.raises(CommandError, match="Invalid queue name"):
        queue_arguments.queue_names(text)


def test_queue_names_keep_their_order_without_duplicates():
    assert queue_arguments.queue_names(" b, a ,b") == ("b", "a")
    assert queue_arguments.queue_names(None) == ()


def test_queue_options_limit_queues_and_add_up_to_the_slots():
    options = worker_options("--queue", "mail=2", "--queue", " default = 20")
    assert (options.queue_names, options.concurrency) == (("mail", "default"), 22)
    assert options.queue_concurrency == {"mail": 2, "default": 20}
    assert not options.served.is_ordered
    assert "queues mail (2), default (20), 1 process x 22 jobs, " in runworker.banner(options)


def test_queue_option_without_number_shares_the_slots_of_the_process():
    options = worker_options("--queue", "mail=8", "--queue", "default", "--concurrency", "9")
    assert (options.queue_names, options.concurrency) == (("mail", "default"), 9)
    assert worker_options("--queue", "mail=2", "--queue", "default").concurrency == 10
    assert worker_options("--queue", "mail=2", "--queue", "default", CONCURRENCY=3).concurrency == 3
    assert worker_options("--queue", "mail=2", "--queue", "pdf=2", "--concurrency", "3").concurrency == 3


def test_queue_option_star_serves_all_other_queues():
    options = worker_options("--queue", "mail=2", "--queue", "*=5")
    assert (options.queue_names, options.concurrency) == ((), 7)
    assert "queues mail (2), all others (5), 1 process" in runworker.banner(options)
    assert options.served.named == ("mail",)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--queues", "mail", "--queue", "pdf"), "--queues and --queue cannot be combined"),
        (("--queue", "mail,pdf=2"), "Invalid queue name 'mail,pdf' in --queue. Pass --queue once for each queue"),
        (("--queue", "=2"), "Invalid queue name '' in --queue"),
        (("--queue", "mail=0"), "Invalid number '0' in --queue mail=0: pass a whole number of at least 1"),
        (("--queue", "mail="), "Invalid number ''"),
        (("--queue", "mail=-1"), "Invalid number '-1'"),
        (("--queue", "mail=²"), "Invalid number '²'"),
        (("--queue", "mail=2", "--queue", "mail"), "names the queue 'mail' twice"),
        (
            ("--queue", "mail=11", "--queue", "pdf"),
            r"mail=11 exceeds PGQUEUE\['CONCURRENCY'\], which is 10: pass --con",
        ),
        (("--queue", "mail=5", "--concurrency", "4"), "mail=5 exceeds --concurrency, which is 4"),
        (("--queue", "mail=2", "--concurrency", "4"), "--concurrency 4 has slots that no queue may use"),
        (("--queues", "mail=2"), "Invalid queue name 'mail=2' in --queues: to limit its jobs, pass --queue mail=2"),
    ],
)
def test_queue_options_that_contradict_are_refused(arguments, message):
    with pytest.raises(CommandError, match=message):
        worker_options(*arguments)


@pytest.mark.parametrize("given", [{"mail": 2, "default": None}, {"mail": None}, {"*": None, "mail": 2}, {"*": 5}])
def test_served_queues_survive_the_record_of_the_worker(given):
    served = ServedQueues.of_queue_options(given)
    read = ServedQueues.from_text(served.as_text())
    assert read == served
    assert list(read.concurrency) == list(given)


@pytest.mark.parametrize("names", [(), ("mail",), ("mail", "default")])
def test_served_queues_in_order_survive_the_record_of_the_worker(names):
    served = ServedQueues(names)
    assert ServedQueues.from_text(served.as_text()) == served
    assert served.is_ordered == bool(names)


@pytest.mark.parametrize("text", ["<img src=x>", "mail=2,x=y", "mail=" + "9" * 5000, "=2"])
def test_text_of_queues_that_no_worker_writes_counts_as_names(text):
    read = ServedQueues.from_text(text)
    assert read == ServedQueues(tuple(text.split(",")))
    assert read.texts() == text.split(",")


def test_banner_describes_the_worker():
    line = runworker.banner(Options(database="default", queue_names=("mail",), processes=2, concurrency=5))
    assert line.startswith(f"django_pgqueue {__version__}, worker with pid {os.getpid()}: ")
    assert ": database 'default', queue mail, 2 processes x 5 jobs, " in line
    line = runworker.banner(Options(database="default", queue_names=("mail", "pdf"), concurrency=1))
    assert "queues mail, pdf, 1 process x 1 job, " in line
    assert "metrics" not in line
    assert " tasks known, metrics on port 9464. Press" in runworker.banner(Options(database="default"), 9464)


def worker_options(*arguments, **settings):
    parser = load_command_class("django_pgqueue", "runworker").create_parser("manage.py", "runworker")
    with override_settings(PGQUEUE=settings):
        return runworker.as_options("default", vars(parser.parse_args(arguments)))


def test_release_comes_from_the_argument_or_the_environment(monkeypatch):
    monkeypatch.delenv("PGQUEUE_RELEASE", raising=False)
    assert worker_options().release == ""
    assert "release" not in runworker.banner(worker_options())
    monkeypatch.setenv("PGQUEUE_RELEASE", "of the image")
    assert worker_options().release == "of the image"
    assert worker_options("--release", "").release == "of the image"
    assert worker_options("--release", "v2").release == "v2"
    assert ": release 'v2', database 'default'" in runworker.banner(worker_options("--release", "v2"))
    assert worker_options("--release", "x" * 100).release == "x" * 100


@pytest.mark.parametrize("name", ["x" * 101, "v1\n", "v\x1b[1m", "v\u202e1", " v1", "v1\t2", "v\udcff"])
@pytest.mark.parametrize("source", ["--release", "PGQUEUE_RELEASE"])
def test_release_that_is_invalid_is_refused(monkeypatch, name, source):
    monkeypatch.setattr(runworker, "open_port", lambda options: pytest.fail("the worker starts"))
    if source == "PGQUEUE_RELEASE":
        monkeypatch.setitem(os.environ, source, name)
    given = {"release": name} if source == "--release" else {}
    with pytest.raises(CommandError) as refused:
        call_command("runworker", **given)
    assert source in str(refused.value) and "release" in str(refused.value)
    assert str(refused.value).isprintable()


@pytest.mark.django_db(transaction=True)
def test_run_of_a_job_has_the_release_of_the_environment(monkeypatch):
    job = tasks.add.enqueue(1, 2)
    monkeypatch.setenv("PGQUEUE_RELEASE", "v 2")
    call_command("pgqueue", "run", str(job.pk), stdout=StringIO())
    assert list(Worker.objects.values_list("release", flat=True)) == ["v 2"]
    monkeypatch.setenv("PGQUEUE_RELEASE", "v\n2")
    with pytest.raises(CommandError, match="PGQUEUE_RELEASE"):
        call_command("pgqueue", "run", str(job.pk), "--retry")
    job.refresh_from_db()
    assert (job.state, Worker.objects.count()) == ("succeeded", 1)


def test_metrics_port_and_address_come_from_arguments_or_settings():
    options = worker_options()
    assert (options.metrics_port, options.metrics_address) == (None, "127.0.0.1")
    settings = {"METRICS_PORT": 9464, "METRICS_ADDRESS": "::1"}
    options = worker_options(**settings)
    assert (options.metrics_port, options.metrics_address) == (9464, "::1")
    options = worker_options("--metrics-port", "0", "--metrics-address", "192.0.2.1", **settings)
    assert (options.metrics_port, options.metrics_address) == (0, "192.0.2.1")


@pytest.mark.parametrize("wrong", [("--metrics-port", "65536"), ("--metrics-port", "x"), ("--metrics-address", "here")])
def test_metrics_port_invalid_argument_is_refused(wrong):
    with pytest.raises(CommandError, match=f"argument {wrong[0]}: "):
        worker_options(*wrong)


def test_metrics_port_that_is_taken_raises_command_error():
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        with pytest.raises(CommandError, match=f"--metrics-port {taken} cannot be opened: .*in use"):
            call_command("runworker", "--metrics-port", str(taken), verbosity=0)
    assert signals.job_dead not in log.enabled  # otherwise later jobs of this process would be logged


@pytest.mark.parametrize(
    ("arguments", "verbosity"), [(["worker"], 1), (["worker", "-v", "2"], 2), (["-v", "2", "worker"], 2)]
)
def test_pgqueue_worker_takes_verbosity_before_or_after_it(arguments, verbosity):
    parser = load_command_class("django_pgqueue", "pgqueue").create_parser("manage.py", "pgqueue")
    assert parser.parse_args(arguments).verbosity == verbosity


@pytest.mark.parametrize("command", ["runworker", "pgqueue"])
def test_help_shows_own_options_before_those_of_django(command):
    text = load_command_class("django_pgqueue", command).create_parser("manage.py", command).format_help()
    own = "--queues NAME,..." if command == "runworker" else "Pause a queue, a task or a limit"
    assert 0 < text.index(own, text.index("\n\n")) < text.index("--pythonpath", text.index("\n\n"))


@pytest.mark.parametrize("command", [("runworker",), ("pgqueue", "worker"), ("pgqueue", "prune")])
def test_commands_unknown_database_alias_is_named(command):
    with pytest.raises(CommandError, match="no alias 'nowhere': pass --database with one of default"):
        call_command(*command, "--database", "nowhere", stdout=StringIO())


@pytest.mark.parametrize("wrong", ["tests.app.tasks", 5, None])
def test_import_task_modules_invalid_list_is_left_to_checks(wrong):
    with override_settings(PGQUEUE={"TASK_MODULES": wrong}):
        registry.import_task_modules()
        assert [error.id for error in checks.check_settings(None)] == ["pgqueue.E001"]


def test_import_task_modules_missing_module_names_setting():
    with (
        override_settings(PGQUEUE={"TASK_MODULES": ["tests.nowhere"]}),
        pytest.raises(ImproperlyConfigured, match=r"PGQUEUE\['TASK_MODULES'\] names 'tests.nowhere'"),
    ):
        registry.import_task_modules()


def test_run_jobs_unknown_task_is_logged_once_a_minute(db, caplog, monkeypatch):
    monkeypatch.setattr(writer, "_warned_at", {})
    for _ in range(3):
        raw_job("shop.tasks.brand_new")
    tasks.noop.enqueue()
    with caplog.at_level(logging.WARNING, logger="django_pgqueue.worker"):
        assert run_jobs() == 4
    [record] = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert "has no task named 'shop.tasks.brand_new'" in record.getMessage()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["pause"], 2),
        (["pause", "mail", "--until", "yesterday"], 2),
        (["drain", "mail", "--timeout", "soon"], 2),
        (["run", "1"], 3),
        (["prune", "--database", "nowhere"], 2),
    ],
)
def test_pgqueue_refusal_has_the_documented_exit_code(db, arguments, code):
    with pytest.raises(CommandError) as caught:
        call_command("pgqueue", *arguments)
    assert caught.value.returncode == code


def test_pgqueue_whose_reader_has_gone_ends_without_traceback(db, monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    with io.TextIOWrapper(os.fdopen(writer, "wb", buffering=0), write_through=True) as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        with pytest.raises(SystemExit) as caught:
            call_command("pgqueue", "status", stdout=stdout)
        sys.stdout.close()  # the null device, which takes the rest of the output
    assert caught.value.code == ExitCode.FAILED


def test_pgqueue_error_of_another_pipe_is_raised(db, monkeypatch):
    def fail(*args, **options):
        raise BrokenPipeError

    monkeypatch.setattr(status_command, "current", fail)
    with pytest.raises(BrokenPipeError):
        call_command("pgqueue", "status")


def test_exit_codes_are_those_of_the_reference():
    assert [int(row[0]) for row in table("docs/reference/cli.md", "exit code")] == list(ExitCode)
