"""Take the screenshots of the docs: `python -m tests.tools.screenshots`, after `bin/setup browser`.

The program fills a database with the night of the browser tests, opens the pages of `SHOTS` in Chromium, and writes
docs/images. The rows are the same in each run; times of day differ, because they are relative to the current time.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final, NamedTuple

import django

IMAGES: Final = Path(__file__).parents[2] / "docs/images"


class Shot(NamedTuple):
    """One screenshot."""

    page: str
    """Name of the page in `tests.browser.pages.PAGES`."""
    theme: str = "light"
    width: int = 1400
    height: int = 900


SHOTS: Final[dict[str, Shot]] = {
    "admin_jobs.png": Shot("jobs"),
    "console_overview.png": Shot("overview", height=1000),
    "console_job.png": Shot("job, dead"),
    "console_limit.png": Shot("limit", height=1040),
    "console_workflow.png": Shot("workflow", height=860),
    "console_queues_phone.png": Shot("queues", width=390, height=844),
    "console_doctor_dark.png": Shot("doctor", theme="dark"),
}


def main() -> None:
    """Take all screenshots, or those that the arguments name."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.browser.settings"
    django.setup()
    from django.db import connection
    from django.test.utils import setup_test_environment

    from tests.browser import chromium, pages, seed
    from tests.browser.server import live_server

    setup_test_environment()
    with live_server() as url, chromium.start() as browser:
        seed.fill(connection)
        for name in sys.argv[1:] or SHOTS:
            shot = SHOTS[name]
            viewport = {"width": shot.width, "height": shot.height}
            user = chromium.administrator()
            context = chromium.logged_in(browser, url, user, viewport=viewport, color_scheme=shot.theme)
            page = context.new_page()
            page.goto(pages.path_of(shot.page))
            page.screenshot(path=IMAGES / name)
            sys.stdout.write(f"{name}\n")


if __name__ == "__main__":
    main()
