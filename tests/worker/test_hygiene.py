"""What a job leaves on its thread's connection does not reach the next one."""

from __future__ import annotations

import threading

import pytest
from django.contrib.auth.models import Group

from django_pgqueue.models import Job
from django_pgqueue.worker.hygiene import changes_the_session
from tests.app import tasks

CLEAN = ["0", "0", "0", "False", "True"]


@pytest.mark.parametrize(
    ("statement", "changes"),
    [
        ("SELECT 1", False),
        ('UPDATE "app_x" SET a = 1', False),
        ("  insert into x values (1)", False),
        ("SET LOCAL statement_timeout = 1", False),
        ("SET TRANSACTION ISOLATION LEVEL READ COMMITTED", False),
        ("SAVEPOINT s1", False),
        ("SET statement_timeout = 1", True),
        ("set search_path to x", True),
        ("SELECT set_config('x.y', 'z', false)", True),
        ("SELECT pg_advisory_lock(1)", True),
        ("LISTEN x", True),
        ("CREATE TEMP TABLE x (a int)", True),
        ("PREPARE p AS SELECT 1", True),
        ("DECLARE c CURSOR WITH HOLD FOR SELECT 1", True),
    ],
)
def test_statements_that_last_are_told_from_those_that_do_not(statement, changes):
    assert changes_the_session(statement) is changes


@pytest.mark.process
@pytest.mark.parametrize(
    "kind",
    [
        "transaction",
        "atomic",
        "closed",
        "killed",
        "SET statement_timeout = '7s'",
        "SELECT set_config('statement_timeout', '7s', false)",
        "SELECT pg_advisory_lock(42)",
        "CREATE TEMP TABLE left_behind (a int)",
    ],
)
def test_the_next_job_finds_a_clean_connection(start, kind):
    tasks.spoil.using(priority=10).enqueue(kind)
    job = tasks.session_state.enqueue()
    assert start("--concurrency", "1", "--drain").has_drained()
    job.refresh_from_db()
    assert (job.state, job.result) == ("succeeded", CLEAN)
    assert not Group.objects.exists()


@pytest.mark.process
def test_connections_are_kept_between_jobs(start):
    jobs = [tasks.backend.enqueue() for _ in range(10)]
    assert start("--concurrency", "1", "--drain").has_drained()
    assert len(set(Job.objects.filter(pk__in=[job.pk for job in jobs]).values_list("result", flat=True))) == 1


@pytest.mark.process
def test_the_asynchronous_orm_has_one_connection_on_one_thread(start):
    jobs = [tasks.async_orm.enqueue() for _ in range(10)]
    assert start("--drain").has_drained()
    where = {tuple(job.result) for job in Job.objects.filter(pk__in=[job.pk for job in jobs])}
    assert len(where) == 1
    [(thread, _)] = where
    assert thread != threading.current_thread().name
