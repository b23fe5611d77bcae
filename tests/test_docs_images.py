"""The images of the docs: each one exists, is shown, and is taken by `tests.tools.screenshots`."""

import re
from pathlib import Path

from tests.tools.screenshots import IMAGES, SHOTS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def shown():
    return {
        (page.parent / target).resolve()
        for page in PAGES
        for target in re.findall(r"!\[[^\]]*\]\(([^)\s]+)\)|```\{(?:figure|image)\} (\S+)", page.read_text())
        for target in target
        if target and "://" not in target
    }


def test_docs_show_each_screenshot_and_no_other_image():
    images = {IMAGES / name for name in SHOTS}
    assert shown() == images == set(IMAGES.iterdir())
