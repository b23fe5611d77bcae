"""The doctor as a command, as system checks and as a page of the admin."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import call_command
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_pgqueue.doctor import Level, examine
from django_pgqueue.doctor.catalogue import CHECKS
from django_pgqueue.models import Worker

from .conftest import change_alias, run_sql

PAGE = "/admin/pgqueue/job/doctor/"


def doctor(*arguments: str) -> tuple[int, str]:
    """Run the command, and return its exit code and its output."""
    output = StringIO()
    try:
        call_command("pgqueue", "doctor", *arguments, stdout=output)
    except SystemExit as end:
        return int(str(end.code)), output.getvalue()
    return 0, output.getvalue()


def test_doctor_command_lists_each_check_and_counts_them(db, calm):
    code, text = doctor()
    assert code == 0
    assert re.findall(r"^(?:ok|info|warning|error) +(\w+): ", text, re.MULTILINE) == [check.id for check in CHECKS]
    assert text.splitlines()[-1] == f"{len(CHECKS)} checks: {len(CHECKS) - 1} ok, 1 info, 0 warning, 0 error"


def test_doctor_command_error_has_exit_code_1_why_and_fix(db):
    run_sql("ALTER TABLE pgqueue_job SET (autovacuum_enabled = off)")
    code, text = doctor()
    [lines] = re.findall(r"^error    autovacuum: (.*\n.*\n.*)\n", text, re.MULTILINE)
    assert code == 1
    what, why, fix = lines.splitlines()
    assert what == "Autovacuum is disabled for 'pgqueue_job'."
    assert why.strip().startswith("Why: Every job leaves dead rows")
    assert fix.strip() == "Fix: ALTER TABLE pgqueue_job RESET (autovacuum_enabled);"


def test_doctor_command_warning_fails_only_with_fail_on(db, calm):
    Worker.objects.create(
        hostname="h", pid=1, version="v", concurrency=1, last_heartbeat_at=timezone.now() - timedelta(hours=1)
    )
    assert doctor()[0] == 0
    assert doctor("--fail-on", "error")[0] == 0
    assert doctor("--fail-on", "warning")[0] == 1


def test_doctor_command_json_is_one_document_with_stable_keys(db, calm):
    Worker.objects.create(hostname="h", pid=1, version="v", concurrency=1)
    code, text = doctor("--json", "--database", "default")
    document = json.loads(text)
    assert code == 0
    assert document.keys() == {"database", "examined_at", "counts", "findings"}
    assert document["database"] == "default"
    assert sum(document["counts"].values()) == len(CHECKS) and document["counts"].keys() == set(Level)
    assert {key for finding in document["findings"] for key in finding} == {
        *("id", "level", "what", "why", "fix", "data"),
    }


def test_findings_data_is_plain_json(db):
    """A metric or another program can store what a finding contains."""
    Worker.objects.create(hostname="h", pid=1, version="v", concurrency=1)
    for finding in examine():
        assert json.loads(json.dumps(finding.as_dict())) == finding.as_dict(), finding.id


# ------------------------------------------------------------------ system checks


def run_check(*arguments: str) -> str:
    output = StringIO()
    call_command("check", *arguments, stdout=output, stderr=output)
    return output.getvalue()


@pytest.mark.parametrize(
    ("statement", "message_id", "hint"),
    [
        ("DROP INDEX pgqueue_job_ready", "pgqueue.W011", "CREATE INDEX CONCURRENTLY"),
        ("ALTER TABLE pgqueue_job SET (autovacuum_enabled = off)", "pgqueue.W012", "RESET (autovacuum_enabled)"),
    ],
)
def test_check_database_reports_it_with_the_fix(db, statement, message_id, hint):
    database = ("--tag", "database", "--database", "default")
    assert "pgqueue" not in run_check(*database)
    run_sql(statement)
    output = run_check(*database)
    assert message_id in output and hint in output
    assert message_id not in run_check("--tag", "database")


def test_check_database_missing_grant_is_reported(role):
    run_sql(f"GRANT INSERT ON pgqueue_execution TO {role}")
    run_sql(f"SET LOCAL ROLE {role}")
    assert "pgqueue.W013" in run_check("--database", "default", "--tag", "database")


def test_check_database_new_or_unreachable_database_reports_nothing(alias):
    """Other tests leave tables in the database `postgres`. Without its schemas in the path, it is like a new one."""
    options = {**connections[alias].settings_dict["OPTIONS"], "options": "-c search_path=pg_catalog"}
    for name in ("postgres", "no_such_database"):
        change_alias(alias, NAME=name, OPTIONS=options)
        assert "pgqueue" not in run_check("--database", alias, "--tag", "database")


# ------------------------------------------------------------------ the admin


def test_admin_page_shows_findings_with_the_worst_first(operator, calm):
    run_sql("ALTER TABLE pgqueue_job SET (autovacuum_enabled = off)")
    text = operator.get(PAGE).content.decode()
    rows = re.findall(r'<th scope="row">(\w+)</th>', text)
    assert rows[0] == "autovacuum" and sorted(rows) == sorted(check.id for check in CHECKS)
    assert "Autovacuum is disabled for &#x27;pgqueue_job&#x27;." in text
    assert "ALTER TABLE pgqueue_job RESET (autovacuum_enabled);" in text.replace("<wbr>", "")
    assert "Every job leaves dead rows" in text
    assert f"{len(CHECKS) - 2} of {len(CHECKS)} checks of the database “default” found nothing." in text
    assert '<a href="/admin/pgqueue/job/">' in text


def test_admin_page_escapes_what_a_row_contains(operator):
    late = timezone.now() - timedelta(hours=1)
    Worker.objects.create(hostname="<b>\x1b\u202e", pid=1, version="v", concurrency=1, last_heartbeat_at=late)
    text = operator.get(PAGE).content.decode()
    assert r"&#x27;&lt;b&gt;\x1b\u202e&#x27;" in text
    assert "<b>" not in text and "\x1b" not in text and "\u202e" not in text


def test_admin_page_needs_the_permission_to_view_jobs(client_of):
    assert client_of("view_worker").get(PAGE).status_code == 403


def test_admin_page_refuses_post(operator):
    assert operator.post(PAGE).status_code == 405
    assert operator.get("/admin/pgqueue/deadjob/doctor/").status_code == 302, "the lists share no URL"


def test_admin_index_links_the_page_for_users_who_may_view_it(operator, client_of, make_user):
    assert f'href="{PAGE}"' in operator.get("/admin/pgqueue/").content.decode()
    other_client = type(operator)()
    other_client.force_login(make_user("view_worker", name="other"))
    assert PAGE not in other_client.get("/admin/pgqueue/").content.decode()


def test_admin_page_statements_do_not_grow_with_rows(operator, make_job):
    def statements() -> int:
        with CaptureQueriesContext(connection) as captured:
            assert operator.get(PAGE).status_code == 200
        return len(captured)

    make_job()
    for version in ("v", "w"):
        Worker.objects.create(hostname="h", pid=1, version=version, concurrency=1)
    statements()  # the first page reads what later ones have in a cache
    before = statements()
    for number in range(20):
        make_job(queue_name=f"queue{number}", run_after=timezone.now() - timedelta(hours=1))
        make_job("running")
        Worker.objects.create(hostname=f"h{number}", pid=1, version=f"v{number}", concurrency=1)
    assert statements() == before
