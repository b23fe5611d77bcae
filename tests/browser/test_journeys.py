"""The journeys of an operator, from the question to the answer or the act, each with and without JavaScript."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from django_pgqueue.models import Job

from . import seed

CONSOLE = "/admin/pgqueue/"


@pytest.fixture(params=["scripts", "no scripts"])
def page(request, open_context):
    """Return an empty page of an administrator, in a browser with or without JavaScript."""
    return open_context(java_script_enabled=request.param == "scripts").new_page()


def follow(page, *names):
    """Click one link after another."""
    for name in names:
        page.locator("#content").get_by_role("link", name=name, exact=True).first.click()


def state_on(page):
    return page.locator(".pgqueue-situation")


def test_operator_retries_job_with_corrected_arguments(page):
    dead = Job.objects.get(task_name=f"{seed.SHOP}.report_day", state="dead")
    page.goto(f"{CONSOLE}deadjob/{dead.pk}/change/")
    follow(page, "Edit and retry")
    page.get_by_label("day").fill("2026-02-28")
    page.get_by_role("button", name="Enqueue as a new job").click()
    new = Job.objects.filter(task_name=dead.task_name, queue_name="default").latest("id")
    assert new.pk != dead.pk and new.arguments["args"] == ["2026-02-28"]
    expect(page.locator("#content")).to_contain_text(f"{new.pk}")
    for job in (dead, new):
        page.goto(f"{CONSOLE}job/{job.pk}/change/")
        expect(page.locator("#content")).to_contain_text("2026-02-30")
        expect(page.locator("#content")).to_contain_text("2026-02-28")
    dead.refresh_from_db()
    assert dead.state == "dead"


def test_operator_sees_jobs_of_second_database(page):
    archived = Job.objects.using("archive").create(
        task_name=f"{seed.SHOP}.report_day", queue_name="archive", arguments={"args": ["2025-12-31"], "kwargs": {}}
    )
    page.goto(f"{CONSOLE}job/")
    expect(page.locator("#result_list")).not_to_contain_text("archive")
    page.get_by_role("navigation", name="Database").get_by_role("link", name="archive").click()
    expect(page.locator("#result_list tbody tr")).to_have_count(1)
    follow(page, f"#{archived.pk}")
    page.get_by_role("button", name="Cancel").click()
    expect(state_on(page)).to_contain_text("cancelled")
    archived.refresh_from_db()
    assert archived.state == "cancelled"
