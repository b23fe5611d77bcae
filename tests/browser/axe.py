"""Run axe-core on a page, and return what it finds serious. `axe-playwright-python` contains the script."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

import axe_playwright_python
from playwright.sync_api import Page

SCRIPT: Final = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()
SERIOUS: Final = {"serious", "critical"}


class Known(NamedTuple):
    """A finding in markup that is not ours: the rule, a part of the selector, and why it is there."""

    rule: str
    selector: str
    reason: str


DJANGO: Final = (
    Known("link-in-text-block", ".breadcrumbs > a", "Django's breadcrumbs are links beside text of a similar color."),
    Known("label-title-only", "#searchbar", "The label of Django's search box is only an image."),
    Known("label", "#id_paused_until_", "Django's fields for a date and a time have no labels of their own."),
)
COLORS: Final = ("color-contrast", "link-in-text-block")
"""The rules that can find more in another color scheme."""
# The fading edge of a table that scrolls is an animation too. It follows the place of the scrollbar, and never ends.
COLORS_ARE_STILL: Final = """() => Promise.all(document.getAnimations()
    .filter(animation => animation.timeline === document.timeline).map(animation => animation.finished))"""


def findings(page: Page, known: tuple[Known, ...] = DJANGO, rules: tuple[str, ...] = ()) -> list[str]:
    """Return the serious and critical findings on a page, as "rule selector: explanation", without the known ones.

    The page's browser context has to bypass the Content-Security-Policy, because axe-core adds a style element.
    """
    if not page.evaluate("typeof axe === 'object'"):
        page.evaluate(SCRIPT)
    page.evaluate(COLORS_ARE_STILL)
    options = {"resultTypes": ["violations"], **({"runOnly": list(rules)} if rules else {})}
    answer: dict[str, Any] = page.evaluate("options => axe.run(document, options)", options)
    found = []
    for violation in answer["violations"]:
        if violation["impact"] not in SERIOUS:
            continue
        for node in violation["nodes"]:
            selector = " ".join(str(part) for part in node["target"])
            if not any(one.rule == violation["id"] and one.selector in selector for one in known):
                found.append(f"{violation['id']} {selector}: {node['failureSummary']}")
    return found
