"""The filter of the lists of jobs by limit key: the jobs of one key, or of all keys of one limit."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_pgqueue.job_search import search
from django_pgqueue.models import Execution, Job
from tests.test_sql import nodes

from .conftest import JobMaker

JOBS, DEAD = "/admin/pgqueue/job/", "/admin/pgqueue/deadjob/"
KEY, OTHER = "import:customer:7", "import:customer:70"


def listed(client: Client, url: str = JOBS, **parameters: str) -> list[int]:
    return [job.pk for job in client.get(url, parameters).context["cl"].result_list]


@pytest.fixture
def jobs(make_job: JobMaker) -> dict[str, Job]:
    """Make a job with the key in each state, and ready jobs with other keys whose texts are near."""
    states = ("ready", "running", "succeeded", "dead", "cancelled")
    found = {state: make_job(state, limit_key=KEY) for state in states}
    Execution.objects.update(limit_key=KEY)
    near = {name: make_job(limit_key=name) for name in (OTHER, "import", "import-all", "importer:1", "Import:1")}
    make_job(queue_name="mail")
    return found | near


def test_filter_by_key_lists_jobs_of_that_key_only(operator: Client, jobs: dict[str, Job]) -> None:
    for state in ("ready", "due", "running", "succeeded", "dead", "cancelled"):
        expected = jobs["ready" if state == "due" else state].pk
        assert listed(operator, limit=KEY, state=state) == [expected], state


def test_filter_by_limit_lists_jobs_of_all_its_keys(operator: Client, jobs: dict[str, Job]) -> None:
    of_limit = [jobs[name].pk for name in ("import", "ready", OTHER)]
    assert listed(operator, limit="import", state="ready") == of_limit
    finished = [jobs[state].pk for state in ("cancelled", "dead", "succeeded")]
    assert listed(operator, limit="import") == [jobs["running"].pk, *of_limit, *finished]
    text = operator.get(JOBS, {"limit": "import"}).content.decode()
    assert "running, then waiting, then finished jobs" in text
    assert listed(operator, DEAD, limit="import") == [jobs["dead"].pk]


def test_filter_by_key_combines_with_other_filters(operator: Client, jobs: dict[str, Job], make_job: JobMaker) -> None:
    moved = make_job(limit_key=KEY, queue_name="mail", task_name="app.other")
    assert listed(operator, limit=KEY, state="ready", queue="mail") == [moved.pk]
    assert listed(operator, limit=KEY, q="app.other") == [moved.pk]
    assert listed(operator, limit=KEY, q=str(moved.pk)) == [moved.pk]
    assert listed(operator, limit=OTHER, q=str(moved.pk)) == []
    assert listed(operator, limit="\0") == []


def test_filter_is_shown_with_names_of_limits(operator: Client, make_job: JobMaker) -> None:
    text = operator.get(JOBS, {"limit": "import"}).content.decode()
    assert 'data-filter-title="limit"' in text and '<input type="text" name="limit" value="import"' in text


def test_list_by_limit_links_the_bulk_acts_on_its_jobs(operator: Client, jobs: dict[str, Job]) -> None:
    for state, label, count in (("dead", "Retry", 1), ("ready", "Cancel", 3), ("running", "Cancel", 1)):
        text = operator.get(JOBS, {"limit": "import", "state": state}).content.decode()
        [url] = re.findall(rf'href="([^"]*/bulk_preview/[^"]*)"[^>]*>\s*{label}', text)
        preview = operator.get(unescape(url)).content.decode()
        assert f"<strong>{count}</strong> job" in preview and "import" in preview, state


@pytest.fixture
def saturated_key(db: None) -> None:
    """Insert 20,000 ready jobs of one key, one job of each of 20,000 others, and 2,000 dead jobs that block keys."""
    insert = (
        "INSERT INTO pgqueue_job (task_name, arguments, limit_key) SELECT 'app.t', '{}', "
        "CASE WHEN n <= 20000 THEN 'import:hot' ELSE 'import:' || n END FROM generate_series(1, 40000) AS n"
    )
    dead = (
        "INSERT INTO pgqueue_job (task_name, arguments, limit_key, limit_order, state, finished_at) "
        "SELECT 'app.t', '{}', 'import:' || n, 2, 'dead', now() - n * interval '1 s' FROM generate_series(1, 2000) AS n"
    )
    with connection.cursor() as cursor:
        cursor.execute(insert)
        cursor.execute(dead)
        cursor.execute("ANALYZE pgqueue_job")


@pytest.mark.usefixtures("saturated_key")
def test_filter_by_key_reads_range_of_index(operator: Client) -> None:
    for key, state, most in (("import:hot", "ready", 10_000), ("import:30000", "due", 1), ("import", "ready", 10_000)):
        check_reads(operator, key, state, most)


def check_reads(operator: Client, key: str, state: str, most: int) -> None:
    """Check that a search reads only its range of the index, and at most so many jobs."""
    with CaptureQueriesContext(connection) as captured:
        assert operator.get(JOBS, {"limit": key, "state": state}).context["cl"].result_list
    searches = [query["sql"] for query in captured if "pgqueue:ready_in_lanes" in query["sql"]]
    assert searches
    for statement in searches:
        with connection.cursor() as cursor:
            cursor.execute("EXPLAIN (ANALYZE, FORMAT JSON) " + statement.replace("%", "%%"), [])
            plan = cursor.fetchone()[0][0]["Plan"]
        scans: list[Any] = [node for node in nodes(plan) if node.get("Relation Name") == "pgqueue_job"]
        assert {node["Node Type"] for node in scans} <= {"Index Scan", "Index Only Scan"}
        # One more is read to see that there are more, and one behind the bound.
        assert sum(node["Actual Rows"] * node["Actual Loops"] for node in scans) <= most + 2


def test_filter_finds_old_waiting_jobs_in_any_state(
    operator: Client, jobs: dict[str, Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest jobs alone would hide the jobs that have waited for longest."""
    monkeypatch.setattr(search, "SEARCHED", 1)
    answer = operator.get(JOBS, {"limit": KEY})
    assert [job.pk for job in answer.context["cl"].result_list] == [jobs["running"].pk, jobs["ready"].pk]
    assert "among the newest 1 jobs" in answer.content.decode()


@pytest.mark.usefixtures("saturated_key")
def test_pages_of_limits_scan_no_table(operator: Client) -> None:
    for url in ("limits/", "limit/?limit=import", "limit/?limit=import&key=hot"):
        with CaptureQueriesContext(connection) as captured:
            assert operator.get(f"{JOBS}{url}").status_code == 200
        assert [query for query in captured if "row_number" in query["sql"].lower()]  # the latest dead jobs
        for query in captured:
            if "pgqueue_" in query["sql"]:
                with connection.cursor() as cursor:
                    cursor.execute("EXPLAIN " + query["sql"].replace("%", "%%"), [])
                    plan = "\n".join(row[0] for row in cursor.fetchall())
                assert "Seq Scan on pgqueue_job" not in plan, plan
