"""Measure a page as a person perceives it, with functions that run in the browser."""

from __future__ import annotations

from itertools import pairwise
from typing import Final, NamedTuple

from playwright.sync_api import Page

TAB_STOPS: Final = 40
"""How many times Tab is pressed on a page at most."""

TOO_WIDE: Final = """() => {
    const width = document.documentElement.clientWidth;
    if (document.documentElement.scrollWidth <= width && document.body.scrollWidth <= width) return [];
    const scrolls = element => element && (["auto", "scroll", "hidden"].includes(getComputedStyle(element).overflowX)
        || scrolls(element.parentElement));
    return [...document.querySelectorAll("body *")]
        .filter(element => element.getBoundingClientRect().right > width + 1 && !scrolls(element.parentElement))
        .map(element => `${element.tagName.toLowerCase()}.${element.className}`
            + ` ${Math.round(element.getBoundingClientRect().right)}`)
        .concat([`page ${document.documentElement.scrollWidth}`]);
}"""

# A word is broken if one of its characters is on another line than the one before it. A heading in which the browser
# may hyphenate breaks with a hyphen, or not at all.
BROKEN_WORDS: Final = """() => {
    const found = [], range = document.createRange();
    for (const cell of document.querySelectorAll("#content :is(td, th, dt, dd, button)")) {
        const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
        while (walker.nextNode()) {
            const style = getComputedStyle(walker.currentNode.parentElement);
            if (style.hyphens === "auto" && style.overflowWrap === "normal") continue;
            if (!walker.currentNode.parentElement.checkVisibility()) continue;
            for (const word of walker.currentNode.data.matchAll(/[\\p{L}\\p{N}]{2,}/gu)) {
                range.setStart(walker.currentNode, word.index);
                range.setEnd(walker.currentNode, word.index + word[0].length);
                const tops = new Set([...range.getClientRects()].map(box => Math.round(box.top)));
                if (tops.size > 1) found.push(word[0]);
            }
        }
    }
    return found;
}"""

# Lists and tables that are wider than their place, so that the last columns are out of sight.
CUT_LISTS: Final = """() => [...document.querySelectorAll("#content :is(.results, .pgqueue-scroll)")]
    .map(results => results.scrollWidth - results.clientWidth).filter(missing => missing > 1)"""

# Links, buttons and fields with something else at their middle, which then gets the click.
COVERED: Final = """() => [...document.querySelectorAll("#content :is(a, button, input, select, summary)")]
    .filter(element => {
        if (!element.checkVisibility() || element.type === "hidden") return false;
        element.scrollIntoView({block: "center", inline: "center"});
        const box = element.getClientRects()[0];
        const found = box && document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2);
        return !found || !element.contains(found);
    })
    .map(element => `${element.tagName.toLowerCase()} ${(element.innerText || element.value || "").trim()}`)"""

# Rows of links or tiles that have wrapped so that one of them is alone in the last line, without filling it.
ALONE: Final = """() => {
    const lines = boxes => Object.values(Object.groupBy(boxes, box => Math.round(box.top)));
    const found = [];
    for (const row of document.querySelectorAll(".pgqueue-navigation ul, .pgqueue-tiles, .pgqueue-choices")) {
        const rows = lines([...row.children].map(child => child.getBoundingClientRect()));
        const isWide = box => box.width > row.getBoundingClientRect().width * 0.9;
        if (rows.length > 1 && rows.at(-1).length === 1 && !isWide(rows.at(-1)[0])) found.push(row.className);
    }
    return found;
}"""
# How many tiles are in each row, and the size of the text of their figures.
TILES: Final = """() => [...document.querySelectorAll(".pgqueue-tiles")].map(tiles => {
    const boxes = [...tiles.children].map(tile => tile.getBoundingClientRect());
    const rows = Object.values(Object.groupBy(boxes, box => Math.round(box.top)));
    const size = parseFloat(getComputedStyle(tiles.querySelector("dd")).fontSize);
    const width = tiles.getBoundingClientRect().right;
    return [rows.map(row => row.length), rows.every(row => Math.abs(row.at(-1).right - width) < 2), size];
})"""

RECORD_FOCUS: Final = """() => {
    window.stops = [];
    const look = element => {
        const style = getComputedStyle(element), box = element.getBoundingClientRect();
        return [style.outline, style.border, style.boxShadow, style.background, style.color, style.textDecoration,
            Math.round(box.left), Math.round(box.width), style.opacity].join("|");
    };
    const all = [...document.querySelectorAll("*")];
    window.look = look;
    document.addEventListener("focusin", ({target}) => window.stops.push({target, focused: look(target),
        place: all.indexOf(target), name: [target.tagName.toLowerCase(), target.id || target.name || target.className,
            (target.innerText || target.value || "").trim().slice(0, 40)].join(" ")}));
}"""
RECORDED: Final = """() => {
    document.activeElement.blur();
    return window.stops.map(stop => [stop.name, window.look(stop.target) !== stop.focused, stop.place]);
}"""
# The text of what can be activated, without what Django's own scripts add, and without the zoom of a graph.
CONTROLS: Final = """() => [...document.querySelectorAll("#content :is(a, button, input[type=submit], summary)")]
    .filter(element => element.checkVisibility()
        && !element.closest(".datetimeshortcuts, .calendarbox, .clockbox, .actions")
        && !element.closest("[data-graph-tools], [data-keys-open]"))
    .map(element => (element.innerText || element.value || "").trim()
        .replace(/\\d+( (ms|s|min|h|d)\\b)?/g, "0").replace(/0( 0)+/g, "0"))"""


class Stop(NamedTuple):
    """An element that has the focus after a number of presses of Tab."""

    name: str
    is_visible: bool
    """Whether the element looks different from without the focus."""
    place: int
    """Place of the element in the document, from 0."""


def too_wide(page: Page) -> list[str]:
    """Return the elements that make the page scroll sideways. Elements in a box that scrolls itself do not."""
    found: list[str] = page.evaluate(TOO_WIDE)
    return found


def broken_words(page: Page) -> list[str]:
    """Return the words in cells that a line break divides."""
    found: list[str] = page.evaluate(BROKEN_WORDS)
    return found


def cut_lists(page: Page) -> list[int]:
    """Return for each list that does not fit how many pixels of it are out of sight."""
    found: list[int] = page.evaluate(CUT_LISTS)
    return found


def alone(page: Page) -> list[str]:
    """Return the rows of links or tiles that have wrapped so that one of them is alone in its line."""
    found: list[str] = page.evaluate(ALONE)
    return found


class Tiles(NamedTuple):
    """One group of tiles: how many are in each row, whether each row is full, and the size of the figures in px."""

    rows: list[int]
    is_full: bool
    size: float


def tiles(page: Page) -> list[Tiles]:
    """Return the groups of tiles of a page."""
    return [Tiles(*each) for each in page.evaluate(TILES)]


def covered(page: Page) -> list[str]:
    """Return the links, buttons and fields that another element covers."""
    found: list[str] = page.evaluate(COVERED)
    return found


def top_of(page: Page, selector: str) -> float:
    """Return the distance of the first such element from the top of the page."""
    box = page.locator(selector).first.bounding_box()
    assert box, f"{selector} is not visible"
    return float(box["y"])


def controls(page: Page) -> set[str]:
    """Return the text of all links and buttons of the page's content, with 0 for each number and each age."""
    return set(page.evaluate(CONTROLS))


def tab_stops(page: Page) -> list[Stop]:
    """Press Tab `TAB_STOPS` times, and return where the focus stopped, until it left the page."""
    page.evaluate(RECORD_FOCUS)
    for _ in range(TAB_STOPS):
        page.keyboard.press("Tab")
    stops = [Stop(*stop) for stop in page.evaluate(RECORDED)]
    again = [place for place, stop in enumerate(stops) if place and stop == stops[0]]
    return stops[: again[0]] if again else stops


def out_of_order(stops: list[Stop]) -> list[str]:
    """Return the stops that are in the document before the preceding stop, without the page's first, after the last."""
    first = min(stop.place for stop in stops)
    return [after.name for before, after in pairwise(stops) if first != after.place < before.place]
