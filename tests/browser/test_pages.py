"""Every page of the console works for everyone: by eye, by screen reader, by keyboard, on a phone, without JavaScript.

The fixture `open_context` fails each test in which a page breaks the strict Content-Security-Policy.
"""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from . import axe, layout
from .chromium import PHONE
from .links import crawl, route_of
from .pages import EVERY, FILTERED, PAGES, SOME, WIDE, in_each_check, path_of, visit

pytestmark = pytest.mark.reads_only


@pytest.mark.parametrize("name", EVERY)
def test_page_has_no_serious_accessibility_finding(open_context, name):
    page = open_context(bypass_csp=True).new_page()
    assert axe.findings(visit(page, name)) == []
    page.emulate_media(color_scheme="dark")
    assert axe.findings(page, rules=axe.COLORS) == []


@pytest.mark.parametrize("name", in_each_check(WIDE))
def test_page_fits_desktop_and_phone(open_context, name):
    page = open_context(has_touch=True).new_page()
    visit(page, name)
    assert layout.too_wide(page) == []
    assert layout.broken_words(page) == []
    assert layout.cut_lists(page) == []
    assert layout.covered(page) == []
    page.set_viewport_size(PHONE)
    assert layout.too_wide(page) == []
    assert layout.covered(page) == []


@pytest.mark.parametrize("width", [1400, 1100, 950, PHONE["width"]])
def test_long_names_and_values_of_steps_fit(page, width):
    visit(page, "job, steps")
    cells = ".pgqueue-steps tbody th, .pgqueue-steps td:nth-child(2), .pgqueue-steps pre"
    page.locator(cells).evaluate_all("cells => cells.forEach(cell => { cell.textContent = 'x'.repeat(300); })")
    page.set_viewport_size({"width": width, "height": 900})
    assert layout.too_wide(page) == []


def test_schedule_has_navigation_above_buttons(page):
    visit(page, "schedule")
    assert layout.top_of(page, ".pgqueue-navigation") < layout.top_of(page, ".pgqueue-tools")


@pytest.mark.parametrize("name", ["overview", "doctor"])
def test_navigation_on_phone_is_one_row_with_own_link(open_context, name):
    page = visit(open_context(viewport=PHONE, has_touch=True).new_page(), name)
    links = page.get_by_role("navigation", name="Job queue").get_by_role("link")
    boxes = [link.bounding_box() for link in links.all()]
    assert len({box["y"] for box in boxes}) == 1
    expect(links.and_(page.locator("[aria-current=page]"))).to_be_in_viewport(ratio=1)


@pytest.mark.parametrize("name", FILTERED)
def test_list_on_phone_has_filters_above_rows(open_context, name):
    page = open_context(viewport=PHONE, has_touch=True).new_page()
    visit(page, name)
    assert layout.top_of(page, "#changelist-filter") < layout.top_of(page, "#result_list")


@pytest.mark.parametrize("name", SOME)
def test_page_without_javascript_has_same_controls(open_context, name):
    with_scripts = layout.controls(visit(open_context().new_page(), name))
    assert with_scripts - layout.controls(visit(open_context(java_script_enabled=False).new_page(), name)) == set()


@pytest.mark.parametrize("name", SOME)
def test_page_by_keyboard_shows_focus_in_order(page, name):
    stops = layout.tab_stops(visit(page, name))
    assert stops
    assert [stop for stop in stops if not stop.is_visible] == []
    assert layout.out_of_order(stops) == []


def test_pages_include_every_linked_route(admin_client):
    found = {route for _, route in crawl(admin_client, "/admin/pgqueue/", route_of)}
    assert found <= {route_of(path_of(name)) for name in PAGES}
