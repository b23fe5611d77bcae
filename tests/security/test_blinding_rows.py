"""Test that rows which the roles of docs/production/security.md may write hide no figure, page or command.

Each row is written as a role that may. The database refuses it, or every page, command and gauge still answers.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final
from urllib.parse import urljoin

import psycopg
import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client

from django_pgqueue.doctor import examine
from django_pgqueue.metrics import collect
from tests import helpers
from tests.app import tasks

INFINITE: Final = ("infinity", "-infinity", "294276-12-31", "4713-01-01 BC")
LARGE: Final = (2**62, 2**63 - 1)
NO_NUMBERS: Final = ("NaN", "Infinity", "-Infinity", -1.0)
ROWS: Final[dict[str, dict[str, Any]]] = {
    "pgqueue_batch": {"description": "d"},
    "pgqueue_batch_removal": {"batch_id": 1, "state": "dead", "count": 1},
    "pgqueue_event": {"name": "n", "key": "k"},
    "pgqueue_step": {
        "job_id": 1,
        "name": "s",
        "position": 1,
        "kind": "sleep",
        "attempt": 1,
        "started_at": "now",
        "wake_at": "2100-01-01",
    },
    "pgqueue_rollup": {
        "span": "part",
        "starts_at": "now",
        "queue_name": "q",
        "task_name": "t",
        **{name: [1] for name in ("wait_buckets", "wait_counts", "run_buckets", "run_counts")},
    },
    "pgqueue_worker": {"hostname": "h", "pid": 1, "version": "v", "concurrency": 1},
    "pgqueue_worker_request": {"worker_id": 1, "kind": "stop"},
    "pgqueue_execution": {"job_id": 1, "attempt": 1, "worker_id": 1, "lease_expires_at": "now"},
    "pgqueue_schedule": {
        "name": "s",
        "task_name": "t",
        "arguments": "{}",
        "expression": "@daily",
        "next_run_at": "2100-01-01",
    },
    "pgqueue_schedulerun": {"schedule_id": 1, "tick_at": "now"},
    "pgqueue_uniqueness_window": {"job_id": 1, "task_name": "t", "unique_key": "k", "ends_at": "now"},
    "pgqueue_audit": {"action": "retry", "filter": "{}"},
    "pgqueue_audit_job": {"audit_id": 1, "job_id": 1},
    "pgqueue_archived_job": {
        "job_id": 1,
        "task_name": "t",
        "queue_name": "q",
        "state": "dead",
        "document": "{}",
        **dict.fromkeys(("enqueued_at", "finished_at"), "now"),
    },
    "pgqueue_breaker_count": {"limit_key": "k", "succeeded": 1, "failed": 1, "ended_at": "now"},
    "pgqueue_open_breaker": {"limit_key": "k", "after_execution_id": 1},
    "pgqueue_limit_state": {"limit_key": "k", "full_at": "now"},
    "pgqueue_limit_override": {"limit_key": "k", "concurrency": 1},
    "pgqueue_pause": {"kind": "queue", "name": "q"},
    "pgqueue_job": {"task_name": helpers.NOOP, "arguments": helpers.NO_ARGUMENTS},
    "pgqueue_installation": {"system_identifier": 1, "database_oid": 1, "environment": "e", "adopted_at": "now"},
    "pgqueue_remote_token": {
        "name": "n",
        "digest": b"d",
        "queue_names": "[]",
        "task_names": "[]",
        "requests_per_minute": 1,
        "created_at": "now",
        "created_by": "",
        "revoked_by": "",
    },
}
"""A valid row of each table."""
INSTANTS: Final = {
    "pgqueue_batch": ("created_at", "closed_at", "failed_at", "completed_at", "succeeded_at"),
    "pgqueue_event": ("sent_at",),
    "pgqueue_step": ("started_at", "finished_at", "wake_at"),
    "pgqueue_rollup": ("starts_at",),
    "pgqueue_worker": ("started_at", "last_heartbeat_at", "lease_expires_at", "stopped_at"),
    "pgqueue_worker_request": ("requested_at", "answered_at"),
    "pgqueue_schedulerun": ("tick_at", "fired_at"),
    "pgqueue_uniqueness_window": ("ends_at",),
    "pgqueue_audit": ("began_at", "ended_at", "previewed_at", "next_batch_at", "stop_asked_at"),
    "pgqueue_archived_job": ("enqueued_at", "finished_at", "archived_at"),
    "pgqueue_remote_token": ("created_at", "expires_at", "used_at", "revoked_at"),
}
IDENTIFIED: Final = [table for table in ROWS if table not in ("pgqueue_step", "pgqueue_uniqueness_window")]
NO_CALLS: Final = ("null", "7", "[]", '"x"')
REFUSED: Final[list[tuple[str, str, Any]]] = [
    *((table, name, value) for table, names in INSTANTS.items() for name in names for value in INFINITE),
    *((table, "id", value) for table in IDENTIFIED for value in LARGE),
    *(("pgqueue_batch", name, value) for name in ("on_success", "on_complete", "on_failure") for value in NO_CALLS),
    *(("pgqueue_step", "compensation", value) for value in NO_CALLS),
    *(("pgqueue_audit", "filter", value) for value in NO_CALLS),
    *(("pgqueue_remote_token", name, each) for name in ("queue_names", "task_names") for each in ("null", "7", "{}")),
    *(("pgqueue_rollup", name, value) for name in ("wait_seconds", "run_seconds") for value in (*NO_NUMBERS[:3], 1e16)),
    *(("pgqueue_rollup", name, value) for name in ("succeeded", "dead", "crashed") for value in (-1, 10**15)),
    *(("pgqueue_schedule", name, value) for name in ("jitter_seconds", "expires_seconds") for value in NO_NUMBERS),
    ("pgqueue_schedule", "revision", 2**63 - 1),
    ("pgqueue_schedule", "max_attempts", 0),
    *(("pgqueue_audit", name, value) for name in ("job_count", "left_count", "total") for value in (-1, *LARGE)),
    *(("pgqueue_audit", "rate", value) for value in NO_NUMBERS),
    *(("pgqueue_batch_removal", "count", value) for value in (-1, 10**15)),
    ("pgqueue_batch_removal", "state", "odd"),
    ("pgqueue_batch", "parent_id", 10**9),
    ("pgqueue_breaker_count", "failed", -1),
    ("pgqueue_worker", "concurrency", -1),
    ("pgqueue_job", "attempt", 11),
]
PAGES: Final = (
    *("overview/", "overview.json", "queues/", "queues.json", "limits/", "tasks/", "incidents/", "bulk_acts/"),
    *("doctor/", "", "bulk_preview/?action=cancel&state=due", "?state=running", "?state=dead"),
)
LISTS: Final = ("deadjob", "worker", "jobbatch", "pause", "schedule")
COMMANDS: Final = (
    *(("status",), ("status", "--json"), ("queues",), ("jobs", "list"), ("dead", "list"), ("batch", "list")),
    *(("limits", "list"), ("schedules", "list"), ("workers",), ("tasks",), ("remote-token", "list")),
)


def insert(on: Any, table: str, row: dict[str, Any]) -> None:
    marks = ", ".join(["%s"] * len(row))
    on.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", list(row.values()))


def error_of(on: Any, table: str, row: dict[str, Any]) -> str:
    """Return the name of the error of an insert that is rolled back, or an empty text."""
    try:
        with helpers.transaction(on):
            insert(on, table, row)
    except psycopg.Error as error:
        return type(error).__name__
    return ""


@pytest.mark.quick
def test_rows_that_would_hide_figures_are_refused(engine):
    errors = [
        (table, name, value, error_of(engine, table, {**ROWS[table], name: value})) for table, name, value in REFUSED
    ]
    assert len(errors) > 200
    assert [case for case in errors if case[-1] != "CheckViolation"] == []


def test_rows_without_odd_values_are_accepted(engine):
    """Otherwise the refusals would prove nothing."""
    assert [found for table, row in ROWS.items() if (found := (table, error_of(engine, table, row)))[1]] == []


LOWEST: Final = (
    ("operator", "pgqueue_job", "cancel_requested_at = '4713-01-01 BC', priority = -32768"),
    ("worker", "pgqueue_job", "progress_done = 'NaN', progress_total = '-Infinity', progress_at = '-infinity'"),
    ("operator", "pgqueue_pause", "reason = E'\\n\\x1b[31m'"),
)
HIGHEST: Final = (
    ("operator", "pgqueue_job", "cancel_requested_at = 'infinity', priority = 32767"),
    ("worker", "pgqueue_job", "progress_done = 'NaN', progress_total = 'Infinity', progress_at = 'infinity'"),
    ("worker", "pgqueue_step", "tries = 2147483647, event_id = 9223372036854775807"),
)
"""Values that the database accepts: the role, the table, and what the role sets in all its rows."""


@pytest.fixture
def filled(superuser) -> list[int]:
    """Insert a valid row of each table, and a job of each state that has pages."""
    superuser.execute("DELETE FROM pgqueue_remote_token")
    job_ids = [*helpers.make_jobs(superuser, 2), helpers.make_job(superuser, priority=5)]
    helpers.claim_one(superuser)
    for table, row in ROWS.items():
        if table not in ("pgqueue_job", "pgqueue_execution"):
            insert(superuser, table, {**row, **({"job_id": job_ids[1]} if table == "pgqueue_step" else {})})
    insert(superuser, "pgqueue_batch", {"description": "nested", "parent_id": 1})
    return job_ids


def silent_pages(job_ids: list[int]) -> Iterator[str]:
    """Yield the pages that do not open, or say that they cannot be read."""
    client = Client(raise_request_exception=False)
    client.force_login(User.objects.get_or_create(username="root", is_staff=True, is_superuser=True)[0])
    urls = [f"job/{page}" for page in PAGES] + [f"{name}/" for name in LISTS]
    urls += [f"job/{job_id}/change/" for job_id in job_ids] + ["worker/1/change/", "jobbatch/1/change/"]
    urls += ["jobbatch/2/change/", "schedule/1/change/", "../pgqueue_remote/remotetoken/"]
    for url in urls:
        answer = client.get(urljoin("/admin/pgqueue/", url))
        if answer.status_code != 200 or "cannot be read" in answer.content.decode():
            yield f"{url}: {answer.status_code}"


def silent_commands(job_ids: list[int]) -> Iterator[str]:
    """Yield the commands that fail, or say that they cannot read a figure."""
    for arguments in (*COMMANDS, *(("jobs", "show", str(job_id)) for job_id in job_ids), ("batch", "show", "1")):
        out = io.StringIO()
        try:
            call_command("pgqueue", *arguments, stdout=out, stderr=io.StringIO())
        except Exception as error:  # noqa: BLE001 -- the test names all that fail
            yield f"{arguments}: {error!r}"
        if "not read" in out.getvalue():
            yield f"{arguments}: {out.getvalue()}"


def silent_figures() -> Iterator[str]:
    """Yield the gauges without samples, and the checks of the doctor that cannot look."""
    read = {gauge.name: dict(samples) for gauge, samples in collect()}
    if read.get("pgqueue_figures_unread") != {(): 0}:
        yield f"metrics: {sorted(read)}"
    for finding in examine():
        if finding.what.startswith("Could not be examined"):
            yield f"doctor: {finding.id}: {finding.what}"


@pytest.mark.timeout(300)
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("changes", [LOWEST, HIGHEST], ids=["lowest", "highest"])
def test_odd_values_that_a_role_writes_hide_nothing(filled, superuser, as_role, changes):
    for role, table, columns in changes:
        with as_role(role), closing(helpers.connect()) as session:
            assert session.execute(f"UPDATE {table} SET {columns}").rowcount > 0
    with as_role("owner"):
        assert [*silent_pages(filled), *silent_commands(filled), *silent_figures()] == []
        tasks.noop.enqueue()
