"""The pages of limits: one row for each limit and for each key, with what runs, what waits, and why."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from html import unescape

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_pgqueue import control, stats
from django_pgqueue.admin.console import limits
from django_pgqueue.admin.job import blocked_keys
from django_pgqueue.models import LimitState, Worker
from django_pgqueue.tasks import registry

from .conftest import JobMaker
from .limits import DOCUMENT, OF_LIMIT, PAGE, Tasks, acts_of, cells_of, declare, plain, rows_of, run, text_of


@pytest.fixture(autouse=True)
def declared(db: None, monkeypatch: pytest.MonkeyPatch) -> Tasks:
    return declare(monkeypatch)


def test_limits_page_shows_figures_and_what_is_admitted(operator: Client, declared: Tasks) -> None:
    for customer in (7, 7, 9):
        declared["import"].enqueue(customer)
    run(declared["render"].enqueue(1))
    rows = rows_of(text_of(operator))
    assert list(rows) == ["import", "render", "stripe"]
    cells = cells_of(rows["import"])
    assert (cells["running"], cells["due"], cells["keys waiting"]) == ("0", "3", "2") and "later" not in cells
    assert cells_of(rows["render"])["running"] == "1 weight 2"
    assert "for each key customer:{a} · one after the other, and a dead job blocks its key" in plain(rows["import"])
    assert "at most 100/m, and 10 at once" in rows["stripe"]
    assert "for each key {a} · at most 2 at a time · each job counts 2 times" in plain(rows["render"])


def test_limit_page_shows_keys_and_what_they_wait_for(operator: Client, declared: Tasks, make_job: JobMaker) -> None:
    dead = make_job("dead", limit_key="import:customer:7", limit_order=2)
    declared["import"].enqueue(7)
    first = declared["import"].enqueue(8)
    run(first)
    declared["import"].enqueue(8)
    declared["import"].enqueue(9)
    declared["import"].using(run_after=timezone.now() + timedelta(hours=2)).enqueue(10)
    rows = rows_of(text_of(operator, OF_LIMIT, limit="import"))
    assert "keys blocked: 1" in plain(rows["import"])
    assert f"#{dead.pk} , died" in plain(rows["customer:7"]).replace(",", " ,") and "blocked" in rows["customer:7"]
    assert f"Job #{first.pk} of the key comes first." in plain(rows["customer:8"])
    assert f'href="/admin/pgqueue/job/{first.pk}/change/"' in rows["customer:8"]
    assert "It waits for a worker." in plain(rows["customer:9"]) and cells_of(rows["customer:9"])["next start"] == "now"
    assert cells_of(rows["customer:10"])["next start"].startswith(("in 2 h", "in 1 h 59 min"))


def test_limit_page_shows_slots_rate_and_hold(operator: Client, declared: Tasks) -> None:
    run(declared["render"].enqueue(1))
    declared["render"].enqueue(1)
    declared["stripe"].enqueue(1)
    now = timezone.now()
    LimitState.objects.create(limit_key="stripe", full_at=now + timedelta(hours=1))
    text = plain(rows_of(text_of(operator, OF_LIMIT, limit="render"))["1"])
    assert "Its running jobs use 2 of 2 slots." in text
    of_rate = rows_of(text_of(operator, OF_LIMIT, limit="stripe"))["all jobs"]
    assert "Its rate is 100/m." in plain(of_rate) and cells_of(of_rate)["next start"].startswith("in ")
    LimitState.objects.create(limit_key="stripe", full_at=now, held_until=now + timedelta(hours=2))
    held = plain(rows_of(text_of(operator, OF_LIMIT, limit="stripe"))["all jobs"])
    assert re.search(r"It is held until [-0-9]+ [:0-9]+, because a task raised Throttled\.", held)


def test_limit_row_has_the_figures_of_its_only_key(
    operator: Client, declared: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job starts between the statements of the limit and of its keys."""
    run(declared["render"].enqueue(1))
    before = stats.limits("default")
    run(declared["render"].enqueue(1))
    monkeypatch.setattr(stats, "limits", lambda alias: before)
    rows = rows_of(text_of(operator, OF_LIMIT, limit="render"))
    assert [cells_of(rows[label])["running"] for label in ("render", "1")] == ["2 weight 4"] * 2


def test_counts_link_to_the_jobs_of_the_key(operator: Client, declared: Tasks) -> None:
    jobs = [declared["import"].enqueue(customer).pk for customer in (7, 7, 70)]
    rows = rows_of(text_of(operator, OF_LIMIT, limit="import"))
    for label, expected in (("customer:7", jobs[:2]), ("import", jobs)):
        [link] = re.findall(r'data-label="due"><a href="([^"]+)"', rows[label])
        listed = operator.get(link.replace("&amp;", "&")).context["cl"].result_list
        assert [job.pk for job in listed] == expected


def test_search_finds_key_without_jobs_and_keys_that_begin_so(operator: Client, declared: Tasks) -> None:
    for customer in (1, 70, 71, 8):
        declared["import"].enqueue(customer)
    for typed in ("customer:7", "import:customer:7", " customer:7 "):
        rows = rows_of(text_of(operator, OF_LIMIT, limit="import", key=typed))
        assert list(rows) == ["import", "customer:7", "customer:70", "customer:71"]
        assert "No job with this key waits or runs." in rows["customer:7"]
    assert list(rows_of(text_of(operator, OF_LIMIT, limit="import", key="customer:71"))) == ["import", "customer:71"]


def test_keys_are_shown_a_page_at_a_time(operator: Client, declared: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "KEYS_SHOWN", 2)
    for customer in range(5):
        declared["render"].enqueue(customer)
    found, url = [], f"{OF_LIMIT}?limit=render"
    while url:
        text = text_of(operator, url)
        found.append(list(rows_of(text))[1:])
        links = re.findall(r'<a href="([^"]+)">Next keys', text)
        url = links[0].replace("&amp;", "&") if links else ""
    assert found == [["0", "1"], ["2", "3"], ["4"]]


def test_pauses_and_overrides_are_shown_with_who_and_why(operator: Client, declared: Tasks) -> None:
    declared["render"].enqueue(1)
    control.pause(limit_key="render:1", by="ada", reason="a <quiet> evening")
    control.override_limit("render", concurrency=5, by="ben", reason="more servers")
    control.override_limit("stripe", rate="60/m", until=timedelta(hours=1))
    text = text_of(operator, OF_LIMIT, limit="render")
    rows = rows_of(text)
    assert re.search(r"ada paused it at [-0-9]+ [:0-9]+\. a &lt;quiet&gt; evening", rows["1"])
    assert "The key or its limit is paused." in rows["1"] and cells_of(rows["1"])["next start"] == ""
    assert "at most 5 at a time" in rows["render"]
    assert re.search(r"changed at [-0-9 :]+ by ben: concurrency 5 instead of 2 \(more servers\)", rows["render"])
    assert "Paused or changed keys" in text and "keys paused: 1" in rows["render"]
    assert re.search(r"until [-0-9 :]+: rate 60/m instead of 100/m", rows_of(text_of(operator))["stripe"])


def test_due_jobs_of_a_paused_key_link_to_the_list_that_has_them(operator: Client, declared: Tasks) -> None:
    for number in (1, 1, 2):
        declared["render"].enqueue(number)
    control.pause(limit_key="render:1")
    rows = rows_of(text_of(operator, OF_LIMIT, limit="render"))
    for name, word, count in (("1", "paused", 2), ("2", "due", 1), ("render", "ready", 3)):
        [url] = re.findall(rf'href="([^"]*state={word}[^"]*)">{count}<', rows[name])
        assert f"{count} job" in text_of(operator, unescape(url)).partition('class="paginator"')[2]
    control.pause(limit_key="render")
    assert "state=paused" in rows_of(text_of(operator, OF_LIMIT, limit="render"))["2"]


def test_list_of_jobs_marks_those_of_paused_keys(operator: Client, declared: Tasks) -> None:
    jobs = [declared[name].enqueue(number) for name, number in (("render", 1), ("render", 2), ("stripe", 3))]
    control.pause(limit_key="render:1")
    control.pause(limit_key="stripe")
    text = text_of(operator, "/admin/pgqueue/job/")
    rows = {job.pk: text.partition(f">#{job.pk}<")[2].partition("</tr>")[0] for job in jobs}
    assert [">paused<" in rows[job.pk] for job in jobs] == [True, False, True]


def test_buttons_depend_on_permissions(make_user: Callable[..., User], operator: Client, declared: Tasks) -> None:
    control.pause(limit_key="stripe")
    control.override_limit("import", share=3)
    now = timezone.now()
    LimitState.objects.create(limit_key="render:1", full_at=now, held_until=now + timedelta(hours=1))
    rows = rows_of(text_of(operator))
    assert acts_of(rows["stripe"]) == {"resume"} and acts_of(rows["import"]) == {"pause"}
    client = Client()
    client.force_login(make_user("view_job", "change_limits", "view_arguments", name="engineer"))
    rows = rows_of(text_of(client))
    assert acts_of(rows["import"]) == {"change", "restore"} and acts_of(rows["stripe"]) == {"change"}
    assert acts_of(rows_of(text_of(client, OF_LIMIT, limit="render", key="1"))["1"]) == {"change", "end_hold"}


def test_job_page_links_its_key_and_the_jobs_that_come_first(operator: Client, declared: Tasks) -> None:
    Worker.objects.create(hostname="h", pid=1, version="", concurrency=1, last_heartbeat_at=timezone.now())
    run(running := declared["render"].enqueue(1))
    _, job = (declared["render"].enqueue(1) for _ in range(2))
    page = text_of(operator, f"/admin/pgqueue/job/{job.pk}/change/")
    reason = page.partition('class="pgqueue-reason"')[2].partition("</p>")[0]
    assert "It waits for a slot of its limit key" in plain(reason) and "waiting for a worker" not in page
    for url in (
        "/admin/pgqueue/job/limit/?limit=render&amp;key=1",
        f"/admin/pgqueue/job/{running.pk}/change/",
        "/admin/pgqueue/job/?state=due&amp;limit=render%3A1",
    ):
        assert f'href="{url}"' in reason
    assert list(rows_of(text_of(operator, OF_LIMIT, limit="render", key="1"))) == ["render", "1"]


def test_limit_without_code_is_marked(operator: Client, make_job: JobMaker) -> None:
    make_job(limit_key="old:1")
    row = rows_of(text_of(operator))["old"]
    assert "without code" in row and "deploy the task again" in row and acts_of(row) == {"pause"}
    assert "No task of this code declares the limit." in rows_of(text_of(operator, OF_LIMIT, limit="old"))["1"]


def test_page_without_limits_says_how_to_begin(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_tasks", {})
    monkeypatch.setattr(registry, "_limits", None)
    assert "Declare a limit with" in text_of(operator)


@pytest.mark.parametrize("name", ["nothing", "", "\0", "x\ud800"])
def test_unknown_limit_is_not_found(operator: Client, name: str) -> None:
    assert operator.get(OF_LIMIT, {"limit": name.encode("utf-8", "replace").decode()}).status_code == 404


def test_document_has_the_figures_of_the_statistics(operator: Client, declared: Tasks) -> None:
    declared["import"].enqueue(7)
    found = operator.get(DOCUMENT).json()["limits"]
    assert [limit["name"] for limit in found] == ["import", "render", "stripe"]
    assert found[0]["due"] == {"value": 1, "is_exact": True}


def test_blocked_keys_of_many_dead_jobs_are_bounded(
    operator: Client, make_job: JobMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocked_keys, "DEAD_SEARCHED", 2)
    monkeypatch.setattr(limits, "DEAD_SEARCHED", 2)
    for customer in (1, 2):
        make_job("dead", limit_key=f"import:customer:{customer}", limit_order=2)
    assert "keys blocked: 2<" in text_of(operator)
    make_job("dead")
    text = text_of(operator, OF_LIMIT, limit="import")
    assert "keys blocked: 2+<" in text or "keys blocked: 1+<" in text
    assert "among the latest 2 dead jobs" in text


def test_pages_run_few_statements_however_many_keys(operator: Client, declared: Tasks) -> None:
    def count(url: str) -> int:
        with CaptureQueriesContext(connection) as captured:
            operator.get(url)
        return len(captured)

    urls = (PAGE, f"{OF_LIMIT}?limit=render", f"{OF_LIMIT}?limit=render&key=1")
    declared["render"].enqueue(1)
    before = [count(url) for url in urls]
    for customer in range(30):
        run(declared["render"].enqueue(customer))
        declared["render"].enqueue(customer)
    assert [count(url) for url in urls] == before
    assert before[0] <= 14 and before[1] <= 24, before
    assert len(stats.limit_keys("render").keys) == 30


def test_columns_of_limits_that_are_zero_everywhere_are_left_out(operator, make_job, monkeypatch):
    declare(monkeypatch)
    text = text_of(operator, PAGE)
    assert "Keys waiting</th>" not in text and 'colspan="4"' in text and "Running</th>" in text
    make_job(task_name="app.render", limit_key="render:1")
    text = text_of(operator, PAGE)
    assert "Keys waiting</th>" in text and "Held keys</th>" not in text and 'colspan="5"' in text
