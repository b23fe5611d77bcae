"""`dumpdata`, an empty database, `loaddata`: every table has the same rows, and workers go on with the jobs."""

from __future__ import annotations

import re
import uuid
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import connection
from django.db.models import JSONField, Value
from django.utils import timezone

from django_pgqueue import Batch, chain
from django_pgqueue.contrib.remote.models import RemoteToken
from django_pgqueue.models import (
    ArchivedJob,
    AuditedJob,
    AuditEntry,
    BatchRemoval,
    BreakerCount,
    Execution,
    ExecutionLog,
    Installation,
    Job,
    JobBatch,
    JobDependency,
    JobStep,
    LimitOverride,
    LimitState,
    OpenBreaker,
    Pause,
    Rollup,
    Schedule,
    ScheduleRun,
    SearchKey,
    SentEvent,
    UniquenessWindow,
    Worker,
    WorkerRequest,
)
from django_pgqueue.testing import run_jobs
from tests.app import tasks

LABELS = ("pgqueue", "pgqueue_remote")
MODELS = [model for label in LABELS for model in apps.get_app_config(label).get_models() if not model._meta.proxy]
NEEDS_YAML = pytest.mark.skipif(find_spec("yaml") is None, reason="PyYAML is not installed")
PAST = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
LATER = datetime(2126, 1, 2, 3, 4, 5, 1, tzinfo=UTC)
TIME = re.compile(r"(\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?(?=\+)")
HARD_TEXT = "\\ ' \" {1,2} NULL \n\t 漢字 <b>&amp;</b> ]]>"
HARD_JSON: dict[str, Any] = {"args": [0.1, 1e300, 2**60, None, HARD_TEXT], "kwargs": {"null": None, "": []}}


def add_rows() -> None:
    """Add a row to each table, with values that are hard to write as text."""
    worker = Worker.objects.create(hostname="here", pid=1, version="1", concurrency=1, queue_names="a,b")
    done = Job.objects.create(
        task_name="old", arguments=HARD_JSON, headers={"a": HARD_TEXT}, state="dead", attempt=3, finished_at=PAST,
        run_after=PAST, enqueued_at=PAST, progress_done=0.1, progress_total=1e300, progress_message=HARD_TEXT,
        limit_key="+old", limit_weight=2, limit_order=2, batch_id=7, in_graph=True, unique_key=HARD_TEXT,
    )  # fmt: skip
    null = Job.objects.create(
        task_name="null", arguments=HARD_JSON, state="succeeded", attempt=1, finished_at=PAST, run_after=PAST,
        enqueued_at=PAST, result=Value(None, JSONField()),
    )  # fmt: skip
    execution = Execution.objects.create(
        job=done, worker=worker, attempt=3, outcome="failed", claimed_at=PAST, started_at=PAST, finished_at=PAST,
        lease_expires_at=PAST, error=HARD_TEXT, traceback=HARD_TEXT, limit_key="+old", limit_weight=2,
    )  # fmt: skip
    ExecutionLog.objects.create(execution=execution, first_lines=[HARD_TEXT], last_lines=[], cut_lines=3)
    batch = JobBatch.objects.create(pk=7, description=HARD_TEXT, created_at=PAST, on_success=HARD_JSON)
    JobBatch.objects.create(pk=batch.pk + 1, parent=batch, created_at=PAST)
    BatchRemoval.objects.create(batch_id=7, state="succeeded", count=2)
    JobDependency.objects.create(job=done, needs=null, policy="cancel", has_cancelled=None)
    JobStep.objects.create(
        job=done, name=HARD_TEXT[:9], position=1.5, kind="step", attempt=1, result=HARD_JSON, started_at=PAST,
        finished_at=PAST, compensation={"task_name": "undo"}, compensation_arguments=HARD_JSON,
    )  # fmt: skip
    SentEvent.objects.create(name="approved", key=HARD_TEXT, payload=HARD_JSON, sent_at=PAST)
    SearchKey.objects.create(job=done, name="order", value=HARD_TEXT)
    UniquenessWindow.objects.create(job_id=done.pk, task_name="old", unique_key="k", ends_at=LATER)
    entry = AuditEntry.objects.create(
        action="retry", filter=HARD_JSON, cursor={"id": 1}, rate=0.1, form_token=uuid.UUID(int=7), began_at=PAST,
        next_batch_at=None, reason=HARD_TEXT, total=2**40,
    )  # fmt: skip
    AuditedJob.objects.create(entry=entry, job_id=done.pk, detail=HARD_JSON)
    ArchivedJob.objects.create(
        job_id=99, task_name="a", queue_name="b", state="dead", enqueued_at=PAST, finished_at=PAST, document=HARD_JSON
    )
    Installation.objects.create(pk=2**50, system_identifier="7", database_oid=5, environment="production")
    LimitState.objects.create(limit_key="+old", full_at=PAST, held_until=LATER)
    LimitOverride.objects.create(limit_key="+old", concurrency=3, rate="5/m", valid_until=LATER, reason=HARD_TEXT)
    OpenBreaker.objects.create(limit_key="old", opened_at=PAST, after_execution_id=execution.pk)
    BreakerCount.objects.create(limit_key="old", ended_at=PAST, succeeded=1, failed=2)
    Pause.objects.create(kind="queue", name="mail", paused_at=PAST, paused_until=LATER, reason=HARD_TEXT)
    schedule = Schedule.objects.create(
        name="nightly", task_name=tasks.noop.name, arguments=HARD_JSON, expression="@daily", next_run_at=LATER,
        jitter_seconds=0.1, expires_seconds=1e9, revision=2**40,
    )  # fmt: skip
    ScheduleRun.objects.create(schedule=schedule, tick_at=PAST, fired_at=PAST, job_id=done.pk)
    WorkerRequest.objects.create(worker_id=worker.pk, kind="stack", requested_at=PAST, answer=HARD_TEXT)
    RemoteToken.objects.create(
        name="robot", digest=bytes(range(224, 256)), queue_names=["a"], task_names=[], requests_per_minute=5,
        created_at=PAST, created_by="ann", expires_at=LATER,
    )  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO pgqueue_rollup (span, starts_at, queue_name, task_name, wait_seconds, wait_buckets, "
            "wait_counts, run_buckets, run_counts) VALUES ('minute', %s, 'a', 'b', 0.1, '{28,34}', "
            "'{3,2000000000}', '{}', '{1}')",
            [PAST],
        )


def rows() -> dict[str, list[str]]:
    """Return all rows as PostgreSQL writes them; JSON without its spaces."""
    found = {}
    with connection.cursor() as cursor:
        for model in MODELS:
            cursor.execute(f"SELECT to_jsonb(each) FROM {model._meta.db_table} AS each")
            found[model.__name__] = sorted(str(row) for (row,) in cursor.fetchall())
    return found


def in_milliseconds(found: dict[str, list[str]], suffix: str = "json") -> dict[str, list[str]]:
    """Return rows with times in milliseconds, as Django writes them in JSON. XML and YAML keep the microseconds."""
    if "json" not in suffix:
        return found
    return {name: [TIME.sub(in_json, row) for row in each] for name, each in found.items()}


def in_json(time: re.Match[str]) -> str:
    return f"{time[1]}.{(time[2] or '').ljust(3, '0')[:3]}"


def empty() -> None:
    """Empty the tables as `flush` does, which also restarts the ids."""
    names = ", ".join(model._meta.db_table for model in MODELS)
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {names} RESTART IDENTITY")


@pytest.fixture
def dump(tmp_path: Path, transactional_db: None) -> Any:
    """Return a function that dumps both apps, empties their tables and loads the dump. At the end, they are empty."""

    def dump_and_load(*options: str, suffix: str = "json") -> None:
        path = tmp_path / f"dump.{suffix}"
        call_command("dumpdata", *LABELS, *options, output=str(path), verbosity=0, format=suffix)
        empty()
        call_command("loaddata", str(path), verbosity=0)

    empty()
    yield dump_and_load
    empty()


@pytest.mark.parametrize("suffix", ["json", "jsonl", "xml", pytest.param("yaml", marks=NEEDS_YAML)])
def test_dump_and_load_keep_every_row(dump: Any, suffix: str) -> None:
    add_rows()
    before = rows()
    assert [name for name, found in before.items() if not found] == [], "add a row of a new table"
    dump(suffix=suffix)
    assert in_milliseconds(rows(), suffix) == in_milliseconds(before, suffix)


@pytest.mark.parametrize("options", [("--natural-foreign", "--natural-primary"), ("--all",)])
def test_dump_and_load_with_options_keep_every_row(dump: Any, options: tuple[str, ...]) -> None:
    add_rows()
    before = rows()
    dump(*options)
    assert in_milliseconds(rows()) == in_milliseconds(before)


def test_new_rows_after_loading_have_new_ids(dump: Any) -> None:
    add_rows()
    before = {model: set(model.objects.values_list("pk", flat=True)) for model in (Job, Execution, JobBatch, Worker)}
    dump()
    new = tasks.noop.enqueue()
    run_jobs()
    with Batch():
        tasks.noop.enqueue()
    assert new.pk > max(before[Job])
    assert Execution.objects.get(job=new).pk > max(before[Execution])
    assert JobBatch.objects.latest("pk").pk > max(before[JobBatch])
    assert Worker.objects.create(hostname="h", pid=1, version="1", concurrency=1).pk > max(before[Worker])


def test_loaded_jobs_run(dump: Any) -> None:
    """A chain is dumped after its first job."""
    workflow = chain(tasks.add.s(1, 2)).then(tasks.add, 3).enqueue()
    later = tasks.noop.using(run_after=timedelta(hours=1)).enqueue()
    run_jobs(max_jobs=1)
    dump()
    run_jobs(until=timezone.now() + timedelta(hours=2))
    assert [job.result for job in workflow.jobs.order_by("pk")] == [3, 6]
    assert Job.objects.get(pk=later.pk).state == "succeeded"


def test_numbers_field_reads_its_own_text() -> None:
    field = Rollup._meta.get_field("wait_counts")
    assert field.to_python(field.value_to_string(Rollup(wait_counts=[1, 2**31]))) == [1, 2**31]
    assert field.to_python([]) == []
