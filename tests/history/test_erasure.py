"""`history.erase()`: values of finished jobs go, their rows stay, and the audit records it."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from io import StringIO

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import override_settings
from django.utils import timezone

from django_pgqueue import CannotDecode, history
from django_pgqueue.encoding import codecs
from django_pgqueue.ground.envelope import ERASED, EncodedValue
from django_pgqueue.history import erasing
from django_pgqueue.lifecycle import audit, operator
from django_pgqueue.lifecycle import history as lifecycle_history
from django_pgqueue.models import AuditEntry, Execution, ExecutionLog, Job, SearchKey
from django_pgqueue.testing import run_jobs
from tests import helpers
from tests.app import tasks
from tests.app.codecs import Hidden

from .finished import EXECUTIONS, make

COLUMNS = ("arguments", "headers", "unique_key", "result", "progress_message")


def secrets(job_id: int) -> set[str]:
    """Return the columns of a job and of its execution that still have a secret."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT {', '.join(f'{name}::text' for name in COLUMNS)} FROM pgqueue_job WHERE id = %s", [job_id]
        )
        found = {name for name, text in zip(COLUMNS, cursor.fetchone(), strict=True) if text and ERASED not in text}
    [execution] = Execution.objects.filter(job=job_id)
    assert execution.exception_class == "ValueError"
    found |= {name for name in ("error", "traceback") if "secret" in getattr(execution, name)}
    return found | ({"log"} if execution.log_lines else set())


OF_ARGUMENTS, OF_RESULTS, OF_ERRORS, OF_LOGS = (
    {"arguments", "headers", "unique_key"},
    {"result", "progress_message"},
    {
        "error",
        "traceback",
    },
    {"log"},
)
ALL = OF_ARGUMENTS | OF_RESULTS | OF_ERRORS | OF_LOGS


@pytest.mark.parametrize(
    ("kinds", "gone"),
    [
        ({}, ALL),
        ({"results": False, "errors": False, "logs": False}, OF_ARGUMENTS),
        ({"arguments": False, "errors": False, "logs": False}, OF_RESULTS),
        ({"arguments": False, "results": False, "logs": False}, OF_ERRORS),
        ({"arguments": False, "results": False, "errors": False}, OF_LOGS),
    ],
)
@pytest.mark.promise("erase-kept-log-lines")
def test_erase_removes_only_the_chosen_values(db, kinds, gone):
    [job_id] = make(connection, logs=True)
    [other] = make(connection, logs=True)
    row = Job.objects.filter(pk=job_id)
    before = row.values("state", "finished_at", "enqueued_at", "attempt", "task_name").get()
    assert history.erase(jobs=[job_id], **kinds).erased == 1
    assert secrets(job_id) == ALL - gone
    assert secrets(other) == ALL
    assert row.values(*before).get() == before


def test_erased_values_read_as_erased(db):
    [job_id] = make(connection)
    history.erase(jobs=[job_id])
    job = Job.objects.get()
    assert job.arguments == job.result == EncodedValue("the value was erased")
    with pytest.raises(CannotDecode, match="the value was erased"):
        assert job.return_value
    with pytest.raises(CannotDecode, match="the value was erased"):
        assert job.args


def test_erased_values_are_named_on_the_page_of_the_job(admin_client):
    [job_id] = make(connection)
    history.erase(jobs=[job_id])
    page = admin_client.get(f"/admin/pgqueue/job/{job_id}/change/").content.decode()
    assert page.count("Erased.") == 3
    assert page.count("The arguments of this job cannot be edited. Erased.") == 1
    assert "secret" not in page


@pytest.mark.promise("erased-never-called")
def test_erased_job_that_is_retried_never_calls_the_task(db):
    """Its arguments must not look like a call without arguments."""
    [job_id] = make(connection, state="dead")
    history.erase(jobs=[job_id])
    assert Job.objects.get().retry()
    run_jobs()
    job = Job.objects.get()
    assert (job.state, job.unknown_since) == ("dead", None), "no other process could read them"
    assert job.executions.latest("id").error == "the job's arguments cannot be read: the value was erased"


def test_erase_result_that_was_none_stays_none(db):
    make(connection)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_job SET result = NULL")
    history.erase(tasks=[helpers.NOOP])
    assert Job.objects.get().result is None


def test_erase_filters_by_task_queue_and_time(db):
    jobs = {
        "mail": make(connection, queue="mail"),
        "add": make(connection, task=tasks.add.name, state="dead"),
        "late": make(connection, task=tasks.add.name, days=1, state="cancelled"),
    }
    month = timezone.now() - timedelta(days=30)
    assert history.erase(tasks=[tasks.add], before=month).erased == 1
    assert secrets(jobs["add"][0]) == set()
    assert secrets(jobs["late"][0])
    assert history.erase(queues=["mail"]).erased == 1
    assert history.erase(before=timezone.now()).erased == 3
    assert secrets(jobs["late"][0]) == set()


def test_erase_leaves_other_jobs_alone_and_names_them(committing, second):
    ready = helpers.make_job(connection)
    free, locked = make(connection, 2, logs=True)
    with helpers.transaction(second):
        second.execute("SELECT FROM pgqueue_execution WHERE job_id = %s FOR UPDATE", [locked])
        erased = history.erase(jobs=[ready, free, locked, 123456])
    assert erased[:4] == (1, 1, [ready], [123456])
    assert secrets(locked) == ALL
    assert Job.objects.get(pk=ready).arguments == {"args": [], "kwargs": {}}


def test_erase_keeps_log_lines_of_jobs_that_it_leaves(committing, second):
    """One of two executions is locked, so the job keeps the lines of both."""
    [job_id] = make(connection, logs=True)
    with connection.cursor() as cursor:
        cursor.execute(EXECUTIONS, [[job_id]])
    with helpers.transaction(second):
        second.execute("SELECT FROM pgqueue_execution ORDER BY id DESC LIMIT 1 FOR UPDATE")
        assert history.erase(jobs=[job_id]).left == 1
    assert ExecutionLog.objects.count() == 1


def test_erase_refused_row_stops_no_other(committing, engine):
    refused, *_ = make(connection, 3)
    with helpers.users_trigger(engine, f"OLD.id = {refused}"):
        erased = history.erase(tasks=[tasks.noop])
    assert (erased.erased, erased.left) == (2, 1)
    assert AuditEntry.objects.get().job_count == 2
    assert secrets(refused)


@pytest.mark.promise("history-as-seen")
def test_erase_leaves_a_job_that_was_retried_since(db):
    [job_id] = make(connection)
    seen = dict(Job.objects.values_list("pk", "finished_at"))
    operator.retry(connection, [job_id])
    audit_id = audit.begin_audit(connection, "erase", {})
    assert (
        lifecycle_history.erase(
            connection, seen, audit_id=audit_id, arguments=True, results=True, errors=True, logs=True
        )
        == []
    )
    assert secrets(job_id)


def test_erase_writes_an_audit_entry_without_values(db):
    make(connection, 3)
    began = timezone.now() - timedelta(seconds=5)
    erased = history.erase(
        tasks=[tasks.noop], before=timezone.now(), results=False, by="x" * 200, reason="a customer asked"
    )
    [entry] = AuditEntry.objects.all()
    assert (entry.pk, entry.action, entry.job_count, entry.reason) == (erased.audit_id, "erase", 3, "a customer asked")
    assert entry.done_by == "x" * 150
    assert entry.ended_at is not None
    assert began < entry.began_at <= entry.ended_at
    assert entry.filter["erased"] == ["arguments", "errors", "logs"]
    assert entry.filter["tasks"] == [tasks.noop.name]
    assert "secret" not in json.dumps(entry.filter)


@pytest.mark.promise("erasure-audited")
def test_erase_interrupted_leaves_an_open_audit_entry(committing, monkeypatch):
    """The entry shows what was done so far: each batch counts its jobs in its own transaction."""
    make(connection, 5)
    monkeypatch.setattr(history.erasing, "BATCH", 2)
    monkeypatch.setattr(history.erasing.Pace, "wait", lambda pace, count: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        history.erase(tasks=[tasks.noop])
    [entry] = AuditEntry.objects.all()
    assert (entry.job_count, entry.ended_at) == (2, None)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "would erase all finished jobs"),
        ({"jobs": [1], "queues": ["mail"]}, "either jobs, or search, or a filter"),
        ({"jobs": [1], "arguments": False, "results": False, "errors": False, "logs": False}, "nothing to erase"),
        ({"before": timezone.now().replace(tzinfo=None)}, "add a time zone"),
        ({"queues": ["two words"]}, "invalid queue name 'two words'"),
    ],
)
def test_erase_invalid_options_write_nothing(db, options, says):
    with pytest.raises(ValueError, match=says):
        history.erase(**options)
    assert not AuditEntry.objects.exists()


def test_codec_with_the_name_of_erased_values_is_refused(monkeypatch):
    monkeypatch.setattr(Hidden, "name", ERASED)
    with (
        override_settings(PGQUEUE={"CODECS": ["tests.app.codecs.Hidden"]}),
        pytest.raises(ImproperlyConfigured, match="stands for erased values"),
    ):
        codecs.project_codecs()


def run(*options: str) -> tuple[int, str]:
    out = StringIO()
    try:
        call_command("pgqueue", "erase", *options, stdout=out, stderr=StringIO())
    except SystemExit as exited:
        return int(exited.code or 0), out.getvalue()
    except CommandError as error:
        return error.returncode, str(error)
    return 0, out.getvalue()


def test_erase_by_search_key_erases_all_jobs_that_have_it(db, monkeypatch):
    """In all states that have ended, more than a batch of them, and no job with another value or another name."""
    monkeypatch.setattr(erasing, "BATCH", 2)
    job_ids = make(connection, 7)
    SearchKey.objects.bulk_create(
        SearchKey(job_id=job_id, name="customer" if job_id != job_ids[6] else "order", value=value)
        for job_id, value in zip(job_ids, ["7", "7", "7", "7", "7", "8", "7"], strict=True)
    )
    waiting = helpers.make_job(connection)
    SearchKey.objects.create(job_id=waiting, name="customer", value="7")
    assert history.count_erasable(search=("customer", 7)) == 5
    found = history.erase(search=("customer", 7), results=False)
    assert (found.erased, found.unfinished, found.missing) == (5, [waiting], [])
    assert [bool(secrets(job_id) & OF_ARGUMENTS) for job_id in job_ids] == [False] * 5 + [True] * 2
    assert AuditEntry.objects.get().filter == {"erased": ["arguments", "errors", "logs"], "search": "customer"}
    assert history.erase(search=("customer", "nobody")).erased == 0


def test_erase_command_takes_a_search_key(db):
    [job_id] = make(connection)
    SearchKey.objects.create(job_id=job_id, name="customer", value="7")
    assert run("--search", "customer=7", "--dry-run")[1].startswith("1 job to erase")
    assert "write NAME=VALUE" in run("--search", "customer")[1]
    assert "either --job, or --search" in run("--search", "customer=7", "--task", helpers.NOOP, "--yes")[1]
    code, text = run("--search", "customer=7", "--yes")
    assert code == 0 and "of 1 job." in text
    assert not secrets(job_id)


def test_erase_command_without_a_filter_is_refused(db):
    """Also with --dry-run: otherwise it would count all finished jobs, and promise what --yes refuses."""
    make(connection)
    for option in ("--dry-run", "--yes"):
        code, text = run(option)
        assert code and "would erase all finished jobs" in text


def test_erase_command_asks_and_reports(db, monkeypatch):
    [job_id] = make(connection, logs=True)
    monkeypatch.setattr(sys, "stdin", StringIO())
    assert run("--task", helpers.NOOP) == (
        2,
        "Pass --yes, because there is no terminal to ask on. --dry-run shows the jobs.",
    )
    code, text = run("--task", helpers.NOOP, "--dry-run")
    preview = f"1 job to erase the arguments, results, errors, logs of:\n         1  {helpers.NOOP}\n"
    assert (code, text) == (0, preview)
    assert secrets(job_id)
    code, text = run("--job", str(job_id), "--job", str(job_id + 999), "--dry-run")
    assert (code, text) == (0, preview)
    code, text = run("--task", helpers.NOOP, "--errors", "--logs", "--yes", "--reason", "data policy")
    entry = AuditEntry.objects.get()
    assert (code, text.splitlines()[-1]) == (0, f"Erased the errors, logs of 1 job. Audit entry {entry.pk}.")
    assert (entry.reason, entry.filter["erased"]) == ("data policy", ["errors", "logs"])
    assert secrets(job_id) == OF_ARGUMENTS | OF_RESULTS
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda question: "no")
    assert run("--job", str(job_id)) == (1, "Nothing was changed.")


def test_erase_command_stopped_names_the_audit(db, monkeypatch):
    make(connection)
    monkeypatch.setattr(history.erasing.Pace, "wait", lambda pace, count: (_ for _ in ()).throw(KeyboardInterrupt))
    code, text = run("--task", helpers.NOOP, "--yes")
    assert (code, text.partition(".")[0]) == (1, "Stopped")
    assert AuditEntry.objects.get().job_count == 1


def test_erase_command_exit_codes_follow_the_reference(db):
    ready = helpers.make_job(connection)
    assert run("--job", str(ready), "--yes") == (1, f"These jobs have not finished: {ready}. Cancel them first.")
    assert run("--job", "123456", "--yes") == (3, "These jobs do not exist: 123456.")
    assert run("--yes")[0] == 2
    code, text = run("--before", "2026-02-31", "--yes")
    assert (code, "Invalid --before '2026-02-31'" in text) == (2, True)


def test_erase_keeps_only_the_limit_key_of_a_blocking_job(db):
    """The later jobs of the key must not run because somebody has erased the dead job before them."""
    blocking, dead = make(connection, 2, state="dead")
    [done], [chunk] = make(connection), make(connection)
    Job.objects.update(limit_key="letters:secret")
    Job.objects.filter(pk=blocking).update(limit_order=2)
    Job.objects.filter(pk=chunk).update(limit_key="+app.tasks:store")
    Execution.objects.update(limit_key="letters:secret")
    assert history.erase(before=timezone.now(), results=False, errors=False, logs=False).erased == 4
    keys = dict(Job.objects.values_list("pk", "limit_key"))
    assert keys == {
        blocking: "letters:secret",
        dead: "letters:[erased]",
        done: "letters:[erased]",
        chunk: "+app.tasks:store",
    }
    assert {*Execution.objects.values_list("limit_key", "error")} == {("letters:[erased]", "secret error")}


@pytest.mark.parametrize("kinds", [{"arguments": False}, {"arguments": False, "errors": False}])
def test_erase_without_arguments_keeps_limit_keys(db, kinds):
    make(connection)
    Job.objects.update(limit_key="letters:secret")
    Execution.objects.update(limit_key="letters:secret")
    history.erase(before=timezone.now(), **kinds)
    assert Job.objects.get().limit_key == Execution.objects.get().limit_key == "letters:secret"
