"""The graph of a workflow in a browser: zoom, and the way from one failed job to the next."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from django_pgqueue.models import Job

from .pages import visit


def size(page: Page) -> tuple[float, float]:
    """Return the size of the drawing as it is shown."""
    box = page.locator(".pgqueue-graph > svg").bounding_box()
    assert box is not None
    return round(box["width"]), round(box["height"])


def test_graph_zooms_by_buttons_and_keys_within_its_box(page: Page) -> None:
    visit(page, "workflow")
    width, height = size(page)
    frame = page.locator(".pgqueue-graph").bounding_box()
    page.get_by_role("button", name="Zoom in").click()
    assert size(page) == (round(1.25 * width), round(1.25 * height))
    page.locator(".pgqueue-graph").press("-")
    assert size(page) == (width, height)
    page.locator(".pgqueue-graph").press("+")
    expect(page.locator("[data-graph-state]")).to_have_text("125 %")
    page.get_by_role("button", name="Whole graph").click()
    whole = size(page)
    shown = page.locator(".pgqueue-graph").bounding_box()
    assert frame and shown and whole[0] <= shown["width"] and shown["width"] == frame["width"]
    for _ in range(20):
        page.locator(".pgqueue-graph").press("-")
    assert size(page)[0] >= round(0.2 * width) - 1


def test_graph_goes_to_the_next_failed_job_and_retries_from_it(page: Page) -> None:
    dead = Job.objects.get(task_name__endswith="print_invoice")
    visit(page, "workflow")
    page.set_viewport_size({"width": 390, "height": 900})
    box = page.locator(".pgqueue-box-dead")
    for _ in range(3):
        page.get_by_role("button", name="Zoom in").click()
    page.get_by_role("button", name="Next failed job").click()
    expect(page.locator("[data-graph-state]")).to_have_text("1 / 1")
    expect(box).to_be_in_viewport()
    expect(page.locator(".pgqueue-box-chosen")).to_have_count(1)
    expect(page.get_by_role("button", name="Next failed job")).to_be_focused()  # a second press must not open the job
    link = page.get_by_role("link", name=f"print_invoice #{dead.pk}: dead")
    page.locator(".pgqueue-graph").get_by_role("link").first.focus()
    page.keyboard.press("n")
    expect(link).to_be_focused()
    expect(page.locator("[data-graph-state]")).to_have_text("1 / 1")
    page.get_by_role("link", name=f"Retry from #{dead.pk}…", exact=True).click()
    page.get_by_role("button", name="Yes, retry 2 jobs").click()
    expect(page.locator(".messagelist")).to_contain_text("2 jobs are retried.")
    expect(page.locator(".pgqueue-box-dead")).to_have_count(0)


def test_graph_keeps_its_zoom_when_the_page_refreshes_itself(page: Page) -> None:
    visit(page, "workflow")
    page.get_by_role("button", name="Zoom in").click()
    zoomed = size(page)
    page.locator(".pgqueue-graph").evaluate("box => { box.scrollLeft = 40; box.dataset.old = '1'; }")
    page.get_by_label("Refresh").select_option("2")
    page.get_by_label("Refresh").focus()
    expect(page.locator(".pgqueue-graph[data-old]")).to_have_count(0, timeout=15_000)
    expect(page.get_by_role("button", name="Zoom in")).to_be_visible()
    assert size(page) == zoomed
    assert page.locator(".pgqueue-graph").evaluate("box => box.scrollLeft") == 40


def test_graph_without_javascript_scrolls_and_has_no_zoom(open_context) -> None:
    page = visit(open_context(java_script_enabled=False).new_page(), "workflow")
    expect(page.locator("[data-graph-tools]")).to_be_hidden()
    expect(page.locator(".pgqueue-graph > svg")).to_be_visible()
