"""Subcommands with `USE_TZ = False`, where Django itself makes and reads datetimes without a time zone."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import connection

from django_pgqueue import control
from django_pgqueue.models import Job, Pause, Worker
from tests import helpers
from tests.app import tasks
from tests.management.conftest import Run, die, succeed

BERLIN = ZoneInfo("Europe/Berlin")
LATER = datetime(2100, 7, 1, 12, tzinfo=UTC)
READING = (
    "status",
    "jobs list --since 1h",
    "jobs list --until 2099-01-31T08:00",
    "dead list --since 1h",
    "queues",
    "schedules list",
    "workers",
    "tasks",
    "archive --older-than 1d --table --dry-run",
    "erase --before 1d --arguments --reason test --dry-run",
    "prune --dry-run",
)


@pytest.fixture(autouse=True)
def without_time_zones(settings: Any) -> None:
    settings.USE_TZ, settings.TIME_ZONE = False, BERLIN.key


def test_reading_commands_without_time_zones_answer(pgqueue: Run) -> None:
    Worker.objects.create(hostname="h", pid=1, version="1", concurrency=1)
    ids = [die(), succeed(helpers.make_job(connection)), tasks.add.using(run_after=LATER).enqueue(1).id]
    helpers.make_schedule(connection, "nightly", due_in=3600.0)
    control.pause("mail", until=LATER)
    for command in (*READING, *(f"why {each}" for each in ids), *(f"jobs show {each}" for each in ids)):
        assert pgqueue(*command.split()).out, command


def test_changing_commands_without_time_zones_take_effect(pgqueue: Run) -> None:
    pgqueue("enqueue", tasks.add.name, "--args", "[1]", "--run-after", "2100-07-01T14:00")
    assert Job.objects.get().run_after == LATER
    pgqueue("pause", "default", "--until", "2100-07-01T14:00")
    assert Pause.objects.get().paused_until == LATER
