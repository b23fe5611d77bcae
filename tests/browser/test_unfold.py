"""The console with the theme of django-unfold, which has templates and styles of its own for all pages of the admin."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from . import axe, layout
from .chromium import PHONE
from .pages import EVERY, path_of, visit


@pytest.mark.reads_only
@pytest.mark.parametrize("name", EVERY)
def test_page_with_unfold_works(page, name):
    visit(page, name)
    assert layout.too_wide(page) == []
    page.set_viewport_size(PHONE)
    assert layout.too_wide(page) == []
    assert [one for one in axe.findings(page, rules=axe.COLORS) if "pgqueue" in one] == []


def test_operation_with_unfold_changes_the_job(page):
    page.goto(path_of("job, dead"))
    page.get_by_role("button", name="Retry", exact=True).click()
    expect(page.locator(".pgqueue-situation")).to_contain_text("due")


@pytest.mark.reads_only
@pytest.mark.parametrize(
    ("name", "title"), [("job, dead", "deliver #"), ("queue", "Queue mail"), ("overview", "Overview")]
)
def test_page_with_unfold_has_its_title_as_heading(page, name, title):
    heading = visit(page, name).get_by_role("heading", level=1).and_(page.locator(".pgqueue-title"))
    expect(heading).to_contain_text(title)


@pytest.mark.reads_only
def test_filters_with_unfold_cover_the_page_when_open(page):
    visit(page, "jobs")
    page.get_by_text("Filters").locator("visible=true").first.click()  # the summary of other themes is hidden
    filters = page.locator("#changelist-filter")
    box = filters.bounding_box()
    assert (box["x"], box["width"]) == (0, page.viewport_size["width"])
    filters.get_by_role("link", name="scheduled").click()
    expect(page.locator("#result_list tbody tr").first).to_contain_text("scheduled")
