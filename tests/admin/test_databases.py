"""The admin with jobs in two databases: each page shows one, and its forms change that one."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection, connections
from django.test import Client
from django.utils import timezone

from django_pgqueue.admin import shown
from django_pgqueue.models import AuditEntry, Job, Pause, Schedule, ScheduleRun
from tests.app import tasks

from .conftest import Browser, shown_by
from .test_edit_and_retry import fields_in

JOBS, SCHEDULES, PAUSES = (f"/admin/pgqueue/{model}/" for model in ("job", "schedule", "pause"))
TABLES = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public' AND table_name LIKE 'pgqueue%'"
SECOND = "?database=second"


@pytest.fixture
def second(transactional_db: None) -> Iterator[None]:
    """Provide the alias `second`: a schema of the test database with tables of its own."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA second")
        cursor.execute(TABLES)
        for (table,) in cursor.fetchall():
            cursor.execute(f"CREATE TABLE second.{table} (LIKE public.{table} INCLUDING ALL)")
    own = dict(connections["default"].settings_dict)
    options = {**own["OPTIONS"], "options": "-c search_path=second"}
    connections.settings["second"] = {**connections.settings["default"], **own, "OPTIONS": options}
    connections["second"].connect()  # bypasses Django's guard, which does not know aliases that were added later
    yield
    connections["second"].close()
    del connections["second"]
    del connections.settings["second"]
    with connection.cursor() as cursor:
        cursor.execute("DROP SCHEMA second CASCADE")


@pytest.fixture
def browser(second: None) -> Browser:
    """Return the browser of a superuser. In both databases, the first job has the same id."""
    client = Browser()
    client.force_login(User.objects.create_superuser("root"))
    return client


def make_job(alias: str, **columns: object) -> Job:
    values: dict[str, object] = {"task_name": f"app.of_{alias}", "arguments": {"args": [], "kwargs": {}}, **columns}
    return Job.objects.using(alias).create(state="ready", **values)


def text_of(client: Client, url: str) -> str:
    answer = client.get(url)
    assert answer.status_code == 200, url
    return str(answer.content.decode())


def test_list_shows_the_jobs_of_the_chosen_database(browser: Browser) -> None:
    make_job("default")
    job = make_job("second")
    assert "app.of_default" in text_of(browser, JOBS).replace("<wbr>", "")
    page = text_of(browser, JOBS + SECOND).replace("<wbr>", "")
    assert "app.of_second" in page and "app.of_default" not in page
    assert re.search(f'href="{JOBS}{job.pk}/change/[^"]*[?;]database=second"', page)
    assert f'href="{SECOND}&amp;state=dead"' in page
    found = text_of(browser, f"{JOBS}{SECOND}&task=app.of_second").replace("<wbr>", "")
    assert f"{job.pk}/change/" in found


def test_page_of_a_job_shows_the_chosen_database(browser: Browser) -> None:
    here, there = make_job("default", pk=77), make_job("second", pk=77)
    assert here.task_name in text_of(browser, f"{JOBS}77/change/").replace("<wbr>", "")
    page = text_of(browser, f"{JOBS}77/change/{SECOND}").replace("<wbr>", "")
    assert there.task_name in page and here.task_name not in page
    assert f'action="{JOBS}77/cancel/{SECOND}"' in page


def test_operation_changes_the_job_that_the_page_showed(browser: Browser) -> None:
    for alias in ("default", "second"):
        make_job(alias, pk=77)
    page = browser.get(f"{JOBS}77/change/{SECOND}").content.decode()
    shown = page.partition('name="shown" value="')[2].partition('"')[0]
    answer = browser.post(f"{JOBS}77/cancel/{SECOND}", {"shown": shown})
    assert answer["Location"] == f"{JOBS}77/change/{SECOND}"
    assert Job.objects.using("second").get(pk=77).state == "cancelled"
    assert Job.objects.using("default").get(pk=77).state == "ready"


def test_selected_action_changes_the_jobs_that_the_list_showed(browser: Browser) -> None:
    for alias in ("default", "second"):
        make_job(alias, pk=77)
    browser.post(JOBS + SECOND, {"action": "cancel_selected", "_selected_action": "77"})
    assert Job.objects.using("second").get(pk=77).state == "cancelled"
    assert Job.objects.using("default").get(pk=77).state == "ready"


def test_pause_is_written_to_the_chosen_database(browser: Browser) -> None:
    url = link(browser, PAUSES + SECOND, "pause/add/")
    answer = browser.post(url, {"kind": "queue", "name": "default", "paused_until_0": "", "reason": ""})
    assert answer.url == PAUSES + SECOND
    pause = Pause.objects.using("second").get()
    assert pause.name == "default"
    assert browser.get(f"{PAUSES}{pause.pk}/change/{SECOND}").headers["Location"] == PAUSES + SECOND
    assert not Pause.objects.using("default").exists()


def test_forms_of_jobs_write_to_the_chosen_database(browser: Browser) -> None:
    first = make_job("default")
    job = make_job("second", task_name=tasks.add.name, arguments={"args": [1], "kwargs": {}})
    url = f"{JOBS}{job.pk}/move/{SECOND}"
    seen = {"shown": shown.token(job.pk, shown.as_seen(job))}
    assert f'action="{url}"' in text_of(browser, f"{JOBS}{job.pk}/change/{SECOND}")
    browser.post(url, {**seen, "queue_name": "mail"})
    jobs = Job.objects.using("second")
    jobs.update(state="dead", finished_at=timezone.now())
    url = f"{JOBS}{job.pk}/edit/{SECOND}"
    answer = browser.post(url, {**fields_in(text_of(browser, url)), "argument-a": "5"})
    new = jobs.exclude(pk=job.pk).get()
    assert answer.url == f"{JOBS}{new.pk}/change/{SECOND}"
    assert (new.queue_name, new.arguments["args"]) == ("mail", [5])
    url = f"{JOBS}enqueue/{tasks.add.name}/{SECOND}"
    answer = browser.post(url, {**fields_in(text_of(browser, url)), "argument-a": "5"})
    assert answer.url == f"{JOBS}{jobs.latest('pk').pk}/change/{SECOND}"
    assert list(Job.objects.using("default")) == [first] and jobs.count() == 3
    assert AuditEntry.objects.using("second").count() == 3 and not AuditEntry.objects.exists()


def test_pages_of_schedules_stay_in_the_chosen_database(browser: Browser) -> None:
    for alias, argument in (("default", "of the first"), ("second", "of the second")):
        make_job(alias, pk=77)
        values: dict[str, Any] = {"task_name": tasks.add.name, "expression": "@daily", "next_run_at": timezone.now()}
        values["arguments"] = {"args": [argument], "kwargs": {}}
        schedules = Schedule.objects.using(alias)
        schedules.create(pk=50, name="nightly", origin="admin", last_run_at=timezone.now(), last_job_id=77, **values)
        schedules.create(pk=51, name="hourly", origin="code", **values)
        ScheduleRun.objects.using(alias).create(schedule_id=50, tick_at=timezone.now(), job_id=77)
    page = text_of(browser, f"{SCHEDULES}51/change/{SECOND}")
    assert "of the second" in page and "of the first" not in page
    assert f'href="{JOBS}77/change/{SECOND}"' in text_of(browser, SCHEDULES + SECOND)
    assert f'href="{SCHEDULES}50/change/{SECOND}"' in text_of(browser, f"{JOBS}77/change/{SECOND}")

    url = link(browser, SCHEDULES + SECOND, "schedule/add/")
    form = {"name": "new", "task_name": tasks.add.name, "expression": "@daily", "time_zone": "UTC", "args": "[1]"}
    form |= {"missed": "latest", "if_running": "overlap"}
    assert browser.post(url, form).url == SCHEDULES + SECOND
    assert not Schedule.objects.filter(name="new").exists()
    Schedule.objects.using("second").filter(name="nightly").update(name="renamed")
    assert browser.post(url, {**form, "name": "nightly"}).status_code == 302
    assert Schedule.objects.using("second").filter(name="nightly").exists()

    url = link(browser, f"{SCHEDULES}50/change/{SECOND}", "50/delete/")
    assert "renamed" in text_of(browser, url)
    assert browser.post(url, {"post": "yes"}).url == SCHEDULES + SECOND
    assert not Schedule.objects.using("second").filter(pk=50).exists() and Schedule.objects.filter(pk=50).exists()


def link(client: Client, page: str, url: str) -> str:
    """Return the address of the link of a page whose path ends with `url` and that has parameters."""
    [found] = set(re.findall(rf'href="([^"]*{url}\?[^"]*)"', text_of(client, page)))
    return html.unescape(found)


def test_navigation_switches_between_databases(browser: Browser) -> None:
    page = text_of(browser, JOBS + SECOND)
    assert f'<a href="{JOBS}">default</a>' in page
    assert f'<a href="{JOBS}{SECOND}" aria-current="true">second</a>' in page
    assert f'<a href="/admin/pgqueue/deadjob/{SECOND}">' in page
    assert "“second”" in text_of(browser, f"{JOBS}doctor/{SECOND}")


def test_question_after_a_form_offers_no_switch(browser: Browser) -> None:
    job = make_job("second")
    Job.objects.using("second").update(state="succeeded", finished_at=timezone.now())
    shown = shown_by(browser, f"{JOBS}{job.pk}/change/{SECOND}")
    asked = browser.post(f"{JOBS}{job.pk}/retry/{SECOND}", shown).content.decode()
    assert "has succeeded already" in asked and f'<a href="/admin/pgqueue/deadjob/{SECOND}">' in asked
    assert 'aria-label="Database"' not in asked


def test_unknown_database_is_not_found(browser: Browser) -> None:
    for page in (JOBS, f"{JOBS}doctor/", PAUSES):
        assert browser.get(f"{page}?database=third").status_code == 404
    assert browser.get(f"{SCHEDULES}add/?_changelist_filters=database%3Dthird").status_code == 404


def test_navigation_with_one_database_offers_no_switch(operator: Client) -> None:
    assert "?database=" not in text_of(operator, JOBS)


def test_navigation_links_only_pages_that_the_user_may_see(client_of: Callable[..., Client]) -> None:
    client = client_of("view_job")
    page = text_of(client, JOBS)
    assert f'<a href="{JOBS}doctor/"' in page
    assert '<a href="/admin/pgqueue/schedule/"' not in page.partition("</nav>")[0]
