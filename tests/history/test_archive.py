"""`history.archive()`: finished jobs move to a table or a file, and no interruption loses or repeats one."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.test import override_settings

from django_pgqueue import history
from django_pgqueue.exceptions import JobLocked
from django_pgqueue.history import archiving, finished_pages
from django_pgqueue.history.archiving import ArchiveFile
from django_pgqueue.history.finished_pages import Pace
from django_pgqueue.lifecycle import audit, operator, pruning
from django_pgqueue.lifecycle import history as lifecycle_history
from django_pgqueue.lifecycle.pruning import EVER
from django_pgqueue.models import ArchivedJob, AuditedJob, AuditEntry, Execution, ExecutionLog, Job
from django_pgqueue.states import State
from django_pgqueue.worker.maintenance.pruner import Pruner
from tests import helpers
from tests.app import tasks
from tests.process.harness import environment
from tests.test_sql import explain, nodes, rows_read

from .finished import EXECUTIONS, make

OLD = timedelta(days=30)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().splitlines()]


def ids() -> set[int]:
    return set(Job.objects.values_list("pk", flat=True))


# ------------------------------------------------------------------ to the table


def test_archive_moves_old_jobs_with_executions_to_table(db, monkeypatch):
    monkeypatch.setattr(archiving, "TABLE_BATCH", 2)
    old = make(connection, 5)
    young = make(connection, days=10)
    dead = make(connection, state="dead")
    ready = helpers.make_job(connection)
    assert history.archive(older_than=OLD) == history.Archived(5, 0)
    assert ids() == {*young, *dead, ready}
    assert {each.job_id for each in ArchivedJob.objects.all()} == set(old)
    assert not Execution.objects.filter(job__in=old).exists()
    document = ArchivedJob.objects.get(job_id=old[0]).document
    assert document["arguments"] == {"args": ["secret"], "kwargs": {}}
    assert [each["error"] for each in document["executions"]] == ["secret error"]


def test_archive_documents_have_every_column(db):
    """A column of a later release must not be lost."""
    make(connection)
    history.archive(older_than=OLD)
    document = ArchivedJob.objects.get().document
    of_last_execution = {"execution_id", "worker_id"}  # the list of executions has them
    assert set(document) == {field.attname for field in Job._meta.concrete_fields} - of_last_execution | {
        "executions",
        "acts",
        "steps",
        "dependencies",
    }
    of_execution = {field.attname for field in Execution._meta.concrete_fields} - {"job_id"}
    assert set(document["executions"][0]) == of_execution | {"log"}


@pytest.mark.parametrize("to_file", [False, True])
def test_archive_moves_the_acts_on_a_job(committing, tmp_path, to_file):
    [archived], [young] = make(connection), make(connection, days=10)
    audit.record_audit(connection, audit.begin_audit(connection, "retry", {}, done_by="ann"), [archived, young])
    path = tmp_path / "old.jsonl.gz"
    assert history.archive(older_than=OLD, file=path if to_file else None).archived == 1
    [document] = lines(path) if to_file else ArchivedJob.objects.values_list("document", flat=True)
    assert [(act["action"], act["done_by"]) for act in document["acts"]] == [("retry", "ann")]
    assert list(AuditedJob.objects.filter(entry__action="retry").values_list("job_id", flat=True)) == [young]
    assert AuditedJob.objects.get(entry__action="archive").job_id == archived


@pytest.mark.parametrize("to_file", [False, True])
@pytest.mark.promise("archive-kept-log-lines")
def test_archive_moves_kept_log_lines_with_their_execution(committing, tmp_path, to_file):
    """A line end within the stored JSON must not divide a line of the file. JSONB would refuse a NUL."""
    logged, silent = make(connection, logs=True)[0], make(connection)[0]
    make(connection, days=10, logs=True)
    [young] = Execution.objects.exclude(job__in=[logged, silent])
    path = tmp_path / "old.jsonl.gz"
    assert history.archive(older_than=OLD, file=path if to_file else None).archived == 2
    documents = lines(path) if to_file else ArchivedJob.objects.values_list("document", flat=True)
    logs = {each["id"]: each["executions"][0]["log"] for each in documents}
    assert logs.pop(silent) is None
    first = [[1e9, "INFO", "shop", "secret line"], [1e9, "INFO", "shop", "\0 \n"]]
    assert logs == {logged: {"first_lines": first, "last_lines": [], "cut_lines": 3}}
    expected = {field.attname for field in ExecutionLog._meta.concrete_fields} - {"execution_id"}
    assert set(logs[logged]) == expected
    assert list(ExecutionLog.objects.values_list("pk", flat=True)) == [young.pk]


@pytest.mark.parametrize("to_file", [False, True])
def test_archive_keeps_log_lines_of_jobs_that_it_leaves(committing, second, tmp_path, to_file):
    """One of two executions is locked, so the job stays with the lines of both."""
    [job_id] = make(connection, logs=True)
    with connection.cursor() as cursor:
        cursor.execute(EXECUTIONS, [[job_id]])
    with helpers.transaction(second):
        second.execute("SELECT FROM pgqueue_execution ORDER BY id DESC LIMIT 1 FOR UPDATE")
        seen = dict(Job.objects.values_list("pk", "finished_at"))
        assert history.archive(older_than=OLD, file=tmp_path / "a" if to_file else None).left == 1
        assert lifecycle_history.remove_archived(connection, seen) == []
    assert ExecutionLog.objects.count() == 1


@pytest.mark.promise("archive-kept-log-lines")
def test_archive_rolled_back_keeps_the_log_lines(committing):
    make(connection, logs=True)
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        assert history.archive(older_than=OLD).archived == 1
        assert not ExecutionLog.objects.exists()
        _ = 1 / 0
    assert (ExecutionLog.objects.count(), ArchivedJob.objects.count()) == (1, 0)


def test_archive_filters_by_state_task_and_queue(db):
    dead = make(connection, 2, state="dead")
    [mail] = make(connection, queue="mail", task=tasks.add.name)
    make(connection, queue="mail")
    make(connection, task=tasks.add.name)
    assert history.archive(older_than=OLD, tasks=[tasks.add], queues=["mail"]).archived == 1
    assert {each.job_id for each in ArchivedJob.objects.all()} == {mail}
    assert history.archive(older_than=OLD, states=["dead"]).archived == 2
    assert not Job.objects.filter(pk__in=dead).exists()


def test_archive_reads_jobs_that_ended_at_one_instant(db, monkeypatch):
    monkeypatch.setattr(archiving, "TABLE_BATCH", 2)
    make(connection, 5)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_job SET finished_at = '2020-01-01'")
    assert history.archive(older_than=OLD).archived == 5


@pytest.mark.promise("history-as-seen")
def test_archive_leaves_a_job_that_was_retried_since(db):
    [job_id] = make(connection)
    page = next(pruning.finished_jobs(connection, State.SUCCEEDED, limit=9))
    assert operator.retry(connection, [job_id]) == {job_id: "ready"}
    assert lifecycle_history.archive(connection, page) == []
    assert lifecycle_history.read_for_archive(connection, page) == []
    assert lifecycle_history.remove_archived(connection, page) == []
    make(connection, state="dead")
    with connection.cursor() as cursor:  # it ended again, at another instant
        cursor.execute("UPDATE pgqueue_job SET state = 'succeeded', finished_at = '2020-01-01'")
    assert lifecycle_history.archive(connection, page) == []


@pytest.mark.parametrize("table", ["pgqueue_job", "pgqueue_execution"])
def test_archive_leaves_locked_jobs_and_counts_them(committing, second, table, tmp_path):
    locked = make(connection, 2)[1]
    column = "id" if table == "pgqueue_job" else "job_id"
    with helpers.transaction(second):
        second.execute(f"SELECT FROM {table} WHERE {column} = %s FOR UPDATE", [locked])
        assert history.archive(older_than=OLD) == history.Archived(1, 1)
        assert history.archive(older_than=OLD, file=tmp_path / "a") == history.Archived(0, 1)
    assert ids() == {locked}
    assert history.archive(older_than=OLD).archived == 1


@pytest.mark.promise("archive-and-prune")
def test_prune_leaves_jobs_that_are_being_written(committing, engine):
    """The pruner and the archive cannot collide: both skip locked rows."""
    job_ids = make(connection, 3)
    page = next(pruning.finished_jobs(connection, State.SUCCEEDED, limit=9))
    with override_settings(PGQUEUE={"RETENTION": {"succeeded": 1}}), transaction.atomic():
        assert len(lifecycle_history.read_for_archive(connection, page)) == 3
        assert Pruner().prune(engine) == 0
    assert ids() == set(job_ids)


# ------------------------------------------------------------------ to a file


def test_archive_to_file_writes_one_line_for_each_job(committing, tmp_path, monkeypatch):
    monkeypatch.setattr(archiving, "FILE_BATCH", 2)
    job_ids = make(connection, 5)
    path = tmp_path / "old.jsonl.gz"
    assert history.archive(older_than=OLD, file=path) == history.Archived(5, 0)
    assert [each["id"] for each in lines(path)] == job_ids
    assert lines(path)[0]["executions"][0]["traceback"] == "secret"
    assert ids() == set()
    assert path.stat().st_mode & 0o777 == 0o600
    more = make(connection, 1)
    assert history.archive(older_than=OLD, file=path).archived == 1
    assert [each["id"] for each in lines(path)] == [*job_ids, *more]


@pytest.mark.parametrize("to_file", [False, True])
def test_archive_refused_row_stops_no_other(committing, engine, tmp_path, to_file, caplog):
    """A trigger of the application refuses to delete one job. It must not be written to the file either."""
    refused, *others = make(connection, 5)
    path = tmp_path / "old.jsonl.gz"
    with helpers.users_trigger(engine, f"OLD.id = {refused}", event="DELETE"):
        assert history.archive(older_than=OLD, file=path if to_file else None) == history.Archived(4, 1)
    assert ids() == {refused}
    archived = [each["id"] for each in lines(path)] if to_file else ArchivedJob.objects.values_list("job_id", flat=True)
    assert sorted(archived) == others
    assert f"job {refused} was not changed because the database refused the write" in caplog.text


def test_archive_to_file_in_transaction_is_refused(db, tmp_path):
    with pytest.raises(RuntimeError, match="cannot run inside a transaction"):
        history.archive(older_than=OLD, file=tmp_path / "a")


KILLED = """
import os, signal, sys, django
django.setup()
from django_pgqueue import history
from django_pgqueue.history import archiving
archiving.FILE_BATCH = 2
step, file = sys.argv[1:]
def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)
append = archiving.ArchiveFile.append
if step == "written":
    archiving.ArchiveFile.append = lambda file, lines: die(append(file, lines))
elif step == "half written":
    write = os.write
    def write_half(descriptor, data):
        if os.readlink(f"/proc/self/fd/{descriptor}") != file:
            return write(descriptor, data)
        write(descriptor, data[: len(data) // 2])
        die()
    archiving.os.write = write_half
history.archive(older_than=30 * 86400, file=file)
"""


@pytest.mark.parametrize("step", ["written", "half written"])
@pytest.mark.promise("archive-killed")
def test_archive_killed_midway_loses_and_repeats_nothing(committing, tmp_path, step):
    """A real process is killed after a batch is on disk, and in the middle of writing it."""
    job_ids = make(connection, 5)
    path = tmp_path / "old.jsonl.gz"
    command = [sys.executable, "-c", KILLED, step, str(path)]
    killed = subprocess.run(command, env=environment(None), capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert path.stat().st_size > 0
    assert ids() == set(job_ids)
    resumed = 2 if step == "written" else 0
    assert history.archive(older_than=OLD, file=path) == history.Archived(5, 0, resumed)
    assert [each["id"] for each in lines(path)] == job_ids
    assert ids() == set()


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Return a function that archives a batch to a file, and fails after the write."""
    append = ArchiveFile.append

    def archive(path: Path) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(ArchiveFile, "append", lambda file, lines: [append(file, lines), 1 / 0])
            with pytest.raises(ZeroDivisionError):
                history.archive(older_than=OLD, file=path)

    return archive


def test_archive_resumed_keeps_a_job_that_was_retried_since(committing, tmp_path, interrupted):
    first, second = make(connection, 2)
    path = tmp_path / "old.jsonl.gz"
    interrupted(path)
    Job.objects.get(pk=first).retry()
    assert history.archive(older_than=OLD, file=path) == history.Archived(1, 0, 1)
    assert ids() == {first}
    assert {each["id"] for each in lines(path)} == {first, second}


@pytest.mark.promise("archive-killed")
def test_archive_resumed_with_locked_job_appends_nothing(committing, second, tmp_path, interrupted):
    """Otherwise the job would no longer be in the last batch, and a later call would write it again."""
    [job_id] = make(connection)
    path = tmp_path / "old.jsonl.gz"
    interrupted(path)
    make(connection)
    with helpers.transaction(second):
        second.execute("SELECT FROM pgqueue_job WHERE id = %s FOR UPDATE", [job_id])
        with pytest.raises(JobLocked, match=f"job {job_id} is in "):
            history.archive(older_than=OLD, file=path)
    assert len(lines(path)) == 1
    assert history.archive(older_than=OLD, file=path) == history.Archived(2, 0, 1)
    assert len(lines(path)) == 2


def test_archive_full_disk_leaves_file_and_jobs_as_they_were(committing, tmp_path, monkeypatch):
    make(connection, 2)
    path = tmp_path / "old.jsonl.gz"
    history.archive(older_than=OLD, file=path)
    before = path.read_bytes()
    job_ids = make(connection, 2)
    original = os.write

    def write(descriptor: int, data: Any) -> int:
        if len(data) > 50:
            return int(original(descriptor, data[:50]))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(OSError, match="No space left"):
        history.archive(older_than=OLD, file=path)
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert ids() == set(job_ids)


def test_archive_file_of_something_else_is_refused_unchanged(tmp_path):
    other = tmp_path / "other"
    for content in (b"some text", gzip.compress(b"some text"), gzip.compress(b'{"id": 1}\n') + b"\0" * 50):
        other.write_bytes(content)
        with pytest.raises(ValueError, match="is not a file of an archive"):
            ArchiveFile(other)
        assert other.read_bytes() == content


def test_archive_file_in_use_is_refused(tmp_path):
    path = tmp_path / "old.jsonl.gz"
    file = ArchiveFile(path)
    with pytest.raises(ValueError, match="written by another process"):
        ArchiveFile(path)
    file.close()
    ArchiveFile(path).close()


def test_archive_file_reads_only_its_last_batch(tmp_path):
    path = tmp_path / "old.jsonl.gz"
    file = ArchiveFile(path)
    for job_id in (1, 2):
        file.append([json.dumps({"id": job_id, "finished_at": "2026-11-01T00:00:00+00:00", "text": "x" * 300_000})])
    file.close()
    again = ArchiveFile(path)
    assert list(again.last_batch) == [2]
    again.close()


# ------------------------------------------------------------------ rate, cost, options


def test_pace_spaces_batches_by_the_rate(monkeypatch):
    slept: list[float] = []
    monkeypatch.setattr(finished_pages, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=slept.append))
    pace = Pace(100.0, began_at=0.0)
    assert pace.limit(1000) == 100
    pace.wait(50)
    pace.wait(100)
    assert slept == [0.5, 1.5]
    assert Pace(0.1).limit(1000) == 1
    assert Pace(None).limit(1000) == 1000


@pytest.mark.parametrize(
    ("options", "index"),
    [
        ({"task_names": [], "other_task_names": []}, "pgqueue_job_finished"),
        ({"task_names": ["nobody"], "other_task_names": []}, "pgqueue_job_finished"),
        ({"task_names": [], "other_task_names": [helpers.NOOP]}, "pgqueue_job_finished"),
        ({"task_name": helpers.NOOP}, "pgqueue_job_task"),
        ({"task_name": helpers.NOOP, "state": "dead"}, "pgqueue_job_task"),
    ],
)
def test_page_of_finished_jobs_reads_only_its_limit(engine, options, index):
    make(engine, 3000)
    engine.execute("ANALYZE pgqueue_job")
    page = next(pruning.finished_jobs(engine, State.SUCCEEDED, limit=1000))
    last_id = list(page)[-1]
    params = {
        "state": "succeeded",
        "after_at": page[last_id],
        "after_id": last_id,
        "before_at": EVER,
        "older_than_seconds": 0.0,
        "queue_names": [],
        "limit": 100,
        **options,
    }
    name = "FINISHED_JOBS_OF_TASK" if "task_name" in options else "FINISHED_JOBS"
    found = list(nodes(explain(engine, name, params, "generic")))
    assert {node.get("Index Name") for node in found} - {None} == {index}
    assert all(rows_read(node) <= 300 for node in found)


@pytest.mark.parametrize("logs", [False, True])
def test_acts_on_finished_jobs_read_only_these_jobs(engine, logs):
    """An execution without log lines costs a look at an index, and no row is read."""
    make(engine, 1000, logs=logs)
    engine.execute("ANALYZE pgqueue_job, pgqueue_execution, pgqueue_execution_log")
    page = next(pruning.finished_jobs(engine, State.SUCCEEDED, limit=50))
    params = {
        "job_ids": list(page),
        "seen_instants": [at.isoformat() for at in page.values()],
        "erased": "{}",
        "audit_id": 1,
        **dict.fromkeys(("erases_arguments", "erases_results", "erases_errors", "erases_logs"), True),
    }
    params |= {"removes_logs": True, "removes_acts": True}
    for name in ("LOCK_FINISHED", "ARCHIVE", "READ_FOR_ARCHIVE", "REMOVE", "ERASE"):
        for node in nodes(explain(engine, name, params, "generic")):
            assert node["Node Type"] not in ("Seq Scan", "Bitmap Heap Scan") or node["Relation Name"] == "pgqueue_audit"
            if node.get("Relation Name"):
                assert rows_read(node) <= 150, name
            if node.get("Relation Name") == "pgqueue_execution_log" and node["Node Type"] != "ModifyTable":
                assert (node["Index Name"], rows_read(node)) == ("pgqueue_execution_log_pkey", 50 * logs), name


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"states": ["ready"]}, ValueError),
        ({"tasks": "one"}, TypeError),
        ({"queues": ["two words"]}, ValueError),
        ({"rate": 0}, ValueError),
        ({"older_than": -1}, ValueError),
    ],
)
def test_archive_invalid_option_is_refused(db, options, error):
    with pytest.raises(error):
        history.archive(**{"older_than": OLD} | options)


def test_archive_command_counts_archives_and_warns(db):
    make(connection, 3)
    out, err = StringIO(), StringIO()
    options = ("archive", "--older-than", "30d", "--table")
    call_command("pgqueue", *options, "--dry-run", stdout=out, stderr=err)
    assert out.getvalue() == (preview := f"3 jobs to archive:\n         3  {helpers.NOOP}\n")
    assert "workers delete succeeded jobs after 7 days" in err.getvalue()
    assert ArchivedJob.objects.count() == 0
    out = StringIO()
    with override_settings(PGQUEUE={"RETENTION": {"succeeded": OLD * 2, "cancelled": OLD * 2}}):
        call_command("pgqueue", *options, "--yes", "--reason", "old", stdout=out, stderr=(err := StringIO()))
    assert (out.getvalue(), err.getvalue()) == (f"{preview}Archived 3 jobs in pgqueue_archived_job.\n", "")
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.reason, entry.job_count, entry.outcome) == ("archive", "old", 3, "done")
    assert entry.filter["to"] == "pgqueue_archived_job" and entry.filter["states"] == ["cancelled", "succeeded"]
    with pytest.raises(CommandError, match="Invalid --older-than 'soon'") as refused:
        call_command("pgqueue", "archive", "--older-than", "soon", "--table")
    assert refused.value.returncode == 2


def test_archive_command_stopped_says_how_far_it_came(committing, tmp_path, monkeypatch):
    monkeypatch.setattr(archiving, "FILE_BATCH", 2)
    make(connection, 5)
    monkeypatch.setattr(Pace, "wait", lambda pace, count: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(CommandError, match="Stopped after 2 jobs"):
        options = ("--older-than", "30d", "--file", str(tmp_path / "a"), "--yes")
        call_command("pgqueue", "archive", *options, stdout=StringIO(), stderr=StringIO())
    assert len(ids()) == 3
