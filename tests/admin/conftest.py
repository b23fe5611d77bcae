"""Users, clients and jobs for the tests of the admin."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.contrib.contenttypes.models import ContentType
from django.db import connection
from django.test import Client
from django.utils import timezone

from django_pgqueue import control
from django_pgqueue.models import Execution, Job
from tests import helpers

JobMaker = Callable[..., Job]

FINISHED = {"succeeded", "dead", "cancelled"}


class Browser(Client):
    """Client that, like a browser, posts the hidden inputs of the page with the form."""

    def post(self, path: str, data: Any = None, *args: Any, **options: Any) -> Any:  # type: ignore[override]  # looser
        """Request the current page and post its hidden inputs, unless the test passes its own."""
        given = dict(data or {})
        if not given.keys() & set(HIDDEN):
            given = {**shown_by(self, path), **given}
        return super().post(path, given, *args, **options)


HIDDEN = ("shown", "shown_at", "shown_schedule", "shown_runs", "shown_pauses")


def shown_by(client: Client, path: str) -> dict[str, list[str]]:
    """Return the hidden inputs in which the page of a form states what it shows."""
    page = re.sub(r"(/\d+)/(retry|acknowledge|cancel|run|move|delete|pause|resume)/$", r"\1/change/", path)
    answer = client.get(page)
    text = answer.content.decode() if answer.status_code == 200 else ""
    found = {name: re.findall(f'name="{name}" value="([^"]*)"', text) for name in HIDDEN}
    return {name: values for name, values in found.items() if values}


@pytest.fixture(autouse=True)
def known_content_types() -> None:
    """Clear the cache of content types, because other tests empty the whole database and invalidate it."""
    ContentType.objects.clear_cache()


@pytest.fixture
def make_user(db: None) -> Callable[..., User]:
    """Return a function that creates a staff user with the given permissions of this app."""

    def make(*codenames: str, name: str = "staff") -> User:
        user = User.objects.create_user(name, password="secret", is_staff=True)  # noqa: S106 -- only in the test database
        permissions = Permission.objects.filter(codename__in=codenames, content_type__app_label="pgqueue")
        assert permissions.count() == len(codenames)
        user.user_permissions.set(permissions)
        return user

    return make


@pytest.fixture
def client_of(make_user: Callable[..., User]) -> Callable[..., Client]:
    """Return a function that creates a client whose user has the given permissions."""

    def make(*codenames: str) -> Client:
        client = Browser()
        client.force_login(make_user(*codenames))
        return client

    return make


@pytest.fixture
def operator(client_of: Callable[..., Client]) -> Client:
    """Return a client whose user may view everything and run every operation on jobs, pauses and schedules.

    The user may not add, edit or delete schedules.
    """
    seen = ("view_job", "view_arguments", "view_worker", "view_pause", "view_schedule")
    return client_of(*seen, "retry_job", "cancel_job", "run_job", "pause_queue", "run_schedule", "pause_schedule")


@pytest.fixture
def make_job(db: None) -> JobMaker:
    """Return a function that creates a job directly in any state, without the transitions that lead to it."""

    def make(state: str = "ready", **columns: object) -> Job:
        values: dict[str, object] = {"task_name": "app.add", "arguments": {"args": [1], "kwargs": {}}, **columns}
        job = Job.objects.create(state="ready", **values)
        set_state(job.pk, state)
        job.refresh_from_db()
        return job

    return make


@pytest.fixture
def one_of_each(make_job: JobMaker) -> dict[str, Job]:
    """Make a job for each word, and return them by their words."""
    later = timezone.now() + timedelta(hours=1)
    jobs = {
        "due": make_job(),
        "scheduled": make_job(run_after=later),
        "retrying": make_job(run_after=later, attempt=1),
        "unknown": make_job(run_after=later, unknown_since=timezone.now()),
        "paused": make_job(queue_name="mail"),
        "running": make_job("running"),
        "lost": make_job("running"),
        "cancelling": make_job("running", cancel_requested_at=timezone.now()),
        **{state: make_job(state) for state in ("succeeded", "dead", "cancelled")},
    }
    jobs["acknowledged"] = make_job("dead", acknowledged_at=timezone.now())
    Execution.objects.filter(job=jobs["lost"]).update(lease_expires_at=timezone.now() - timedelta(seconds=5))
    control.pause("mail")
    return jobs


def set_state(job_id: int, state: str) -> None:
    """Set the state of a job. A finished job finished a minute ago, and a running job gets an open execution."""
    if state == "ready":
        return
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE pgqueue_job SET state = %s, attempt = 1,"
            " finished_at = CASE WHEN %s THEN statement_timestamp() - interval '1 minute' END WHERE id = %s",
            [state, state in FINISHED, job_id],
        )
        if state == "running":
            cursor.execute(
                "INSERT INTO pgqueue_execution (job_id, attempt, worker_id, claimed_at, started_at, lease_expires_at)"
                " VALUES (%s, 1, 1, statement_timestamp(), statement_timestamp(), statement_timestamp() + '1 minute')",
                [job_id],
            )
            cursor.execute(helpers.NAME_EXECUTIONS)


def add_execution(job: Job, **columns: object) -> Execution:
    """Add a failed execution to a job. It ran for ten seconds and finished a minute ago."""
    now = timezone.now()
    values: dict[str, object] = {
        "attempt": 1,
        "worker_id": 1,
        "outcome": "failed",
        "claimed_at": now - timedelta(seconds=71),
        "started_at": now - timedelta(seconds=70),
        "finished_at": now - timedelta(seconds=60),
        "lease_expires_at": now,
        "exception_class": "builtins.ValueError",
        "error": "no such thing",
        "traceback": "Traceback (most recent call last):\n  ...\nValueError: no such thing",
        **columns,
    }
    execution = Execution.objects.create(job=job, **values)
    with connection.cursor() as cursor:
        cursor.execute(helpers.NAME_EXECUTIONS)
    return execution


@pytest.fixture
def many_jobs(db: None) -> Iterator[int]:
    """Insert 20,000 jobs and analyze the table: one in 1,000 is ready, one in 2,000 is dead, all others succeeded."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO pgqueue_job (task_name, queue_name, arguments, state, finished_at, enqueued_at)"
            " SELECT 'app.task' || n %% 7, 'queue' || n %% 3, '{}',"
            "  CASE WHEN n %% 1000 = 0 THEN 'ready' WHEN n %% 2000 = 1 THEN 'dead' ELSE 'succeeded' END,"
            "  CASE WHEN n %% 1000 <> 0 THEN statement_timestamp() - (20000 - n) * interval '1 minute' END,"
            "  statement_timestamp() - (20000 - n) * interval '1 minute'"
            " FROM generate_series(1, 20000) AS n",
            [],
        )
        cursor.execute("ANALYZE pgqueue_job, pgqueue_execution")
    yield 20_000
