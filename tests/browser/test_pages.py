"""Every page of the console works for everyone: by eye, by screen reader, by keyboard, on a phone, without JavaScript.

The fixture `open_context` fails each test in which a page breaks the strict Content-Security-Policy.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final

import pytest
from playwright.sync_api import expect

from . import axe, layout
from .chromium import LAPTOP, PHONE
from .links import crawl, route_of
from .pages import EVERY, FILTERED, IN_GERMAN, LISTS, PAGES, SOME, WIDE, in_each_check, path_of, visit

pytestmark = pytest.mark.reads_only
SCROLLBAR: Final = 15
"""The width of a scrollbar in px. The Chromium of the tests has none."""


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
    for size in (page.viewport_size, LAPTOP):
        page.set_viewport_size(size)
        assert layout.too_wide(page) == []
        assert layout.broken_words(page) == []
        assert layout.cut_lists(page) == []
        assert layout.alone(page) == []
        assert layout.covered(page) == []
    page.set_viewport_size(PHONE)
    assert layout.too_wide(page) == []
    assert layout.broken_words(page) == []
    assert layout.alone(page) == []
    assert layout.covered(page) == []


def test_pages_in_german_fit_a_laptop(open_context):
    page = open_context(locale="de", viewport={**LAPTOP, "width": LAPTOP["width"] - SCROLLBAR}).new_page()
    for name in IN_GERMAN:
        visit(page, name)
        assert (layout.too_wide(page), layout.broken_words(page), layout.cut_lists(page)) == ([], [], []), name


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


@pytest.mark.parametrize("name", ["overview", "doctor", "job, dead"])
def test_navigation_on_phone_is_rows_with_own_link(open_context, name):
    page = visit(open_context(viewport=PHONE, has_touch=True).new_page(), name)
    navigation = page.get_by_role("navigation", name="Job queue")
    for row in navigation.get_by_role("list").all():
        assert len({link.bounding_box()["y"] for link in row.get_by_role("link").all()}) == 1
    current = navigation.get_by_role("link").and_(page.locator("[aria-current=page]"))
    expect(current).to_be_in_viewport(ratio=1)


def test_navigation_has_groups_with_their_pages(page):
    groups = visit(page, "overview").locator(".pgqueue-groups").get_by_role("link")
    names = groups.all_inner_texts()
    assert 4 <= len(names) <= 6
    found = set()
    for number in range(len(names)):
        groups.nth(number).click()
        expect(groups.nth(number)).to_have_attribute("aria-current", re.compile("page|true"))
        found.update(page.locator(".pgqueue-pages").get_by_role("link").all_inner_texts())
    assert {"Jobs", "Dead letters", "Queues", "Limits", "Tasks", "Schedules", "Workers", "Doctor", "Audit"} <= found


@pytest.mark.parametrize("width", [LAPTOP["width"], 1920, 800, PHONE["width"]])
def test_tiles_are_in_full_rows_and_important_ones_larger(page, width):
    page.set_viewport_size({"width": width, "height": 900})
    main, others = layout.tiles(visit(page, "overview"))
    assert len(set(main.rows)) == 1 and main.is_full and others.is_full
    assert max(others.rows) - min(others.rows) <= 1
    assert main.size > others.size


@pytest.mark.parametrize("name", ["overview", "overview, day", "overview, week"])
def test_charts_have_ticks_at_round_times_that_fit(page, name):
    page.set_viewport_size(PHONE)
    axes = visit(page, name).locator(".pgqueue-x")
    assert axes.count() >= 3
    for axis in axes.all():
        labels = axis.locator("text")
        texts = labels.all_text_contents()
        assert len(texts) >= 2
        assert [text for text in texts if not re.fullmatch(r"\d\d:(00|15|30|45)|\d{4}-\d\d-\d\d", text)] == []
        boxes = [label.bounding_box() for label in labels.all()]
        assert [left for left, right in pairwise(boxes) if left["x"] + left["width"] > right["x"]] == []


@pytest.mark.parametrize("name", LISTS)
def test_list_on_phone_begins_on_first_screen(open_context, name):
    page = open_context(viewport=PHONE, has_touch=True).new_page()
    visit(page, name)
    assert layout.top_of(page, "#content-main table") <= 500


@pytest.mark.parametrize("name", FILTERED)
def test_list_on_phone_has_filters_behind_a_heading(open_context, name):
    page = open_context(viewport=PHONE, has_touch=True, java_script_enabled=False).new_page()
    filters = visit(page, name).locator("#changelist-filter")
    expect(filters).to_be_hidden()
    page.locator(".pgqueue-filters summary").click()
    expect(filters).to_be_visible()
    assert layout.top_of(page, "#changelist-filter") < layout.top_of(page, "#result_list")


def test_sidebar_counts_on_any_page_and_the_list_refreshes(page):
    visit(page, "workers")
    count = page.locator("#nav-sidebar .pgqueue-count[data-count=due]")
    expect(count).to_have_text(re.compile(r"\d"))
    visit(page, "jobs")
    row = page.locator("#result_list tbody tr").first
    row.evaluate("row => row.setAttribute('data-old', '1')")
    page.keyboard.press("r")
    expect(page.locator("#result_list tr[data-old]")).to_have_count(0)
    page.locator("#result_list input.action-select").first.check()
    expect(page.locator(".action-counter")).to_contain_text("1 of")
    row.evaluate("row => row.setAttribute('data-old', '1')")
    page.locator("#searchbar").evaluate("field => field.blur()")
    page.locator("#content h1").click()
    with page.expect_response(lambda answer: answer.url == page.url):
        page.keyboard.press("r")
    expect(page.locator("#result_list tr[data-old]")).to_have_count(1)  # a chosen row stays


def test_shortcuts_open_list_pages_and_search(page):
    visit(page, "overview")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("j")
    expect(page).to_have_title(re.compile("^Jobs"))
    expect(page.locator("[data-keys-open]")).to_be_visible()  # the script of the new page has run
    page.keyboard.press("/")
    expect(page.locator("#pgqueue-search")).to_be_focused()
    page.keyboard.type("g?q")
    expect(page.locator("#pgqueue-search")).to_have_value("g?q")
    expect(page.get_by_role("dialog")).to_be_hidden()


def test_shortcuts_can_be_turned_off(page):
    visit(page, "overview")
    page.locator("[data-keys-open]").click()
    page.get_by_label("Turn the shortcuts off in this browser").check()
    page.keyboard.press("Escape")
    for _ in range(2):
        page.locator("h1").first.click()
        page.keyboard.press("?")
        expect(page.get_by_role("dialog")).to_be_hidden()
        page.reload()
        expect(page.locator("[data-keys-open]")).to_be_visible()


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
