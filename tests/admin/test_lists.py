"""The admin's lists: what they show, which rows filters and search find, and what the queries cost."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from django_pgqueue import stats
from django_pgqueue.admin import readonly
from django_pgqueue.job_search import ready_jobs, search
from django_pgqueue.lifecycle import claims
from django_pgqueue.models import Job, Pause
from tests.admin.conftest import JobMaker, add_execution
from tests.test_sql import nodes, rows_read

pytestmark = pytest.mark.slow

JOBS = "/admin/pgqueue/job/"
DEAD = "/admin/pgqueue/deadjob/"
WORKERS = "/admin/pgqueue/worker/"


def ids(client: Client, url: str, **query: str) -> list[int]:
    """Return the ids on the first page of a list."""
    response = client.get(url, query)
    assert response.status_code == 200, (url, query, response.headers)
    return [job.pk for job in response.context["cl"].result_list]


@pytest.mark.quick
def test_list_dead_job_shows_columns_and_last_error(operator: Client, make_job: JobMaker) -> None:
    job = make_job("dead", queue_name="mail", priority=7)
    add_execution(job, error="first", exception_class="app.Old")
    add_execution(job, error="  the second\nline", exception_class="app.errors.TooLate")
    page = operator.get(JOBS).content.decode()
    for expected in (f"#{job.pk}", "pgqueue-dead", "app.add", "mail", ">7<", "1/10", "10 s", "TooLate: the second"):
        assert expected in page, expected
    assert "first" not in re.sub(r'class="[^"]*"', "", page.split("result_list")[1].split("</table>")[0])


@pytest.mark.parametrize(("outcome", "is_error"), [("failed", True), ("crashed", True), ("snoozed", False)])
def test_list_and_page_mark_only_failures_as_errors(
    operator: Client, make_job: JobMaker, outcome: str, is_error: bool
) -> None:
    job = make_job()
    add_execution(job, outcome=outcome)
    page = operator.get(f"{JOBS}{job.pk}/change/").content.decode()
    assert ("pgqueue-last-error" in operator.get(JOBS).content.decode()) is is_error
    assert ("pgqueue-error" in page) is is_error
    assert "no such thing" in page


@pytest.mark.parametrize(
    ("url", "title"),
    [
        *(("worker/", "Workers"), ("pause/", "Pauses"), ("schedule/", "Schedules"), ("deadjob/", "Dead letters")),
        *(("job/", "Jobs"), ("job/?state=running", "Jobs: running"), ("job/?state=x", "Jobs")),
    ],
)
def test_list_title_says_what_is_listed(operator: Client, url: str, title: str) -> None:
    page = operator.get(f"/admin/pgqueue/{url}").content.decode()
    assert f"<h1>{title}</h1>" in page and f"<title>{title} | " in page


def test_list_of_thirty_jobs_needs_at_most_14_queries(operator: Client, make_job: JobMaker) -> None:
    for n in range(30):
        add_execution(make_job("dead", task_name=f"app.t{n}"))
    for url in (JOBS, DEAD, f"{JOBS}?state=dead&queue=default&task=app.t1&since=hour&q=app.t1"):
        with CaptureQueriesContext(
            connection,
        ) as captured:
            assert operator.get(url).status_code == 200
        assert len(captured) <= 14 if "?" in url else len(captured) <= 10, [q["sql"] for q in captured]


@pytest.mark.parametrize("state", ["ready", "running", "succeeded", "dead", "cancelled"])
def test_filter_by_state_lists_only_jobs_in_that_state(operator: Client, make_job: JobMaker, state: str) -> None:
    jobs = {s: make_job(s) for s in ("ready", "running", "succeeded", "dead", "cancelled")}
    assert ids(operator, JOBS, state=state) == [jobs[state].pk]


def test_filters_by_name_and_time_list_matching_jobs(operator: Client, make_job: JobMaker) -> None:
    old = make_job(queue_name="mail", task_name="app.old", enqueued_at=timezone.now() - timedelta(days=2))
    new = make_job(queue_name="mail", task_name="app.new")
    other = make_job(queue_name="other", task_name="app.new")
    assert ids(operator, JOBS) == [other.pk, new.pk, old.pk]
    assert ids(operator, JOBS, queue="mail") == [new.pk, old.pk]
    assert ids(operator, JOBS, queue="mail", state="ready") == [old.pk, new.pk]  # in claim order
    assert ids(operator, JOBS, task="app.new") == [other.pk, new.pk]
    assert ids(operator, JOBS, since="hour") == [other.pk, new.pk]
    assert ids(operator, JOBS, since="week", task="app.old") == [old.pk]
    for nonsense in ({"state": "x"}, {"queue": "none"}, {"queue": "\0"}, {"task": "'; DROP TABLE pgqueue_job; --"}):
        assert ids(operator, JOBS, **nonsense) == []
    assert len(ids(operator, JOBS, since="x")) == 3


def test_search_by_number_or_task_finds_exact_matches(operator: Client, make_job: JobMaker) -> None:
    job, other = make_job(task_name="app.one"), make_job(task_name="app.two")
    assert ids(operator, JOBS, q=str(job.pk)) == ids(operator, JOBS, q=f" #{job.pk} ") == [job.pk]
    assert ids(operator, JOBS, q="app.two") == [other.pk]
    for nothing in ("app.", "9" * 19, "9" * 18, "9" * 5000, "%", "app.two app.one"):
        assert ids(operator, JOBS, q=nothing) == [], nothing


def test_dead_list_contains_only_dead_jobs_latest_first(operator: Client, make_job: JobMaker) -> None:
    first, second = make_job("dead"), make_job("dead")
    for state in ("ready", "running", "succeeded", "cancelled"):
        make_job(state)
    Job.objects.filter(pk=first.pk).update(finished_at=timezone.now())
    assert ids(operator, DEAD) == [first.pk, second.pk]
    Job.objects.filter(pk=second.pk).update(finished_at=timezone.now() - timedelta(hours=2))
    assert ids(operator, DEAD, since="hour") == [first.pk]


def test_count_over_limit_stops_and_is_marked(
    operator: Client, make_job: JobMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readonly, "COUNT_LIMIT", 3)
    for _ in range(3):
        make_job()
    assert "only the first" not in operator.get(JOBS).content.decode()
    make_job()
    with CaptureQueriesContext(connection) as captured:
        response = operator.get(JOBS)
    assert response.context["cl"].result_count == 3
    assert "only the first" in response.content.decode()
    [limit] = [q["sql"] for q in captured if "ORDER BY" in q["sql"] and q["sql"].endswith("LIMIT 4")]
    assert "pgqueue_job" in limit


def test_count_of_a_list_has_separators_and_a_sign(
    operator: Client, make_job: JobMaker, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    for _ in range(2):
        make_job("dead")
    Pause.objects.create(kind="queue", name="mail")
    shown = str(readonly.ShownCount.of(SimpleNamespace(is_bounded=True), 10_000))
    assert shown == "10,000+" and str(readonly.ShownCount.of(object(), 10_000)) == "10,000"
    monkeypatch.setattr(readonly, "COUNT_LIMIT", 1)
    monkeypatch.setattr(readonly.BoundedPaginator, "count_limit", 12_000)
    for url in (JOBS, DEAD):
        page = " ".join(operator.get(url).content.decode().split())
        assert "> 1+ " in page.partition('class="paginator"')[2][:60] and "1+ result (" in page, url
    assert "1 pause" in " ".join(operator.get("/admin/pgqueue/pause/").content.decode().split())
    Pause.objects.create(kind="queue", name="pdf")
    assert "12,000+: only the first 12,000 rows" in operator.get("/admin/pgqueue/pause/").content.decode()
    settings.USE_THOUSAND_SEPARATOR = True
    assert "> 1 " in " ".join(operator.get(JOBS).content.decode().split()).partition('class="paginator"')[2][:60]


def plans(client: Client, url: str) -> list[str]:
    """Return the plans of all statements on the job table that a page runs, except counts."""
    with CaptureQueriesContext(connection) as captured:
        assert client.get(url).status_code == 200
    found = []
    for query in captured:
        if "pgqueue_job" in query["sql"] and "COUNT(" not in query["sql"]:
            with connection.cursor() as cursor:
                cursor.execute("EXPLAIN " + query["sql"].replace("%", "%%"), [])
                found.append("\n".join(row[0] for row in cursor.fetchall()))
    assert found
    return found


def reads(client: Client, url: str) -> Iterator[list[Any]]:
    """Yield the nodes of the plan of each search for ready jobs that a page runs, with the rows that it read."""
    with CaptureQueriesContext(connection) as captured:
        assert client.get(url).status_code == 200
    for query in captured:
        if "pgqueue:ready_in_lanes" in query["sql"]:
            with connection.cursor() as cursor:
                cursor.execute("EXPLAIN (ANALYZE, FORMAT JSON) " + query["sql"].replace("%", "%%"), [])
                yield list(nodes(cursor.fetchone()[0][0]["Plan"]))


@pytest.mark.usefixtures("many_jobs")
@pytest.mark.parametrize(
    "query",
    [
        "",
        "?state=ready",
        "?state=running",
        "?state=dead",
        "?state=succeeded",
        "?state=ready&queue=queue1",
        "?state=dead&queue=queue1",
        "?state=dead&task=app.task1",
        "?queue=queue1",
        "?task=app.task1",
        "?since=hour",
        "?since=day&task=app.task1",
        "?q=app.task1",
        "?q=17",
    ],
)
def test_list_any_filter_avoids_sequential_scan(operator: Client, query: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readonly, "COUNT_LIMIT", 200)  # the table is as much smaller than a large one
    for plan in plans(operator, JOBS + query):
        assert "Seq Scan on pgqueue_job" not in plan, plan


@pytest.mark.usefixtures("many_jobs")
@pytest.mark.parametrize("query", ["", "?since=hour", "?queue=queue1", "?task=app.task1"])
def test_dead_list_any_filter_uses_an_index(operator: Client, query: str) -> None:
    found = plans(operator, DEAD + query)
    assert not [plan for plan in found if "Seq Scan on pgqueue_job" in plan]
    assert [plan for plan in found if "pgqueue_job_finished" in plan or "pgqueue_job_task" in plan]


@pytest.mark.usefixtures("many_jobs")
def test_stats_of_large_table_return_names_and_first_ids() -> None:
    assert stats.names(connection) == stats.Names(["queue0", "queue1", "queue2"], [f"app.task{n}" for n in range(7)])
    last = stats.last_id(connection)
    assert stats.first_id_since(connection, 3600) == last - 59
    assert stats.first_id_since(connection, 10**9) == last - 19_999
    Job.objects.filter(pk__gt=last - 100, pk__lte=last - 50).delete()
    since = Job.objects.filter(pk__gte=stats.first_id_since(connection, 3600)).order_by("pk")
    assert since.values_list("pk", flat=True)[0] == last - 49


@pytest.mark.django_db
def test_stats_of_empty_table_return_nothing() -> None:
    assert stats.names(connection) == stats.Names([], [])
    assert stats.last_id(connection) == 0
    assert stats.first_id_since(connection, 3600) is None


def test_admin_index_lists_only_models_the_user_may_view(client_of: Callable[..., Client], rf: RequestFactory) -> None:
    page = client_of("view_job").get(reverse("admin:index")).content.decode()
    assert JOBS in page and DEAD in page and WORKERS not in page


# ------------------------------------------------------------------ filters with few matches, and rows with long texts


@pytest.fixture
def old_mail(db: None) -> int:
    """Insert 120,000 succeeded jobs. The oldest 10 are in the queue `mail`, and no index leads to them."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO pgqueue_job (task_name, queue_name, arguments, state, finished_at)"
            " SELECT 'app.t', CASE WHEN n <= 10 THEN 'mail' ELSE 'default' END, '{}', 'succeeded',"
            "  statement_timestamp() - (120000 - n) * interval '1 second'"
            " FROM generate_series(1, 120000) AS n"
        )
        # A sample of all rows. The default sample can miss the 10 jobs, and then PostgreSQL plans for none.
        cursor.execute("SET LOCAL default_statistics_target = 10000")
        cursor.execute("ANALYZE pgqueue_job")
        cursor.execute("SET LOCAL random_page_cost = 1.1")  # as for rows in memory
    return 10


@pytest.mark.promise("defect-filter-shows-nothing")
@pytest.mark.parametrize("query", [{"queue": "mail"}, {"queue": "mail", "state": "succeeded"}])
def test_filter_by_queue_finds_old_jobs(operator: Client, old_mail: int, query: dict[str, str]) -> None:
    response = operator.get(JOBS, query)
    assert len(response.context["cl"].result_list) == old_mail
    assert response.context["cl"].result_count == old_mail
    for plan in plans(operator, f"{JOBS}?{'&'.join(f'{name}={value}' for name, value in query.items())}"):
        assert "Seq Scan on pgqueue_job" not in plan, plan


def test_filter_by_queue_without_match_states_search_range(
    operator: Client, old_mail: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "SEARCHED", 500)
    page = operator.get(JOBS, {"queue": "mail"})
    assert list(page.context["cl"].result_list) == []
    assert "among the newest 1,000 jobs" in page.content.decode()


def test_filter_due_finds_jobs_behind_many_scheduled_ones(operator: Client, make_job: JobMaker) -> None:
    due = [make_job(queue_name="mail", priority=priority) for priority in (0, 5)]
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO pgqueue_job (task_name, queue_name, arguments, run_after)"
            " SELECT 'app.t', 'mail', '{}', now() + interval '1 day' FROM generate_series(1, 2000)"
        )
    assert ids(operator, JOBS, state="due", queue="mail") == [due[1].pk, due[0].pk]
    assert ids(operator, JOBS, state="due") == [due[1].pk, due[0].pk]
    assert ids(operator, JOBS, state="due", queue="other") == []
    scheduled = operator.get(JOBS, {"state": "scheduled"}).context["cl"]
    assert scheduled.result_count == 2000
    assert not {job.pk for job in due} & {job.pk for job in scheduled.result_list}


@pytest.mark.usefixtures("many_jobs")
def test_ready_jobs_of_a_task_read_a_bounded_number_of_rows(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five lanes with 400 jobs each share a bound of 500, so 100 jobs and the next one are read of each."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO pgqueue_job (task_name, queue_name, arguments) "
            "SELECT 'app.many', 'queue' || n % 5, '{}' FROM generate_series(1, 2000) AS n"
        )
    lanes = len(claims.scan_lanes(connection).due_in)
    monkeypatch.setattr(ready_jobs, "READY_SEARCHED", 100 * lanes)
    page = operator.get(JOBS, {"state": "ready", "task": "app.none"})
    assert "No such job among the first 100 jobs of each queue and priority. Other jobs" in page.content.decode()
    read = 0
    for query in reads(operator, f"{JOBS}?state=ready&task=app.none"):
        read += sum(rows_read(node) for node in query if node.get("Index Name") == "pgqueue_job_ready")
    assert 100 * lanes <= read <= 130 * lanes
    monkeypatch.setattr(ready_jobs, "LANES_SEARCHED", 2)
    page = operator.get(JOBS, {"state": "ready", "task": "app.none"})
    assert f"first {50 * lanes} jobs of each of the first 2 queues and priorities" in page.content.decode()


@pytest.mark.parametrize("lookup", ["arguments__icontains", "executions__error__contains", "task_name__regex", "state"])
@pytest.mark.parametrize("url", [DEAD, "/admin/pgqueue/pause/", "/admin/pgqueue/schedule/"])
def test_condition_without_an_index_is_refused(operator: Client, db: None, url: str, lookup: str) -> None:
    assert operator.get(url, {lookup: "x"}).status_code == 400


@pytest.mark.promise("defect-filter-shows-nothing")
def test_list_reads_no_long_text(operator: Client, make_job: JobMaker) -> None:
    """Before the fix, 50 attempts of 5 MB each produced a page of 244 MB."""
    job = make_job("dead")
    for number in range(20):
        add_execution(job, attempt=number, error="e" * 1_000_000, traceback="first\n" + "t" * 1_000_000 + "last words")
    for url, limit in ((JOBS, 50_000), (DEAD, 50_000), (f"{JOBS}{job.pk}/change/", 600_000)):
        page = operator.get(url).content.decode()
        assert len(page) < limit, url
    assert "last words" in page and "(cut)" in page


def test_list_job_with_many_attempts_reads_only_the_last(operator: Client, make_job: JobMaker) -> None:
    job = make_job("dead")
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO pgqueue_execution (job_id, attempt, worker_id, outcome, finished_at, lease_expires_at)"
            " SELECT %s, 1, 1, 'failed', now(), now() FROM generate_series(1, 20000)",
            [job.pk],
        )
        cursor.execute("ANALYZE pgqueue_execution")
    add_execution(job, exception_class="app.Last")
    with CaptureQueriesContext(connection) as captured:
        page = operator.get(JOBS)
    assert "Last" in page.content.decode()
    [statement] = [q["sql"] for q in captured if "latest_execution_id" in q["sql"] and "COUNT(" not in q["sql"]]
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN (ANALYZE, FORMAT JSON) " + statement.replace("%", "%%"), [])
        [[plan]] = cursor.fetchall()
    read = [node for node in nodes(plan[0]["Plan"]) if node.get("Relation Name") == "pgqueue_execution"]
    assert read and all(node["Actual Rows"] * node["Actual Loops"] <= 1 for node in read), read


def test_list_of_jobs_leaves_out_priority_if_all_are_zero(operator, make_job):
    make_job()
    assert b"column-priority" not in operator.get("/admin/pgqueue/job/").content
    make_job(priority=-3)
    text = operator.get("/admin/pgqueue/job/").content.decode()
    assert "column-priority" in text and '<td class="field-priority">-3</td>' in text
