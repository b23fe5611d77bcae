"""The console in other admin sites: one with another name and address, which only operators see."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

from .pages import SOME, path_of, visit

pytestmark = pytest.mark.urls("tests.browser.sites")
ROOT = "/ops/console/"


@pytest.mark.reads_only
@pytest.mark.parametrize("name", SOME)
def test_page_in_custom_site_links_only_to_this_site(page, name):
    visit(page, name, ROOT)
    links = page.locator("#container :is(a[href], form[action])").evaluate_all(
        "all => all.map(one => new URL(one.getAttribute('href') || one.getAttribute('action'), one.baseURI).pathname)"
    )
    assert links
    assert [link for link in links if not link.startswith(ROOT)] == []


def test_operation_in_custom_site_returns_to_this_site(page):
    page.goto(path_of("job, dead", ROOT))
    page.get_by_role("button", name="Retry", exact=True).click()
    expect(page.locator(".messagelist")).to_be_visible()
    assert urlsplit(page.url).path.startswith(ROOT)
