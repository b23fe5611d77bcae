"""The sidebar, the titles and the breadcrumbs of the console: where one is, and what the other pages count."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_pgqueue.admin.navigation import KEYS, PLACES
from django_pgqueue.admin.sidebar import COUNTS
from django_pgqueue.stats.causes import current

from .conftest import JobMaker

CONSOLE = "/admin/pgqueue/"
SIDEBAR = re.compile(
    r'<tr class="model-\S+( current-model)?">\s*<th scope="row"[^>]*>\s*<a href="[^"]+"[^>]*>(.*?)</a>', re.S
)


def sidebar_of(client: Client, path: str) -> dict[str, tuple[str, bool]]:
    """Return the rows of the app in the sidebar: by label, the count and whether the row is the current one."""
    text = client.get(path if path.startswith("/") else f"{CONSOLE}{path}").content.decode()
    part = text.partition('id="nav-sidebar"')[2].partition('<div class="app-pgqueue')[2].partition("</table>")[0]
    found = {}
    for is_current, label in SIDEBAR.findall(part):
        words = re.sub(r"<[^>]+>", " ", label).split()
        count = words.pop() if words[-1][0].isdigit() else ""
        found[" ".join(words)] = count, bool(is_current)
    return found


@pytest.fixture(autouse=True)
def no_reading() -> None:
    current.forget()


@pytest.mark.parametrize(
    ("path", "label"),
    [
        *(("job/overview/", "Overview"), ("job/", "Jobs"), ("deadjob/", "Dead letters"), ("job/queues/", "Queues")),
        *(("worker/", "Workers"), ("job/doctor/", "Doctor"), ("job/bulk_acts/", "Audit"), ("schedule/", "Schedules")),
    ],
)
def test_sidebar_has_all_pages_and_marks_the_current_one(operator: Client, path: str, label: str) -> None:
    rows = sidebar_of(operator, path)
    assert {"Overview", "Queues", "Incidents", "Tasks", "Limits", "Doctor", "Audit", "Jobs", "Workers"} <= rows.keys()
    assert [name for name, (_, is_current) in rows.items() if is_current] == [label]


def test_sidebar_has_the_counts_of_the_latest_reading(operator: Client, make_job: JobMaker) -> None:
    for _ in range(3):
        make_job(run_after=timezone.now() - timedelta(minutes=1))
    make_job("dead")
    assert sidebar_of(operator, "job/")["Jobs"] == ("", True)  # nobody has counted
    operator.get(f"{CONSOLE}job/overview/")
    rows = sidebar_of(operator, "worker/")
    assert (rows["Jobs"], rows["Dead letters"], rows["Limits"]) == (("3", False), ("1", False), ("", False))
    assert {figure for figure, _ in COUNTS.values()} <= operator.get(f"{CONSOLE}job/overview.json").json().keys()


def test_sidebar_shows_no_old_counts_and_none_without_permission(client_of, make_job, monkeypatch) -> None:
    make_job(run_after=timezone.now() - timedelta(minutes=1))
    client = client_of("view_worker")
    current.current()
    assert "pgqueue-count" not in client.get(f"{CONSOLE}worker/").content.decode()
    assert current.latest() is not None
    monkeypatch.setattr(current, "SHOWN_SECONDS", -1.0)
    assert current.latest() is None


@pytest.mark.parametrize("path", ["worker/", "job/doctor/", "job/bulk_acts/", "pause/"])
def test_sidebar_runs_no_query(operator: Client, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    operator.get(f"{CONSOLE}{path}")
    with CaptureQueriesContext(connection) as captured:
        operator.get(f"{CONSOLE}{path}")
    monkeypatch.setattr("django_pgqueue.admin.navigation.sidebar", lambda *args: [])
    with CaptureQueriesContext(connection) as without:
        operator.get(f"{CONSOLE}{path}")
    assert len(captured) == len(without)


@pytest.mark.parametrize(
    ("path", "trail"),
    [
        ("job/overview/", "Home / Job queue / Overview"),
        ("job/queues/", "Home / Job queue / Queues"),
        ("job/queue/?queue=mail", "Home / Job queue / Queues / Queue mail"),
        ("job/limits/", "Home / Job queue / Queues / Limits"),
        ("job/doctor/", "Home / Job queue / System / Doctor"),
        ("job/incidents/", "Home / Job queue / Jobs / Incidents"),
        ("job/", "Home / Job queue / Jobs"),
    ],
)
def test_breadcrumbs_say_where_one_is(operator: Client, make_job: JobMaker, path: str, trail: str) -> None:
    make_job(queue_name="mail")
    text = operator.get(f"{CONSOLE}{path}").content.decode()
    found = re.search(r'<(ol|div) class="breadcrumbs">(.*?)</\1>', text, re.S)
    assert found
    items = re.sub(r"<[^>]+>", " ", found[2].replace("</li>", " / ")).replace("&rsaquo;", "/")
    assert " ".join(items.split()).removesuffix(" /") == trail


@pytest.mark.parametrize("path", ["job/", "worker/", "schedule/", "job/queues/", "job/overview/"])
def test_each_page_says_as_of_when_and_can_refresh(operator: Client, path: str) -> None:
    text = operator.get(f"{CONSOLE}{path}").content.decode()
    assert re.search(r'id="pgqueue-as-of">As of \d\d:\d\d:\d\d<', text)
    assert "data-live-control" in text and re.search(r'id="[\w-]+"[^>]* data-live', text)


def test_each_page_has_a_key_of_its_own_in_the_list(operator: Client) -> None:
    assert KEYS.keys() == {place.name for place in PLACES}
    assert len(set(KEYS.values())) == len(KEYS) and not {"g", "r"} & set(KEYS.values())
    text = operator.get(f"{CONSOLE}job/").content.decode()
    assert f'<a href="{CONSOLE}job/queues/" data-key="q">Queues</a>' in text and "<kbd>/</kbd>" in text


@pytest.mark.parametrize("path", ["/admin/password_change/", "/admin/auth/user/"])
def test_sidebar_of_other_pages_of_the_admin_has_the_pages(admin_client: Client, path: str) -> None:
    rows = sidebar_of(admin_client, path)
    assert {"Overview", "Queues", "Incidents", "Tasks", "Limits", "Doctor", "Jobs", "Workers"} <= rows.keys()
    assert set(rows.values()) == {("", False)}


def test_sidebar_of_other_pages_has_only_pages_that_the_user_may_see(client_of) -> None:
    rows = sidebar_of(client_of("view_schedule"), "/admin/password_change/")
    assert rows.keys() == {"Schedules"}


def test_breadcrumbs_are_separated_by_spaces(operator: Client) -> None:
    text = operator.get(f"{CONSOLE}job/limits/").content.decode()
    part = re.split("</div>|</ol>", text.partition('class="breadcrumbs">')[2])[0]
    words = " ".join(re.sub(r"<[^>]+>", "", part).replace("&rsaquo;", ">").split())
    sign = " " if '<ol class="breadcrumbs">' in text else " > "  # Django 6.1 draws the sign by its CSS
    assert words == sign.join(["Home", "Job queue", "Queues", "Limits"])
