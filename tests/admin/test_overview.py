"""The overview: its figures, charts, failures and warnings, its JSON, and the figures on the app's index page."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from io import StringIO

import pytest
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_pgqueue import control
from django_pgqueue.db import statements
from django_pgqueue.lifecycle import rollups
from django_pgqueue.models import Execution, Worker
from django_pgqueue.stats import depths
from django_pgqueue.worker.completion.attempt_counter import Tally
from tests import helpers

from .conftest import JobMaker

PAGE, DOCUMENT = "/admin/pgqueue/job/overview/", "/admin/pgqueue/job/overview.json"
INDEX = "/admin/pgqueue/"
PAST = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def half_past_the_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shift the clock of the statements, so that no minute ends during a test."""
    monkeypatch.setattr(statements.clock, "shift_seconds", 30.0 - timezone.now().second)


def count(
    seconds_ago: float, task: str = "shop.charge", error: str = "", runs: list[float] | None = None, **counts: int
) -> None:
    """Write counts as a worker does."""
    tally = Tally(Counter(counts))
    tally.add_times([0.5] * len(runs or []), runs or [])
    names = {"queue_name": "default", "task_name": task, "exception_class": error}
    rollups.append_rollups(connection, [{**names, **tally.columns()}], seconds_ago)


def add_worker(version: str = "1", queues: str = "", minutes: float = 0.0, release: str = "") -> Worker:
    started_at = timezone.now() - timedelta(minutes=minutes)
    columns = {"version": version, "release": release, "queue_names": queues, "started_at": started_at}
    return Worker.objects.create(hostname="vm", pid=7, supervisor_pid=6, concurrency=4, **columns)


def tiles_of(client: Client, url: str = PAGE) -> dict[str, str]:
    text = client.get(url).content.decode()
    found = re.findall(r"<dt>([^<]+)</dt><dd[^>]*>(.*?)</dd>", text)
    return {label: re.sub(r"<[^>]+>", "", value).strip() for label, value in found}


def text_of(client: Client, url: str = PAGE) -> str:
    answer = client.get(url)
    assert answer.status_code == 200
    return answer.content.decode()


def test_tiles_count_the_jobs_in_each_state(operator: Client, make_job: JobMaker) -> None:
    now = timezone.now()
    for minutes in (1, 10):
        make_job(run_after=now - timedelta(minutes=minutes, seconds=60))
    make_job(run_after=now + timedelta(hours=1))
    make_job(run_after=now + timedelta(hours=1), attempt=2)
    make_job("running")
    make_job("dead")
    make_job(queue_name="mail", run_after=PAST)
    control.pause("mail")
    add_worker()
    count(60, succeeded=34)
    tiles = tiles_of(operator)
    assert (tiles["due"], tiles["paused"], tiles["scheduled"], tiles["retrying"]) == ("2", "1", "1", "1")
    assert (tiles["running"], tiles["dead in 24 h"], tiles["workers"]) == ("1", "1", "1")
    assert re.match(r"1[01] min", tiles["oldest due"])
    assert tiles["finished per min"].startswith("34 ") and tiles["slots busy"].endswith(" / 4")
    assert {**tiles_of(operator, INDEX), "oldest due": tiles["oldest due"]} == tiles
    assert not {"waiting", "suspended"} & tiles.keys()
    helpers.make_nodes(connection, needs=[helpers.make_job(connection, task_name="gone")])
    assert tiles_of(operator)["waiting"] == "1 for other jobs"
    helpers.make_suspended_job(connection)
    assert tiles_of(operator)["suspended"] == "1 scheduled or retrying"


def test_tiles_count_held_and_unknown_jobs_apart(operator: Client, make_job: JobMaker) -> None:
    make_job(run_after=PAST, limit_key="nobody")
    later = timezone.now() + timedelta(minutes=5)
    make_job(run_after=later, unknown_since=PAST)
    tiles = tiles_of(operator)
    assert (tiles["due"], tiles["oldest due"], tiles["scheduled"]) == ("0 1 held, in the same list", "–", "0")
    assert tiles["held"] == "1 their limit admits none of them now"
    assert tiles["unknown"] == "1 workers release them"
    text = text_of(operator)
    assert re.search(r'<dt>held</dt><dd><a href="[^"]*/limits/', text)
    assert re.search(r'<dt>unknown</dt><dd[^>]*><a href="[^"]*state=unknown', text)
    assert "1 job waits: no worker is running" in text, "the held job is due"


def test_tiles_of_figures_that_are_not_exact_say_so(
    operator: Client, make_job: JobMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        make_job(run_after=PAST)
    for name in ("COUNT_LIMIT", "ENQUEUED_LIMIT"):
        monkeypatch.setattr(depths, name, 2)
    tiles = tiles_of(operator)
    assert tiles["due"] == "2+" and tiles["finished per min"] == "0 ≈ 3 enqueued"
    assert '<dt>due</dt><dd title="Counting stopped here: there can be more.">' in text_of(operator)


def test_tile_of_running_jobs_names_those_that_wait_for_a_slot(operator: Client, make_job: JobMaker) -> None:
    for _ in range(3):
        make_job("running")
    Execution.objects.update(started_at=None)
    Worker.objects.create(pk=1, hostname="vm", pid=7, version="1", concurrency=1)
    assert tiles_of(operator)["running"] == "1 2 claimed, waiting for a slot"


def test_every_link_of_the_page_leads_to_a_page(operator: Client, make_job: JobMaker) -> None:
    for state in ("ready", "dead", "running"):
        make_job(state)
    add_worker()
    count(120, error="ValueError", runs=[1.0], dead=1)
    links = set(re.findall(r'<a href="(/admin/pgqueue/[^"]+)"', text_of(operator).partition('id="content-main"')[2]))
    links = {link for link in links if "span=" not in link}
    assert len(links) >= 9
    for link in links:
        assert operator.get(link.replace("&amp;", "&")).status_code == 200, link


def test_charts_failures_and_slow_tasks_come_from_the_counts(operator: Client, db: None) -> None:
    count(300, runs=[2.0], succeeded=60)
    count(300, error="shop.CardError", runs=[9.0] * 3, retried=2, dead=1)
    count(5 * 3600, task="shop.old", error="", retried=1, crashed=1)
    text = text_of(operator)
    assert "failed 3, completed 60</title>" in text
    assert re.search(r"shop\.<wbr>CardError<wbr></td><td[^>]*>3</td><td[^>]*>1</td>", text)
    assert "lost with its worker" in text
    assert "/incidents/?task=shop.charge&amp;error=shop.CardError&amp;since=day" in text
    assert "Failures of the past 24 hours" in text
    assert "p50 and p95 are estimates: the true values differ by at most 9.1" in text
    assert re.search(r"charge<wbr></a></th><td>≈ [89]\.. s ", text), "the slowest task has its 95th percentile"
    day = text_of(operator, f"{PAGE}?span=day&figures=1")
    assert "Show as a table" not in day and "Completed per minute" in day
    rows = re.findall(r"<td>(?:(1) h|(\d+) min(?: \d+ s)?)</td><td>([\d.]+)</td><td>[\d.]+</td>", day)
    rates = [float(rate) * (60 if hour else int(minutes)) for hour, minutes, rate in rows]
    assert rates[0] == pytest.approx(60, rel=0.25), "60 successes, in an hour that may not be over"
    assert "Failures of the past 7 days" in text_of(operator, f"{PAGE}?span=week")
    assert text_of(operator, f"{PAGE}?span=%27").count('aria-current="true"') == 1
    assert "?url=1&amp;span=day" in text_of(operator, f"{PAGE}?url=1")


def test_charts_of_waits_and_run_times_show_two_percentiles(operator: Client, db: None) -> None:
    count(300, runs=[1.0] * 9 + [60.0], succeeded=10)
    text = text_of(operator, f"{PAGE}?figures=1")
    for title in ("Wait before the start", "Run time"):
        [summary] = re.findall(rf'aria-label="({title}, [^"]*)"', text)
        assert "p50 at most" in summary and "p95 at most" in summary, title
    [headings] = re.findall(r"the day before</th>(.*?)</tr>", text)
    names = re.findall(r'<th scope="col">([^<]*)</th>', headings)
    assert names == ["Wait p50", "Wait p95", "Run time p50", "Run time p95"]
    [cells] = re.findall(r'<tr><th scope="row"><time [^>]*>[^<]*</time></th>(.*?)</tr>', text)
    values = re.findall(r"<td>([^<]*)</td>", cells)
    assert len(values) == 9 and values[7] != values[8]


def test_new_version_of_the_workers_is_marked(operator: Client, db: None) -> None:
    count(300, succeeded=1)
    add_worker("1.0", minutes=50)
    add_worker("2.0", minutes=20)
    add_worker("2.0", minutes=10)
    text = text_of(operator)
    assert len(set(re.findall(r"<title>([^<]+ version [^<]+)</title>", text))) == 1
    assert "version 2.0" in text and "version 1.0" not in text


def test_new_release_of_the_workers_is_marked_with_its_name(operator: Client, db: None) -> None:
    add_worker("1.0", minutes=30, release="before")
    add_worker("1.0", minutes=10, release="2026-11-30<b>")
    count(300, succeeded=1)
    text = text_of(operator)
    assert "release 2026-11-30&lt;b&gt;" in text and "release before" not in text and "version 1.0" not in text


def test_banners_say_what_is_wrong_and_what_to_do(
    operator: Client, make_job: JobMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_job(queue_name="images", run_after=PAST)
    add_worker(queues="mail", minutes=5)
    monkeypatch.setattr("django_pgqueue.doctor.access_checks.missing_migrations", lambda alias: ["pgqueue.0002_more"])
    text = text_of(operator)
    assert "1 job waits: 1 worker process runs, and none of them serves the queue images." in text
    assert "1 worker is polling" in text
    assert "pgqueue.0002_more" in text and "manage.py migrate" in text


@pytest.mark.pgqueue(STATS=False)
def test_without_statistics_the_page_says_so(operator: Client, make_job: JobMaker) -> None:
    make_job(run_after=PAST)
    text = text_of(operator)
    assert "is off: there are no rates" in text and "pgqueue-activity" not in text
    assert tiles_of(operator)["due"] == "1"


def test_empty_queue_says_how_to_start(operator: Client, db: None) -> None:
    assert "Nothing yet" in text_of(operator) and "manage.py runworker" in text_of(operator)
    add_worker()
    assert "Nothing yet" not in text_of(operator)


def test_missing_table_is_reported_and_breaks_no_page(operator: Client, db: None) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE pgqueue_rollup RENAME TO gone")
    text = text_of(operator)
    assert "The database refused to answer" in text and "pgqueue_rollup" in text
    assert "Job queue" in text_of(operator, INDEX)


def test_document_is_that_of_the_command(operator: Client, make_job: JobMaker) -> None:
    make_job()
    make_job("dead")
    control.pause("mail", reason="down", until=60)
    add_worker()
    output = StringIO()
    call_command("pgqueue", "status", "--json", stdout=output)
    answer = operator.get(DOCUMENT)
    assert answer.headers["Content-Type"] == "application/json"
    found, expected = answer.json(), json.loads(output.getvalue())
    for each in (found, *found["queues"], expected, *expected["queues"]):
        each.pop("oldest_due_seconds")  # it grows
    assert found.pop("read_at") > expected.pop("read_at")
    assert found == expected
    assert {"due", "dead_24h", "slots_busy", "finished_per_minute", "unserved_queues"} <= set(found)


@pytest.mark.parametrize("url", [PAGE, DOCUMENT])
def test_page_and_document_need_the_permission(client_of: Callable[..., Client], client: Client, url: str) -> None:
    assert client.get(url).status_code == 302
    without = client_of("view_worker")
    assert without.get(url).status_code == 403
    assert "pgqueue-tiles" not in text_of(without, INDEX)
    without.logout()


def test_links_to_workers_need_their_permission(client_of: Callable[..., Client], db: None) -> None:
    assert "/admin/pgqueue/worker/" not in text_of(client_of("view_job"))


@pytest.mark.parametrize("url", [PAGE, INDEX])
def test_number_of_queries_does_not_grow(operator: Client, make_job: JobMaker, url: str) -> None:
    make_job()
    make_job("dead")  # dead jobs take one query more, however many they are
    add_worker()
    count(60, succeeded=1)
    operator.get(url)
    with CaptureQueriesContext(connection) as few:
        operator.get(url)
    for number in range(8):
        make_job(queue_name=f"queue{number}", task_name=f"shop.task{number}", priority=number)
        make_job("dead", queue_name=f"queue{number}", task_name=f"shop.task{number}")
        add_worker(f"{number}.0", f"queue{number}")
        count(60 * number, task=f"shop.task{number}", error=f"Error{number}", runs=[1.0], dead=1)
    with CaptureQueriesContext(connection) as many:
        operator.get(url)
    assert len(many) == len(few)
    assert len(few) <= 50
