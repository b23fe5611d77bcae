"""Line breaks in names and errors of rows: no subcommand prints a line that a row has written."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from django.core.management.base import CommandError
from django.utils import timezone

from django_pgqueue import Workflow
from django_pgqueue.models import Execution, Job, JobBatch, JobStep, Pause, Schedule, Worker
from tests.app import tasks

from .conftest import Run, claim, die

FORGED = "".join(f"x{end}FG" for end in ("\n", "\r\n", "\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029"))
LATER = timezone.now() + timedelta(days=1)
CALL: dict[str, Any] = {"task_name": FORGED, "arguments": {"args": [], "kwargs": {}}}


@pytest.fixture
def ids(db: None) -> dict[str, int]:
    """Insert rows whose names and errors have every kind of line break, and return their ids."""
    names = {"queue_name": FORGED, "limit_key": f"render:{FORGED}", "unique_key": FORGED}
    dead = die(error=FORGED, text=FORGED)
    Job.objects.filter(pk=dead).update(task_name=FORGED, **names)
    worker = Worker.objects.create(
        hostname=FORGED, pid=7, supervisor_pid=6, version="v", concurrency=1, queue_names=FORGED
    )
    ready = Job.objects.create(**CALL, **{**names, "unique_key": None}, progress_done=1.0, progress_message=FORGED)
    running = Job.objects.create(**CALL, queue_name="other")
    claim(running.pk)
    Execution.objects.filter(job=running).update(worker_id=worker.pk)
    JobStep.objects.create(
        job=running,
        name=FORGED,
        position=1,
        kind="event",
        event_name=FORGED,
        event_key=FORGED,
        attempt=1,
        started_at=LATER,
    )
    workflow = Workflow(description=FORGED)
    workflow.add(tasks.noop.s(), after=[workflow.add(tasks.noop.s())])
    workflow.enqueue()
    Job.objects.filter(batch_id=workflow.id).update(task_name=FORGED)
    Schedule.objects.create(name=FORGED, expression="@daily", next_run_at=LATER, **CALL)
    for kind in ("queue", "task", "limit"):
        Pause.objects.create(kind=kind, name=FORGED, reason=FORGED, paused_by=FORGED)
    batch = JobBatch.objects.create(description=FORGED, on_complete=CALL)
    return {"dead": dead, "ready": ready.pk, "running": running.pk, "batch": batch.pk, "flow": workflow.id or 0}


COMMANDS = (
    "status", "status --all-databases", "queues", "tasks", "limits list", "workers", "workers --all", "schedules list",
    "jobs list", "dead list", "batch list", "batch show {batch}", "batch show {flow}",
    "workflow show {flow}", "jobs show {dead}", "jobs show {ready}", "jobs show {running}", "why {dead}", "why {ready}",
    "why {running}", "jobs retry {dead} --dry-run", "jobs cancel {ready} {running} --dry-run",
    "dead retry --error ValueError --dry-run",
    "prune --dry-run", "doctor", "check-deploy", "adopt --dry-run", "adopt --pause --force",
    "archive --table --older-than 1d --dry-run",
)  # fmt: skip
OF_NAMES = (
    ("schedules", "run", FORGED), ("schedules", "pause", FORGED), ("schedules", "resume", FORGED),
    ("limits", "show", f"render:{FORGED}"), ("jobs", "list", "--queue", FORGED), ("pause", FORGED), ("resume", FORGED),
    ("pause", "--task", FORGED), ("clear", FORGED, "--dry-run"), ("enqueue", FORGED), ("enqueue", "app.noop"),
)  # fmt: skip


@pytest.mark.parametrize("words", [*(command.split() for command in COMMANDS), *OF_NAMES], ids=lambda words: words[0])
def test_subcommand_prints_no_line_of_a_row(pgqueue: Run, ids: dict[str, int], words: list[str]) -> None:
    check(pgqueue, ids, words)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("words", ["run {dead}", "run {ready}", "run {dead} --retry"])
def test_run_prints_no_line_of_a_row(pgqueue: Run, ids: dict[str, int], words: str) -> None:
    check(pgqueue, ids, words.split())


def check(pgqueue: Run, ids: dict[str, int], words: Sequence[str]) -> None:
    text = ""
    try:
        text = "".join(pgqueue(*(word.format_map(ids) if "{" in word else word for word in words)))
    except CommandError as error:
        text = str(error)
    except SystemExit as stop:
        assert stop.code
    assert [line for line in text.splitlines() if line.lstrip("\x1b[0123456789m").startswith("FG")] == []
