"""An examination as a whole: it changes nothing, and no failing check hides the others."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from django_pgqueue.doctor import (
    Level,
    access_checks,
    examination,
    examine,
    job_checks,
    pooler_checks,
    server_checks,
    session,
    session_checks,
    settings_checks,
    storage_checks,
    worker_checks,
)
from django_pgqueue.doctor.catalogue import CHECKS
from django_pgqueue.doctor.findings import Check, Result, literal, ok, quoted, span
from django_pgqueue.models import Job
from django_pgqueue.testing import delete_all_jobs
from tests.documents import plain, table

from .conftest import change_alias, run_sql

MODULES = (
    *(access_checks, job_checks, pooler_checks, server_checks, session),
    *(session_checks, settings_checks, storage_checks, worker_checks),
)
PAGE = "docs/production/doctor.md"


def check_that(look: Callable[[session.Session], Any]) -> Check:
    return Check("tried", "", "", look)


def passing(examined: session.Session) -> Result:
    """Run a statement, which fails if the statement of another check has broken the transaction."""
    examined.rows("SELECT 1")
    return ok("It passes.")


def setting(name: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting(%s)", [name])
        return str(cursor.fetchone()[0])


@pytest.mark.parametrize("statement", ["SELECT no_such_function()", "INSERT INTO pgqueue_job (id) VALUES (1)"])
def test_examine_failing_statement_reports_it_and_runs_the_others(db, statement):
    checks = [check_that(passing), check_that(lambda examined: examined.rows(statement)), check_that(passing)]
    first, failed, last = examine(checks=checks)
    assert first.level is last.level is Level.OK
    assert failed.level is Level.WARNING and failed.what.startswith("Could not be examined: "), failed
    assert failed.data["cannot_see"]


def test_examine_error_in_python_is_reported(db):
    [failed, last] = examine(checks=[check_that(lambda _: 1 / 0), check_that(passing)])
    assert (failed.level, last.level) == (Level.WARNING, Level.OK)
    assert "division by zero" in failed.what


def test_examine_check_that_writes_is_refused(db):
    [finding] = examine(checks=[check_that(lambda examined: examined.rows("DELETE FROM pgqueue_job"))])
    assert "read-only transaction" in finding.what


@pytest.mark.slow
def test_examine_slow_statement_is_stopped(db, monkeypatch):
    monkeypatch.setattr(session, "STATEMENT_TIMEOUT_SECONDS", 1.0)
    sleeping = check_that(lambda examined: examined.rows("SELECT pg_sleep(9)"))
    [slow, last] = examine(checks=[sleeping, check_that(passing)])
    assert "took longer than" in slow.what
    assert last.level is Level.OK


def test_examine_after_the_time_limit_runs_no_further_check(db, monkeypatch):
    monkeypatch.setattr(examination, "TIME_LIMIT_SECONDS", 0.05)
    slow = check_that(lambda examined: examined.rows("SELECT pg_sleep(0.06)") and passing(examined))
    first, last = examine(checks=[slow, check_that(passing)])
    assert (first.level, last.level) == (Level.OK, Level.WARNING)
    assert "Not examined" in last.what and last.data["cannot_see"]


def test_examine_in_transaction_keeps_its_work_and_settings(db, make_job):
    job = make_job()
    run_sql("SET LOCAL statement_timeout = '77s'")
    assert len(examine()) == len(CHECKS)
    assert Job.objects.filter(pk=job.pk).exists()
    assert (setting("statement_timeout"), setting("transaction_read_only")) == ("77s", "off")
    delete_all_jobs()


def test_examine_outside_transaction_restores_settings(committing):
    before = setting("statement_timeout")
    assert {finding.id for finding in examine()} == {check.id for check in CHECKS}
    assert (setting("statement_timeout"), setting("lock_timeout")) == (before, "0")


def test_examine_unreachable_database_is_one_error(alias):
    change_alias(alias, NAME="no_such_database")
    [finding] = examine(alias)
    assert (finding.id, finding.level) == ("server", Level.ERROR)
    assert "no_such_database" in finding.what


def test_examine_healthy_database_has_no_warning(db, calm):
    assert [finding for finding in examine() if finding.level.is_at_least(Level.WARNING)] == []


def test_statements_are_literals_that_begin_with_their_names():
    statements = {
        name: value
        for module in MODULES
        for name, value in vars(module).items()
        if isinstance(value, str) and re.search(r"\b(SELECT|SET TRANSACTION)\b", value)
    }
    assert len(statements) > 25
    for name, text in statements.items():
        assert text.startswith(f"/* pgqueue:doctor_{name.lower()} */\n"), name
        assert not re.search(r"\b(INSERT|UPDATE|DELETE|ALTER|DROP|NOTIFY|pg_terminate\w*)\b", text), name


def test_page_has_each_check_with_its_sentences():
    listed = [(plain(row[0]), row[1], row[2]) for row in table(PAGE, "finding")]
    assert listed == [(check.id, check.reports, check.why) for check in CHECKS]


def test_page_says_what_to_do_for_each_check():
    named = [name for row in table(PAGE, "findings") for name in row[0].replace("`", "").split(", ")]
    assert sorted(named) == sorted(check.id for check in CHECKS)


def test_texts_escape_what_a_row_contains():
    assert quoted("a\x1b[31m\u202e") == r"'a\x1b[31m\u202e'"
    assert len(quoted("x" * 500)) == 82
    assert literal("it's") == "'it''s'"
    assert literal("a\nb\\") == r"E'a\nb\\'"


def test_texts_state_durations():
    assert [span(40), span(180), span(7200), span(200_000)] == ["40 s", "3 min", "2 h", "2 d"]
